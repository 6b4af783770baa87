package switcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// await waits for the next word of a guard, the end of the old lease, or the end of patience, and journals it.
func (r *run) await(ctx context.Context) error {
	for {
		if entries := r.heard(time.Now()); len(entries) > 0 {
			return r.hear(ctx, entries)
		}
		if err := r.wait(ctx, r.next(time.Now())); err != nil {
			return err
		}
	}
}

// hear journals what was heard; what follows from it (the commit above all) goes in the same transaction where it can.
func (r *run) hear(ctx context.Context, entries []plan.Entry) error {
	m := plan.Next(r.p, append(r.log[:len(r.log):len(r.log)], entries...), r.term.Value.N)
	if m.Do == plan.Run && len(m.Steps) == 1 && m.Steps[0].Name == plan.Commit {
		r.pending = entries // the commit's transaction carries them
		defer func() { r.pending = nil }()
		return r.commit(ctx)
	}
	more, riding := r.ride(entries)
	_, err := r.record(ctx, "journal", nil, append(entries, more...), riding...)
	return err
}

// next is when something may happen without a word from anybody.
func (r *run) next(now time.Time) time.Time {
	at := now.Add(r.Profile.Interval)
	if r.under(plan.Release) && r.silent.Until.Before(at) && r.silent.Until.After(now) {
		at = r.silent.Until
	}
	return at
}

// under says whether the step was started in this term and has not ended.
func (r *run) under(s plan.StepName) bool {
	i := lastOf(r.log, s)
	return i >= 0 && r.log[i].Phase == plan.Started && r.log[i].Term == r.term.Value.N
}

// lastOf is the place of the step's newest entry, or -1.
func lastOf(log []plan.Entry, s plan.StepName) int {
	for i := len(log) - 1; i >= 0; i-- {
		if log[i].Step == s {
			return i
		}
	}
	return -1
}

// heard gathers the entries that what is known by now amounts to.
func (r *run) heard(now time.Time) []plan.Entry {
	docs := r.state.Switches[r.p.ID]
	var out []plan.Entry
	if r.under(plan.Release) {
		out = append(out, r.heardRelease(docs, now)...)
	}
	if r.under(plan.Bind) {
		out = append(out, r.heardBind(docs, now)...)
	}
	if r.under(plan.Verify) {
		out = append(out, r.heardLooks(docs, now)...)
	}
	return append(out, r.heardAnswer(docs, now)...)
}

func (r *run) heardRelease(docs dcs.SwitchDocs, now time.Time) []plan.Entry {
	if rel := docs.Released; rel.Mod != 0 && rel.Value.Fence == r.fenceRevision() {
		e := r.entry(plan.Release, plan.Done, time.Time{}, map[string]string{"incarnation": rel.Value.Incarnation, "how": "acknowledged"}, nil)
		for k, v := range rel.Value.Facts {
			e.Facts[k] = v
		}
		e.Took = rel.Value.Took
		return []plan.Entry{e}
	}
	if r.level != cluster.GateNone && !now.Before(r.silent.Until) {
		return []plan.Entry{r.entry(plan.Release, plan.Done, r.times.Fenced, map[string]string{
			"how": "waited out", "counted": r.silent.Why, "revision": strconv.FormatInt(r.holder, 10),
		}, nil)}
	}
	if r.level != cluster.GateNone {
		return nil
	}
	return r.outOfPatience(plan.Release, now, "the old guard has not answered and its gate level is none: nobody knows whether its VIP is silent; switch the host off, then try again")
}

// fenceRevision is the assignment's revision that the old guard answers to: the fence's, also while undoing has not begun.
func (r *run) fenceRevision() int64 { return r.fenceMod }

func (r *run) heardBind(docs dcs.SwitchDocs, now time.Time) []plan.Entry {
	b := docs.Bound
	if b.Mod != 0 && b.Value.Epoch == r.assignment.Value.Epoch && b.Value.Err == "" {
		e := r.entry(plan.Bind, plan.Done, time.Time{}, map[string]string{"mac": b.Value.MAC}, nil)
		for k, v := range b.Value.Facts {
			e.Facts[k] = v
		}
		e.Took = b.Value.Took
		return []plan.Entry{e}
	}
	why := "the new guard has not bound the VIP: look at its log"
	if b.Mod != 0 && b.Value.Err != "" {
		why = b.Value.Err
	}
	return r.outOfPatience(plan.Bind, now, why)
}

