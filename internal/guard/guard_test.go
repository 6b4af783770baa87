package guard

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
)

func TestServesOnlyWhenAssignedAndReleasesOnTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.pass(time.Second)
		if len(w.k.happened()) != 0 {
			t.Fatalf("touched something without an assignment: %q", w.k.happened())
		}
		w.assign(serving(1))
		w.wait("served", func() bool { return w.state().Switches["s1"].Bound.Mod != 0 })
		if got := strings.Join(w.k.happened(), " "); got != "install false destroy bind announce" {
			t.Errorf("order of serving: %q", got)
		}
		w.pass(5 * time.Second)
		if !w.k.answers() {
			t.Fatal("does not serve on under renewals")
		}
		fence := w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
		w.wait("answered", func() bool { return w.state().Switches["s2"].Released.Mod != 0 })
		if w.k.answers() {
			t.Error("answered the fence and still serves")
		}
		rel := w.state().Switches["s2"].Released.Value
		if rel.Incarnation != "one" || rel.Fence != fence {
			t.Errorf("answer names %s and fence %d, want one and %d", rel.Incarnation, rel.Fence, fence)
		}
		w.pass(10 * time.Second)
		if w.k.answers() {
			t.Error("serves again without an assignment")
		}
	})
}

// A guard is paused after its renewal has succeeded and before it applies the deadline: past the release, and past the deadline itself.
func TestDeadlineAppliedLateFindsTheGateShut(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pause time.Duration
		fence bool
	}{
		{"past the deadline", 2 * time.Second, false},
		{"past the deadline and the fence", 2 * time.Second, true},
		{"past the fence, deadline still ahead", 300 * time.Millisecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := w.start("one")
				defer d.cancel()
				w.assign(serving(1))
				w.wait("serving", w.k.answers)
				d.store.mu.Lock()
				d.store.hold, d.store.held = make(chan struct{}), make(chan struct{})
				hold, held := d.store.hold, d.store.held
				d.store.mu.Unlock()
				<-held
				if tc.fence {
					w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
				}
				w.pass(tc.pause)
				if tc.fence && w.k.answers() {
					t.Error("the fence did not shut the gate beside a renewal that hangs")
				}
				close(hold)
				for range 50 {
					w.pass(time.Millisecond)
					if tc.fence && w.k.answers() {
						t.Fatal("a deadline applied late opened the gate")
					}
				}
			})
		})
	}
}

// A renewal that was sent before the gate was opened is answered after it, because binding took longer than a renewal's spacing. The guard
// extends what it opened itself; whatever shut the gate in between still counts.
func TestRenewalUnderWayWhileTheGateOpens(t *testing.T) {
	for name, shut := range map[string]bool{"nobody shuts it": false, "somebody shuts it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := w.start("one")
				defer d.cancel()
				d.wire.other = net.HardwareAddr{2, 0, 0, 0, 0, 9} // keeps it from binding
				w.assign(serving(1))
				w.wait("the first renewal", func() bool { return w.state().Holder.Mod != 0 })
				hold, held := make(chan struct{}), make(chan struct{})
				d.store.mu.Lock()
				d.store.hold, d.store.held = hold, held
				d.store.mu.Unlock()
				<-held
				w.k.mu.Lock()
				d.wire.other = nil
				w.k.mu.Unlock()
				w.wait("served", w.k.answers)
				if shut {
					if err := d.gate.Shut(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				close(hold)
				synctest.Wait()
				if w.k.answers() == shut {
					t.Errorf("answers %t after the renewal; happened: %q", !shut, w.k.happened())
				}
				if !shut {
					w.pass(2 * terms.D)
					if !w.k.answers() || w.k.has("shut") || w.k.has("unbind") {
						t.Errorf("did not serve on: %q", w.k.happened())
					}
				}
			})
		})
	}
}

// A restarted daemon cannot install its gate when the fence comes, and its first renewal is still under way. It must not serve under it.
func TestFenceMeetsAGateThatCannotBeInstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one := w.start("one")
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		one.cancel()
		two := w.start("two")
		defer two.cancel()
		hold, held := make(chan struct{}), make(chan struct{})
		two.store.mu.Lock()
		two.store.hold, two.store.held = hold, held
		two.store.mu.Unlock()
		<-held
		w.k.mu.Lock()
		two.gate.refuse = errors.New("the kernel is busy")
		w.k.mu.Unlock()
		w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
		w.pass(50 * time.Millisecond)
		w.k.mu.Lock()
		two.gate.refuse = nil
		w.k.mu.Unlock()
		seq := w.state().Holder.Value.Seq
		close(hold)
		w.pass(5 * terms.D)
		if w.k.answers() || w.state().Holder.Value.Seq != seq {
			t.Errorf("serves a fenced site: %q", w.k.happened())
		}
	})
}

