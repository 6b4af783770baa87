package switcher

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// past puts ended switches into the history.
func (w *world) past(from, to int) {
	var ops []dcs.Op
	for n := from; n <= to; n++ {
		id := fmt.Sprintf("s%d", n)
		s := plan.Summary{Plan: plan.Plan{ID: id, Kind: plan.Switchover, From: "a", To: "b"}, Outcome: plan.Completed}
		ops = append(ops, dcs.Doc(w.keys.Switch(id, "summary"), s))
	}
	w.do(ops...)
}

func TestHistoryKeepsTheLastTwoHundred(t *testing.T) {
	for name, tc := range map[string]struct{ from, to int }{"full": {1, 200}, "more than full": {1, 205}, "gaps": {90, 300}} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				w.past(tc.from, tc.to)
				w.lead("witness")
				for n := 1; n <= 2; n++ {
					id := fmt.Sprintf("s%d", tc.to+n)
					r := w.reply(w.command(plan.Command{Do: "release"}))
					if n == 2 {
						r = w.reply(w.command(plan.Command{To: "a"}))
					}
					if r.Switch != id {
						t.Fatalf("switch is %s, want %s: %+v", r.Switch, id, r)
					}
					w.ended(id)
				}
				all := Summaries(w.state().Switches)
				if len(all) != kept {
					t.Errorf("history keeps %d", len(all))
				}
				for i, s := range all {
					if want := fmt.Sprintf("s%d", tc.to+2-kept+1+i); s.ID != want {
						t.Fatalf("entry %d is %s, want %s: the oldest go, the order stays", i, s.ID, want)
					}
				}
			})
		})
	}
}

// An id is never used again, also not after an undo, and not by the next term.
func TestIDsAreNeverReused(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		w.start("mc-b")
		w.set(func() {
			w.fail = func(_ plan.Request, s plan.StepName) error {
				if s == plan.Promote {
					return errors.New("disk is full")
				}
				return nil
			}
		})
		used := map[string]bool{}
		for n := range 4 {
			r := w.reply(w.command(plan.Command{To: "b"}))
			if r.Refused != "" || used[r.Switch] {
				t.Fatalf("reply %+v after %v", r, used)
			}
			used[r.Switch] = true
			if s := w.ended(r.Switch); s.Outcome != plan.UndoneAll {
				t.Fatalf("%s: %s", s.Outcome, s.Why)
			}
			if n == 1 {
				c.kill()
			}
			w.pass(time.Second) // votes on the new epoch
		}
	})
}

func TestSummariesOrder(t *testing.T) {
	docs := map[string]dcs.SwitchDocs{}
	for _, id := range []string{"s10", "s9", "s100", "s1"} {
		var d dcs.SwitchDocs
		d.Summary.Mod, d.Summary.Value.ID, d.Summary.Value.Outcome = 1, id, plan.Completed
		docs[id] = d
	}
	var running, orphan dcs.SwitchDocs
	running.Plan.Mod, running.Plan.Value.ID = 1, "s101"
	running.Journal.Value = []plan.Entry{{Step: plan.Recheck, Phase: plan.Started}, {Step: plan.Recheck, Phase: plan.Done, Took: time.Second}}
	docs["s101"], docs["s5"] = running, orphan
	got := Summaries(docs)
	for i, want := range []string{"s1", "s9", "s10", "s100", "s101"} {
		if len(got) != 5 || got[i].ID != want {
			t.Fatalf("summaries are %v", got)
		}
	}
	if last := got[4]; last.Outcome != plan.Running || last.Steps[plan.Recheck] != time.Second {
		t.Errorf("the running one is told as %+v", last)
	}
}

