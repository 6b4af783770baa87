package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
)

// keeping is a finished look at what a serving host stands on.
type keeping struct {
	tenure *tenure
	gate   error // what Verify found
	asked  bool  // the address was asked, too
	addr   error // what Extend found
	late   bool  // the kernel took too long: the errors say nothing
}

// unseenMost is for how many leases a host may serve whose kernel does not answer. Somebody who holds the network's configuration lock
// keeps everybody from it, also whoever would take the gate away; and the gate goes on closing by itself at its deadline.
const unseenMost = 4

// keep is what each renewal brings with it while the site serves, beside the renewals, which must not wait for the kernel's
// configuration: the gate stands where it should, and the address lives on.
func (g *Guard) keep(t *tenure) {
	if t.keeping {
		t.again = true
		return
	}
	t.keeping = true
	k := keeping{tenure: t, asked: t.bound && !t.binding}
	t.work.Go(func() {
		ctx, cancel := g.soon(t.ctx)
		defer cancel()
		began := time.Now()
		if k.gate = g.Gate.Verify(ctx); k.gate == nil && k.asked {
			k.addr = g.Binder.Extend(ctx, g.Terms.D)
		}
		k.late = time.Since(began) > g.Terms.D/4*9/10 // a socket's timeout may end a little before the context
		select {
		case g.kept <- k:
		case <-t.ctx.Done():
		}
	})
}

// settleKeeping acts on what a look has found.
func (g *Guard) settleKeeping(ctx context.Context, k keeping) error {
	t := k.tenure
	if t != g.tenure {
		return nil
	}
	t.keeping = false
	switch {
	case k.gate == nil && k.addr == nil:
	case k.late: // beat counts for how long
		g.Log.Warn("the kernel takes long to say how gate and address stand: it is asked again", slog.Any("err", errors.Join(k.gate, k.addr)))
		return nil
	case k.gate != nil:
		return g.stop(ctx, t, fmt.Errorf("the gate is not what it was: %w", k.gate))
	case t.binding || time.Now().Before(t.rebind):
	default:
		g.Log.Warn("the VIP or its binder is gone: bound again", slog.Any("err", k.addr))
		t.bound = errors.Is(k.addr, ErrBinderLost)
		g.bind(t)
	}
	t.seen = time.Now()
	if t.again {
		t.again = false
		g.keep(t)
	}
	return nil
}

// clientsEvery is how often the list of connected clients is looked at, and clientsMost how many are kept: the tickle saves them a
// hang, it is no guarantee, and etcd is no place for long lists.
const (
	clientsEvery = time.Second
	clientsMost  = 2000
)

func (g *Guard) shareClients(t *tenure) {
	if time.Since(g.holder.shared) < clientsEvery {
		return
	}
	g.holder.shared = time.Now()
	mod := g.follow.Mod
	go func() {
		ctx, cancel := context.WithTimeoutCause(t.ctx, clientsEvery, errors.New("publishing the clients took longer than a second"))
		defer cancel()
		clients, err := g.Wire.Clients(ctx)
		if err != nil {
			g.Log.Warn("list clients of the VIP", slog.Any("err", err))
			return
		}
		list := sorted(clients)
		if last := g.clients.Load(); last != nil && slices.Equal(*last, list) {
			return
		}
		_, err = g.Store.Do(ctx, "publish clients", []dcs.Cmp{{Key: g.Keys.Assignment(), Mod: mod}}, dcs.Doc(g.Keys.Clients(g.Site), list))
		if err == nil {
			g.clients.Store(&list)
		}
	}()
}

func sorted(clients []netip.AddrPort) []string {
	list := make([]string, 0, min(len(clients), clientsMost))
	for _, c := range clients[:min(len(clients), clientsMost)] {
		list = append(list, c.String())
	}
	slices.Sort(list)
	return list
}

// reports are the guard's words on a switch: the newest alone is written, after the end of the one before it.
type reports struct {
	mu     sync.Mutex
	newest *changing
}

// say leaves the guard's word on a switch, and repeats it until etcd has it or the assignment has changed: the controller journals it,
// and calls a switch stuck whose word it never sees.
func (g *Guard) say(ctx context.Context, a dcs.Versioned[cluster.Assignment], b plan.Bound) {
	if a.Value.Switch == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	now := &changing{cancel, make(chan struct{})}
	g.reports.mu.Lock()
	before := g.reports.newest
	g.reports.newest = now
	g.reports.mu.Unlock()
	go func() {
		defer close(now.done)
		defer cancel()
		before.cancel()
		<-before.done
		g.report(ctx, a, b)
	}()
}

func (g *Guard) report(ctx context.Context, a dcs.Versioned[cluster.Assignment], b plan.Bound) {
	tick := time.NewTicker(g.Terms.RenewEvery())
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeoutCause(ctx, g.Terms.D, errors.New("reporting the bind took longer than a lease"))
		_, err := g.Store.Do(try, "report bind", []dcs.Cmp{{Key: g.Keys.Assignment(), Mod: a.Mod}}, dcs.Doc(g.Keys.Switch(a.Value.Switch, "bound"), b))
		cancel()
		if err == nil || errors.Is(err, dcs.ErrCompare) || ctx.Err() != nil {
			return
		}
		g.Log.Warn("report bind: it is tried again", slog.Any("err", err))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *Guard) sayUnbound(ctx context.Context, a dcs.Versioned[cluster.Assignment], why string) {
	g.say(ctx, a, plan.Bound{Epoch: a.Value.Epoch, At: time.Now(), Err: why})
}

func millis(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 1, 64)
}

// Status is what the guard is doing, for `baton status` and for checks before a statement.
type Status struct {
	Site     cluster.SiteName `json:"site"`
	Epoch    int64            `json:"epoch"`
	Serving  bool             `json:"serving"`
	Deadline lease.Boot       `json:"deadline"`
	mod      int64
}

type statusBox struct{ p atomic.Pointer[Status] }

func (b *statusBox) mod() int64 {
	if s := b.p.Load(); s != nil {
		return s.mod
	}
	return 0
}

func (g *Guard) publish() {
	s := &Status{Site: g.Site, Epoch: g.follow.Value.Epoch, mod: g.follow.Mod}
	if t := g.tenure; t != nil && t.open {
		s.Serving, s.Deadline = true, t.grant.deadline
	}
	g.status.p.Store(s)
}

// Status may be called from any goroutine.
func (g *Guard) Status() Status {
	if s := g.status.p.Load(); s != nil {
		return *s
	}
	return Status{Site: g.Site}
}
