package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// refuseFor is how long clients that still come to the old host are refused by RST. Their ARP entries have moved long before; a
// client whose announcement was lost learns of it within seconds by the repeated ones.
const refuseFor = 3 * time.Second

// release falls silent and says so. Order matters: no announcement after it; the gate, so that nobody new is let in; then every client
// is reset and who comes again is refused, for resets alone pass the shut gate; the address; and the answer last.
func (g *Guard) release(ctx context.Context, a dcs.Versioned[cluster.Assignment]) error {
	began := time.Now()
	t := g.tenure
	g.tenure = nil
	t.end(errors.New("the assignment has changed"))
	facts := Facts{}
	err := g.Gate.Shut(ctx)
	shut := time.Since(began)
	g.refuse(ctx)
	if n, err := g.Wire.Destroy(ctx); err != nil {
		g.Log.Warn("destroy sockets of the VIP", slog.Any("err", err))
	} else {
		facts["reset"] = fmt.Sprint(n)
	}
	g.unbind(ctx, facts)
	if err != nil {
		// No answer: the controller waits the lease out, and the kernel closes at the deadline.
		return fmt.Errorf("shut the gate: %w", err)
	}
	g.Log.Info("VIP released", slog.Duration("took", shut), slog.String("switch", a.Value.Switch), slog.Int64("epoch", a.Value.Epoch),
		slog.Any("facts", facts))
	if a.Value.Phase != cluster.Switching {
		return nil
	}
	return g.acknowledge(ctx, a, plan.Released{Incarnation: g.Incarnation, Fence: a.Mod, At: began.Add(shut), Took: shut, Facts: facts})
}

// unbindWait is how long the answer waits for the address to go, so that it can say how fast that was; the shut gate is the fence.
const unbindWait = 8 * time.Millisecond

func (g *Guard) unbind(ctx context.Context, facts Facts) {
	done := make(chan Facts, 1)
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("taking the VIP off took longer than 5 s"))
		defer cancel()
		began := time.Now()
		f, err := g.Binder.Unbind(ctx)
		if err != nil {
			g.Log.Error("take the VIP off", slog.Any("err", err))
			return
		}
		out := Facts{"unbind_ms": millis(time.Since(began))}
		maps.Copy(out, f)
		done <- out
	}()
	timer := time.NewTimer(unbindWait)
	defer timer.Stop()
	select {
	case f := <-done:
		maps.Copy(facts, f)
	case <-timer.C:
	}
}

// acknowledge answers the fence if, and only if, the lease is still this incarnation's and the fence still stands.
func (g *Guard) acknowledge(ctx context.Context, a dcs.Versioned[cluster.Assignment], r plan.Released) error {
	for range 3 {
		ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.AttemptTimeout(), errors.New("acknowledging the release took longer than an eighth of the lease"))
		_, err := g.Store.Do(ctx, "acknowledge release",
			[]dcs.Cmp{{Key: g.Keys.Assignment(), Mod: a.Mod}, {Key: g.Keys.Holder(), Mod: g.holder.mod}},
			dcs.Doc(g.Keys.Switch(a.Value.Switch, "released"), r))
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, dcs.ErrCompare) && !errors.Is(err, dcs.ErrUnknownOutcome) && !errors.Is(err, dcs.ErrUnavailable) {
			return err
		}
		s, readErr := g.Store.Read(ctx)
		if readErr != nil {
			continue
		}
		if s.Assignment.Mod != a.Mod || s.Holder.Value.Incarnation != g.Incarnation {
			return fmt.Errorf("no answer to the fence, the lease is waited out: %w", err)
		}
		g.holder.mod = s.Holder.Mod
	}
	return errors.New("no answer to the fence: etcd did not take it; the lease is waited out")
}

func (g *Guard) refuse(ctx context.Context) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, refuseFor)
		defer cancel()
		if err := g.Wire.Refuse(ctx); err != nil && ctx.Err() == nil {
			g.Log.Warn("refuse clients of the VIP", slog.Any("err", err))
		}
	}()
}

// lapse is the lease's end without a word from etcd: the kernel has shut the gate already, the guard fences what it owns.
func (g *Guard) lapse(ctx context.Context, t *tenure) error {
	g.Log.Error("the lease has ended without a renewal: the site is silent until etcd answers; check etcd's quorum and the network to it",
		slog.String("site", string(g.Site)), slog.Int64("epoch", g.follow.Value.Epoch))
	t.open, t.bound = false, false
	if err := g.stop(ctx, t, errors.New("the lease has ended")); err != nil {
		g.Log.Error("fence the own site", slog.Any("err", err))
	}
	g.fenced = true
	mod := g.follow.Mod
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.D, errors.New("fencing the own site took longer than a lease"))
		defer cancel()
		if err := g.Data.Fence(ctx, g.unchanged(mod)); err != nil {
			g.Log.Error("set the own MySQL read-only", slog.Any("err", err))
		}
	}()
	return nil
}

// stop ends a tenure whose gate cannot be kept open, and plans another try: the assignment is still ours.
func (g *Guard) stop(ctx context.Context, t *tenure, why error) error {
	t.end(why)
	g.tenure = nil
	g.retry = time.After(g.Terms.RenewEvery())
	if err := g.Gate.Shut(ctx); err != nil {
		why = errors.Join(why, fmt.Errorf("shut the gate: %w", err))
	}
	if _, err := g.Wire.Destroy(ctx); err != nil {
		g.Log.Warn("destroy sockets of the VIP", slog.Any("err", err))
	}
	g.unbind(ctx, Facts{}) // whatever became of the gate: without the address nobody answers
	return why
}

// unfence gives the site's MySQL back to writers after a lapse, under the serving assignment that the renewal has just proved.
func (g *Guard) unfence(ctx context.Context) {
	if !g.fenced {
		return
	}
	g.fenced = false
	mod, epoch := g.follow.Mod, g.follow.Value.Epoch
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.D, errors.New("unfencing the own site took longer than a lease"))
		defer cancel()
		if err := g.Data.Unfence(ctx, g.unchanged(mod), epoch); err != nil {
			g.Log.Error("make the own MySQL writable again", slog.Any("err", err))
		}
	}()
}

// unchanged is the check before each statement of a self-fence: the assignment that it was begun under is still the newest seen.
func (g *Guard) unchanged(mod int64) func() error {
	return func() error {
		if now := g.status.mod(); now != mod {
			return fmt.Errorf("the assignment changed at revision %d: %w", now, dcs.ErrCompare)
		}
		return nil
	}
}

func (g *Guard) tickle(ctx context.Context, clients []string) {
	var addrs []netip.AddrPort
	for _, c := range clients {
		if a, err := netip.ParseAddrPort(c); err == nil {
			addrs = append(addrs, a)
		}
	}
	if n, err := g.Wire.Tickle(ctx, addrs); err != nil {
		g.Log.Warn("tickle clients of the old holder", slog.Any("err", err))
	} else if n > 0 {
		g.Log.Info("clients of the old holder are made to notice", slog.Int("clients", n))
	}
}
