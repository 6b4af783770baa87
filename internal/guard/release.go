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
	facts := Facts{}
	soon, cancel := g.soon(ctx)
	defer cancel()
	err := g.shut(soon, t, errors.New("the assignment has changed"))
	shut := time.Since(began)
	g.refuse(ctx)
	if n, err := g.Wire.Destroy(soon); err != nil {
		g.Log.Warn("destroy sockets of the VIP", slog.Any("err", err))
	} else {
		facts["reset"] = fmt.Sprint(n)
	}
	g.unbind(ctx, t, facts)
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

// unbind takes the address off after all that might put it back: the tenure's looks and binds, and the taking off before it.
func (g *Guard) unbind(ctx context.Context, t *tenure, facts Facts) {
	done := make(chan Facts, 1)
	before, now := g.unbinding, &changing{func() {}, make(chan struct{})}
	g.unbinding = now
	go func() {
		defer close(now.done)
		if t != nil {
			t.work.Wait()
		}
		<-before.done
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
		answered, err := g.tryAcknowledge(ctx, a, r)
		if answered || err != nil {
			return err
		}
	}
	return errors.New("no answer to the fence: etcd did not take it; the lease is waited out")
}

// tryAcknowledge writes the answer once. Where that fails it reads what this incarnation has written last: the outcome of its last
// renewal may be unknown. An error is for good.
func (g *Guard) tryAcknowledge(ctx context.Context, a dcs.Versioned[cluster.Assignment], r plan.Released) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.D/4, errors.New("acknowledging the release took longer than a quarter of the lease"))
	defer cancel()
	_, err := g.Store.Do(ctx, "acknowledge release",
		[]dcs.Cmp{{Key: g.Keys.Assignment(), Mod: a.Mod}, {Key: g.Keys.Holder(), Mod: g.holder.mod}},
		dcs.Doc(g.Keys.Switch(a.Value.Switch, "released"), r))
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, dcs.ErrCompare) && !errors.Is(err, dcs.ErrUnknownOutcome) && !errors.Is(err, dcs.ErrUnavailable) {
		return false, err
	}
	s, readErr := g.Store.Read(ctx)
	if readErr != nil {
		return false, nil
	}
	if s.Assignment.Mod != a.Mod || s.Holder.Value.Incarnation != g.Incarnation {
		return false, fmt.Errorf("no answer to the fence, the lease is waited out: %w", err)
	}
	g.holder.mod = s.Holder.Mod
	return false, nil
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
	g.fenced.Store(true)
	mod := g.follow.Mod
	g.change(ctx, "read-only", func(ctx context.Context) error { return g.Data.Fence(ctx, g.unchanged(mod)) })
	return nil
}

// changing is a change of the own MySQL under way.
type changing struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (c *changing) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func noChange() *changing {
	done := make(chan struct{})
	close(done)
	return &changing{func() {}, done}
}

// change cancels the change before it and waits for its end: a fence that still hung behind a commit would make the MySQL read-only
// that has just been given back.
func (g *Guard) change(ctx context.Context, what string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*g.Terms.D, fmt.Errorf("making the own MySQL %s took longer than two leases", what))
	before, now := g.changing, &changing{cancel, make(chan struct{})}
	g.changing = now
	go func() {
		defer close(now.done)
		defer cancel()
		before.cancel()
		<-before.done
		if err := do(ctx); err != nil {
			g.Log.Error("change the own MySQL", slog.String("step", what), slog.Any("err", err))
		}
	}()
}

// stop ends a tenure whose gate cannot be kept open, and plans another try: the assignment is still ours.
func (g *Guard) stop(ctx context.Context, t *tenure, why error) error {
	g.tenure = nil
	g.retry = time.After(g.Terms.RenewEvery())
	soon, cancel := g.soon(ctx)
	defer cancel()
	if err := g.shut(soon, t, why); err != nil {
		why = errors.Join(why, fmt.Errorf("shut the gate: %w", err))
	}
	if _, err := g.Wire.Destroy(soon); err != nil {
		g.Log.Warn("destroy sockets of the VIP", slog.Any("err", err))
	}
	g.unbind(ctx, t, Facts{}) // whatever became of the gate: without the address nobody answers
	return why
}

// unfence gives the site's MySQL back to writers after a lapse, under the serving assignment that the renewal has just proved. Each renewal
// tries again until it is done: etcd that has just come back is slow, and an assignment that changed meanwhile refuses the older try.
func (g *Guard) unfence(ctx context.Context) {
	if !g.fenced.Load() || g.unfencing != nil && g.unfencing == g.changing && !g.changing.over() {
		return
	}
	mod, epoch := g.follow.Mod, g.follow.Value.Epoch
	g.change(ctx, "writable again", func(ctx context.Context) error {
		err := g.Data.Unfence(ctx, g.confirmed(ctx, mod), epoch)
		if err == nil {
			g.fenced.Store(false)
		}
		return err
	})
	g.unfencing = g.changing
}

// confirmed is the check before a statement that gives writers back: etcd itself says that the assignment still stands. What this guard
// has seen would not do: a fence that it has not heard of yet may have been carried out at this MySQL already.
func (g *Guard) confirmed(ctx context.Context, mod int64) func() error {
	return func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, g.Terms.AttemptTimeout(), errors.New("confirming the assignment took longer than an eighth of the lease"))
		defer cancel()
		_, err := g.Store.Do(ctx, "confirm assignment", []dcs.Cmp{{Key: g.Keys.Assignment(), Mod: mod}}, dcs.Op{Kind: dcs.Get, Key: g.Keys.Assignment()})
		return err
	}
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
