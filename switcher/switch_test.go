package switcher

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

func TestFirstStart(t *testing.T) {
	within(t, func(w *world) {
		w.lead("witness")
		w.command(plan.Command{To: "a"})
		s := w.ended("s1")
		if s.Outcome != plan.Completed || s.Kind != plan.First {
			t.Errorf("%s %s: %s\n%s", s.Kind, s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "switching() serving(a)" {
			t.Errorf("assignment went %s", got)
		}
		if rel := w.state().Assignment.Value.Release; rel == nil || !rel.None {
			t.Errorf("release evidence is %+v: nobody held the VIP before", rel)
		}
		w.one("a")
	})
}

func TestFailoverWithAcknowledgedRelease(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.down("a")
		s := w.ended("s1")
		if s.Outcome != plan.Completed || s.Kind != plan.Failover || s.By != "automatic" {
			t.Fatalf("%s by %s %s: %s\n%s", s.Kind, s.By, s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
			t.Errorf("assignment went %s", got)
		}
		if rel := w.state().Assignment.Value.Release; rel == nil || rel.Incarnation != "guard of a" || rel.Epoch != 3 {
			t.Errorf("release evidence is %+v, want the incarnation that answered", rel)
		}
		if e := entry(s.Journal, plan.Release); e.Facts["how"] != "acknowledged" || e.Facts["reset"] != "1" {
			t.Errorf("release is told as %+v", e)
		}
		if took := w.at(2).Sub(w.at(1)); took >= terms.D {
			t.Errorf("an acknowledged release took %s", took)
		}
		checkTimes(t, s)
		w.one("b")
	})
}

// checkTimes: every moment that a switch logs is there, and they follow each other.
func checkTimes(t *testing.T, s plan.Summary) {
	t.Helper()
	m := s.Times
	order := []time.Time{m.LastGood, m.FirstBad, m.Verdict, m.Lock, m.Fenced, m.Promoted, m.Committed, m.Bound, m.Verified}
	for i, at := range order {
		if at.IsZero() || i > 0 && at.Before(order[i-1]) {
			t.Errorf("moment %d of %v is missing or out of order", i, order)
		}
	}
	if m.Released.Before(m.Fenced) || m.Committed.Before(m.Released) {
		t.Errorf("released at %v, between %v and %v?", m.Released, m.Fenced, m.Committed)
	}
	if s.Took != m.Verified.Sub(s.At) || s.Outage != m.WorksSince.Sub(m.FirstBad) || s.Outage <= 0 {
		t.Errorf("took %s, outage %s of %+v", s.Took, s.Outage, m)
	}
}

// The old guard is frozen: the commit comes at the very end of the wait and not before, counted from the last renewal that was
// seen to come, or from the fence's answer when it was not.
func TestSilentGuardIsWaitedOut(t *testing.T) {
	for name, lag := range map[string]time.Duration{"its last renewal was seen": 0, "its last renewal was not seen yet": 2 * terms.RenewEvery()} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				c := w.lead("witness")
				w.set(func() { w.guards["a"].acks = false })
				c.kv.DelayWatch(lag)
				w.pass(time.Second)
				if lag == 0 {
					w.set(func() { w.guards["a"].renews = false })
					w.pass(terms.RenewEvery())
				}
				w.down("a")
				s := w.ended("s1")
				w.mu.Lock()
				renewed := w.guards["a"].until.Add(terms.Margin - terms.D)
				w.mu.Unlock()
				from := renewed
				if lag > 0 {
					from = w.at(1)
				}
				if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
					t.Fatalf("assignment went %s\n%s", got, lines(s.Journal))
				}
				if got, want := w.at(2), from.Add(span); got.Before(want) || lag == 0 && !got.Equal(want) {
					t.Errorf("committed %s after the last renewal and %s after the fence; want %s after", got.Sub(renewed), got.Sub(w.at(1)), want.Sub(renewed))
				}
				rel := w.state().Assignment.Value.Release
				if rel == nil || rel.Incarnation != "" || rel.Revision == 0 || rel.Revision != w.state().Holder.Mod && rel.Revision > w.state().Holder.Mod {
					t.Errorf("release evidence is %+v, want the revision of holder that was waited out", rel)
				}
				if e := entry(s.Journal, plan.Release); e.Facts["how"] != "waited out" {
					t.Errorf("release is told as %+v", e)
				}
				w.one("b")
			})
		})
	}
}

// An answer to another fence than this one is none.
func TestAnswerToAnotherFenceIsNone(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() { w.guards["a"].acks = false })
		w.down("a")
		st := w.wait("the fence", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Switching })
		w.do(dcs.Doc(w.keys.Switch("s1", "released"), plan.Released{Incarnation: "guard of a", Fence: st.Assignment.Mod - 1}))
		s := w.ended("s1")
		if e := entry(s.Journal, plan.Release); s.Outcome != plan.Completed || e.Facts["how"] != "waited out" {
			t.Errorf("%s, release is told as %+v", s.Outcome, e)
		}
	})
}

