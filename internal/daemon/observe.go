package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/baton-ha/baton/detector"
	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
)

// observer starts the detector of this node.
func (n *node) observer(ctx context.Context, g *errgroup.Group) error {
	p := &prover{kv: n.kv, key: n.store.Keys.Assignment(), every: n.cfg.Profile.Interval / 2}
	d, err := detector.New(detector.Config{
		Cluster: n.cfg.Cluster, Profile: n.cfg.Profile, Node: n.cfg.Node, Rule: n.cfg.Detection.Rule, Scope: health.Scope(n.cfg.Detection.Scope),
		MySQLFailures: n.cfg.Detection.MySQLFailures, Stall: stall(n.cfg.Profile), Anchors: n.anchors(), Probe: probeConfig(n.cfg),
		Situation: func() detector.Situation { return n.situation(p) }, Publish: n.publish, Log: n.log,
	})
	if err != nil {
		return err
	}
	g.Go(func() error { return p.Run(ctx) })
	g.Go(func() error {
		if err := d.Run(ctx); ctx.Err() == nil {
			return fmt.Errorf("detector: %w", err)
		}
		return nil
	})
	return nil
}

func stall(p cluster.Profile) time.Duration {
	if p.Grace == 0 {
		return health.StallFast
	}
	return health.StallSteady
}

func probeConfig(cfg config.Config) probe.Config {
	c := probe.Config{
		MySQL:    probe.Account{User: cfg.MySQL.Probe.User, Password: cfg.MySQL.Probe.Password.Reveal()},
		Mycat:    probe.Account{User: cfg.Mycat.User, Password: cfg.Mycat.Password.Reveal()},
		Business: map[cluster.ShardName][]probe.Statement{},
	}
	for _, b := range cfg.Business {
		c.Business[b.Shard] = append(c.Business[b.Shard], probe.Statement{SQL: b.SQL, Want: b.Expect})
	}
	return c
}

// situation is what this node knows of the cluster, for the detector. The assignment counts as read when the newest linearizable read
// showed the same one that the mirror has: only then may a heartbeat be written (PROTOCOL 6).
func (n *node) situation(p *prover) detector.Situation {
	st := n.pump.state()
	if st == nil {
		return detector.Situation{}
	}
	s := detector.Situation{Assignment: st.Assignment.Value, Holder: st.Holder.Value, Renewed: st.Holder.Received, Nonce: st.Nonce.Value}
	if seen := p.seen.Load(); seen != nil && seen.mod == st.Assignment.Mod {
		s.ReadAt = seen.sent
	}
	return s
}

func (n *node) publish(ctx context.Context, r health.Report) error {
	r.Node = n.cfg.Node
	_, err := n.store.Do(ctx, "publish report", nil, dcs.Doc(n.store.Keys.Observer(n.cfg.Node), r))
	return err
}

// prover reads the assignment's revision linearizably again and again: a watch alone could show a world that has moved on.
type prover struct {
	kv    dcs.KV
	key   string
	every time.Duration
	seen  atomic.Pointer[proof]
}

type proof struct {
	mod  int64
	sent time.Time
}

func (p *prover) Run(ctx context.Context) error {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		sent := time.Now()
		txn, cancel := context.WithTimeoutCause(ctx, 4*p.every, errors.New("a read of the assignment took too long"))
		r, err := p.kv.Txn(txn, nil, []dcs.Op{{Kind: dcs.Get, Key: p.key}}, nil)
		cancel()
		if err == nil {
			pr := &proof{sent: sent}
			if len(r.Reads) > 0 && len(r.Reads[0]) > 0 {
				pr.mod = r.Reads[0][0].Mod
			}
			p.seen.Store(pr)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// anchors are this node's own link checks: the other nodes, the gateway and what the configuration names.
func (n *node) anchors() []detector.Anchor {
	var out []detector.Anchor
	for _, nd := range n.cfg.Cluster.Nodes {
		if nd.Name != n.cfg.Node {
			out = append(out, anchor(string(nd.Name), nd.Addr, 2380))
		}
	}
	if gw := n.cfg.Cluster.VIP.Gateway; gw.IsValid() {
		out = append(out, anchor("gateway", gw, 9))
	}
	for _, a := range n.cfg.Anchors {
		out = append(out, anchor(a.String(), a, 9))
	}
	return out
}

// anchor is reached when it answers a SYN in any way: a refused connection has come a long way too.
func anchor(name string, addr netip.Addr, port uint16) detector.Anchor {
	return detector.Anchor{Name: name, Check: func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(addr.String(), strconv.Itoa(int(port))))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
		if err != nil {
			return err
		}
		return c.Close()
	}}
}
