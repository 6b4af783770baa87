package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
)

// renewal is a finished attempt: what it compared, what it found before the send, and its answer.
type renewal struct {
	tenure *tenure
	grant  grant
	seq    int64
	answer dcs.Renewed
	err    error
}

// opening is a finished try to put the address on the host.
type opening struct {
	tenure *tenure
	facts  Facts
	err    error
}

// begin starts a tenure. The address is bound and the lease taken side by side; the gate opens when both are there.
func (g *Guard) begin(ctx context.Context) error {
	h := g.last.Holder
	if g.replacedBy(h) {
		return ErrReplaced
	}
	// Its own is a lease that this host has renewed under this very assignment: a restart, or a lapse. One of an earlier assignment is
	// over, and somebody may have taken the address since.
	own := h.Mod > g.follow.Mod && h.Value.Site == g.Site && h.Value.Node == g.Node
	if !own {
		g.holder.mod = 0 // somebody else's lease, or nobody's: taken over, whoever it is
	}
	if !own || g.held {
		// Shut first: nothing may be heard before the lease. A restarted daemon's gate is replaced with its own new deadline.
		if err := g.ready(ctx); err != nil {
			g.retry = time.After(g.Terms.RenewEvery())
			return err
		}
	}
	if !own { // nobody has looked at the gate since it was installed, and the address is bound before the first renewal is answered
		soon, cancel := g.soon(ctx)
		err := g.Gate.Verify(soon)
		cancel()
		if err != nil {
			g.retry = time.After(g.Terms.RenewEvery())
			return fmt.Errorf("verify gate before the address is bound: %w", err)
		}
	}
	t := &tenure{since: time.Now(), own: own, before: h.Value, facts: Facts{}}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	g.tenure = t
	g.holder.seq = max(g.holder.seq, h.Value.Seq)
	if !own {
		g.probe(ctx)
		g.bind(t)
	}
	g.renew(t)
	return nil
}

// replacedBy says whether another incarnation has taken this site's lease since this one held it, also one on another host.
func (g *Guard) replacedBy(h dcs.Versioned[cluster.Holder]) bool {
	return g.held && h.Mod > g.heldMod && h.Value.Site == g.Site && h.Value.Incarnation != g.Incarnation
}

// bind runs beside the renewals: evidence, silence, address. A host that held the lease before binds after its first renewal, since
// its address may have gone with the old lease's end.
func (g *Guard) bind(t *tenure) {
	if t.binding {
		return
	}
	t.binding = true
	a, first, again, unbinding := g.follow, g.firstSeen, t.own || t.open, g.unbinding
	t.work.Go(func() {
		o := opening{tenure: t, facts: Facts{}}
		select {
		case <-unbinding.done: // or it would take off what is bound here
			o.err = g.open(t, a, first, again, o.facts)
		case <-t.ctx.Done():
			return
		}
		select {
		case g.opened <- o:
		case <-t.ctx.Done():
		}
	})
}

