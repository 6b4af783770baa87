package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// Both old instances answer: they are fenced, their replicas catch up with them and are cut only then, and promotion goes in order.
func TestForwardSteps(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", forward)
		a := b.answer("r1")
		if got := phasesOf(a); got != "fence-writes:done cut:done catch-up:done promote:done" || a.Refused != "" || a.Node != "mc-b" {
			t.Fatalf("answer %s %+v", got, a)
		}
		log := b.happened()
		for _, shard := range []string{"s1", "s2"} {
			before(t, log, "a/"+shard+" fence-writes", "b/"+shard+" catch-up gtid of a/"+shard)
			before(t, log, "b/"+shard+" catch-up gtid of a/"+shard, "b/"+shard+" cut")
			before(t, log, "b/"+shard+" cut", "b/"+shard+" catch-up")
			before(t, log, "b/"+shard+" catch-up", "b/"+shard+" quiesce")
			before(t, log, "b/"+shard+" quiesce", "b/s1 prepare 8 s7 b")
			before(t, log, "b/"+shard+" quiesce", "b/s2 prepare 8 s7 b")
			before(t, log, "b/"+shard+" prepare 8 s7 b", "b/s1 mark 8")
			before(t, log, "b/"+shard+" prepare 8 s7 b", "b/s2 mark 8")
			before(t, log, "b/"+shard+" mark 8", "b/s1 promote")
		}
		before(t, log, "b/s1 promote", "b/s2 promote")
		facts := a.Entries[0].Facts
		if facts["s1.gtid"] != "gtid of a/s1" || a.Entries[1].Facts["s2.received"] != "received by b/s2" || a.Entries[3].Facts["s2.gtid"] != "promoted b/s2" {
			t.Errorf("facts of %+v", a.Entries)
		}
		if slices.ContainsFunc(log, func(s string) bool { return strings.HasSuffix(s, "kill") }) {
			t.Errorf("killed although nobody asked: %q", log)
		}
	})
}

// In a failover a shard does not wait for another one's fence, and none becomes writable before all are ready. A step's time is what it
// adds to the request's.
func TestShardsDoNotWaitForEachOther(t *testing.T) {
	benched(t, func(b *bench) {
		b.do = func(_ context.Context, name, what string) error {
			if name == "a/s2" && what == "fence-writes" {
				<-time.After(100 * time.Millisecond)
			}
			return nil
		}
		began := time.Now()
		b.request("r1", forward)
		a := b.answer("r1")
		log := b.happened()
		before(t, log, "b/s1 quiesce", "a/s2 fence-writes")
		before(t, log, "b/s2 quiesce", "b/s1 prepare 8 s7 b")
		var sum time.Duration
		for _, e := range a.Entries {
			sum += e.Took
		}
		if a.Entries[0].Took != 100*time.Millisecond || sum != a.Entries[3].At.Sub(began) {
			t.Errorf("times of %+v, together %s", a.Entries, sum)
		}
	})
}

// No old instance becomes writable before every new one is read-only again.
func TestUndoWaitsForTheTarget(t *testing.T) {
	benched(t, func(b *bench) {
		b.do = func(_ context.Context, name, what string) error {
			if name == "b/s2" && what == "demote" {
				<-time.After(100 * time.Millisecond)
			}
			return nil
		}
		b.request("r1", []plan.StepName{plan.UndoTarget, plan.UndoSource})
		b.answer("r1")
		before(t, b.happened(), "b/s2 demote", "a/s1 restore 8 a")
	})
}

