package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/switcher"
)

// looker reads the status of every MySQL over kept connections, all side by side. It is used by one goroutine.
type looker struct {
	cfg   config.Config
	conns map[netip.AddrPort]*mysql.Conn
}

func newLooker(cfg config.Config) *looker {
	return &looker{cfg: cfg, conns: map[netip.AddrPort]*mysql.Conn{}}
}

// lookTimeout bounds one instance's answer. A healthy one answers in milliseconds; one that hangs must not make the others stale.
const lookTimeout = 600 * time.Millisecond

// Look implements switcher.Looker.
func (l *looker) Look(ctx context.Context, a cluster.Assignment, sync map[cluster.ShardName]cluster.SyncState) switcher.Readiness {
	r := switcher.Judge(l.cfg.Cluster, a, sync, l.All(ctx), time.Now())
	r.RTO = time.Duration(l.cfg.Detection.Rule.Failures)*l.cfg.Profile.ConfirmEvery + 100*time.Millisecond
	return r
}

// All reads every instance, in the order of the configuration.
func (l *looker) All(ctx context.Context) []switcher.Seen {
	var targets []switcher.Seen
	var addrs []netip.AddrPort
	for _, site := range l.cfg.Cluster.Sites {
		for _, in := range site.Instances {
			targets = append(targets, switcher.Seen{Instance: switcher.Instance{Site: site.Name, Shard: in.Shard, Addr: in.Addr.String()}})
			addrs = append(addrs, in.Addr)
		}
	}
	found := make([]*mysql.Conn, len(targets))
	var wg sync.WaitGroup
	for i := range targets {
		conn := l.conns[addrs[i]]
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errors.New("no answer within 600 ms"))
			defer cancel()
			found[i] = l.one(ctx, conn, addrs[i], &targets[i])
		})
	}
	wg.Wait()
	for i, addr := range addrs {
		l.conns[addr] = found[i]
	}
	return targets
}

// one reads an instance over its kept connection, or a new one; a connection that failed is not kept.
func (l *looker) one(ctx context.Context, conn *mysql.Conn, addr netip.AddrPort, out *switcher.Seen) *mysql.Conn {
	for {
		kept := conn != nil
		if !kept {
			var err error
			if conn, err = serverOf(l.cfg, addr).Connect(ctx); err != nil {
				out.Err, out.Role = brief(ctx, err), "unreachable"
				return nil
			}
		}
		st, err := conn.Status(ctx)
		if err == nil {
			describe(out, st)
			return conn
		}
		conn.Close()
		conn = nil
		if !kept || ctx.Err() != nil {
			out.Err, out.Role = brief(ctx, err), "unreachable"
			return nil
		}
	}
}

func brief(ctx context.Context, err error) string {
	cause, number := mysql.Classify(ctx, err)
	if number != 0 {
		return fmt.Sprintf("%s (%d): %v", cause, number, err)
	}
	return fmt.Sprintf("%s: %v", cause, err)
}

func describe(out *switcher.Seen, st mysql.Status) {
	out.Version = string(st.Family) + " " + st.Version
	out.ReadOnly = st.ReadOnly || st.SuperReadOnly
	out.Executed = st.Executed.String()
	out.SourceOn, out.Clients, out.LosslessSet = st.SemiSync.SourceOn, st.SemiSync.Clients, st.SemiSync.Lossless()
	out.SemiSync = "off"
	switch {
	case st.SemiSync.SourceOn:
		out.SemiSync = fmt.Sprintf("on, %d replicas", st.SemiSync.Clients)
	case st.SemiSync.ReplicaOn:
		out.SemiSync = "replica"
	}
	out.Role = "standalone"
	if !out.ReadOnly {
		out.Role = "writable"
	}
	if r := st.Replica; r != nil {
		out.Replicates = true
		out.IORunning, out.SQLRunning, out.SQLError = r.IORunning, r.SQLRunning, r.SQLError
		out.Source = r.Source.String()
		if r.Lag != nil {
			out.Lag = *r.Lag
		}
		if out.ReadOnly {
			out.Role = "replica"
		}
	}
}

// serverOf says how to reach an instance with the admin account.
func serverOf(cfg config.Config, addr netip.AddrPort) mysql.Server {
	return mysql.Server{
		Addr: addr, Account: mysql.Account{User: cfg.MySQL.Admin.User, Password: cfg.MySQL.Admin.Password.Reveal()}, Timeout: lookTimeout,
	}
}
