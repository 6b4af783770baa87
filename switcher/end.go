package switcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// kept is how many switches the history keeps (PROTOCOL 1).
const kept = 200

// end writes the summary, drops the working documents, and tells.
func (r *run) end(ctx context.Context, m plan.Move) error {
	sum := Summarize(r.p, r.log, r.times)
	sum.Outcome, sum.Why, sum.Ended = m.Outcome, m.Why, time.Now()
	ops := []dcs.Op{
		{Kind: dcs.DeletePrefix, Key: r.Keys.Switch(r.p.ID, "request/")},
		{Kind: dcs.DeletePrefix, Key: r.Keys.Switch(r.p.ID, "answer/")},
		{Kind: dcs.DeletePrefix, Key: r.Keys.Switch(r.p.ID, "look/")},
		{Kind: dcs.Delete, Key: r.Keys.Switch(r.p.ID, "released")},
		{Kind: dcs.Delete, Key: r.Keys.Switch(r.p.ID, "bound")},
		{Kind: dcs.Delete, Key: r.Keys.Switch(r.p.ID, "journal")},
		{Kind: dcs.Delete, Key: r.Keys.Switch(r.p.ID, "plan")},
		dcs.Doc(r.Keys.Switch(r.p.ID, "summary"), sum),
	}
	if _, err := r.do(ctx, "end switch", nil, append(ops, r.prune()...)...); err != nil {
		return deposed(err)
	}
	level := slog.LevelInfo
	if m.Outcome != plan.Completed {
		level = slog.LevelError
	}
	r.Log.Log(ctx, level, "switch ended", slog.String("switch", r.p.ID), slog.String("kind", string(r.p.Kind)),
		slog.String("outcome", string(m.Outcome)), slog.String("from", string(r.p.From)), slog.String("to", string(r.p.To)),
		slog.Duration("took", sum.Took), slog.Duration("outage", sum.Outage), slog.String("reason", m.Why))
	return nil
}

// keptMends of them may be mendings when there are too many: a rejoin that is refused is tried once a minute, and would push every real
// switch out of the history within hours, and out of the budget that counts them.
const keptMends = 20

// prune drops the oldest switches beyond the history's length, mendings first, a few at a time: a transaction is bounded.
func (r *run) prune() []dcs.Op {
	all := Summaries(r.state.Switches)
	var mends, rest []plan.Summary
	for _, s := range all {
		if s.Kind.Mends() {
			mends = append(mends, s)
		} else {
			rest = append(rest, s)
		}
	}
	spare := max(len(mends)-keptMends, 0)
	if spare == 0 { // then the oldest go, whatever they are
		rest = all
	}
	var ops []dcs.Op
	for _, s := range append(mends[:spare:spare], rest...)[:min(max(len(all)-kept, 0), 8)] {
		ops = append(ops, dcs.Op{Kind: dcs.DeletePrefix, Key: r.Keys.Switch(s.ID, "")})
	}
	return ops
}

// Summarize reads a journal as history shows it.
func Summarize(p plan.Plan, log []plan.Entry, times plan.Times) plan.Summary {
	s := plan.Summary{Plan: p, Outcome: plan.Running, Times: times, Steps: map[plan.StepName]time.Duration{}, Journal: log}
	for _, e := range log {
		if e.Phase != plan.Started {
			s.Steps[e.Step] = e.Took
		}
	}
	last := times.Verified
	if p.Kind == plan.GiveUp {
		last = times.Committed // nothing is bound or verified after it
	}
	if !last.IsZero() {
		s.Took = last.Sub(p.At)
	}
	from := times.FailedFrom
	if from.IsZero() {
		from = times.FirstBad
	}
	if from.IsZero() {
		from = times.Fenced
	}
	if !times.WorksSince.IsZero() && !from.IsZero() {
		s.Outage = times.WorksSince.Sub(from)
	}
	return s
}

// Summaries returns every switch of the store, oldest first, the running ones included.
func Summaries(docs map[string]dcs.SwitchDocs) []plan.Summary {
	var out []plan.Summary
	for _, d := range docs {
		switch {
		case d.Summary.Mod != 0:
			out = append(out, d.Summary.Value)
		case d.Plan.Mod != 0:
			out = append(out, Summarize(d.Plan.Value, d.Journal.Value, plan.Times{}))
		}
	}
	sortSummaries(out)
	return out
}