// An old instance that does not answer is skipped in a failover, within its budget, and its replica is cut at once; in a switchover it
// fails the request, and every step of it is in the answer.
func TestOldInstanceIsSilent(t *testing.T) {
	hangs := func(what string) func(context.Context, string, string) error {
		return func(ctx context.Context, name, did string) error {
			if name == "a/s2" && did == what {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
	}
	for _, what := range []string{"open", "fence-writes"} {
		t.Run("failover, hangs in "+what, func(t *testing.T) {
			for suspect, budget := range map[cluster.ShardName]time.Duration{"s1": 300 * time.Millisecond, "s2": 100 * time.Millisecond} {
				benched(t, func(b *bench) {
					b.do = hangs(what)
					began := time.Now()
					b.request("r1", forward, func(r *plan.Request) { r.Suspects = []cluster.ShardName{suspect} })
					a := b.answer("r1")
					if got := phasesOf(a); got != "fence-writes:skipped cut:done catch-up:done promote:done" {
						t.Fatalf("answer %s %+v", got, a)
					}
					if took := time.Since(began); took < budget || took > budget+50*time.Millisecond {
						t.Errorf("took %s, want the budget of %s", took, budget)
					}
					log := b.happened()
					before(t, log, "b/s1 catch-up gtid of a/s1", "b/s1 cut")
					if slices.Contains(log, "b/s2 catch-up gtid of a/s2") {
						t.Errorf("waits for what nobody has fenced: %q", log)
					}
					before(t, log, "b/s2 cut", "b/s2 catch-up")
					told := a.Entries[0].Err + a.Entries[0].Facts["s2.unreachable"]
					if !strings.Contains(told, "s2") || what == "open" && a.Entries[0].Facts["s2.unreachable"] == "" {
						t.Errorf("the first step does not tell why: %+v", a.Entries[0])
					}
				})
			}
		})
		t.Run("switchover, hangs in "+what, func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = hangs(what)
				b.request("r1", forward, func(r *plan.Request) { r.Kind = plan.Switchover })
				a := b.answer("r1")
				if got := phasesOf(a); got != "fence-writes:failed cut:failed catch-up:failed promote:failed" {
					t.Fatalf("answer %s", got)
				}
				if !strings.Contains(a.Entries[0].Err, "s2") || a.Entries[1].Err != plan.NotRun || a.Entries[3].Err != plan.NotRun {
					t.Errorf("why: %+v", a.Entries)
				}
				if slices.ContainsFunc(b.happened(), func(s string) bool { return strings.HasPrefix(s, "b/") }) {
					t.Errorf("went on: %q", b.happened())
				}
			})
		})
	}
}

// What an earlier request has fenced counts for the next one, also when the old instance has gone meanwhile.
func TestFencedByAnEarlierRequest(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", []plan.StepName{plan.Cut}, func(r *plan.Request) {
			r.Facts = map[string]string{"fence-writes.s1.gtid": "0-1-9"}
		})
		b.answer("r1")
		before(t, b.happened(), "b/s1 catch-up 0-1-9", "b/s1 cut")
	})
}

// Each step fails in turn: what follows is not run, and the answer still names every step.
func TestStepFails(t *testing.T) {
	for i, step := range forward[1:] {
		t.Run(string(step), func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = func(_ context.Context, name, what string) error {
					if name == "b/s1" && what == string(step) {
						return errors.New("disk is full")
					}
					return nil
				}
				b.request("r1", forward)
				a := b.answer("r1")
				for n, e := range a.Entries {
					want := plan.Done
					if n > i {
						want = plan.Failed
					}
					if e.Phase != want || (n == i+1) != strings.Contains(e.Err, "shard s1: disk is full") || (n > i+1) != (e.Err == plan.NotRun) {
						t.Errorf("entry %d: %+v", n, e)
					}
				}
				if len(a.Entries) != 4 || slices.Contains(b.happened(), "b/s2 promote") {
					t.Errorf("answer %s, did %q", phasesOf(a), b.happened())
				}
			})
		})
	}
}

// Older steps are killed at every instance before anything else is done there; where that fails at the target, nothing is done at all.
func TestKillOlderComesFirst(t *testing.T) {
	kill := func(r *plan.Request) { r.KillOlder = true }
	benched(t, func(b *bench) {
		b.request("r1", forward, kill)
		b.answer("r1")
		log := b.happened()
		for i, s := range log {
			if strings.HasSuffix(s, " kill") != (i < 4) {
				t.Fatalf("not first: %q", log)
			}
		}
	})
	for where, want := range map[string]plan.Phase{"b/s2": plan.Failed, "a/s2": plan.Skipped} {
		benched(t, func(b *bench) {
			b.do = func(_ context.Context, name, what string) error {
				if name == where && what == "kill" {
					return errors.New("access denied")
				}
				return nil
			}
			b.request("r1", forward, kill)
			if a := b.answer("r1"); a.Entries[0].Phase != want {
				t.Errorf("%s cannot be cleared: %s", where, phasesOf(a))
			}
			done := slices.ContainsFunc(b.happened(), func(s string) bool { return !strings.HasSuffix(s, " kill") })
			if done != (want == plan.Skipped) {
				t.Errorf("%s cannot be cleared: did %q", where, b.happened())
			}
		})
	}
}

