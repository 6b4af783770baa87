package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
)

func fenceOf(epoch int64, id string) cluster.Assignment {
	return cluster.Assignment{Epoch: epoch, Site: "a", Phase: cluster.Switching, Switch: id, To: "b"}
}

// renews says whether the transaction is a renewal.
func (w *world) renews(then []dcs.Op) bool {
	return len(then) == 1 && then[0].Kind == dcs.Put && then[0].Key == w.keys.Holder()
}

// The answer to the last renewal before the fence is lost: the guard does not know its own holder's revision, reads it, and answers.
func TestFenceIsAnsweredAfterARenewalOfUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		lost := make(chan struct{})
		once := sync.OnceFunc(func() { close(lost) })
		w.mem.Client("one").OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			select {
			case <-lost:
				return dcs.None
			default:
			}
			if !w.renews(then) {
				return dcs.None
			}
			once()
			return dcs.LoseAnswer
		})
		<-lost
		fence := w.assign(fenceOf(2, "s2"))
		w.pass(terms.RenewEvery() / 2)
		if rel := w.state().Switches["s2"].Released.Value; rel.Fence != fence {
			t.Errorf("the fence of revision %d is not answered: %+v", fence, rel)
		}
	})
}

// gateMemory holds the guard's loop where it writes an assignment down: SIGSTOP, or a disk that hangs.
type gateMemory struct {
	mu   sync.Mutex
	hold map[int64]chan struct{} // by epoch
}

func (m *gateMemory) Admit(epoch, _ int64) error {
	m.mu.Lock()
	hold := m.hold[epoch]
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return nil
}

// The guard sleeps over its lease's end, another site's whole tenure, and the way back. It takes the lease over from that site, with
// silence before it binds, and does not make the MySQL read-only that has just been promoted here.
func TestGuardThatSleptOverAnotherTenureBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hold := make(chan struct{})
		w.memory = &gateMemory{hold: map[int64]chan struct{}{2: hold}}
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.assign(serving(2))
		w.pass(3 * time.Second)
		if w.k.answers() {
			t.Fatal("serves past its lease")
		}
		w.assign(cluster.Assignment{Epoch: 4, Site: "b", Phase: cluster.Serving, Switch: "s4"})
		if _, err := w.ops.Do(t.Context(), "hold", nil, dcs.Doc(w.keys.Holder(), cluster.Holder{Site: "b", Node: "mc-b", Incarnation: "other"})); err != nil {
			t.Fatal(err)
		}
		a := serving(6)
		a.Switch = "s6"
		w.assign(a)
		before := len(w.k.happened())
		close(hold)
		w.wait("serves again", w.k.answers)
		if w.k.has("fence true") || w.k.has("fence false") {
			t.Error("made the MySQL read-only that was promoted here")
		}
		after := w.k.happened()[before:]
		if i, j := slices.Index(after, "unbind"), slices.Index(after, "bind"); i < 0 || j < i || !slices.Contains(after[:j], "shut") {
			t.Errorf("did not begin anew: %q", after)
		}
		w.pass(time.Second)
		if got := w.state().Holder.Value; got.Incarnation != "one" || got.Lease != terms.D {
			t.Errorf("held by %+v", got)
		}
	})
}

// The fence is followed before it is written down.
func TestFenceIsAnsweredWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hold := make(chan struct{})
		w.memory = &gateMemory{hold: map[int64]chan struct{}{2: hold}}
		d := w.start("one")
		defer d.cancel()
		defer close(hold)
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.assign(fenceOf(2, "s2"))
		w.pass(50 * time.Millisecond)
		if w.state().Switches["s2"].Released.Mod == 0 || w.k.answers() {
			t.Error("the fence waits for the disk")
		}
	})
}

// slowData is MySQL whose read-only hangs behind a commit.
type slowData struct {
	k     *kernel
	fence time.Duration
	hold  chan struct{} // before Unfence asks its check; nil: not held
}

func (d slowData) Fence(ctx context.Context, _ func() error) error {
	timer := time.NewTimer(d.fence)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		d.k.say("read-only given up")
		return context.Cause(ctx)
	case <-timer.C:
	}
	d.k.say("read-only")
	return nil
}

func (d slowData) Unfence(_ context.Context, check func() error, _ int64) error {
	if d.hold != nil {
		<-d.hold
	}
	if err := check(); err != nil {
		d.k.say("not writable")
		return err
	}
	d.k.say("writable")
	return nil
}

// The lease comes back while the self-fence still hangs: the site must not become read-only after it was made writable.
func TestSelfFenceEndsBeforeItsUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.data = slowData{k: w.k, fence: time.Second}
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.mem.SetLeader(false)
		w.wait("silent", func() bool { return !w.k.answers() })
		w.pass(200 * time.Millisecond)
		w.mem.SetLeader(true)
		w.wait("writable", func() bool { return w.k.has("writable") })
		w.pass(3 * time.Second)
		log := w.k.happened()
		if i := slices.Index(log, "writable"); slices.Contains(log[i:], "read-only") || !slices.Contains(log[:i], "read-only given up") {
			t.Errorf("the self-fence outlived its undo: %q", log)
		}
	})
}

