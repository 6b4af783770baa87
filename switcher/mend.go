package switcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// mend runs rejoin and repair plans beside the watch: a failover preempts them, since its fence changes the assignment that every
// statement of theirs is checked against.
func (t *tenure) mend(ctx context.Context, f policy.Facts, now time.Time) error {
	if t.side != nil {
		return t.advance(ctx, now)
	}
	a := t.assignment.Value
	if t.Mode != policy.Automatic && len(t.state.Switches) == 0 || a.Phase != cluster.Serving || a.Site == "" || t.ready.Epoch != a.Epoch {
		return nil
	}
	all := t.ailing(f, now)
	next := slices.IndexFunc(all, func(ill ailment) bool { // one that pauses after a failure holds up no other
		ps := t.sidePause[string(ill.kind)+string(ill.site)]
		return ps == nil || !now.Before(ps.until)
	})
	if next < 0 {
		return nil
	}
	ill := all[next]
	p := t.plan(policy.Decision{Kind: ill.kind, From: a.Site, To: ill.site}, plan.Command{By: automatic, Reason: ill.why})
	p.Epoch, p.Shards = a.Epoch, ill.shards
	t.Log.Info("mending begins", slog.String("switch", p.ID), slog.String("kind", string(p.Kind)), slog.String("site", string(ill.site)), slog.String("reason", ill.why))
	r := newRun(t, p, nil)
	r.fenceMod = t.assignment.Mod
	if err := r.start(ctx, plan.Next(p, nil, t.term.Value.N)); err != nil {
		return deposed(err) // begun anew at the next step: nothing was written, the id is free
	}
	t.side = r
	return nil
}

type ailment struct {
	kind   plan.Kind
	site   cluster.SiteName
	shards []cluster.ShardName
	why    string
}

// ailing lists what is to be mended, the most urgent first: a source that waits for a replica that is gone (its writers hang), instances
// of the active site that came back read-only, sites that do not replicate.
func (t *tenure) ailing(f policy.Facts, now time.Time) []ailment {
	active := t.assignment.Value.Site
	var all []ailment
	var lonely []cluster.ShardName
	for shard, since := range t.alone {
		if now.Sub(since) > t.Terms.D && (slices.Contains(t.ready.Sites[active].Alone, shard) || t.anyDown(f)) {
			lonely = append(lonely, shard)
		}
	}
	if len(lonely) > 0 {
		all = append(all, ailment{plan.Degrade, active, lonely, fmt.Sprintf("no replica acknowledges %v, its writers would wait for ever", lonely)})
	}
	if s := t.ready.Sites[active]; len(s.Rejoin) > 0 {
		all = append(all, ailment{plan.Repair, active, t.Cluster.Shards, strings.Join(s.Rejoin, "; ")})
	}
	for _, site := range t.Cluster.Others(active) {
		// Down as a site or not: without its Mycat, or with one MySQL dead, the others can hold a copy, and until they do no write is lossless.
		s, shards := t.ready.Sites[site.Name], t.answering(site.Name)
		if len(s.Rejoin) > 0 && len(shards) > 0 {
			all = append(all, ailment{plan.Rejoin, site.Name, shards, strings.Join(s.Rejoin, "; ")})
		}
	}
	return all
}

// answering are the shards whose instance of the site answered the controller's newest look.
func (t *tenure) answering(site cluster.SiteName) []cluster.ShardName {
	return slices.DeleteFunc(slices.Clone(t.Cluster.Shards), func(shard cluster.ShardName) bool {
		return slices.ContainsFunc(t.ready.Instances, func(x Instance) bool { return x.Site == site && x.Shard == shard && x.Err != "" })
	})
}

// anyDown says whether a quorum of observers sees a standby site down: what this controller alone does not reach proves nothing.
func (t *tenure) anyDown(f policy.Facts) bool {
	for _, site := range t.Cluster.Others(t.assignment.Value.Site) {
		if f.Sites[site.Name].State == health.Down {
			return true
		}
	}
	return false
}

// advance takes the answer of a rejoin or repair in.
func (t *tenure) advance(ctx context.Context, now time.Time) error {
	r := t.side
	entries := r.heardAnswer(t.state.Switches[r.p.ID], now)
	if len(entries) == 0 {
		return nil
	}
	if _, err := r.record(ctx, "journal", nil, entries, t.armed(r)...); err != nil {
		return deposed(err)
	}
	t.side = nil
	failed := failures(entries, entries[0].Step) > 0
	key := string(r.p.Kind) + string(r.p.To)
	if t.sidePause[key] == nil || !failed {
		t.sidePause[key] = &pause{}
	}
	if failed {
		t.sidePause[key].failed(now)
	}
	t.ready = Readiness{} // what was seen before the mending decides nothing
	return deposed(r.end(ctx, plan.Next(r.p, r.log, t.term.Value.N)))
}

// armed writes down that semi-sync is back, after the executor saw it on and caught up; and that it never was away where a repair was
// refused: the instance stayed read-only, and a failover must not be refused for what a repair has only meant to do.
func (t *tenure) armed(r *run) []dcs.Op {
	var ops []dcs.Op
	if r.p.Kind == plan.Repair {
		for _, shard := range r.p.Shards {
			if r.armed[shard] && lastEntry(r, string(shard)+".left") != "" {
				ops = append(ops, r.sync(shard, cluster.SyncArmed))
			}
		}
	}
	if r.p.Kind != plan.Rejoin {
		return ops
	}
	for _, shard := range r.p.Shards {
		if lastEntry(r, string(shard)+".semi_sync") == "on" {
			ops = append(ops, dcs.Doc(t.Keys.Sync(shard), cluster.SyncState{State: cluster.SyncArmed, Since: time.Now(), Switch: r.p.ID}))
		}
	}
	return ops
}

// lastEntry is the executor's word: a fact of its answer.
func lastEntry(r *run, fact string) string {
	for _, e := range r.state.Switches[r.p.ID].Answers[r.node].Value.Entries {
		if v := e.Facts[fact]; v != "" {
			return v
		}
	}
	return ""
}

// drop forgets a mending that a switch preempts; its plan ends as aborted.
func (t *tenure) drop(by plan.Plan) {
	if t.side == nil {
		return
	}
	r := t.side
	t.side = nil
	r.log = append(r.log, r.entry(r.request.Steps[0], plan.Failed, time.Time{}, nil, errors.New("preempted by switch "+by.ID)))
	t.preempted = append(t.preempted, r)
}

// abandon ends the mending of a predecessor: it is begun anew when it is still needed. One whose answer is journaled only lacks its end.
func (t *tenure) abandon(d dcs.SwitchDocs) {
	r := newRun(t, d.Plan.Value, &d)
	t.preempted = append(t.preempted, r)
	if plan.Next(r.p, r.log, t.term.Value.N).Do == plan.End {
		return
	}
	for _, s := range r.p.Table() {
		r.log = append(r.log, r.entry(s.Name, plan.Failed, time.Time{}, nil, errors.New("its controller has changed")))
	}
}
