package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/gtid"
	"github.com/baton-ha/baton/switcher"
)

// looker reads the status of every MySQL over kept connections, all side by side. It is used by one goroutine.
type looker struct {
	cfg    config.Config
	conns  map[netip.AddrPort]*mysql.Conn
	states map[netip.AddrPort]mysql.Status // of the newest look; those that did not answer are not in it
	errant map[netip.AddrPort]string       // as it was found when standby and active instance answered last
}

func newLooker(cfg config.Config) *looker {
	return &looker{cfg: cfg, conns: map[netip.AddrPort]*mysql.Conn{}, states: map[netip.AddrPort]mysql.Status{}, errant: map[netip.AddrPort]string{}}
}

// lookTimeout bounds one instance's answer. A healthy one answers in milliseconds; one that hangs must not make the others stale.
const lookTimeout = 600 * time.Millisecond

// Look implements switcher.Looker.
func (l *looker) Look(ctx context.Context, a cluster.Assignment, sync map[cluster.ShardName]cluster.SyncState) switcher.Readiness {
	seen := l.All(ctx)
	l.errants(ctx, a, seen)
	r := switcher.Judge(l.cfg.Cluster, a, sync, seen, time.Now())
	r.RTO = time.Duration(l.cfg.Detection.Rule.Failures)*l.cfg.Profile.ConfirmEvery + 100*time.Millisecond
	return r
}

// errants fills in what each standby has executed and the active instance of its shard has not. What the standby has received since the
// active one was read would look errant, so that one is read again when it does. While the active one does not answer, what was found last
// holds: a failover must not forget it.
func (l *looker) errants(ctx context.Context, a cluster.Assignment, seen []switcher.Seen) {
	for i, s := range seen {
		home := a.Shards[s.Shard]
		if home == "" {
			home = a.Site
		}
		if s.Site == home || home == "" || s.Err != "" {
			continue
		}
		site, _ := l.cfg.Cluster.Site(home)
		active, _ := site.Instance(s.Shard)
		mine, _ := l.cfg.Cluster.Site(s.Site)
		in, _ := mine.Instance(s.Shard)
		for range 2 {
			has, read := l.states[active.Addr]
			if !read {
				break
			}
			l.errant[in.Addr] = errant(l.states[in.Addr], has)
			if l.errant[in.Addr] == "" || !l.again(ctx, active.Addr) {
				break
			}
		}
		seen[i].Errant = l.errant[in.Addr]
	}
}

// errant is what a standby has executed and the active instance has not. What the active one has numbered itself is not errant: it crashed
// and came back without it, and then the standby is the one to go on with.
func errant(standby, active mysql.Status) string {
	return gtid.Errant(standby.BinlogState, active.BinlogState).Without(active.ServerID, active.UUID).String()
}

// again reads an instance once more.
func (l *looker) again(ctx context.Context, addr netip.AddrPort) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errors.New("no answer within 600 ms"))
	defer cancel()
	var s switcher.Seen
	conn, st := l.one(ctx, l.conns[addr], addr, &s)
	l.conns[addr] = conn
	if conn == nil {
		delete(l.states, addr)
		return false
	}
	l.states[addr] = st
	return true
}

// Rest implements switcher.Looker.
func (l *looker) Rest() {
	for addr, c := range l.conns {
		if c != nil {
			c.Close()
		}
		delete(l.conns, addr)
	}
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
	states := make([]mysql.Status, len(targets))
	var wg sync.WaitGroup
	for i := range targets {
		conn := l.conns[addrs[i]]
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errors.New("no answer within 600 ms"))
			defer cancel()
			found[i], states[i] = l.one(ctx, conn, addrs[i], &targets[i])
		})
	}
	wg.Wait()
	l.states = map[netip.AddrPort]mysql.Status{}
	for i, addr := range addrs {
		if l.conns[addr] = found[i]; found[i] != nil {
			l.states[addr] = states[i]
		}
	}
	return targets
}

// one reads an instance over its kept connection, or a new one; a connection that failed is not kept.
func (l *looker) one(ctx context.Context, conn *mysql.Conn, addr netip.AddrPort, out *switcher.Seen) (*mysql.Conn, mysql.Status) {
	for {
		kept := conn != nil
		if !kept {
			var err error
			if conn, err = serverOf(l.cfg, addr).Connect(ctx); err != nil {
				out.Err, out.Role = brief(ctx, err), "unreachable"
				return nil, mysql.Status{}
			}
		}
		st, err := conn.Status(ctx)
		if err == nil {
			describe(out, st)
			return conn, st
		}
		conn.Close()
		conn = nil
		if !kept || ctx.Err() != nil {
			out.Err, out.Role = brief(ctx, err), "unreachable"
			return nil, mysql.Status{}
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
		out.Lag, out.Stopped = r.Lag, stopped(r)
		if out.ReadOnly {
			out.Role = "replica"
		}
	}
}

// stopped names the threads of a replica that do not run; empty: both do.
func stopped(r *mysql.Replica) string {
	var out []string
	if r.IORunning != "Yes" {
		out = append(out, "receiver "+r.IORunning)
	}
	if r.SQLRunning != "Yes" {
		out = append(out, "applier "+r.SQLRunning)
	}
	return strings.Join(out, ", ")
}

// serverOf says how to reach an instance with the admin account.
func serverOf(cfg config.Config, addr netip.AddrPort) mysql.Server {
	return mysql.Server{
		Addr: addr, Account: mysql.Account{User: cfg.MySQL.Admin.User, Password: cfg.MySQL.Admin.Password.Reveal()}, Timeout: lookTimeout,
	}
}
