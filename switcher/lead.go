package switcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// tenure is one time of holding the lock.
type tenure struct {
	*Switcher
	term       dcs.Versioned[cluster.Term]
	assignment dcs.Versioned[cluster.Assignment] // as read, or written, within this term
	wrote      int64                             // revision of this tenure's newest transaction: older views decide nothing
	looks      chan Readiness
	moving     atomic.Bool   // a switch is under way: nobody looks meanwhile, the instances have better things to do
	rest       chan struct{} // one: the looker is to close its connections
	ready      Readiness
	since      map[cluster.SiteName]time.Time  // ready without a break
	alone      map[cluster.ShardName]time.Time // sources without a replica, since when
	downSince  time.Time
	published  time.Time
	decision   policy.Decision
	advice     *Advice
	side       *run              // a rejoin or repair under way beside the watch
	preempted  []*run            // mendings whose end is not written yet
	sidePause  map[string]*pause // of failed side plans, by kind and site
	beating    chan struct{}     // held by the one writer of the beat; guards handed
	handed     bool              // the lock was handed over: no pulse any more
}

// pause grows with each failure of the same thing.
type pause struct {
	until time.Time
	fails int
}

func (p *pause) failed(now time.Time) {
	p.fails++
	p.until = now.Add(min(time.Second<<min(p.fails, 6), time.Minute))
}

func newTenure(s *Switcher, term dcs.Versioned[cluster.Term], st dcs.State) *tenure {
	s.state = st
	s.beatMod, s.beatAt = term.Mod, time.Now()
	return &tenure{
		Switcher: s, term: term, assignment: st.Assignment, wrote: term.Mod, looks: make(chan Readiness, 1), rest: make(chan struct{}, 1),
		beating: make(chan struct{}, 1), since: map[cluster.SiteName]time.Time{}, sidePause: map[string]*pause{}, alone: map[cluster.ShardName]time.Time{},
	}
}

// lead watches, decides and switches until the lock is lost (ErrDeposed), handed over, or ctx ends.
func (t *tenure) lead(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.pulse(ctx) })
	g.Go(func() error { return t.look(ctx) })
	g.Go(func() error {
		err := t.watch(ctx)
		cancel(err)
		return err
	})
	return g.Wait()
}

// errHandedOver ends a tenure on purpose.
var errHandedOver = errors.New("switcher: the lock was handed over")

// pulse shows that this controller is alive. A compare that fails says that it is none any more.
func (t *tenure) pulse(ctx context.Context) error {
	tick := time.NewTicker(t.Profile.LockPulse / 4)
	defer tick.Stop()
	for seq := t.term.Value.N<<32 + 1; ; seq++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := t.beat(ctx, seq)
		if errors.Is(err, dcs.ErrCompare) {
			return errors.Join(ErrDeposed, err)
		}
		if err != nil && ctx.Err() == nil {
			t.Log.Warn("pulse", slog.Any("err", err))
		}
	}
}

// beat puts one pulse, unless the lock has been handed over: it would take the handover back.
func (t *tenure) beat(ctx context.Context, seq int64) error {
	t.beating <- struct{}{}
	defer func() { <-t.beating }()
	if t.handed {
		return nil
	}
	txn, cancel := t.txn(ctx, "pulse")
	defer cancel()
	_, err := t.Store.Do(txn, "pulse", []dcs.Cmp{{Key: t.Keys.Term(), Mod: t.term.Mod}}, dcs.Doc(t.Keys.Beat(), cluster.Beat{Node: t.Node, Seq: seq}))
	return err
}

// look reads every MySQL again and again, beside the watch: an instance that hangs must not delay a decision.
func (t *tenure) look(ctx context.Context) error {
	defer t.Looker.Rest()
	tick := time.NewTicker(max(t.Profile.Interval*5, 500*time.Millisecond))
	defer tick.Stop()
	for {
		if !t.moving.Load() {
			if err := t.lookOnce(ctx); err != nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.rest:
			t.Looker.Rest()
		case <-tick.C:
		}
	}
}

// lookOnce fails only when ctx has ended.
func (t *tenure) lookOnce(ctx context.Context) error {
	st, err := t.read(ctx)
	if err != nil {
		return ctx.Err()
	}
	sync := map[cluster.ShardName]cluster.SyncState{}
	for shard, v := range st.Sync {
		sync[shard] = v.Value
	}
	select {
	case t.looks <- t.Looker.Look(ctx, st.Assignment.Value, sync):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// move marks the time of a switch; the function that it returns ends it.
func (t *tenure) move() func() {
	t.moving.Store(true)
	select {
	case t.rest <- struct{}{}:
	default:
	}
	return func() {
		t.ready = Readiness{} // of the time before
		select {
		case <-t.looks:
		default:
		}
		t.moving.Store(false)
	}
}

func (t *tenure) read(ctx context.Context) (dcs.State, error) {
	txn, cancel := t.txn(ctx, "read")
	defer cancel()
	return t.Store.Read(txn)
}

// wait takes the next state or look in, at the latest at that time.
func (t *tenure) wait(ctx context.Context, until time.Time) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case st := <-t.states:
		t.take(st)
	case r := <-t.looks:
		t.looked(r, time.Now())
	case <-timer.C:
	}
	if t.state.Term.Mod > t.term.Mod {
		return ErrDeposed
	}
	if t.state.Assignment.Mod > t.assignment.Mod {
		t.assignment = t.state.Assignment
	}
	return nil
}