// The guard cannot bind and is between two tries when the fence comes: it answers, for its gate is shut.
func TestFenceBetweenTwoTriesIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.k.mu.Lock()
		d.gate.wrong = errors.New("somebody else's program is before ours")
		w.k.mu.Unlock()
		w.wait("given up", func() bool { return w.k.has("unbind") })
		fence := w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
		w.k.mu.Lock()
		d.gate.wrong = nil
		w.k.mu.Unlock()
		w.pass(terms.RenewEvery() / 2)
		if rel := w.state().Switches["s2"].Released.Value; rel.Fence != fence {
			t.Errorf("the fence of revision %d is not answered: %+v; happened: %q", fence, rel, w.k.happened())
		}
	})
}

func TestRestartTakesOverWithoutAGapAndFencesItsPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one := w.start("one")
		w.assign(serving(1))
		w.wait("one serves", w.k.answers)
		w.pass(time.Second)
		two := w.start("two")
		defer two.cancel()
		for range 3000 { // a packet at every millisecond
			w.pass(time.Millisecond)
			if !w.k.answers() {
				t.Fatalf("a gap at the takeover: %q", w.k.happened())
			}
		}
		if err := <-one.err; !errors.Is(err, ErrReplaced) {
			t.Errorf("the predecessor ends with %v, want ErrReplaced", err)
		}
		w.k.mu.Lock()
		attached := w.k.attached
		w.k.mu.Unlock()
		if attached != two.gate {
			t.Error("the predecessor's gate is still attached")
		}
		if w.k.has("shut") || w.k.has("unbind") {
			t.Errorf("the replaced one touched gate or address: %q", w.k.happened())
		}
	})
}

// The predecessor is frozen over the takeover, wakes up, and sees the fence: it must not answer it, nor open anything.
func TestFrozenPredecessorNeverAnswersAFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one := w.start("one")
		defer one.cancel()
		w.assign(serving(1))
		w.wait("one serves", w.k.answers)
		w.mem.Client("one").Partition(true) // its requests and its watch stand still
		two := w.start("two")
		w.wait("two holds the lease", func() bool { return w.state().Holder.Value.Incarnation == "two" })
		w.pass(100 * time.Millisecond)
		two.cancel() // and dies
		fence := w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
		w.mem.Client("one").Partition(false)
		w.pass(5 * time.Second)
		if rel := w.state().Switches["s2"].Released; rel.Mod != 0 {
			t.Errorf("fence %d was answered by %s, whose gate is not attached", fence, rel.Value.Incarnation)
		}
		if w.k.answers() {
			t.Error("somebody serves past the lease's end")
		}
	})
}

func TestSilenceOfEtcdShutsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.mem.SetLeader(false)
		w.pass(time.Second)
		if !w.k.answers() {
			t.Fatal("fell silent within the lease's slack")
		}
		w.pass(time.Second)
		if w.k.answers() {
			t.Fatal("serves past its lease")
		}
		w.wait("its MySQL is fenced", func() bool { return w.k.has("fence true") })
		w.mem.SetLeader(true)
		w.wait("serves again", w.k.answers)
		w.wait("its MySQL is writable again", func() bool { return w.k.has("unfence true 1") })
	})
}

func TestSomebodyElseAnswersForTheVIP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.k.mu.Lock()
		d.wire.other = net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
		w.k.mu.Unlock()
		w.assign(serving(1))
		w.wait("his MAC is named", func() bool {
			return strings.Contains(w.state().Switches["s1"].Bound.Value.Err, "02:00:00:00:00:66")
		})
		w.pass(3 * time.Second)
		if w.k.answers() {
			t.Fatal("bound although somebody else answers")
		}
		w.k.mu.Lock()
		d.wire.other = nil
		w.k.mu.Unlock()
		w.wait("serves when he is silent", w.k.answers)
	})
}

func TestNoEvidenceMeansWaitingALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		a := serving(3)
		a.Release = nil
		w.assign(a)
		began := time.Now()
		w.wait("serves in the end", w.k.answers)
		if waited := time.Since(began); waited < terms.Span() {
			t.Errorf("served after %s without evidence that the old VIP is silent, want a whole lease of %s", waited, terms.Span())
		}
	})
}

func TestGateThatIsNotOursEndsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.k.mu.Lock()
		d.gate.wrong = errors.New("another program stands in front")
		w.k.mu.Unlock()
		w.wait("stopped", func() bool { return !w.k.answers() && w.k.has("unbind") })
		binds := len(w.k.happened())
		w.pass(time.Second)
		if slices.Contains(w.k.happened()[binds:], "bind") {
			t.Errorf("binds behind a gate that is not in force: %q", w.k.happened()[binds:])
		}
		w.k.mu.Lock()
		d.gate.wrong = nil
		w.k.mu.Unlock()
		w.wait("serves again when it is mended", w.k.answers)
	})
}

