package switcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
)

// act carries out a step of the controller itself.
func (r *run) act(ctx context.Context, s plan.StepName, why string) error {
	acts := map[plan.StepName]func(context.Context) error{
		plan.Recheck: r.recheck, plan.Fence: r.fence, plan.Commit: r.commit, plan.UndoServe: r.undoServe,
		plan.UndoMark: func(ctx context.Context) error { return r.undoMark(ctx, why) },
	}
	return acts[s](ctx)
}

// recheck makes the observers look again: a vote counts only when its samples were taken after this nonce was seen, so that a
// verdict that lags behind the truth moves nothing.
func (r *run) recheck(ctx context.Context) error {
	began := time.Now()
	if age := began.Sub(r.p.At); age > planLife && r.written {
		return r.refused(ctx, plan.Recheck, nil, began, fmt.Errorf("nobody carried it out within %s, and who asked has gone away: give it again", planLife))
	}
	nonce := r.p.ID + "/" + strconv.FormatInt(r.term.Value.N, 10)
	if _, err := r.record(ctx, "recheck", nil, []plan.Entry{r.entry(plan.Recheck, plan.Started, time.Time{}, nil, nil)},
		dcs.Doc(r.Keys.Nonce(), nonce)); err != nil {
		return err
	}
	until := began.Add(r.Profile.ProbeTimeout + 4*r.Profile.Interval)
	if r.p.Kind == plan.Switchover {
		until = began.Add(plannedPatience) // a hiccup leaves the windows within this; a planned switch can wait for it
	}
	for {
		now := time.Now()
		verdict, ok := r.judge(nonce, now)
		if ok {
			e := r.entry(plan.Recheck, plan.Done, began, map[string]string{"votes": verdict}, nil)
			return r.fenceWith(ctx, e)
		}
		if now.After(until) {
			_, err := r.record(ctx, "journal", nil, []plan.Entry{r.entry(plan.Recheck, plan.Failed, began, nil, errors.New(verdict))})
			return err
		}
		if err := r.wait(ctx, now.Add(r.Profile.Interval/4)); err != nil {
			return err
		}
	}
}

// planLife is how long a plan may wait for its fence: what led to it is no longer what is. It outlasts every patience before the fence and
// two changes of the controller; the clocks of two hosts need to agree no better than that.
const planLife = 30 * time.Second

// plannedPatience is how long a planned switch waits for observers that see both sites well: longer than the windows of both profiles.
const plannedPatience = 8 * time.Second

