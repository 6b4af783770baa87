package switcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// failPromote makes the first switch's promotion fail, so that it is undone.
func failPromote(r plan.Request, s plan.StepName) error {
	if r.Switch == "s1" && s == plan.Promote {
		return errors.New("disk is full")
	}
	return nil
}

// writes says whether a transaction changes switch s1 or the assignment: those of one switch are numbered by it.
func (w *world) writes(then []dcs.Op) bool {
	for key := range keysOf(w.keys, then) {
		if key == "assignment" || len(key) > 10 && key[:10] == "switch/s1/" {
			return true
		}
	}
	return false
}

// sound checks the end of a world in which s1 was disturbed: one failover, committed or undone once, and nothing half.
func (w *world) sound(undone bool) {
	w.t.Helper()
	s := w.ended("s1")
	st := w.wait("a quiet end", func(st dcs.State) bool {
		for _, d := range st.Switches {
			if d.Summary.Mod == 0 {
				return false
			}
		}
		return true
	})
	outcome, phases, to := plan.Completed, "serving(a) switching(a) serving(b)", cluster.SiteName("b")
	if undone {
		outcome, phases, to = plan.UndoneAll, "serving(a) switching(a) undoing(a) serving(a)", "a"
	}
	if s.Outcome != outcome {
		w.t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
	}
	if got := w.phases(); got != phases {
		w.t.Errorf("assignment went %s\n%s", got, told(st))
	}
	n := 0
	for _, sum := range Summaries(st.Switches) {
		if !sum.Kind.Mends() {
			n++
		}
	}
	if n != 1 {
		w.t.Errorf("%d switches instead of one:\n%s", n, told(st))
	}
	w.one(to)
}

// The outcome of each transaction of a switch is unknown in turn: it took effect and its answer was lost; it never did; or it arrives
// late, before or after the next term began; or, at last, it is known not to have been sent. The controller raises its term, reads, and goes on: never two switches, never a lost one.
func TestUnknownOutcomes(t *testing.T) {
	faults := map[string]dcs.Fault{"applied": dcs.LoseAnswer, "lost": dcs.LoseRequest, "late": dcs.Late, "later": dcs.Late, "not sent": dcs.BeforeSend}
	for _, undone := range []bool{false, true} {
		most := 7
		if undone {
			most = 8
		}
		for n := 1; n <= most; n++ {
			for name, fault := range faults {
				t.Run(fmt.Sprintf("undone %t, transaction %d, %s", undone, n, name), func(t *testing.T) {
					within(t, func(w *world) { unknown(w, undone, n, name, fault) })
				})
			}
		}
	}
}

func unknown(w *world, undone bool, n int, name string, fault dcs.Fault) {
	w.serving()
	w.set(func() { w.calm = true })
	c := w.lead("witness")
	if undone {
		w.set(func() { w.fail = failPromote })
	}
	var seen atomic.Int64
	var at atomic.Pointer[time.Time]
	c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
		if !w.writes(then) {
			return dcs.None
		}
		if seen.Add(1) != int64(n) {
			return dcs.None
		}
		now := time.Now()
		at.Store(&now)
		if name == "late" {
			time.AfterFunc(time.Millisecond, w.mem.DeliverLate) // before anybody can have raised the term
		}
		return fault
	})
	w.down("a")
	if fault == dcs.BeforeSend { // known: nothing is in flight, and nobody needs to hurry
		w.sound(undone)
		return
	}
	st := w.wait("term 2", func(st dcs.State) bool { return st.Term.Value.N == 2 })
	if took := time.Since(*at.Load()); took > profile.LockPulse {
		w.t.Errorf("term raised %s after the outcome was unknown, want at once", took)
	}
	if name == "later" {
		w.mem.DeliverLate()
		if now := w.state(); now.Revision != st.Revision {
			w.t.Errorf("a transaction of term 1 took effect in term 2")
		}
	}
	w.sound(undone)
}

// The same with a view that lags behind: its own pulses must not look like somebody else's.
func TestTermIsRaisedAtOnceWithALaggingView(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		c.kv.DelayWatch(profile.LockPulse / 3)
		var at atomic.Pointer[time.Time]
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["assignment"]; !ok || at.Load() != nil {
				return dcs.None
			}
			now := time.Now()
			at.Store(&now)
			return dcs.LoseAnswer
		})
		w.down("a")
		w.wait("term 2", func(st dcs.State) bool { return st.Term.Value.N == 2 })
		if took := time.Since(*at.Load()); took > profile.LockPulse/8 {
			t.Errorf("term raised %s after the outcome was unknown, want at once", took)
		}
		w.sound(false)
	})
}

// A controller dies at every length that the journal can have, right before and right after that transaction took effect. Another node
// takes the lock when its pulse has been missed for L, and finishes or undoes what was begun.
func TestControllerDies(t *testing.T) {
	for _, undone := range []bool{false, true} {
		for n := 1; n <= 24; n++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("undone %t, journal %d, after %t", undone, n, after), func(t *testing.T) {
					within(t, func(w *world) { dies(w, undone, n, after) })
				})
			}
		}
	}
}