// Term, fence and age of the view are checked right before each statement: the first that is refused ends the request.
func TestCheckRefuses(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"a newer term":         func(b *bench) { b.raise(4); b.show() },
		"the fence is history": func(b *bench) { b.assign(cluster.Assignment{Epoch: 9}); b.show() },
		"the view is old": func(b *bench) {
			st := b.state()
			st.FreshAt = time.Now().Add(-fresh - time.Millisecond)
			b.exec.Observe(st)
		},
	} {
		t.Run(name, func(t *testing.T) {
			benched(t, func(b *bench) {
				var once sync.Once
				b.do = func(_ context.Context, name, what string) error {
					if name == "b/s1" && strings.HasPrefix(what, "promote") {
						once.Do(func() { change(b) })
					}
					return nil
				}
				b.request("r1", forward)
				b.pass(100 * time.Millisecond)
				log := b.happened()
				before(t, log, "b/s1 cut", "b/s1 quiesce")
				if slices.ContainsFunc(log, func(s string) bool { return strings.Contains(s, "promote") }) {
					t.Errorf("promoted all the same: %q", log)
				}
				b.show()
				b.pass(10 * time.Millisecond)
				answered := b.state().Switches["s7"].Answers["mc-b"]
				if name == "a newer term" {
					if answered.Mod != 0 {
						t.Errorf("answers a term that is over: %+v", answered.Value)
					}
				} else if got := phasesOf(answered.Value); got != "fence-writes:done cut:done catch-up:done promote:failed" {
					t.Errorf("answer %s", got)
				}
			})
		})
	}
}

// In a failover an unreachable old side is skipped; a stale check never is.
func TestStaleCheckIsNoSkip(t *testing.T) {
	benched(t, func(b *bench) {
		b.do = func(_ context.Context, name, what string) error {
			if name == "a/s1" && what == "fence-writes" {
				b.assign(cluster.Assignment{Epoch: 9})
				b.show()
			}
			return nil
		}
		b.request("r1", forward)
		if a := b.answer("r1"); phasesOf(a) != "fence-writes:failed cut:failed catch-up:failed promote:failed" {
			t.Errorf("answer %s", phasesOf(a))
		}
	})
}

// A request that rode in the transaction of its fence has that transaction's revision as its fence.
func TestRequestRidesWithItsFence(t *testing.T) {
	benched(t, func(b *bench) {
		r := plan.Request{ID: "r1", Switch: "s7", Kind: plan.Failover, Term: 3, Epoch: 9, From: "a", To: "b", Shards: pair.Shards, Steps: forward, Budget: time.Second}
		_, err := b.ops.Do(t.Context(), "fence", nil, dcs.Doc(b.keys.Assignment(), cluster.Assignment{Epoch: 9, Site: "a", Phase: cluster.Switching, Switch: "s7", To: "b"}),
			dcs.Doc(b.keys.Switch("s7", "request/mc-b"), r))
		if err != nil {
			t.Fatal(err)
		}
		b.show()
		if a := b.answer("r1"); a.Entries[3].Phase != plan.Done {
			t.Errorf("answer %+v", a)
		}
	})
}

// Requests of an older term are refused, whatever they ask for.
func TestOlderTermIsRefused(t *testing.T) {
	benched(t, func(b *bench) {
		b.raise(5)
		b.request("r1", forward, func(r *plan.Request) { r.Term = 5 })
		b.answer("r1")
		did := len(b.happened())
		b.raise(4) // a restored backup: the executor itself remembers
		b.request("r2", forward, func(r *plan.Request) { r.Term = 4 })
		a := b.answer("r2")
		if a.Refused == "" || len(a.Entries) > 0 || len(b.happened()) != did {
			t.Errorf("answer %+v, did %q", a, b.happened()[did:])
		}
	})
}

