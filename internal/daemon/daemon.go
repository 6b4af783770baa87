// Package daemon wires one node together: embedded etcd, mirror, detector, executor, controller, and the guard where the node is a
// Mycat host. It holds no rule of its own.
package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/dcs/member"
	"github.com/baton-ha/baton/internal/guard"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher"
	"github.com/baton-ha/baton/switcher/policy"
	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/gate"
)

// node is one running daemon.
type node struct {
	cfg    config.Config
	log    *slog.Logger
	terms  lease.Terms
	kv     *dcs.Etcd
	store  *dcs.Store
	pump   *pump
	member *member.Member
	data   *databases
}

// Run is `baton run`: it returns when ctx ends, when a newer daemon of this host has taken over (guard.ErrReplaced), or when a part
// cannot go on. It hands nothing over at its end: the address stays served until the lease ends unless a successor takes it up. The
// guard renews to the last, after all else has ended, so that the successor has nearly the whole lease to come up.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	lock, err := single(ctx, cfg.StateDir, log)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the kernel drops the lock with the process
	n := &node{cfg: cfg, log: log, terms: lease.Terms{D: cfg.Profile.Lease, Margin: cfg.Profile.Margin}, data: newDatabases(cfg)}
	if n.kv, err = Connect(cfg, log); err != nil {
		return err
	}
	defer n.kv.Close() //nolint:errcheck // nothing is in flight any more
	n.store = dcs.NewStore(n.kv, cfg.Cluster.Name)
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: n.kv, Prefix: n.store.Keys.Prefix(), Silence: silence(cfg.Profile), Log: log})
	n.pump = &pump{mirror: mirror, dec: dcs.NewDecoder(n.store.Keys)}

	g, ctx := errgroup.WithContext(ctx)
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	late, last := errgroup.WithContext(last)
	if err := n.assemble(ctx, g, last, late); err != nil {
		return errors.Join(err, stop(g))
	}
	late.Go(func() error {
		_ = mirror.Run(last) // it ends with last, whose cause is told by whoever ended it; a plain SIGTERM is no error
		return nil
	})
	late.Go(func() error { return n.pump.Run(last) })
	g.Go(func() error { // a part that ends late ends the others too
		select {
		case <-ctx.Done():
			return nil
		case <-last.Done():
			return context.Cause(last)
		}
	})
	err = g.Wait()
	end()
	return errors.Join(err, late.Wait())
}

// errStop ends the parts that were started before one could not be prepared.
var errStop = errors.New("daemon: another part could not be prepared")

func stop(g *errgroup.Group) error {
	g.Go(func() error { return errStop })
	if err := g.Wait(); !errors.Is(err, errStop) {
		return err
	}
	return nil
}

// silence is when a watch without a message is opened elsewhere: the lock's pulse and the holder's renewals come far more often.
func silence(p cluster.Profile) time.Duration { return max(p.Lease/10*2, p.LockPulse) }