func TestSummarizeTimes(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	all := plan.Times{FirstBad: at(-2), Fenced: at(1), Committed: at(3), Verified: at(5), WorksSince: at(4)}
	unseen := all
	unseen.FirstBad = time.Time{}
	seen := all
	seen.FailedFrom = at(-1)
	for _, tc := range []struct {
		name         string
		kind         plan.Kind
		times        plan.Times
		took, outage time.Duration
	}{
		{"failover", plan.Failover, all, 5 * time.Second, 6 * time.Second},
		{"as applications saw it", plan.Failover, seen, 5 * time.Second, 5 * time.Second},
		{"planned", plan.Switchover, unseen, 5 * time.Second, 3 * time.Second},
		{"released", plan.GiveUp, plan.Times{Fenced: at(1), Committed: at(3)}, 3 * time.Second, 0},
		{"aborted", plan.Failover, plan.Times{FirstBad: at(-2)}, 0, 0},
	} {
		if s := Summarize(plan.Plan{Kind: tc.kind, At: at(0)}, nil, tc.times); s.Took != tc.took || s.Outage != tc.outage {
			t.Errorf("%s: took %s, outage %s, want %s and %s", tc.name, s.Took, s.Outage, tc.took, tc.outage)
		}
	}
}

// Only automatic aborts that follow each other make the pause grow, and a stuck failover counts in the budget: it moved the service.
func TestHistoryForDecisions(t *testing.T) {
	type past struct {
		by      string
		at      time.Duration // before now
		outcome plan.Outcome
	}
	for name, tc := range map[string]struct {
		past      []past
		aborts    int
		completed int
	}{
		"in a row":           {[]past{{automatic, 5 * time.Minute, plan.Aborted}, {automatic, time.Minute, plan.UndoneAll}}, 2, 0},
		"long ago":           {[]past{{automatic, time.Hour, plan.Aborted}, {automatic, 40 * time.Minute, plan.Aborted}, {automatic, time.Minute, plan.Aborted}}, 1, 0},
		"operators' do not":  {[]past{{"op@desk", 3 * time.Minute, plan.Aborted}, {"op@desk", 2 * time.Minute, plan.Aborted}}, 0, 0},
		"a switch ends them": {[]past{{automatic, 5 * time.Minute, plan.Aborted}, {automatic, time.Minute, plan.Completed}}, 0, 1},
		"a stuck one too":    {[]past{{automatic, 5 * time.Minute, plan.Aborted}, {automatic, time.Minute, plan.Stuck}}, 0, 1},
	} {
		now := time.Now()
		docs := map[string]dcs.SwitchDocs{}
		for i, p := range tc.past {
			id := fmt.Sprint("s", i+1)
			docs[id] = dcs.SwitchDocs{Summary: dcs.Versioned[plan.Summary]{Mod: 1, Value: plan.Summary{
				Plan: plan.Plan{ID: id, Kind: plan.Failover, By: p.by, At: now.Add(-p.at)}, Outcome: p.outcome, Ended: now.Add(-p.at),
			}}}
		}
		var f policy.Facts
		(&tenure{Switcher: &Switcher{state: dcs.State{Switches: docs}}}).history(&f)
		if f.Last == nil || f.Last.Aborts != tc.aborts || len(f.Completed) != tc.completed {
			t.Errorf("%s: last %+v, completed %v; want %d aborts, %d completed", name, f.Last, f.Completed, tc.aborts, tc.completed)
		}
	}
}

// However often controllers change and try, the journal stays short: the newest entries of each step stay in it, in their order.
func TestJournalStaysShort(t *testing.T) {
	var log []plan.Entry
	for seq := range 500 {
		e := plan.Entry{Seq: seq, Step: []plan.StepName{plan.Bind, plan.Verify}[seq%2], Phase: plan.Started}
		if seq < 10 {
			e.Step = plan.Fence
		}
		log = append(shorten(log, e.Step), e)
	}
	if len(log) != 10+2*mostTries {
		t.Errorf("%d entries are left", len(log))
	}
	for i, e := range log[10:] {
		if want := 500 - 2*mostTries + i; e.Seq != want {
			t.Fatalf("entry %d is number %d, want %d", i, e.Seq, want)
		}
	}
}