// open binds. A host that held the lease before, or has lost its binder while it served, has nothing to wait for.
func (g *Guard) open(t *tenure, a dcs.Versioned[cluster.Assignment], first time.Time, again bool, facts Facts) error {
	if !again {
		if err := g.awaitEvidence(t.ctx, a.Value, first, t.before); err != nil {
			return err
		}
		if err := g.awaitSilence(t.ctx, a, first, facts); err != nil {
			return err
		}
		n, err := g.Wire.Destroy(t.ctx) // sessions of an earlier tenure would come alive again with the address
		if err != nil {
			g.Log.Warn("destroy sockets of an earlier tenure", slog.Any("err", err))
		}
		facts["zombies"] = fmt.Sprint(n)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(t.ctx, 2*g.Terms.D, errors.New("the address was not bound within two leases"))
	defer cancel()
	f, err := g.Binder.Bind(ctx, g.Terms.D)
	maps.Copy(facts, f)
	facts["bind_ms"] = millis(time.Since(began))
	if err != nil {
		return fmt.Errorf("bind the VIP: %w", err)
	}
	return nil
}

// awaitEvidence waits a whole lease from this guard's own first sight when the assignment does not say why the old VIP is silent.
func (g *Guard) awaitEvidence(ctx context.Context, a cluster.Assignment, first time.Time, before cluster.Holder) error {
	if a.Release != nil && a.Release.Epoch == a.Epoch {
		return nil
	}
	g.Log.Warn("the assignment has no evidence that the old VIP is silent: its lease is waited out", slog.Int64("epoch", a.Epoch))
	timer := time.NewTimer(time.Until(first.Add(g.Terms.Outlasting(before).Span() + cluster.GateValidLft.Slack())))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// What RFC 5227 probes must have found before the address is bound: 30 ms without an answer after an acknowledged release, three
// probes of 50 ms after one that was only waited for.
const (
	silenceAcknowledged = 30 * time.Millisecond
	silenceWaited       = 150 * time.Millisecond
)

func (g *Guard) awaitSilence(ctx context.Context, a dcs.Versioned[cluster.Assignment], first time.Time, facts Facts) error {
	need := silenceWaited
	if r := a.Value.Release; r != nil && (r.Incarnation != "" || r.None) {
		need = silenceAcknowledged
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	told := ""
	for {
		s := g.Wire.Silence()
		if s.Probes >= 2 && time.Since(s.Since) >= need {
			facts["silence_ms"] = millis(time.Since(s.Since))
			return nil
		}
		if mac := s.MAC.String(); mac != told && s.At.After(first) {
			told = mac
			g.Log.Warn("somebody else answers for the VIP: it is not bound until he is silent; find the host with this MAC", slog.String("mac", mac))
			g.sayUnbound(ctx, a, "the host with MAC "+mac+" answers for the VIP: find it and take the address off")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// settleOpening notes that the address is there, or plans another try.
func (g *Guard) settleOpening(ctx context.Context, o opening) error {
	t := o.tenure
	if t != g.tenure {
		return nil
	}
	t.binding = false
	if o.err != nil && t.open && t.bound {
		t.rebind = time.Now().Add(g.Terms.D)
		g.Log.Error("what bound the VIP cannot be started again: its address goes on serving without it, and it is tried again; look at its log",
			slog.String("site", string(g.Site)), slog.Any("err", o.err))
		return nil
	}
	if o.err != nil {
		g.sayUnbound(ctx, g.follow, o.err.Error())
		err := fmt.Errorf("serve site %s: %w", g.Site, o.err)
		if t.open { // its binder was lost: a gate that is left open must not outlive the tenure
			return g.stop(ctx, t, err)
		}
		t.end(o.err)
		g.tenure = nil
		g.retry = time.After(g.Terms.RenewEvery())
		return err
	}
	maps.Copy(t.facts, o.facts)
	if mac := o.facts["mac"]; mac != "" {
		g.holder.mac = mac
	}
	t.bound = true
	return g.advance(ctx, t)
}

// beat renews, or notices that the lease has ended by itself.
func (g *Guard) beat(ctx context.Context) error {
	t := g.tenure
	if t == nil {
		return nil
	}
	if t.open && g.Now() >= t.grant.deadline {
		return g.lapse(ctx, t)
	}
	if t.open && time.Since(t.seen) > unseenMost*g.Terms.D {
		return g.stop(ctx, t, errors.New("the kernel has not said for four leases how the gate stands"))
	}
	if !t.busy {
		g.renew(t)
	}
	return nil
}

// renew sends one attempt. The word is read and the clock is taken before the send (PROTOCOL 2.2, 2.3).
func (g *Guard) renew(t *tenure) {
	t.busy = true
	g.holder.seq++
	h := cluster.Holder{
		Site: g.Site, Node: g.Node, Incarnation: g.Incarnation, Seq: g.holder.seq, Gate: g.Level,
		Lease: g.Terms.D, MAC: g.holder.mac,
	}
	mod, last := g.follow.Mod, g.holder.mod
	if last == 0 {
		last = -1 // this incarnation's first: it takes the lease over from any other
	}
	r := renewal{tenure: t, seq: h.Seq}
	go func() {
		ctx, cancel := context.WithTimeoutCause(t.ctx, g.Terms.AttemptTimeout(), errors.New("renewal took longer than an eighth of the lease"))
		defer cancel()
		r.grant.word = g.Gate.Word()
		r.grant.deadline = g.Terms.Deadline(g.Now())
		r.answer, r.err = g.Store.Renew(ctx, mod, last, h)
		select {
		case g.renewed <- r:
		case <-t.ctx.Done():
		}
	}()
}

// settle takes the answer of a renewal in.
func (g *Guard) settle(ctx context.Context, r renewal) error {
	t := r.tenure
	if t != g.tenure {
		return nil
	}
	t.busy = false
	if r.err != nil {
		return r.err // its outcome may be unknown: the next attempt's compare tells
	}
	if !r.answer.OK {
		return g.follows(ctx, t, r.answer)
	}
	g.holder.mod, g.held, g.heldMod = r.answer.Revision, true, r.answer.Revision
	if t.open {
		word := r.grant.word
		if t.fresh && word == t.from {
			// It was sent before this guard opened the gate itself, from the word that it found: nobody shut it in between, or the opening
			// would have failed. Since then it must be what the opening wrote.
			word = uint64(t.grant.deadline)
		}
		if err := g.Gate.Swap(word, r.grant.deadline); err != nil {
			return g.stop(ctx, t, fmt.Errorf("extend the gate: %w", err))
		}
		t.fresh = false
		t.grant = r.grant
		if t.done != nil {
			g.unfence(ctx)
		}
		g.keep(t)
		g.shareClients(t)
		return nil
	}
	t.grant = r.grant
	return g.advance(ctx, t)
}

// follows reads the else-branch: what changed, and does it still let us serve?
func (g *Guard) follows(ctx context.Context, t *tenure, a dcs.Renewed) error {
	if a.Holder.Mod > g.last.Holder.Mod {
		g.last.Holder = a.Holder
	}
	switch now := a.Assignment.Mod; {
	case now < g.follow.Mod:
		return fmt.Errorf("renew under revision %d: etcd has the assignment of revision %d: %w", g.follow.Mod, now, ErrOld)
	case now > g.follow.Mod:
		if err := g.see(ctx, a.Assignment); err != nil || g.tenure != t {
			return err
		}
	}
	switch h := a.Holder; {
	case g.replacedBy(h):
		return ErrReplaced
	case h.Mod != 0 && h.Value.Incarnation == g.Incarnation:
		g.holder.mod = h.Mod // an attempt without an answer did take effect
	default:
		g.holder.mod = 0 // another site's, of a time that this guard has not seen: the next beat's attempt takes it over
		return nil
	}
	g.renew(t)
	return nil
}

// advance opens the gate once lease and address are both there.
func (g *Guard) advance(ctx context.Context, t *tenure) error {
	if t.grant.deadline == 0 {
		return nil
	}
	soon, cancel := g.soon(ctx)
	defer cancel()
	if !g.installed {
		// A restart: the deadline comes from our own renewal, never out of the predecessor's map, and replaces it in one step.
		if err := g.Gate.Install(soon, t.grant.deadline); err != nil {
			return g.stop(ctx, t, fmt.Errorf("take the gate over: %w", err))
		}
		g.installed, t.open = true, true
	}
	if err := g.Gate.Verify(soon); err != nil { // before the address: behind a gate that is not in force it would answer at once
		return g.stop(ctx, t, fmt.Errorf("verify gate: %w", err))
	}
	t.seen = time.Now()
	if !t.bound {
		g.bind(t)
		return nil
	}
	if t.done != nil {
		return nil
	}
	if !t.open {
		if err := g.Gate.Swap(t.grant.word, t.grant.deadline); err != nil {
			return g.stop(ctx, t, fmt.Errorf("open the gate: %w", err))
		}
		t.open, t.fresh, t.from = true, true, t.grant.word
	}
	g.stopProbing()
	g.serve(ctx, t)
	return nil
}

// serve announces, and makes the dead holder's clients notice.
func (g *Guard) serve(ctx context.Context, t *tenure) {
	t.done = make(chan struct{})
	a, old, tickled := g.follow, g.last.Clients, false
	epoch, id := a.Value.Epoch, a.Value.Switch
	owned := func() error {
		switch {
		case t.ctx.Err() != nil:
			return context.Cause(t.ctx)
		case lease.Boot(g.Gate.Word()) <= g.Now():
			return fmt.Errorf("announce: the lease has ended")
		}
		return nil
	}
	first := func(mac net.HardwareAddr) {
		b := plan.Bound{Incarnation: g.Incarnation, Epoch: epoch, At: time.Now(), Took: time.Since(t.since), MAC: mac.String(), Facts: t.facts}
		g.Log.Info("VIP served: gate open, address bound, gratuitous ARP sent", slog.Int64("epoch", epoch),
			slog.String("switch", id), slog.Duration("took", b.Took), slog.String("mac", b.MAC))
		g.say(t.ctx, a, b)
		for site, c := range old {
			if site != g.Site && !tickled && !t.own {
				go g.tickle(t.ctx, c.Value)
			}
		}
		tickled = true
	}
	go func() {
		defer close(t.done)
		g.announce(t, owned, first)
	}()
	g.unfence(ctx)
}

// announce goes on for as long as the tenure: a link that was down for a moment, or a renewal that came a moment late, ends an
// announcer, and neighbours would never learn of the VIP again.
func (g *Guard) announce(t *tenure, owned func() error, first func(net.HardwareAddr)) {
	tick := time.NewTicker(g.Terms.RenewEvery())
	defer tick.Stop()
	for {
		if err := g.Wire.Announce(t.ctx, owned, first); err != nil && t.ctx.Err() == nil {
			g.Log.Error("announce the VIP", slog.Any("err", err))
		}
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
	}
}