// assemble prepares every part of this node and starts it: in g what ends at once, in late what the lease needs.
func (n *node) assemble(ctx context.Context, g *errgroup.Group, last context.Context, late *errgroup.Group) error {
	if n.cfg.IsMember() {
		n.member = newMember(n.cfg, n.log)
		g.Go(func() error { return n.member.Run(ctx, func() { n.log.Info("etcd member ready") }) })
	}
	exec := guard.NewExecutor(guard.ExecutorConfig{
		Cluster: n.cfg.Cluster, Node: n.cfg.Node, Keys: n.store.Keys, Store: n.store, Databases: n.data, Fresh: n.terms.D, Log: n.log,
	})
	n.pump.to = append(n.pump.to, exec.Observe, n.ahead(ctx))
	g.Go(func() error { return exec.Run(ctx) })
	v := newVerifier(n.cfg)
	g.Go(func() error {
		v.learn(ctx)
		return nil
	})
	look := &onlooker{
		look: v.Verify, store: n.store, keys: n.store.Keys, node: n.cfg.Node, log: n.log, states: make(chan dcs.State, 1),
	}
	n.pump.to = append(n.pump.to, look.observe)
	g.Go(func() error { return look.Run(ctx) })
	if err := n.observer(ctx, g); err != nil {
		return err
	}
	sw := switcher.New(switcher.Config{
		Cluster: n.cfg.Cluster, Profile: n.cfg.Profile, Node: n.cfg.Node, Mode: n.cfg.Mode, Limits: n.cfg.Limits(), Terms: n.terms,
		Keys: n.store.Keys, Store: n.store, Looker: newLooker(n.cfg), Log: n.log,
	})
	n.pump.to = append(n.pump.to, sw.Observe)
	g.Go(func() error { return sw.Run(ctx) })
	if n.member != nil {
		g.Go(func() error { return n.leader(ctx) })
	}
	site, ok := n.cfg.Site()
	if !ok || n.cfg.Mode == policy.Observe {
		return nil
	}
	return n.guard(last, late, site)
}

// guard starts the guard of a Mycat host.
func (n *node) guard(ctx context.Context, g *errgroup.Group, site cluster.Site) error {
	if err := inSubnet(n.cfg.Cluster.VIP.Addr, site.Interface); err != nil {
		return err
	}
	if _, err := gate.Probe(ctx); err != nil {
		return fmt.Errorf("this host cannot gate the VIP, so it cannot be let serve: %w", err)
	}
	ifaces, err := gated()
	if err != nil {
		return err
	}
	kg, err := gate.New(gate.Config{VIP: n.cfg.Cluster.VIP.Addr, Interfaces: ifaces, StateDir: n.cfg.StateDir, Log: n.log})
	if err != nil {
		return err
	}
	w, err := newWire(ctx, n.cfg.Cluster.VIP, site.Interface, func() bool { return kg.Word().Open(gate.Now()) }, n.log)
	if err != nil {
		return err
	}
	addr, err := vip.NewAddress(vip.AddressConfig{VIP: n.cfg.Cluster.VIP.Addr, Interface: site.Interface, Log: n.log})
	if err != nil {
		return fmt.Errorf("prepare the VIP's address: %w", err)
	}
	binder, err := newBinder(n.cfg, site, addr, n.log)
	if err != nil {
		return err
	}
	moved := make(chan struct{}, 1)
	g.Go(func() error {
		watchAddress(ctx, addr, moved, w.announcer.Kick, n.log)
		return nil
	})
	mem, err := openMemory(n.cfg.StateDir)
	if err != nil {
		return err
	}
	gd := guard.New(guard.Config{
		Site: site.Name, Node: n.cfg.Node, Incarnation: rand.Text(), Level: cluster.GateEBPF, Terms: n.terms, Keys: n.store.Keys,
		Store: n.store, Gate: newKernelGate(kg, gated, ifaces), Binder: binder, Wire: w, Data: selfFence{n.data, n.cfg.Cluster, site}, Memory: mem,
		Now: func() lease.Boot { return lease.Boot(gate.Now()) }, Moved: moved, Log: n.log,
	})
	n.pump.to = append(n.pump.to, gd.Observe)
	g.Go(func() error { return gd.Run(ctx) })
	return nil
}

// Connect returns a client of the cluster's etcd, the own member first. It dials when it is used.
func Connect(cfg config.Config, log *slog.Logger) (*dcs.Etcd, error) {
	tls, err := clientTLS(cfg.Etcd.TLS)
	if err != nil {
		return nil, err
	}
	return dcs.NewEtcd(dcs.Config{Endpoints: cfg.Etcd.Endpoints, TLS: tls, AttemptTimeout: cfg.Profile.Lease / 8, Log: log})
}