// An undo that a site will not let through is tried a few times, and then goes on without it: nobody serves while it lasts. What is left
// is mended under the serving assignment.
func TestUndoThatFailsGoesOn(t *testing.T) {
	for _, step := range []plan.StepName{plan.UndoTarget, plan.UndoSource} {
		t.Run(string(step), func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				w.lead("witness")
				w.set(func() {
					w.fail = func(r plan.Request, s plan.StepName) error {
						if r.Switch == "s1" && (s == plan.Promote || s == step) {
							return errors.New("read-only file system")
						}
						return nil
					}
				})
				w.command(plan.Command{To: "b"})
				s := w.ended("s1")
				if got := w.phases(); got != "serving(a) switching(a) undoing(a) serving(a)" || s.Outcome != plan.UndoneAll {
					t.Errorf("%s: assignment went %s", s.Outcome, got)
				}
				var failed time.Time
				for _, e := range s.Journal {
					if e.Step == step && e.Phase == plan.Failed {
						failed = e.At
					}
					if e.Step == step && e.Phase == plan.Started && !failed.IsZero() && e.At.Sub(failed) < 50*time.Millisecond {
						t.Errorf("tried again %s after a failure", e.At.Sub(failed))
					}
				}
				tried := 0
				for _, r := range w.requests() {
					if strings.Contains(r, string(plan.UndoSource)) {
						tried++
					}
				}
				if tried < 3 || tried > 4 {
					t.Errorf("asked for the undo %d times: %q", tried, w.requests())
				}
				if got := w.requests()[len(w.requests())-1]; step == plan.UndoTarget && got != string(plan.UndoSource) {
					t.Errorf("the source was not given back by itself: %q", got)
				}
				w.one("a")
			})
		})
	}
}

// An undone failover of a site that stays dead does not leave the key degraded, or nobody would fail over any more under rpo: zero. What the
// undo relaxed at the old source, and what was degraded before, stays degraded, also when another controller finishes the undo.
func TestUndoGivesTheArmedStateBack(t *testing.T) {
	for name, tc := range map[string]struct {
		facts  map[string]string // of the undo
		before string            // of s1
		dies   bool
		want   string // of s1
	}{
		"nothing was relaxed":                {before: "armed", want: "armed"},
		"another controller":                 {before: "armed", dies: true, want: "armed"},
		"s1 was relaxed":                     {before: "armed", facts: map[string]string{"s1.semi_sync": "off"}, want: "degraded"},
		"degraded before":                    {before: "degraded", want: "degraded"},
		"degraded before another controller": {before: "degraded", dies: true, want: "degraded"},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				was := cluster.SyncState{State: tc.before, Switch: "s0", Since: time.Now()}
				w.do(dcs.Doc(w.keys.Sync("s1"), was))
				w.set(func() {
					w.look = func(r *Readiness) { r.Sites["a"], r.Sites["b"] = SiteReady{}, SiteReady{} }
					w.fail, w.took = failPromote, 100*time.Millisecond
					w.facts = func(_ plan.Request, s plan.StepName) map[string]string {
						if s == plan.UndoSource {
							return tc.facts
						}
						return nil
					}
				})
				c := w.lead("witness")
				w.start("mc-b")
				w.command(plan.Command{To: "b", Force: true, AcceptLoss: true, Reason: "drill"})
				w.wait("the fence", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Switching })
				if tc.dies {
					c.kill()
				}
				w.wait("undoing", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Undoing })
				st := w.state()
				if s := st.Sync["s2"].Value; s.State != cluster.SyncDegraded || s.Switch != "s1" {
					t.Errorf("before the undo sync of s2 is %+v", s)
				}
				if s := st.Sync["s1"].Value; s.State != cluster.SyncDegraded || tc.before == "degraded" && (s.Switch != "s0" || !s.Since.Equal(was.Since)) {
					t.Errorf("before the undo sync of s1 is %+v, was %+v", s, was)
				}
				w.ended("s1")
				if got := w.state().Sync; got["s1"].Value.State != tc.want || got["s2"].Value.State != cluster.SyncArmed {
					t.Errorf("sync after the undo is %+v", got)
				}
			})
		})
	}
}