// A newer request cancels the one under way and waits for its end: never two at a time on this node.
func TestNewerRequestWaitsForTheEnd(t *testing.T) {
	benched(t, func(b *bench) {
		var mu sync.Mutex
		var ended, began time.Time
		b.do = func(ctx context.Context, name, what string) error {
			switch {
			case name == "b/s1" && strings.HasPrefix(what, "promote"):
				<-ctx.Done()
				<-time.After(40 * time.Millisecond) // the statement does not end at once
				mu.Lock()
				defer mu.Unlock()
				ended = time.Now()
				return context.Cause(ctx)
			case what == "demote":
				mu.Lock()
				defer mu.Unlock()
				began = time.Now()
			}
			return nil
		}
		b.request("r1", forward)
		b.pass(50 * time.Millisecond)
		asked := time.Now()
		b.request("r2", []plan.StepName{plan.UndoTarget, plan.UndoSource}, func(r *plan.Request) { r.KillOlder = true })
		b.pass(time.Millisecond)
		if slices.ContainsFunc(b.happened(), func(s string) bool { return strings.HasSuffix(s, "kill") }) {
			t.Error("the second request began before the first had ended")
		}
		if a := b.answer("r2"); phasesOf(a) != "undo-target:done undo-source:done" {
			t.Errorf("answer %+v", a)
		}
		mu.Lock()
		defer mu.Unlock()
		if took := began.Sub(asked); took > 100*time.Millisecond {
			t.Errorf("the second request waited %s: the first was not cancelled", took)
		}
		if ended.IsZero() || began.Before(ended) {
			t.Errorf("ended %v, next began %v", ended, began)
		}
	})
}

// Two sights of one request run it once.
func TestRequestRunsOnce(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", forward)
		b.answer("r1")
		did := len(b.happened())
		for range 3 {
			b.show()
			b.pass(20 * time.Millisecond)
		}
		if got := len(b.happened()); got != did {
			t.Errorf("%d statements more", got-did)
		}
	})
}

// Etcd is away when the answer is due: it is written when it is back, and etcd is not flooded meanwhile.
func TestAnswerWaitsForEtcd(t *testing.T) {
	benched(t, func(b *bench) {
		tries := 0
		away := time.Now().Add(time.Second)
		b.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if then[0].Kind != dcs.Put {
				return dcs.None
			}
			tries++
			if tries > 1000 || !time.Now().Before(away) {
				return dcs.None
			}
			return dcs.NoLeader
		})
		b.request("r1", forward)
		b.answer("r1")
		if tries > 100 {
			t.Errorf("%d tries within a second", tries)
		}
		if time.Now().Before(away) {
			t.Error("answered while etcd was away")
		}
	})
}

// A step that this version does not know is a newer controller's: the request is refused, and the daemon lives on.
func TestUnknownStepIsRefused(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", []plan.StepName{plan.FenceWrites, "teleport"})
		if a := b.answer("r1"); !strings.Contains(a.Refused, "teleport") || len(b.happened()) > 0 {
			t.Errorf("answer %+v, did %q", a, b.happened())
		}
		b.request("r2", nil)
		if a := b.answer("r2"); a.Refused == "" {
			t.Errorf("answer %+v", a)
		}
		b.request("r3", forward)
		if a := b.answer("r3"); phasesOf(a) != "fence-writes:done cut:done catch-up:done promote:done" {
			t.Errorf("answer %+v", a)
		}
	})
}

// The daemon ends in the middle of a request: the statement is cancelled and waited for.
func TestEndOfTheDaemonWaitsForTheStatement(t *testing.T) {
	benched(t, func(b *bench) {
		ended := false
		b.do = func(ctx context.Context, name, what string) error {
			if name == "b/s1" && what == "cut" {
				<-ctx.Done()
				<-time.After(20 * time.Millisecond)
				ended = true
			}
			return nil
		}
		b.request("r1", forward)
		b.pass(20 * time.Millisecond)
		b.end()
		<-b.done
		if !ended {
			t.Error("the executor ended before its statement")
		}
	})
}