// looked notes since when each site is ready without a break.
func (t *tenure) looked(r Readiness, now time.Time) {
	for name, site := range r.Sites {
		if len(site.Blockers) > 0 {
			delete(t.since, name)
			continue
		}
		if t.since[name].IsZero() {
			t.since[name] = now
		}
		site.Since = t.since[name]
		r.Sites[name] = site
	}
	t.ready = r
	alone := map[cluster.ShardName]time.Time{}
	for _, shard := range slices.Concat(r.Sites[r.Active].Alone, r.Sites[r.Active].Unreached) {
		alone[shard] = now
		if before := t.alone[shard]; !before.IsZero() {
			alone[shard] = before
		}
	}
	t.alone = alone
}

// watch is the controller's life: finish what is unfinished, obey, decide, mend, hand over.
func (t *tenure) watch(ctx context.Context) error {
	for {
		if err := t.wait(ctx, time.Now().Add(t.Profile.Interval/2)); err != nil {
			return err
		}
		if t.state.Revision < t.wrote {
			continue // the view is older than our own last word
		}
		if err := t.step(ctx, time.Now()); err != nil {
			return err
		}
	}
}

func (t *tenure) step(ctx context.Context, now time.Time) error {
	if len(t.preempted) > 0 {
		r := t.preempted[0]
		t.preempted = t.preempted[1:]
		return deposed(r.end(ctx, plan.Next(r.p, r.log, t.term.Value.N)))
	}
	if p, docs, ok := t.unfinished(); ok {
		return t.resume(ctx, p, docs)
	}
	facts := t.facts(now)
	d := policy.Decide(t.Cluster, facts, t.Limits, now)
	t.note(d, now)
	if d.Act {
		return t.carryOut(ctx, t.plan(d, plan.Command{By: "automatic", Reason: d.Text}), facts)
	}
	if err := t.obey(ctx, facts, now); err != nil {
		return err
	}
	if err := t.mend(ctx, facts, now); err != nil {
		return err
	}
	if err := t.publish(ctx, facts, now); err != nil {
		return err
	}
	return t.handOver(ctx, now)
}

// unfinished returns a switch whose end is not in the history: a predecessor's, or of an earlier term of this node.
func (t *tenure) unfinished() (plan.Plan, dcs.SwitchDocs, bool) {
	for _, d := range t.state.Switches {
		if d.Plan.Mod != 0 && d.Summary.Mod == 0 && (t.side == nil || d.Plan.Value.ID != t.side.p.ID) {
			if d.Plan.Value.Kind.Mends() {
				t.abandon(d)
				continue
			}
			return d.Plan.Value, d, true
		}
	}
	return plan.Plan{}, dcs.SwitchDocs{}, false
}

// do is a transaction of this tenure: it compares the term, always.
func (t *tenure) do(ctx context.Context, what string, cmps []dcs.Cmp, ops ...dcs.Op) (dcs.Result, error) {
	txn, cancel := t.txn(ctx, what)
	defer cancel()
	r, err := t.Store.Do(txn, what, append([]dcs.Cmp{{Key: t.Keys.Term(), Mod: t.term.Mod}}, cmps...), ops...)
	if err != nil {
		return r, err
	}
	t.wrote = max(t.wrote, r.Revision)
	return r, nil
}

// note logs a decision when its reason changes.
func (t *tenure) note(d policy.Decision, now time.Time) {
	if d.Reason != t.decision.Reason || d.To != t.decision.To {
		level := slog.LevelInfo
		if d.Reason != policy.Healthy && d.Reason != policy.NobodyServes {
			level = slog.LevelWarn
		}
		t.Log.Log(context.Background(), level, "decision", slog.String("reason", string(d.Reason)), slog.String("text", d.Text))
		t.published = time.Time{}
	}
	t.decision = d
	t.advise(d, now)
}