// A standby whose gate was taken away since it was installed does not bind: the address would answer before there is a lease.
func TestNoBindBehindALostGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(cluster.Assignment{Epoch: 1, Site: "b", Phase: cluster.Serving})
		w.wait("the gate of a standby", func() bool { return w.k.has("install false") })
		w.k.mu.Lock()
		d.gate.wrong = errors.New("the filter is gone")
		w.k.mu.Unlock()
		dead := true // etcd takes no renewal: nothing but the gate keeps the address silent
		w.mem.Client("one").OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if dead && len(then) > 0 {
				return dcs.BeforeSend
			}
			return dcs.None
		})
		w.assign(serving(2))
		w.pass(2 * time.Second)
		if slices.Contains(w.k.happened(), "bind") {
			t.Errorf("binds behind a gate that is not there: %q", w.k.happened())
		}
		w.k.mu.Lock()
		d.gate.wrong, dead = nil, false
		w.k.mu.Unlock()
		w.wait("serves when it is mended", w.k.answers)
	})
}

func TestLostBinderIsBoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.k.mu.Lock()
		d.binder.lost = errors.New("keepalived is dead")
		w.k.mu.Unlock()
		binds := func() int { return w.k.count("bind") }
		w.wait("bound again", func() bool { return binds() == 2 })
		seq := w.state().Holder.Value.Seq
		w.pass(2 * time.Second)
		if !w.k.answers() || w.state().Holder.Value.Seq < seq+10 || binds() != 2 {
			t.Errorf("does not serve on: %q", w.k.happened())
		}
	})
}

func TestClientsArePublishedForTheTickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		if _, err := w.ops.Do(t.Context(), "old clients", nil, dcs.Doc(w.keys.Clients("b"), []string{"10.0.0.7:99"})); err != nil {
			t.Fatal(err)
		}
		w.assign(serving(1))
		w.wait("the old holder's client is tickled", func() bool { return w.k.has("tickle 1") })
		w.wait("own clients are published", func() bool {
			return slices.Equal(w.state().Clients["a"].Value, []string{"10.0.0.9:1234"})
		})
	})
}

func TestOlderStateOfEtcdIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.memory = refusing{}
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.pass(5 * time.Second)
		if len(w.k.happened()) != 0 {
			t.Errorf("acted on a state older than what this host has seen: %q", w.k.happened())
		}
	})
}

type refusing struct{}

func (refusing) Admit(int64, int64) error { return ErrOld }

// To the other site and back: the second tenure takes the lease over from the other site's guard, also when the outcome of its first
// renewal stays unknown.
func TestServesAgainAfterAnotherSiteHeldTheLease(t *testing.T) {
	for _, fault := range []dcs.Fault{dcs.None, dcs.LoseAnswer, dcs.LoseRequest} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			d := w.start("one")
			defer d.cancel()
			w.assign(serving(1))
			w.wait("serves", w.k.answers)
			w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2", To: "b"})
			w.wait("released", func() bool { return w.state().Switches["s2"].Released.Mod != 0 })
			w.assign(cluster.Assignment{Epoch: 3, Site: "b", Phase: cluster.Serving, Switch: "s2"})
			h := cluster.Holder{Site: "b", Node: "mc-b", Incarnation: "other"}
			if _, err := w.ops.Do(t.Context(), "hold", nil, dcs.Doc(w.keys.Holder(), h)); err != nil {
				t.Fatal(err)
			}
			w.pass(time.Second)
			w.mem.Client("one").FailNext(fault)
			a := serving(4)
			a.Switch = "s3"
			w.assign(a)
			w.wait("serves again", w.k.answers)
			w.pass(3 * time.Second)
			if got := w.state().Holder.Value.Incarnation; got != "one" || !w.k.answers() {
				t.Errorf("fault %v: held by %s", fault, got)
			}
		})
	}
}

// After a release somebody else takes the address: the next start on the same host must see him, although the lease was its own.
func TestStartAfterAReleaseAsksTheWireAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serves", w.k.answers)
		w.assign(cluster.Assignment{Epoch: 2, Site: "a", Phase: cluster.Switching, Switch: "s2"})
		w.wait("released", func() bool { return w.state().Switches["s2"].Released.Mod != 0 })
		w.assign(cluster.Assignment{Epoch: 3, Phase: cluster.Serving, Switch: "s2"})
		w.k.mu.Lock()
		d.wire.other = net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
		w.k.mu.Unlock()
		a := serving(5)
		a.Switch = "s3"
		w.assign(a)
		w.wait("his MAC is named", func() bool {
			return strings.Contains(w.state().Switches["s3"].Bound.Value.Err, "02:00:00:00:00:66")
		})
		w.pass(3 * time.Second)
		if w.k.answers() {
			t.Fatal("bound although somebody else answers")
		}
	})
}