func dies(w *world, undone bool, n int, after bool) {
	w.serving()
	w.set(func() { w.calm = true })
	first := w.lead("witness")
	w.start("mc-b")
	w.start("mc-a")
	if undone {
		w.set(func() { w.fail = failPromote })
	}
	var died atomic.Pointer[time.Time]
	first.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
		log, ok := keysOf(w.keys, then)["switch/s1/journal"]
		var entries []plan.Entry
		if !ok || died.Load() != nil || json.Unmarshal(log, &entries) != nil || len(entries) < n {
			return dcs.None
		}
		now := time.Now()
		died.Store(&now)
		first.kill()
		if after {
			return dcs.LoseAnswer
		}
		return dcs.LoseRequest
	})
	w.down("a")
	w.wait("its death, or the end", func(st dcs.State) bool { return died.Load() != nil || st.Switches["s1"].Summary.Mod != 0 })
	if died.Load() == nil {
		return // the journal was never that long
	}
	st := w.wait("another controller", func(st dcs.State) bool { return st.Term.Value.N == 2 })
	standby := cluster.NodeName("mc-b")
	if st.Assignment.Value.Serves("b") {
		standby = "mc-a"
	}
	if took := time.Since(*died.Load()); st.Term.Value.Node != standby || took < profile.LockPulse*3/4 || took > 2*profile.LockPulse {
		w.t.Errorf("the lock went to %s after %s, want the standby after L", st.Term.Value.Node, took)
	}
	w.sound(undone)
	s := w.state().Switches["s1"].Summary.Value
	if e := entry(s.Journal, plan.Release); e.Term == 2 && e.Facts["how"] == "waited out" {
		if waited := e.At.Sub(*died.Load()); waited < profile.LockPulse+span {
			w.t.Errorf("a controller that resumes waited %s in all, want the whole lease from its own read", waited)
		}
	}
}

// The old guard is frozen and the controller dies right after the fence: its successor counts the wait from its own read.
func TestResumedWaitBeginsAnew(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		first := w.lead("witness")
		w.start("mc-b")
		w.set(func() { w.guards["a"].acks = false })
		first.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["assignment"]; ok {
				first.kill()
				return dcs.LoseAnswer
			}
			return dcs.None
		})
		w.down("a")
		w.wait("another controller", func(st dcs.State) bool { return st.Term.Value.N == 2 })
		taken := time.Now()
		w.sound(false)
		if waited := w.at(2).Sub(taken); waited < span-50*time.Millisecond || waited > span+100*time.Millisecond {
			t.Errorf("committed %s after the lock was taken, want %s", waited, span)
		}
	})
}

// A deposed controller stops at its next transaction: from the newer term on it changes nothing.
func TestDeposedControllerStops(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		w.set(func() { w.took = time.Second })
		w.down("a")
		w.wait("the fence", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Switching })
		st := w.state()
		if _, err := w.ops.TakeTerm(context.Background(), st.Term, "mc-b"); err != nil {
			t.Fatal(err)
		}
		st = w.state()
		w.pass(10 * time.Millisecond) // it sees that it is deposed
		var tried atomic.Int64
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if len(keysOf(w.keys, then)) > 0 {
				tried.Add(1)
			}
			return dcs.None
		})
		w.pass(profile.LockPulse - 20*time.Millisecond)
		now := w.state()
		if now.Switches["s1"].Journal.Mod != st.Switches["s1"].Journal.Mod || now.Assignment.Mod != st.Assignment.Mod || now.Beat.Mod != st.Beat.Mod || tried.Load() > 0 {
			t.Errorf("deposed, and goes on with %d transactions:\n%s", tried.Load(), told(now))
		}
		w.sound(false) // the other one is no controller at all: the lock comes back after L, and the switch is finished
	})
}

// A plan that was accepted and never fenced is not carried out long afterwards: what led to it is no longer what is.
func TestOldPlanIsNotCarriedOut(t *testing.T) {
	for _, tc := range []struct {
		age  time.Duration
		want plan.Outcome
	}{{planLife - 10*time.Second, plan.Completed}, {planLife + time.Second, plan.Aborted}} {
		within(t, func(w *world) {
			w.serving()
			p := plan.Plan{ID: "s1", Kind: plan.Switchover, From: "a", To: "b", Shards: bank.Shards, Epoch: 2, By: "ann", At: time.Now()}
			w.do(dcs.Doc(w.keys.Switch("s1", "plan"), p))
			w.pass(tc.age)
			w.lead("witness")
			if s := w.ended("s1"); s.Outcome != tc.want {
				t.Errorf("after %s: %s: %s", tc.age, s.Outcome, s.Why)
			}
			if tc.want == plan.Aborted {
				w.one("a")
			}
		})
	}
}
