package switcher

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

func published(t *testing.T, st dcs.State) Readiness {
	t.Helper()
	var r Readiness
	if err := json.Unmarshal(st.Readiness.Value, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// of returns the switches of a kind, oldest first.
func of(st dcs.State, k plan.Kind) []plan.Summary {
	return slices.DeleteFunc(Summaries(st.Switches), func(s plan.Summary) bool { return s.Kind != k })
}

func (w *world) mended(k plan.Kind) plan.Summary {
	w.t.Helper()
	st := w.wait("end of a "+string(k), func(st dcs.State) bool {
		all := of(st, k)
		return len(all) > 0 && all[0].Outcome != plan.Running
	})
	return of(st, k)[0]
}

// After a failover the old site comes back: it is rejoined, and only the executor's word arms sync/<shard>.
func TestRejoinAfterFailover(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		half := true
		w.set(func() {
			w.facts = func(_ plan.Request, s plan.StepName) map[string]string {
				if s == plan.RejoinStep && half {
					return map[string]string{"s1.semi_sync": "on"}
				}
				if s == plan.RejoinStep {
					return map[string]string{"s1.semi_sync": "on", "s2.semi_sync": "on"}
				}
				return nil
			}
			w.fail = func(_ plan.Request, s plan.StepName) error {
				if s == plan.RejoinStep && half {
					return errors.New("s2: errant 0-1-7")
				}
				return nil
			}
		})
		w.down("a")
		w.ended("s1")
		for _, shard := range bank.Shards {
			if s := w.state().Sync[shard].Value; s.State != cluster.SyncDegraded || s.Switch != "s1" {
				t.Errorf("sync of %s after the failover is %+v", shard, s)
			}
		}
		w.set(func() { w.seen["a"] = "up" })
		first := w.mended(plan.Rejoin)
		if first.Outcome != plan.Aborted || !strings.Contains(first.Why, "errant 0-1-7") || first.To != "a" || first.From != "b" {
			t.Errorf("first rejoin %s→%s %s: %s", first.From, first.To, first.Outcome, first.Why)
		}
		st := w.state()
		if st.Sync["s1"].Value.State != cluster.SyncArmed || st.Sync["s2"].Value.State != cluster.SyncDegraded {
			t.Errorf("sync after half a rejoin: %+v", st.Sync)
		}
		w.set(func() {
			half = false
			w.look = func(r *Readiness) {
				if len(r.Sites["a"].Rejoin) == 0 && !half {
					r.Sites["a"] = SiteReady{Rejoin: []string{"semi-sync of s2 is not armed"}}
				}
			}
		})
		w.wait("armed", func(st dcs.State) bool { return st.Sync["s2"].Value.State == cluster.SyncArmed })
		if all := of(w.state(), plan.Rejoin); len(all) != 2 || all[1].At.Sub(first.Ended) < 2*time.Second {
			t.Errorf("%d rejoins, tried again too early:\n%s", len(all), told(w.state()))
		}
		if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
			t.Errorf("a rejoin changed who serves: %s", got)
		}
	})
}

// A failover preempts a rejoin that hangs; the next requests may find its statements in flight, and kill them first.
func TestFailoverPreemptsRejoin(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() {
			w.deaf = true
			w.look = func(r *Readiness) { r.Sites["b"] = SiteReady{Rejoin: []string{"the applier of b/s1 does not run"}} }
		})
		w.wait("rejoin", func(st dcs.State) bool { return len(of(st, plan.Rejoin)) == 1 })
		w.set(func() { w.deaf, w.look = false, nil })
		w.pass(time.Second)
		w.down("a")
		w.wait("the failover", func(st dcs.State) bool { return st.Assignment.Value.Serves("b") })
		s := w.mended(plan.Rejoin)
		if s.ID != "s1" || s.Outcome != plan.Aborted || !strings.Contains(s.Why, "preempted by switch s2") {
			t.Errorf("%s %s: %s", s.ID, s.Outcome, s.Why)
		}
		if f := w.ended("s2"); f.Outcome != plan.Completed || f.Kind != plan.Failover {
			t.Errorf("%s %s: %s\n%s", f.Kind, f.Outcome, f.Why, lines(f.Journal))
		}
		w.mu.Lock()
		if r := w.asked[1]; !r.KillOlder {
			t.Errorf("the failover's request does not kill what the rejoin left in flight: %+v", r)
		}
		w.mu.Unlock()
		w.one("b")
	})
}

