package switcher

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

func TestRank(t *testing.T) {
	five := bank
	five.Nodes = append(five.Nodes[:3:3], cluster.Node{Name: "witness-2"}, cluster.Node{Name: "mc-c"})
	five.Sites = append(five.Sites[:2:2], cluster.Site{Name: "c", Node: "mc-c"})
	for _, tc := range []struct {
		c      cluster.Cluster
		active cluster.SiteName
		want   []cluster.NodeName // from the first to the last
	}{
		{bank, "a", []cluster.NodeName{"witness", "mc-b", "mc-a"}},
		{bank, "b", []cluster.NodeName{"witness", "mc-a", "mc-b"}},
		{bank, "", []cluster.NodeName{"witness", "mc-a", "mc-b"}},
		{five, "a", []cluster.NodeName{"witness", "witness-2", "mc-b", "mc-c", "mc-a"}},
		{five, "c", []cluster.NodeName{"witness", "witness-2", "mc-a", "mc-b", "mc-c"}},
	} {
		for want, node := range tc.want {
			if got := rank(tc.c, tc.active, node); got != want {
				t.Errorf("active %q: rank of %s is %d, want %d", tc.active, node, got, want)
			}
		}
	}
}

func leads(node cluster.NodeName) func(dcs.State) bool {
	return func(st dcs.State) bool { return st.Term.Value.Node == node }
}

// All nodes start at once: the witness comes first, and the others leave it the lock as long as its pulse goes on.
func TestWitnessLeadsAndKeepsTheLock(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		for _, n := range []cluster.NodeName{"mc-a", "mc-b", "witness"} {
			w.start(n)
		}
		w.wait("a controller", func(st dcs.State) bool { return st.Term.Mod != 0 })
		w.pass(20 * time.Second)
		if st := w.state(); st.Term.Value.Node != "witness" || st.Term.Value.N != 1 {
			t.Errorf("the lock is at %+v, want the witness in term 1", st.Term.Value)
		}
	})
}

// The active host's controller gives the lock to a better place on purpose, also after a switch, and never to one that is blind.
func TestLockIsHandedOver(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.set(func() { w.mute["witness"] = true })
		w.lead("mc-a")
		w.start("witness")
		w.start("mc-b")
		began := time.Now()
		w.wait("the standby", leads("mc-b"))
		w.pass(10 * time.Second)
		if st := w.state(); st.Term.Value.Node != "mc-b" {
			t.Errorf("the lock went to %s, whose observer is silent", st.Term.Value.Node)
		}
		w.set(func() { w.mute["witness"] = false })
		w.wait("the witness", leads("witness"))
		if n := w.state().Term.Value.N; n != 3 {
			t.Errorf("term %d after two handovers", n)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("handed over after %s", took)
		}
	})
}

// A pulse that is sent beside the handover must not overwrite it: then nobody would lead for L.
func TestPulseNeverOverwritesAHandover(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("mc-a")
		w.set(func() { w.mute["witness"] = true })
		w.start("mc-b").kv.DelayWatch(250 * time.Millisecond)
		c.kv.SetLatency(profile.LockPulse / 2) // a pulse is sent while the handover is on its way, and arrives before anybody has seen it
		var at atomic.Pointer[time.Time]
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if strings.Contains(string(keysOf(w.keys, then)["beat"]), `"next":"mc-b"`) {
				now := time.Now()
				at.Store(&now)
			}
			return dcs.None
		})
		w.wait("another term", func(st dcs.State) bool { return st.Term.Value.N == 2 })
		if took := time.Since(*at.Load()); !leads("mc-b")(w.state()) || took > profile.LockPulse*5/4 {
			t.Errorf("%+v %s after the handover was sent", w.state().Term.Value, took)
		}
	})
}

// The witness reports, and no controller of it takes what is handed to it: it is not offered again and again, for each time nobody leads for L.
func TestLockLeftLyingIsNotOfferedAgain(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("mc-b")
		w.wait("another try", func(st dcs.State) bool { return st.Term.Value.N == 2 })
		w.pass(30 * time.Second)
		if n := w.state().Term.Value.N; n != 2 {
			t.Errorf("term %d after half a minute", n)
		}
	})
}

// The lock that was handed over is taken without waiting for L.
func TestHandedOverIsTakenAtOnce(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.start("mc-b")
		w.start("mc-a")
		w.pass(50 * time.Millisecond)
		w.do(dcs.Doc(w.keys.Beat(), cluster.Beat{Node: "witness", Next: "mc-a"}))
		w.pass(profile.LockPulse / 4)
		if !leads("mc-a")(w.state()) {
			t.Errorf("the lock is at %+v, want mc-a", w.state().Term.Value)
		}
	})
}

// A node whose view is old never takes the lock, and one that only observes never does.
func TestStaleViewNeverTakesTheLock(t *testing.T) {
	for name, tc := range map[string]struct {
		age   time.Duration
		mode  policy.Mode
		taken bool
	}{
		"fresh":    {0, policy.Advise, true},
		"stale":    {2 * limits.Fresh, policy.Advise, false},
		"observes": {0, policy.Observe, false},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				s := New(Config{
					Cluster: bank, Profile: profile, Node: "witness", Mode: tc.mode, Limits: limits, Terms: terms, Keys: w.keys,
					Store: dcs.NewStore(w.mem.Client("witness"), "bank"), Looker: w, Log: slog.New(slog.DiscardHandler),
				})
				st := w.state()
				st.FreshAt = time.Now().Add(-tc.age)
				s.Observe(st)
				go func() { _ = s.Run(w.ctx) }()
				w.pass(limits.Fresh)
				if taken := w.state().Term.Mod != 0; taken != tc.taken {
					t.Errorf("taken: %t", taken)
				}
			})
		})
	}
}

// Its answer was lost: the term that nobody knows to hold is raised at once.
func TestTakingTheLockWithUnknownOutcome(t *testing.T) {
	for name, fault := range map[string]dcs.Fault{"applied": dcs.LoseAnswer, "lost": dcs.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				c := w.start("witness")
				lost := time.Time{}
				c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
					if _, ok := keysOf(w.keys, then)["term"]; ok && lost.IsZero() {
						lost = time.Now()
						return fault
					}
					return dcs.None
				})
				st := w.wait("readiness", func(st dcs.State) bool { return st.Readiness.Mod != 0 })
				if took := time.Since(lost); took > profile.LockPulse {
					t.Errorf("leads %s after the first try", took)
				}
				if want := map[string]int64{"applied": 2, "lost": 1}[name]; st.Term.Value.N != want {
					t.Errorf("term %d, want %d", st.Term.Value.N, want)
				}
			})
		})
	}
}

// Etcd has no leader for a while, in the middle of a switch: nothing is changed by it, and the switch ends well.
func TestEtcdIsGoneForAWhile(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		w.start("mc-b")
		w.set(func() { w.took = 200 * time.Millisecond })
		w.down("a")
		w.wait("the fence", func(st dcs.State) bool { return st.Assignment.Value.Phase == cluster.Switching })
		w.mem.SetLeader(false)
		w.pass(2 * time.Second)
		w.mem.SetLeader(true)
		s := w.ended("s1")
		if s.Outcome != plan.Completed {
			t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
			t.Errorf("assignment went %s", got)
		}
	})
}
