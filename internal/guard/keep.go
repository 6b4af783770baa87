package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
)

// keep is what a renewal brings with it while the site serves: the gate stands where it should, the address lives on, and the list
// of clients is published for the day on which this host is dead.
func (g *Guard) keep(ctx context.Context, t *tenure) error {
	soon, cancel := g.soon(ctx)
	defer cancel()
	if err := g.Gate.Verify(soon); err != nil {
		return g.stop(ctx, t, fmt.Errorf("the gate is not what it was: %w", err))
	}
	if t.bound {
		if err := g.Binder.Extend(soon, g.Terms.D); err != nil {
			g.Log.Warn("the VIP or its binder is gone: bound again", slog.Any("err", err))
			t.bound = false
			g.bind(t)
		}
	}
	g.shareClients(t)
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

// say leaves the guard's word on a switch; the controller journals it.
func (g *Guard) say(ctx context.Context, a dcs.Versioned[cluster.Assignment], b plan.Bound) {
	if a.Value.Switch == "" {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.D, errors.New("reporting the bind took longer than a lease"))
		defer cancel()
		_, err := g.Store.Do(ctx, "report bind", []dcs.Cmp{{Key: g.Keys.Assignment(), Mod: a.Mod}}, dcs.Doc(g.Keys.Switch(a.Value.Switch, "bound"), b))
		if err != nil && ctx.Err() == nil {
			g.Log.Warn("report bind", slog.Any("err", err))
		}
	}()
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
