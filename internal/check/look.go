package check

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
)

// lookTimeout bounds each look. All run at the same time, so a run takes this long at most.
const lookTimeout = 5 * time.Second

// patience is for a look that ends by its deadline and still has to say how far it came.
const patience = 250 * time.Millisecond

// look asks the world for everything at once. Each answer has its own slot.
func look(ctx context.Context, cfg config.Config, w World) Facts {
	var asking sync.WaitGroup
	f := Facts{Nodes: make([]NodeFact, len(cfg.Cluster.Nodes)), Mycats: make([]Mycat, len(cfg.Cluster.Sites)), Instances: blanks(cfg.Cluster)}
	for i, n := range cfg.Cluster.Nodes {
		at := netip.AddrPortFrom(n.Addr, nodePort(cfg, n))
		asking.Go(func() {
			dial := func(ctx context.Context) error { return w.Dial(ctx, at) }
			f.Nodes[i] = NodeFact{Node: n, At: at, Err: ask(ctx, "node "+string(n.Name), dial, same)}
		})
	}
	for i, s := range cfg.Cluster.Sites {
		asking.Go(func() {
			see := func(ctx context.Context) Mycat { return w.Mycat(ctx, s) }
			f.Mycats[i] = ask(ctx, "Mycat "+string(s.Name), see, func(err error) Mycat { return Mycat{SQL: err, Admin: err} })
			f.Mycats[i].Site = s.Name
		})
	}
	for i, in := range f.Instances {
		asking.Go(func() {
			see := func(ctx context.Context) Instance {
				return w.Instance(ctx, cluster.Instance{Shard: in.Shard, Addr: in.Addr})
			}
			seen := ask(ctx, "MySQL "+in.Addr.String(), see, func(err error) Instance { return Instance{Err: err} })
			seen.Site, seen.Shard, seen.Addr = in.Site, in.Shard, in.Addr
			f.Instances[i] = seen
		})
	}
	asking.Go(func() {
		f.Etcd = ask(ctx, "etcd", w.Etcd, func(err error) Etcd { return Etcd{Err: err} })
	})
	asking.Go(func() {
		site, _ := cfg.Site()
		see := func(ctx context.Context) Host { return w.Host(ctx, site.Interface) }
		f.Host = ask(ctx, "this host", see, func(err error) Host { return Host{Errs: []error{err}} })
	})
	asking.Go(func() {
		f.Lint = ask(ctx, "Mycat's files", w.Lint, func(err error) []Finding { return []Finding{mycatFile.at("this host", err.Error())} })
	})
	asking.Wait()
	return f
}

// ask lets one thing be looked at. A look that does not come back by its deadline, against its contract, is left behind with an
// error in its place: one thing that hangs hides nothing else.
func ask[T any](ctx context.Context, what string, see func(context.Context) T, lost func(error) T) T {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("look at %s: no answer within %s", what, lookTimeout))
	defer cancel()
	seen := make(chan T, 1)
	go func() { seen <- see(ctx) }()
	select {
	case x := <-seen:
		return x
	case <-ctx.Done():
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case x := <-seen:
		return x
	case <-late.C:
		return lost(context.Cause(ctx))
	}
}

func same(err error) error { return err }

// blanks is a slot for each instance.
func blanks(c cluster.Cluster) []Instance {
	var slots []Instance
	for _, s := range c.Sites {
		for _, in := range s.Instances {
			slots = append(slots, Instance{Site: s.Name, Shard: in.Shard, Addr: in.Addr})
		}
	}
	return slots
}

// nodePort is a port by which a node is known to answer: any, for a refusal is an answer too.
func nodePort(cfg config.Config, n cluster.Node) uint16 {
	if s, ok := cfg.Cluster.SiteOf(n.Name); ok {
		return s.Mycat.SQL.Port()
	}
	if e := cfg.Etcd.Embedded; e != nil {
		return e.ClientPort
	}
	return cfg.Cluster.VIP.Port
}
