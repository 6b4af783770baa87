package switcher

import (
	"fmt"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// Maintenance begins after the decision and before the fence, while the observers look again; the controller has seen it.
func TestMaintenanceBeforeTheFenceStopsIt(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["nonce"]; ok {
				w.do(dcs.Doc(w.keys.Maintenance(), cluster.Maintenance{Who: "op@desk", Reason: "cabling"}))
			}
			return dcs.None
		})
		w.down("a")
		s := w.ended("s1")
		if got := w.phases(); got != "serving(a)" || s.Outcome != plan.Aborted {
			t.Errorf("%s: assignment went %s\n%s", s.Outcome, got, lines(s.Journal))
		}
		if e := entry(s.Journal, plan.Fence); e.Err != "maintenance by op@desk (cabling)" {
			t.Errorf("the fence was refused for %q", e.Err)
		}
	})
}

// The profile is being changed one host after the other: the holder's lease is longer than the controller's own.
func TestTheHoldersOwnLeaseIsWaitedOut(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.set(func() { w.guards["a"].acks, w.guards["a"].renews = false, false })
		w.do(dcs.Doc(w.keys.Holder(), cluster.Holder{Site: "a", Incarnation: "guard of a", Gate: cluster.GateEBPF, Lease: 5 * time.Second}))
		renewed := time.Now()
		w.pass(100 * time.Millisecond)
		w.down("a")
		s := w.ended("s1")
		if s.Outcome != plan.Completed {
			t.Fatalf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		if waited := w.at(2).Sub(renewed); waited < 5050*time.Millisecond {
			t.Errorf("committed %s after a renewal of a lease of 5 s", waited)
		}
	})
}

// What was looked at before a switch says nothing of the sites after it: the site that was left would count as ready.
func TestReadinessOfAnotherEpochIsNone(t *testing.T) {
	now := time.Now()
	c := &tenure{
		Switcher: New(Config{Cluster: bank, Profile: profile, Limits: limits}),
		ready:    Readiness{At: now, Epoch: 1, Active: "a", Sites: map[cluster.SiteName]SiteReady{"a": {}, "b": {}}},
	}
	c.assignment.Value = cluster.Assignment{Epoch: 3, Site: "b", Phase: cluster.Serving}
	if r := c.facts(now).Targets["a"]; r.Known {
		t.Errorf("site a is %+v by a look of epoch 1", r)
	}
	c.ready.Epoch = 3
	if r := c.facts(now).Targets["a"]; !r.Known {
		t.Error("a look of the present epoch does not count")
	}
}

// The clock of the controller that ended a switch was an hour ahead: pauses count from when its end was heard here.
func TestPauseAfterAControllerWithAFastClock(t *testing.T) {
	now := time.Now()
	c := &tenure{Switcher: New(Config{Cluster: bank, Profile: profile, Limits: limits})}
	c.state.Switches = map[string]dcs.SwitchDocs{"s1": {Summary: dcs.Versioned[plan.Summary]{Mod: 5, Received: now.Add(-time.Minute), Value: plan.Summary{
		Plan: plan.Plan{ID: "s1", Kind: plan.Failover, By: automatic}, Outcome: plan.UndoneAll, Ended: now.Add(time.Hour),
	}}}}
	c.assignment.Value = cluster.Assignment{Epoch: 1, Site: "a", Phase: cluster.Serving}
	f := c.facts(now)
	f.Mode, f.StoreAge = policy.Automatic, 0
	f.Sites["a"] = policy.Votes{State: health.Down}
	f.DownSince = now.Add(-time.Minute)
	if d := policy.Decide(bank, f, limits, now); d.Reason == policy.AfterAbort {
		t.Errorf("%s: %s left", d.Text, d.Left)
	}
}

// Every request kills what is older: a self-fence of a guard, or a mending that a predecessor has written off, is in no journal.
func TestEveryRequestKillsOlderSteps(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.down("a")
		w.ended("s1")
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, r := range w.asked {
			if !r.KillOlder {
				t.Errorf("%s does not: %v", r.ID, r.Steps)
			}
		}
	})
}

// A command that comes right after a switch is answered when somebody has looked at the sites since.
func TestCommandRightAfterASwitchWaitsForALook(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness", func(c *Config) { c.Limits.Zero = false })
		w.command(plan.Command{To: "b"})
		w.ended("s1")
		id := w.command(plan.Command{To: "a"})
		if r := w.reply(id); r.Refused != "" {
			t.Errorf("refused: %s", r.Refused)
		}
	})
}

// A rejoin that is refused again and again does not push the switches out of the history.
func TestMendingsDoNotCrowdOutSwitches(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.past(1, 3)
		var ops []dcs.Op
		for n := 4; n <= kept; n++ {
			id := fmt.Sprintf("s%d", n)
			ops = append(ops, dcs.Doc(w.keys.Switch(id, "summary"), plan.Summary{Plan: plan.Plan{ID: id, Kind: plan.Rejoin}, Outcome: plan.Aborted}))
		}
		w.do(ops...)
		w.lead("witness")
		w.command(plan.Command{Do: "release"})
		w.ended("s201")
		st := w.state()
		for _, id := range []string{"s1", "s2", "s3", "s200"} {
			if st.Switches[id].Summary.Mod == 0 {
				t.Errorf("%s is forgotten", id)
			}
		}
		if n := len(Summaries(st.Switches)); n != kept || st.Switches["s4"].Summary.Mod != 0 {
			t.Errorf("history keeps %d, with the oldest rejoin", n)
		}
	})
}