func (r *run) outOfPatience(s plan.StepName, now time.Time, why string) []plan.Entry {
	if now.Before(r.deadline[s]) {
		return nil
	}
	return []plan.Entry{r.entry(s, plan.Failed, time.Time{}, nil, errors.New(why))}
}

// heardLooks counts the observers to whom the service works through the VIP. A quorum of them decides: one alone may stand where the
// announcement has not come through, or is itself the VIP's host. Force skips the quorum, here as at the recheck.
func (r *run) heardLooks(docs dcs.SwitchDocs, now time.Time) []plan.Entry {
	asked := r.log[lastOf(r.log, plan.Verify)]
	need := r.Cluster.Quorum()
	if r.p.Force {
		need = 1
	}
	facts := map[string]string{}
	var well, ill []string
	var works []time.Time
	for _, n := range r.Cluster.Nodes {
		l := docs.Looks[n.Name]
		switch {
		case l.Mod == 0 || l.Value.Question != asked.Seq:
			ill = append(ill, string(n.Name)+" has not answered")
		case l.Value.Err != "":
			ill = append(ill, string(n.Name)+": "+l.Value.Err)
		default:
			well, works = append(well, string(n.Name)), append(works, l.Value.At)
			maps.Copy(facts, l.Value.Facts)
		}
	}
	if len(well) < need {
		return r.outOfPatience(plan.Verify, now, fmt.Sprintf("the service works through the VIP to %d of %d observers, %d are needed: %s", len(well), len(r.Cluster.Nodes), need, strings.Join(ill, "; ")))
	}
	slices.SortFunc(works, time.Time.Compare)
	r.times.WorksSince = works[need-1] // since then it has worked for a quorum
	if r.times.WorksSince.Before(asked.At) || r.times.WorksSince.After(now) {
		r.times.WorksSince = now // an observer's clock is wrong: no outage is as long as that
	}
	facts["observers"] = strings.Join(well, " ")
	return []plan.Entry{r.entry(plan.Verify, plan.Done, asked.At, facts, nil)}
}

// heardAnswer takes the executor's answer, or gives up on it.
func (r *run) heardAnswer(docs dcs.SwitchDocs, now time.Time) []plan.Entry {
	if len(r.request.Steps) == 0 || !r.under(r.request.Steps[0]) && !r.under(r.request.Steps[len(r.request.Steps)-1]) {
		return nil
	}
	if a := docs.Answers[r.node]; a.Mod != 0 && a.Value.Request == r.request.ID {
		out := slices.Clone(a.Value.Entries) // the view is everybody's
		for i := range out {
			out[i].Term = r.term.Value.N
		}
		if a.Value.Refused != "" {
			return r.failAll(fmt.Errorf("%s refused the request: %s", r.node, a.Value.Refused))
		}
		return out
	}
	if age := r.silence(now); age > 0 {
		return r.failAll(fmt.Errorf("%s has stopped reporting %s ago, in the middle of its steps: its daemon or its host is gone", r.node, age.Round(10*time.Millisecond)))
	}
	if now.Before(r.deadline[r.request.Steps[0]]) {
		return nil
	}
	return r.failAll(fmt.Errorf("%s has not answered within %s", r.node, r.patience(r.request.Steps[0])))
}

// silence is for how long the node that runs the request has not reported, when that is longer than a busy host is late: then it is not
// waited for any longer, since applications wait too. An executor that only applies a long relay log goes on reporting.
func (r *run) silence(now time.Time) time.Duration {
	rep := r.state.Reports[r.node]
	age := now.Sub(rep.Received)
	if r.node == r.Node || rep.Mod == 0 || age < max(2*r.fresh(), time.Second) {
		return 0
	}
	return age
}

func (r *run) failAll(why error) []plan.Entry {
	var out []plan.Entry
	for _, s := range r.request.Steps {
		out = append(out, r.entry(s, plan.Failed, time.Time{}, nil, why))
	}
	return out
}