// advise numbers what mode advise would do, and keeps the number while it holds.
func (t *tenure) advise(d policy.Decision, now time.Time) {
	if t.advice != nil && t.advice.From != t.assignment.Value.Site { // it was followed, or somebody has switched anyway
		t.advice, t.published = nil, time.Time{}
	}
	if d.Reason != policy.WouldSwitch {
		return // an advice stays valid for its life: the operator may be typing it
	}
	if t.advice == nil || t.advice.To != d.To || t.advice.From != d.From || now.After(t.advice.Until) {
		t.advice = &Advice{ID: t.nextAdvice(), From: d.From, To: d.To}
		c := t.combine(d.From, "", now)
		t.advice.Text = fmt.Sprintf("WOULD SWITCH %s→%s now: %s, %d of %d votes, RTO ≈ %s, RPO %s; run: baton switch --advice %d",
			d.From, d.To, t.windowOf(d.From), c.Down, len(t.Cluster.Nodes), t.ready.RTO, t.ready.Sites[d.To].RPO, t.advice.ID)
		t.Log.Warn("advice", slog.String("text", t.advice.Text), slog.Int("advice", t.advice.ID))
		t.published = time.Time{}
	}
	t.advice.Until = now.Add(AdviceLife)
}

// windowOf is the fullest H of the site among the observers.
func (t *tenure) windowOf(site cluster.SiteName) string {
	h, trip := 0, 0
	for _, r := range t.state.Reports {
		if v := r.Value.Verdicts[site]; v.H >= h {
			h, trip = v.H, v.HTrip
		}
	}
	return fmt.Sprintf("H %d/%d", h, trip)
}

// nextAdvice is one more than the newest that any controller published.
func (t *tenure) nextAdvice() int {
	var last Readiness
	if t.state.Readiness.Mod != 0 && json.Unmarshal(t.state.Readiness.Value, &last) == nil && last.Advice != nil {
		return last.Advice.ID + 1
	}
	return 1
}

// publishEvery is how often the readiness document is renewed when nothing changes.
const publishEvery = time.Second

func (t *tenure) publish(ctx context.Context, f policy.Facts, now time.Time) error {
	if now.Sub(t.published) < publishEvery || t.ready.Epoch != t.assignment.Value.Epoch && t.assignment.Mod != 0 {
		return nil // a picture of the time before a switch is not shown as one of the time after it
	}
	t.published = now
	r := t.ready
	r.At, r.Decision, r.Votes, r.Controller, r.Advice = now, t.decision, f.Sites, t.Node, t.advice
	r.Epoch, r.Active = t.assignment.Value.Epoch, t.assignment.Value.Site
	_, err := t.do(ctx, "publish readiness", nil, dcs.Doc(t.Keys.Readiness(), r))
	return deposed(err)
}

// deposed turns a failed compare of the term into the end of the tenure; what is merely unavailable is tried again.
func deposed(err error) error {
	switch {
	case errors.Is(err, dcs.ErrCompare):
		return errors.Join(ErrDeposed, err)
	case errors.Is(err, dcs.ErrUnavailable):
		return nil
	}
	return err
}

// offerEvery is how long a node that was handed the lock and left it lying is not offered it again: each try costs an L without a controller.
const offerEvery = time.Minute

// handOver gives the lock to a node that comes before this one in the order of preference and is there.
func (t *tenure) handOver(ctx context.Context, now time.Time) error {
	if now.Sub(t.lockedAt) < 4*t.Profile.LockPulse || t.side != nil {
		return nil
	}
	active := t.assignment.Value.Site
	mine := rank(t.Cluster, active, t.Node)
	best := slices.IndexFunc(t.Cluster.Nodes, func(n cluster.Node) bool {
		r := t.state.Reports[n.Name]
		return rank(t.Cluster, active, n.Name) < mine && r.Value.Blind == "" && now.Sub(r.Received) < t.fresh() && now.Sub(t.offered[n.Name]) > offerEvery
	})
	if best < 0 {
		return nil
	}
	next := t.Cluster.Nodes[best].Name
	t.beating <- struct{}{}
	defer func() { <-t.beating }()
	if _, err := t.do(ctx, "hand the lock over", nil, dcs.Doc(t.Keys.Beat(), cluster.Beat{Node: t.Node, Next: next})); err != nil {
		return deposed(err)
	}
	t.handed, t.offered[next] = true, now
	t.Log.Info("lock handed over", slog.String("node", string(next)), slog.Int64("term", t.term.Value.N))
	return errHandedOver
}

// fresh is how old a report may be to count: three beats are late already, and a busy machine delays one.
func (t *tenure) fresh() time.Duration { return 4 * t.Profile.Interval }

// nextID is a number that no switch ever had: one more than the highest in the history, which is never emptied.
func (t *tenure) nextID() string {
	highest := 0
	for id := range t.state.Switches {
		if n, err := strconv.Atoi(strings.TrimPrefix(id, "s")); err == nil {
			highest = max(highest, n)
		}
	}
	return "s" + strconv.Itoa(highest+1)
}