// judge says whether the fresh votes carry the plan. Force skips the observers' quorum, and nothing else.
func (r *run) judge(nonce string, now time.Time) (string, bool) {
	if r.p.Force || r.p.Kind == plan.GiveUp || r.p.Kind == plan.First {
		return "not asked for", true
	}
	to := r.combine(r.p.To, "", now)
	if to.State != health.Up && to.State != health.Busy {
		return fmt.Sprintf("target %s is %s: %s", r.p.To, to.State, to.Reason), false
	}
	from := r.combine(r.p.From, nonce, now)
	switch {
	case r.p.Kind == plan.Failover && from.State == health.Down:
		r.times.LastGood, r.times.FirstBad = earlier(r.times.LastGood, from.LastGood), earlier(r.times.FirstBad, from.FirstBad)
		return from.Reason, true
	case r.p.Kind == plan.Switchover && (from.State == health.Up || from.State == health.Busy):
		return from.Reason, true
	}
	return fmt.Sprintf("site %s is %s by %d up, %d down, %d unknown: %s", r.p.From, from.State, from.Up, from.Down, from.Unknown, from.Reason), false
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// fence is the first transaction that changes who may serve: from it on no renewal of the old lease can succeed.
func (r *run) fence(ctx context.Context) error { return r.fenceWith(ctx) }

func (r *run) fenceWith(ctx context.Context, before ...plan.Entry) error {
	began := time.Now()
	if a := r.assignment.Value; a.Switch == r.p.ID && a.Phase == cluster.Switching {
		return r.fenced(ctx, before, began) // a predecessor's fence took effect, and its journal entry with it: only the entry is new
	}
	old := r.assignment
	next := cluster.Assignment{
		Epoch: old.Value.Epoch + 1, Site: r.p.From, Phase: cluster.Switching, Switch: r.p.ID, To: r.p.To, Shards: old.Value.Shards,
	}
	h := r.state.Holder
	r.seen = lease.Renewal{Revision: h.Mod, Received: h.Received}
	cmps := []dcs.Cmp{{Key: r.Keys.Assignment(), Mod: old.Mod}}
	if m := r.state.Maintenance; r.p.By == automatic {
		if m.Mod != 0 && m.Value.Active(time.Now()) { // it began since the decision
			return r.refused(ctx, plan.Fence, before, began, fmt.Errorf("maintenance by %s (%s)", m.Value.Who, m.Value.Reason))
		}
		cmps = append(cmps, dcs.Cmp{Key: r.Keys.Maintenance(), Mod: m.Mod})
	}
	entries := slices.Concat(before, []plan.Entry{r.entry(plan.Fence, plan.Done, began, map[string]string{"epoch": strconv.FormatInt(next.Epoch, 10)}, nil)})
	ops := []dcs.Op{dcs.Doc(r.Keys.Assignment(), next)}
	saved := r.assignment
	r.assignment.Value = next // requests name the epoch of the fence, and as its revision their own: they ride in its transaction
	r.fenceMod = 0
	more, riding := r.ride(entries)
	res, err := r.record(ctx, "fence", cmps, append(entries, more...),
		append(append(ops, riding...), dcs.Op{Kind: dcs.Get, Key: r.Keys.Holder()})...)
	if errors.Is(err, dcs.ErrCompare) {
		r.assignment = saved
		return r.refused(ctx, plan.Fence, before, began, err)
	}
	if err != nil {
		return err
	}
	r.assignment.Mod, r.fenceMod = res.Revision, res.Revision
	r.waitFrom(r.seen, holderOf(res), time.Now())
	return nil
}

func (r *run) fenced(ctx context.Context, before []plan.Entry, began time.Time) error {
	_, err := r.record(ctx, "journal", nil, append(before, r.entry(plan.Fence, plan.Done, began, nil, nil)))
	return err
}

// refused tells a lost lock from a changed assignment: the first ends the tenure, the second the plan.
func (r *run) refused(ctx context.Context, s plan.StepName, before []plan.Entry, began time.Time, cause error) error {
	_, err := r.record(ctx, "journal", nil, append(before, r.entry(s, plan.Failed, began, nil, cause)))
	return deposed(err)
}

func holderOf(res dcs.Result) dcs.Versioned[cluster.Holder] {
	if len(res.Reads) == 0 || len(res.Reads[0]) == 0 {
		return dcs.Versioned[cluster.Holder]{}
	}
	return dcs.HolderOf(res.Reads[0][0])
}

// ride computes what plan.Next will ask for after these entries, so that it travels in the same transaction: the entries that say
// "started", and the request. What has failed before does not ride: it is tried again after a pause.
func (r *run) ride(entries []plan.Entry) ([]plan.Entry, []dcs.Op) {
	log := slices.Concat(r.log, entries)
	m := plan.Next(r.p, log, r.term.Value.N)
	if m.Do != plan.Run || failures(log, m.Steps[0].Name) > 0 {
		return nil, nil
	}
	var started []plan.Entry
	var ops []dcs.Op
	var batch []plan.StepName
	for _, s := range m.Steps {
		switch s.Actor {
		case plan.Executor:
			batch = append(batch, s.Name)
		case plan.OldGuard, plan.NewGuard, plan.Observers:
			r.deadline[s.Name] = time.Now().Add(r.patience(s.Name))
			started = append(started, r.entry(s.Name, plan.Started, time.Time{}, nil, nil))
		}
	}
	if len(batch) > 0 {
		e, op := r.ask(batch)
		started, ops = append(started, e...), append(ops, op)
		ops = append(ops, r.relax(batch)...)
	}
	return started, ops
}

// relax writes down that semi-sync is about to be relaxed, before anybody does it: S4 is decided by this key (PROTOCOL 6). A shard that is
// degraded already stays as it is, so that the key names this switch only where this switch took something away.
func (r *run) relax(batch []plan.StepName) []dcs.Op {
	var ops []dcs.Op
	for _, s := range batch {
		if s != plan.Promote && s != plan.DegradeStep && s != plan.RepairStep {
			continue
		}
		for _, shard := range r.p.Shards {
			if r.state.Sync[shard].Mod == 0 || r.armed[shard] {
				ops = append(ops, r.sync(shard, cluster.SyncDegraded))
			}
		}
	}
	return ops
}

func (r *run) sync(shard cluster.ShardName, state string) dcs.Op {
	s := cluster.SyncState{State: state, Since: time.Now()}
	if r.armed[shard] {
		s.Switch = r.p.ID
	}
	return dcs.Doc(r.Keys.Sync(shard), s)
}

// rearm takes back what relax wrote, for an undone switch has relaxed nothing at the old source. Without it a site that stays dead would
// never be failed over again under rpo: zero. Only one whole request to undo knows that: one that was not answered may have relaxed.
func (r *run) rearm() []dcs.Op {
	var ops []dcs.Op
	for _, shard := range r.p.Shards {
		tries, relaxed := 0, false
		for _, e := range r.log {
			if e.Step == plan.UndoSource && e.Phase == plan.Started {
				tries++
			}
			relaxed = relaxed || e.Facts[string(shard)+".semi_sync"] == "off"
		}
		if r.armed[shard] && tries <= 1 && !relaxed {
			ops = append(ops, r.sync(shard, cluster.SyncArmed))
		}
	}
	return ops
}

// commit is the only commit point: before it everything is undone, after it there is forward only.
func (r *run) commit(ctx context.Context) error {
	began := time.Now()
	a := r.assignment.Value
	if a.Switch == r.p.ID && a.Phase == cluster.Serving {
		_, err := r.record(ctx, "journal", nil, []plan.Entry{r.entry(plan.Commit, plan.Done, began, nil, nil)})
		return err
	}
	next := cluster.Assignment{
		Epoch: a.Epoch + 1, Site: r.p.To, Phase: cluster.Serving, Switch: r.p.ID, Shards: map[cluster.ShardName]cluster.SiteName{},
	}
	for _, shard := range r.p.Shards {
		next.Shards[shard] = r.p.To
	}
	if r.p.Kind == plan.GiveUp {
		next.Shards = a.Shards
	}
	next.Release = r.released(next.Epoch)
	return r.assign(ctx, plan.Commit, next, nil)
}

// assign changes the assignment and journals it, in one transaction, with what comes next. why is of an undo.
func (r *run) assign(ctx context.Context, s plan.StepName, next cluster.Assignment, why error, ops ...dcs.Op) error {
	began := time.Now()
	saved, mod := r.assignment, r.assignment.Mod
	facts := map[string]string{"epoch": strconv.FormatInt(next.Epoch, 10)}
	entries := slices.Concat(r.pending, []plan.Entry{r.entry(s, plan.Done, began, facts, why)})
	r.assignment.Value = next
	r.fenceMod = 0
	more, riding := r.ride(entries)
	res, err := r.record(ctx, string(s), []dcs.Cmp{{Key: r.Keys.Assignment(), Mod: mod}}, append(entries, more...),
		append(append(riding, ops...), dcs.Doc(r.Keys.Assignment(), next))...)
	if errors.Is(err, dcs.ErrCompare) {
		r.assignment = saved
		return errors.Join(ErrDeposed, err) // only a newer term changes an assignment under a switch
	}
	if err != nil {
		return err
	}
	r.assignment.Mod, r.fenceMod = res.Revision, res.Revision
	return nil
}

// released is the evidence for the new guard that the old VIP is silent.
func (r *run) released(epoch int64) *cluster.Release {
	if r.p.From == "" {
		return &cluster.Release{Epoch: epoch, None: true}
	}
	for _, e := range append(r.log[:len(r.log):len(r.log)], r.pending...) {
		if e.Step != plan.Release || e.Phase != plan.Done {
			continue
		}
		if inc := e.Facts["incarnation"]; inc != "" {
			return &cluster.Release{Epoch: epoch, Incarnation: inc}
		}
		return &cluster.Release{Epoch: epoch, Revision: r.holder}
	}
	return nil
}

func (r *run) undoMark(ctx context.Context, why string) error {
	a := r.assignment.Value
	if a.Phase == cluster.Undoing {
		_, err := r.record(ctx, "journal", nil, []plan.Entry{r.entry(plan.UndoMark, plan.Done, time.Time{}, nil, errors.New(why))})
		return err
	}
	a.Epoch, a.Phase, a.Release = a.Epoch+1, cluster.Undoing, nil
	r.Log.Warn("switch is undone", slog.String("switch", r.p.ID), slog.String("reason", why))
	return r.assign(ctx, plan.UndoMark, a, errors.New(why))
}

func (r *run) undoServe(ctx context.Context) error {
	a := r.assignment.Value
	if a.Phase == cluster.Serving {
		_, err := r.record(ctx, "journal", nil, []plan.Entry{r.entry(plan.UndoServe, plan.Done, time.Time{}, nil, nil)})
		return err
	}
	a.Epoch, a.Phase, a.Site, a.To = a.Epoch+1, cluster.Serving, r.p.From, ""
	a.Release = &cluster.Release{Epoch: a.Epoch, None: true} // no other site was bound in between
	return r.assign(ctx, plan.UndoServe, a, nil, r.rearm()...)
}

func shardDown(v health.Verdict, shard cluster.ShardName) bool {
	for _, ts := range v.Targets {
		if ts.Target.Kind == health.MySQL && ts.Target.Shard == shard && ts.State == health.Down {
			return true
		}
	}
	return false
}