// The undo of a self-fence hangs before its statement, and meanwhile the site is fenced, unseen by a view that lags.
func TestUndoOfSelfFenceAsksEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		hold := make(chan struct{})
		w.data = slowData{k: w.k, hold: hold}
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.mem.SetLeader(false)
		w.wait("read-only", func() bool { return w.k.has("read-only") })
		w.mem.SetLeader(true)
		w.wait("serves again", w.k.answers)
		w.mem.Client("one").DelayWatch(100 * time.Millisecond)
		w.assign(fenceOf(2, "s2"))
		close(hold)
		w.wait("asked", func() bool { return w.k.has("writable") || w.k.has("not writable") })
		if w.k.has("writable") {
			t.Error("a fenced site was made writable")
		}
	})
}

// A target stops asking for the VIP when its switch is undone, and asks again in its next one.
func TestProbesEndWithTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		probing := func() bool {
			w.k.mu.Lock()
			defer w.k.mu.Unlock()
			return !d.wire.since.IsZero()
		}
		to := cluster.Assignment{Epoch: 2, Site: "b", Phase: cluster.Switching, Switch: "s2", To: "a"}
		w.assign(to)
		w.wait("asks", probing)
		w.assign(cluster.Assignment{Epoch: 4, Site: "b", Phase: cluster.Serving, Switch: "s2"})
		w.pass(10 * time.Millisecond)
		if probing() {
			t.Error("asks on although its switch is undone")
		}
		to.Epoch = 5
		w.assign(to)
		w.wait("asks again", probing)
	})
}

// A gate that could not be installed is tried again under the same assignment.
func TestInstallIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.k.mu.Lock()
		d.gate.refuse = errors.New("device or resource busy")
		w.k.mu.Unlock()
		w.assign(serving(1))
		w.pass(time.Second)
		w.k.mu.Lock()
		d.gate.refuse = nil
		w.k.mu.Unlock()
		w.wait("serves", w.k.answers)
	})
}

// An announcer that ended is started again: neighbours must learn of the VIP, and the controller that it is bound.
func TestAnnouncesOnAfterALinkWasDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.k.mu.Lock()
		d.wire.down = errors.New("network is down")
		w.k.mu.Unlock()
		w.assign(serving(1))
		w.pass(2 * time.Second)
		w.k.mu.Lock()
		d.wire.down = nil
		w.k.mu.Unlock()
		w.wait("reported as bound", func() bool { return w.state().Switches["s1"].Bound.Value.Incarnation == "one" })
	})
}

// The assignment is gone, as in an etcd that was emptied: no renewal, no hurry, and no service.
func TestMissingAssignmentEndsServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		var mu sync.Mutex
		tries := 0
		w.mem.Client("one").OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if w.renews(then) {
				mu.Lock()
				defer mu.Unlock()
				if tries++; tries > 1000 {
					<-t.Context().Done() // it would go round for ever, and no time would pass
				}
			}
			return dcs.None
		})
		if _, err := w.ops.Do(t.Context(), "lose it", nil, dcs.Op{Kind: dcs.Delete, Key: w.keys.Assignment()}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Second)
		if w.k.answers() {
			t.Error("serves without an assignment")
		}
		mu.Lock()
		defer mu.Unlock()
		if tries > 30 {
			t.Errorf("%d renewals in 2 s, want one each %s", tries, terms.RenewEvery())
		}
	})
}

// Two hosts claim one site, as after a change of its node: the one that was replaced ends, and they do not take turns.
func TestAnotherHostOfTheSameSiteReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		if _, err := w.ops.Do(t.Context(), "hold", nil, dcs.Doc(w.keys.Holder(), cluster.Holder{Site: "a", Node: "mc-new", Incarnation: "other"})); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		select {
		case err := <-d.err:
			if !errors.Is(err, ErrReplaced) {
				t.Errorf("ended with %v", err)
			}
		default:
			t.Error("goes on beside its successor")
		}
		if got := strings.Join(w.k.happened(), " "); strings.Contains(got, "shut") {
			t.Errorf("the replaced one touched the gate: %s", got)
		}
	})
}

// failingData gives its MySQL back at the third try.
type failingData struct {
	fakeData
	tries *atomic.Int32
}

func (d failingData) Unfence(context.Context, func() error, int64) error {
	if d.tries.Add(1) < 3 {
		return errors.New("etcd is slow")
	}
	d.k.say("writable")
	return nil
}

// What a lapse has set read-only is given back even if the first tries fail, and only once.
func TestUndoOfSelfFenceIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var tries atomic.Int32
		w.data = failingData{fakeData{w.k}, &tries}
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.mem.SetLeader(false)
		w.wait("silent", func() bool { return !w.k.answers() })
		w.mem.SetLeader(true)
		w.wait("writable", func() bool { return w.k.has("writable") })
		w.pass(3 * time.Second)
		if n := tries.Load(); n != 3 {
			t.Errorf("tried %d times, want 3", n)
		}
	})
}