func newMember(cfg config.Config, log *slog.Logger) *member.Member {
	e := cfg.Etcd.Embedded
	peers := map[string]string{}
	for _, name := range e.Members {
		for _, nd := range cfg.Cluster.Nodes {
			if nd.Name == name {
				peers[string(name)] = net.JoinHostPort(nd.Addr.String(), strconv.Itoa(int(e.PeerPort)))
			}
		}
	}
	self := cfg.Self().Addr.String()
	tls := member.TLS{Cert: cfg.Etcd.TLS.Cert, Key: cfg.Etcd.TLS.Key, CA: cfg.Etcd.TLS.CA}
	return member.New(member.Config{
		Name: string(cfg.Node), Dir: filepath.Clean(e.Dir), ClientAddr: net.JoinHostPort(self, strconv.Itoa(int(e.ClientPort))),
		PeerAddr: net.JoinHostPort(self, strconv.Itoa(int(e.PeerPort))), Cluster: peers, Token: cfg.Cluster.Name,
		TickMS: uint(cfg.Etcd.Heartbeat.Milliseconds()), ElectionMS: uint(cfg.Etcd.Election.Milliseconds()), ClientTLS: tls, PeerTLS: tls, Log: log,
	})
}

// leader keeps etcd's leader off the active Mycat host where it can: a host that vanishes then takes the VIP along, and not the
// leader, whose election would be added to the outage.
func (n *node) leader(ctx context.Context) error {
	tick := time.NewTicker(n.cfg.Profile.LockPulse)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		st := n.pump.state()
		site, ok := n.cfg.Site()
		if st == nil || !ok || !settled(*st, site.Name) || !n.member.LeaderIs() {
			continue
		}
		for _, name := range n.cfg.Etcd.Embedded.Members {
			rep := st.Reports[name]
			if name == n.cfg.Node || rep.Mod == 0 || time.Since(rep.Received) > 4*n.cfg.Profile.Interval {
				continue
			}
			if other, isSite := n.cfg.Cluster.SiteOf(name); isSite && other.Name == site.Name {
				continue
			}
			err := n.member.MoveLeader(ctx, string(name))
			n.log.Info("etcd's leader moves off the active host", slog.String("node", string(name)), slog.Any("err", err))
			break
		}
	}
}

// settled says whether the site serves and no switch is under way: an election in the middle of one would be added to the outage.
func settled(st dcs.State, site cluster.SiteName) bool {
	for _, d := range st.Switches {
		if d.Plan.Mod != 0 && d.Summary.Mod == 0 {
			return false
		}
	}
	a := st.Assignment
	return a.Value.Serves(site) && time.Since(a.Received) > 3*time.Second
}

// watchAddress tells the guard when the address comes or goes without it: a dying keepalived takes it along, one that starts its child
// anew binds it for ever, an operator or a network manager takes it off. The guard notices within a renewal; this saves that time.
// And it has the VIP announced again at once when the link came up or has another MAC: neighbours and switches have lost it then.
// A watch that breaks is begun anew: the guard does without meanwhile.
func watchAddress(ctx context.Context, addr watched, moved chan<- struct{}, announce func(), log *slog.Logger) {
	var last vip.AddressEvent
	tick := time.NewTicker(watchAgain)
	defer tick.Stop()
	for {
		err := addr.Watch(ctx, func(e vip.AddressEvent) {
			if e.LinkUp && !last.At.IsZero() && (!last.LinkUp || !bytes.Equal(e.MAC, last.MAC)) {
				announce()
			}
			last = e
			select {
			case moved <- struct{}{}:
			default: // it has not looked at the last one yet
			}
		})
		if ctx.Err() != nil {
			return
		}
		log.Warn("watch the VIP's address: begun anew", slog.Any("err", err))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watchAgain is the pause before a broken watch is begun anew.
const watchAgain = time.Second

// watched is *vip.Address, or a test's.
type watched interface {
	Watch(ctx context.Context, fn func(vip.AddressEvent)) error
}