// A rejoin whose executor never answered is given up; nobody knows what it left in flight, so the next request kills it first.
func TestRejoinWithoutAnAnswer(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() {
			w.deaf = true
			w.look = func(r *Readiness) {
				if len(w.asked) == 0 {
					r.Sites["b"] = SiteReady{Rejoin: []string{"the applier of b/s1 does not run"}}
				}
			}
		})
		s := w.mended(plan.Rejoin)
		if s.Outcome != plan.Aborted || !strings.Contains(s.Why, "mc-b has not answered within 30s") {
			t.Errorf("%s: %s", s.Outcome, s.Why)
		}
		w.set(func() { w.deaf = false })
		w.down("a")
		w.wait("the failover", func(st dcs.State) bool { return st.Assignment.Value.Serves("b") })
		w.mu.Lock()
		defer w.mu.Unlock()
		if r := w.asked[1]; !r.KillOlder {
			t.Errorf("the failover's request does not kill what the rejoin left in flight: %+v", r)
		}
	})
}

// The writers of a source without a replica hang: after a lease it is let go, and that is written down in the transaction that asks for it.
func TestDegrade(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		together := false
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			keys := keysOf(w.keys, then)
			_, other := keys["sync/s1"]
			if sync, ok := keys["sync/s2"]; ok && !other && strings.Contains(string(sync), cluster.SyncDegraded) {
				for key := range keys {
					together = together || strings.Contains(key, "/request/")
				}
			}
			return dcs.None
		})
		began := time.Now()
		w.set(func() {
			w.look = func(r *Readiness) {
				r.Sites["a"], r.Sites["b"] = SiteReady{Alone: []cluster.ShardName{"s2"}}, SiteReady{}
			}
		})
		s := w.mended(plan.Degrade)
		if s.Outcome != plan.Completed || s.To != "a" || len(s.Shards) != 1 || s.Shards[0] != "s2" {
			t.Errorf("%s of %v at %s: %s", s.Outcome, s.Shards, s.To, s.Why)
		}
		if waited := s.At.Sub(began); waited < terms.D {
			t.Errorf("let go after %s, a replica that restarts would be back within a lease", waited)
		}
		if st := w.state(); !together || st.Sync["s2"].Value.State != cluster.SyncDegraded || st.Sync["s1"].Value.State != cluster.SyncArmed {
			t.Errorf("written with its request: %t; sync is %+v", together, st.Sync)
		}
		if got := w.requests(); got[0] != "degrade" {
			t.Errorf("asked for %q", got)
		}
	})
}

// A replica that is away for less than a lease is no reason.
func TestReplicaThatRestartsIsNotLetGo(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		for range 3 {
			w.set(func() { w.look = func(r *Readiness) { r.Sites["a"] = SiteReady{Alone: []cluster.ShardName{"s1"}} } })
			w.pass(terms.D * 2 / 3)
			w.set(func() { w.look = nil })
			w.pass(time.Second)
		}
		if all := of(w.state(), plan.Degrade); len(all) > 0 {
			t.Errorf("let go: %+v", all)
		}
	})
}

func TestRepairOfTheActiveSite(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() {
			w.look = func(r *Readiness) { r.Sites["a"] = SiteReady{Rejoin: []string{"s1 of the active site is read-only"}} }
		})
		s := w.mended(plan.Repair)
		if s.Outcome != plan.Completed || s.To != "a" || s.Epoch != 1 {
			t.Errorf("%s at %s of epoch %d: %s", s.Outcome, s.To, s.Epoch, s.Why)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if r := w.asked[0]; r.Steps[0] != plan.RepairStep || r.Epoch != 1 || r.Fence != w.changes[0].mod || r.Kind != plan.Repair {
			t.Errorf("asked with %+v, want the fence and epoch of the serving assignment", r)
		}
	})
}

// Each transaction of a mending is not sent in turn: it is tried again, it blocks nothing, and no id is used twice.
func TestMendingSurvivesAnUnavailableStore(t *testing.T) {
	for n := range 3 {
		within(t, func(w *world) {
			w.serving()
			c := w.lead("witness")
			seen := 0
			c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
				if w.writes(then) {
					seen++
					if seen == n+1 {
						return dcs.BeforeSend
					}
				}
				return dcs.None
			})
			w.set(func() {
				w.look = func(r *Readiness) {
					if len(w.asked) == 0 {
						r.Sites["b"] = SiteReady{Rejoin: []string{"the applier of b/s1 does not run"}}
					}
				}
			})
			s := w.mended(plan.Rejoin)
			if s.Outcome != plan.Completed {
				t.Errorf("transaction %d: %s: %s\n%s", n, s.Outcome, s.Why, lines(s.Journal))
			}
			w.down("a")
			w.wait("the failover", func(st dcs.State) bool {
				all := of(st, plan.Failover)
				return len(all) == 1 && all[0].Outcome == plan.Completed
			})
			if st := w.state(); len(of(st, plan.Rejoin)) != 1 {
				t.Errorf("transaction %d:\n%s", n, told(st))
			}
			w.one("b")
		})
	}
}