// Somebody edits the assignment between the controller's sight of it and its fence: the fence is refused, and nothing is touched.
func TestFenceComparesTheAssignment(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		edited := false
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["assignment"]; ok && !edited {
				edited = true
				a := w.state().Assignment.Value
				a.Epoch, a.Release = 2, &cluster.Release{Epoch: 2, None: true}
				w.do(dcs.Doc(w.keys.Assignment(), a))
			}
			return dcs.None
		})
		w.down("a")
		s := w.ended("s1")
		if s.Outcome != plan.Aborted || !strings.HasPrefix(s.Why, "fence: ") || len(w.requests()) != 0 {
			t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		if s := w.ended("s2"); s.Outcome != plan.Completed || s.Epoch != 3 {
			t.Errorf("second try of epoch %d %s: %s", s.Epoch, s.Outcome, s.Why)
		}
	})
}

// The same between fence and commit: the commit is refused, and what stands then is read and finished.
func TestCommitComparesTheAssignment(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			a := w.state().Assignment.Value
			if _, ok := keysOf(w.keys, then)["assignment"]; ok && a.Phase == cluster.Switching && a.Epoch == 2 {
				a.Epoch++
				w.do(dcs.Doc(w.keys.Assignment(), a))
			}
			return dcs.None
		})
		w.down("a")
		if s := w.ended("s1"); s.Outcome != plan.Completed {
			t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "serving(a) switching(a) switching(a) serving(b)" {
			t.Errorf("assignment went %s", got)
		}
	})
}

// Neither words of force waive the wait (PROTOCOL 8).
func TestForceNeverSkipsTheRelease(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() { w.guards["a"].acks, w.mute["mc-a"], w.mute["mc-b"] = false, true, true })
		w.pass(time.Second)
		w.command(plan.Command{To: "b", Force: true, AcceptLoss: true, Reason: "drill"})
		if s := w.ended("s1"); s.Outcome != plan.Completed {
			t.Errorf("%s %s: %s\n%s", s.Kind, s.Outcome, s.Why, lines(s.Journal))
		}
		if took := w.at(2).Sub(w.at(1)); took < terms.Span()-terms.RenewEvery() {
			t.Errorf("committed %s after the fence, although nobody answered it", took)
		}
	})
}

func TestSwitchover(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.command(plan.Command{To: "b"})
		s := w.ended("s1")
		if s.Outcome != plan.Completed || s.Kind != plan.Switchover || s.By != "op@desk" {
			t.Errorf("%s by %s %s: %s\n%s", s.Kind, s.By, s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
			t.Errorf("assignment went %s", got)
		}
		if got := w.requests(); !slices.Equal(got, []string{"fence-writes cut catch-up promote"}) {
			t.Errorf("asked for %q, want one request", got)
		}
		w.one("b")
	})
}

func TestRelease(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.command(plan.Command{Do: "release"})
		if s := w.ended("s1"); s.Outcome != plan.Completed || s.Kind != plan.GiveUp {
			t.Errorf("%s %s: %s\n%s", s.Kind, s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "serving(a) switching(a) serving()" {
			t.Errorf("assignment went %s", got)
		}
		a := w.state().Assignment.Value
		if a.Site != "" || a.Shards["s1"] != "a" || a.Shards["s2"] != "a" {
			t.Errorf("in the end %+v, want nobody serving and the data where it was", a)
		}
		if got := w.requests(); len(got) != 0 {
			t.Errorf("asked MySQL for %q", got)
		}
		w.command(plan.Command{To: "a"})
		if s := w.ended("s2"); s.Outcome != plan.Completed {
			t.Errorf("not served again: %s", s.Why)
		}
		w.one("a")
	})
}