// The controller of a mending dies: the next one ends it and mends anew.
func TestMendingOfADeadController(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		w.start("mc-b")
		w.set(func() {
			w.deaf = true
			w.look = func(r *Readiness) { r.Sites["b"] = SiteReady{Rejoin: []string{"the applier of b/s1 does not run"}} }
		})
		w.wait("rejoin", func(st dcs.State) bool { return len(of(st, plan.Rejoin)) == 1 })
		c.kill()
		w.set(func() { w.deaf = false })
		st := w.wait("another rejoin", func(st dcs.State) bool {
			all := of(st, plan.Rejoin)
			return len(all) > 1 && all[1].Outcome == plan.Completed
		})
		if s := of(st, plan.Rejoin)[0]; s.Outcome != plan.Aborted || !strings.Contains(s.Why, "its controller has changed") {
			t.Errorf("first one: %s %s", s.Outcome, s.Why)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if r := w.asked[1]; !r.KillOlder {
			t.Errorf("the second request does not kill what the first left in flight: %+v", r)
		}
	})
}

// A repair that is refused has changed nothing: what was armed is armed, and a failover is not held back by what was only meant to be done.
func TestRefusedRepairLeavesSemiSyncArmed(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.wait("armed", func(st dcs.State) bool {
			return st.Sync["s1"].Value.State == cluster.SyncArmed && st.Sync["s2"].Value.State == cluster.SyncArmed
		})
		w.set(func() {
			w.look = func(r *Readiness) { r.Sites["a"] = SiteReady{Rejoin: []string{"s1 of the active site is read-only"}} }
			w.fail = func(_ plan.Request, s plan.StepName) error {
				if s == plan.RepairStep {
					return errors.New("shard s1: it replicates")
				}
				return nil
			}
			w.facts = func(_ plan.Request, s plan.StepName) map[string]string {
				if s == plan.RepairStep {
					return map[string]string{"s1.left": "it replicates"}
				}
				return nil
			}
		})
		if s := w.mended(plan.Repair); s.Outcome != plan.Aborted {
			t.Errorf("repair %s", s.Outcome)
		}
		st := w.state()
		if st.Sync["s1"].Value.State != cluster.SyncArmed || st.Sync["s2"].Value.State != cluster.SyncDegraded {
			t.Errorf("sync after a repair that was refused for s1 alone: %+v", st.Sync)
		}
	})
}

// A mending that fails again and again holds up no other.
func TestFailingRepairHoldsUpNoRejoin(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() {
			w.look = func(r *Readiness) {
				r.Sites["a"] = SiteReady{Rejoin: []string{"s1 of the active site is read-only"}}
				r.Sites["b"] = SiteReady{Rejoin: []string{"the applier of b/s1 does not run"}}
			}
			w.fail = func(_ plan.Request, s plan.StepName) error {
				if s == plan.RepairStep {
					return errors.New("shard s1: it replicates")
				}
				return nil
			}
		})
		if s := w.mended(plan.Rejoin); s.Outcome != plan.Completed || s.To != "b" {
			t.Errorf("rejoin of %s %s: %s", s.To, s.Outcome, s.Why)
		}
	})
}

// One dead instance makes the whole site down, and costs no other shard its copy: those that answer are rejoined.
func TestRejoinOfASiteThatIsDown(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.down("b")
		w.lead("witness")
		w.set(func() {
			w.look = func(r *Readiness) {
				r.Sites["b"] = SiteReady{Rejoin: []string{"semi-sync of s1 is not armed"}}
				r.Instances = []Instance{{Site: "b", Shard: "s1"}, {Site: "b", Shard: "s2", Err: "refused"}, {Site: "a", Shard: "s2"}}
			}
		})
		if s := w.mended(plan.Rejoin); s.Outcome != plan.Completed || s.To != "b" || !slices.Equal(s.Shards, []cluster.ShardName{"s1"}) {
			t.Errorf("rejoin of %s %v %s: %s", s.To, s.Shards, s.Outcome, s.Why)
		}
	})
}

// What was advised and has happened is no advice any more.
func TestAdviceEndsWithTheSwitch(t *testing.T) {
	tn := &tenure{advice: &Advice{ID: 3, From: "a", To: "b", Until: time.Now().Add(time.Minute)}}
	tn.assignment.Value.Site = "a"
	if tn.advise(policy.Decision{Reason: policy.Healthy}, time.Now()); tn.advice == nil {
		t.Error("an advice ends while its site still serves")
	}
	tn.assignment.Value.Site = "b"
	if tn.advise(policy.Decision{Reason: policy.Healthy}, time.Now()); tn.advice != nil {
		t.Errorf("after the switch: %+v", tn.advice)
	}
}