// Each step of an executor fails, in both kinds of switch: what was done is taken back in order, the old site serves again under a
// new epoch at each change, and there is no next try before the pause is over.
func TestFailedStepIsUndone(t *testing.T) {
	for _, tc := range []struct {
		kind plan.Kind
		step plan.StepName
		deaf bool
	}{
		{plan.Failover, plan.Cut, false},
		{plan.Failover, plan.CatchUp, false},
		{plan.Failover, plan.Promote, false},
		{plan.Failover, plan.Promote, true},
		{plan.Switchover, plan.FenceWrites, false},
		{plan.Switchover, plan.Promote, false},
	} {
		name := string(tc.kind) + " " + string(tc.step)
		if tc.deaf {
			name = string(tc.kind) + " no answer"
		}
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				w.lead("witness")
				w.set(func() {
					w.deaf = tc.deaf
					w.fail = func(r plan.Request, s plan.StepName) error {
						if s == tc.step && r.Switch == "s1" {
							return errors.New("disk is full")
						}
						return nil
					}
				})
				if tc.kind == plan.Failover {
					w.down("a")
				} else {
					w.command(plan.Command{To: "b"})
				}
				if tc.deaf {
					w.wait("undo", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Undoing })
					w.set(func() { w.deaf = false })
				}
				s := w.ended("s1")
				if got := w.phases(); got != "serving(a) switching(a) undoing(a) serving(a)" {
					t.Errorf("assignment went %s", got)
				}
				if s.Outcome != plan.UndoneAll {
					t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
				}
				why := string(tc.step) + ": disk is full"
				if tc.deaf {
					why = "has not answered within"
				}
				if !strings.Contains(s.Why, why) {
					t.Errorf("summary says why: %q, want %q in it", s.Why, why)
				}
				undo := "undo-target undo-source"
				want := []string{"fence-writes cut catch-up promote", undo}
				if tc.deaf {
					want = append(want, undo) // the first one was not answered either
				}
				if got := w.requests(); !slices.Equal(got, want) {
					t.Errorf("asked for %q, want %q", got, want)
				}
				w.mu.Lock()
				if last := w.asked[len(w.asked)-1]; !last.KillOlder || last.Epoch != 3 || last.Fence != 0 && last.Fence != w.changes[2].mod {
					t.Errorf("undo asked with %+v", last)
				}
				w.mu.Unlock()
				w.one("a")
				if tc.kind == plan.Failover && !tc.deaf {
					next := w.ended("s2")
					if pause := next.At.Sub(s.Ended); pause < 2*time.Second {
						t.Errorf("tried again after %s", pause)
					}
					if next.Outcome != plan.Completed {
						t.Errorf("second try: %s %s", next.Outcome, next.Why)
					}
				}
			})
		})
	}
}

// Recheck: without a quorum of votes that answer the nonce nothing is changed.
func TestRecheckWithoutQuorumChangesNothing(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"reports lag":        func(w *world) { w.lagging = true },
		"the site is up":     func(w *world) { w.seen["a"] = "up" },
		"the target is down": func(w *world) { w.seen["b"] = "down" },
		"observers are gone": func(w *world) { w.mute["mc-a"], w.mute["witness"] = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				c := w.lead("witness")
				c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
					if _, ok := keysOf(w.keys, then)["nonce"]; ok {
						w.set(func() { spoil(w) })
					}
					return dcs.None
				})
				w.down("a")
				s := w.ended("s1")
				if s.Outcome != plan.Aborted || !strings.HasPrefix(s.Why, "recheck: ") {
					t.Errorf("%s: %s", s.Outcome, s.Why)
				}
				if got := w.phases(); got != "serving(a)" || len(w.requests()) != 0 {
					t.Errorf("assignment went %s, asked for %q", got, w.requests())
				}
			})
		})
	}
}

// Whatever does not work through the VIP after the commit is tried again, and in the end a person is called; nothing is undone.
func TestPastTheCommitThereIsForwardOnly(t *testing.T) {
	t.Run("bound late", func(t *testing.T) {
		within(t, func(w *world) {
			w.serving()
			w.lead("witness")
			w.set(func() { w.guards["b"].binds = false })
			w.down("a")
			w.wait("a failed try", func(st dcs.State) bool { return failures(st.Switches["s1"].Journal.Value, plan.Bind) > 0 })
			w.set(func() { w.guards["b"].binds = true })
			w.do(dcs.Doc(w.keys.Observer("x"), "wake")) // the fake guard looks when something changes
			if s := w.ended("s1"); s.Outcome != plan.Completed {
				t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
			}
			w.one("b")
		})
	})
	t.Run("never verified", func(t *testing.T) {
		within(t, func(w *world) {
			w.serving()
			w.lead("witness")
			w.set(func() {
				w.verify = func(n cluster.NodeName) error {
					if n == "mc-b" {
						return nil // the VIP's own host sees it: that is no quorum
					}
					return errors.New("connection refused")
				}
			})
			w.down("a")
			s := w.ended("s1")
			if s.Outcome != plan.Stuck || !strings.Contains(s.Why, "works through the VIP to 1 of 3 observers, 2 are needed: mc-a: connection refused") {
				t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
			}
			if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
				t.Errorf("assignment went %s", got)
			}
		})
	})
}

// No gate: nobody knows when the old VIP is silent, so only an answer releases it.
func TestGateNoneIsNeverWaitedOut(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() { w.guards["a"].acks, w.guards["a"].renews = false, false })
		w.do(dcs.Doc(w.keys.Holder(), cluster.Holder{Site: "a", Gate: cluster.GateNone}))
		w.command(plan.Command{To: "b"})
		s := w.ended("s1")
		if s.Outcome != plan.UndoneAll || !strings.Contains(s.Why, "gate level is none") {
			t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		w.one("a")
	})
}
