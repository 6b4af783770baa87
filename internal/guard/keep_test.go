package guard

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// Somebody holds the network's configuration lock for longer than a lease. Nobody can take the gate away meanwhile, and the renewals
// do not wait for it. A kernel that never answers again is another matter.
func TestKernelThatHangsDoesNotFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		goesOn := func() {
			for range 3 * int(terms.D/(10*time.Millisecond)) {
				w.pass(10 * time.Millisecond)
				if !w.k.answers() {
					t.Fatalf("does not serve on: %q", w.k.happened())
				}
			}
		}
		hang := make(chan struct{})
		d.hang(hang)
		goesOn()
		d.hang(nil)
		close(hang)
		goesOn()
		d.slow(true)
		goesOn()
		d.slow(false)
		goesOn()
		if !w.k.answers() || w.k.has("shut") || w.k.has("unbind") {
			t.Errorf("does not serve on: %q", w.k.happened())
		}
		hang = make(chan struct{})
		d.hang(hang)
		w.pass((unseenMost + 1) * terms.D)
		if w.k.answers() || !w.k.has("shut") {
			t.Error("serves for ever behind a gate that nobody can look at")
		}
		d.hang(nil)
		close(hang)
		w.wait("serves again", w.k.answers)
	})
}

func (d *daemon) slow(yes bool) {
	d.w.k.mu.Lock()
	defer d.w.k.mu.Unlock()
	d.gate.slow = yes
}

func (d *daemon) hang(c chan struct{}) {
	d.w.k.mu.Lock()
	defer d.w.k.mu.Unlock()
	d.gate.hang = c
}

// keepalived is dead and cannot be started again, while the address is there: that is no reason to take a working service down.
func TestBinderThatCannotBeStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.k.mu.Lock()
		d.binder.lost, d.binder.refuse = fmt.Errorf("%w: both processes are dead", ErrBinderLost), errors.New("exec format error")
		w.k.mu.Unlock()
		const leases = 6
		for range leases * int(terms.D/(10*time.Millisecond)) {
			w.pass(10 * time.Millisecond)
			if !w.k.answers() || w.k.has("unbind") {
				t.Fatalf("does not serve on: %q", w.k.happened())
			}
		}
		if n := w.k.count("bind"); n < leases-1 || n > leases+2 {
			t.Errorf("bound %d times, want about once a lease", n)
		}
		w.k.mu.Lock()
		d.binder.refuse = nil
		w.k.mu.Unlock()
		w.pass(2 * terms.D)
		n := w.k.count("bind")
		w.pass(3 * terms.D)
		if !w.k.answers() || w.k.count("bind") != n {
			t.Errorf("is bound on and on although it runs again: %q", w.k.happened())
		}
	})
}

// An address that is gone and cannot be put back ends the service: the gate must not stay open for a host without it.
func TestAddressThatCannotBePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		w.k.mu.Lock()
		d.binder.lost, d.binder.refuse = errors.New("the address is gone"), errors.New("the interface is gone")
		w.k.mu.Unlock()
		w.wait("shut", func() bool { return !w.k.answers() && w.k.has("shut") && w.k.has("unbind") })
	})
}

// etcd does not take the guard's word at first. It says it again: the controller would call the switch stuck.
func TestBindReportIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		var lost atomic.Int32
		w.mem.Client("one").OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if slices.ContainsFunc(then, func(o dcs.Op) bool { return o.Key == w.keys.Switch("s1", "bound") }) && lost.Add(1) <= 5 {
				return dcs.BeforeSend
			}
			return dcs.None
		})
		w.assign(serving(1))
		w.wait("the word", func() bool { b := w.state().Switches["s1"].Bound; return b.Mod != 0 && b.Value.Err == "" })
		said := lost.Load()
		w.pass(2 * terms.D)
		if lost.Load() != said {
			t.Errorf("said %d times, and etcd had it after %d", lost.Load(), said)
		}
	})
}

// fullMemory refuses epochs from one on, until it is mended.
type fullMemory struct {
	from  int64
	full  atomic.Bool
	asked atomic.Int32
}

func (m *fullMemory) Admit(epoch, _ int64) error {
	if epoch >= m.from && m.full.Load() {
		m.asked.Add(1)
		return errors.New("no space left on device")
	}
	return nil
}

// The fence is answered once although it cannot be written down, and the disk is not asked at every event.
func TestFullDiskReleasesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		disk := &fullMemory{from: 2}
		disk.full.Store(true)
		w.memory = disk
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		fence := w.assign(fenceOf(2, "s2"))
		const leases = 4
		for i := range leases * 100 { // other hosts go on writing
			if _, err := w.ops.Do(t.Context(), "report", nil, dcs.Doc(w.keys.Clients("b"), []string{fmt.Sprint(i)})); err != nil {
				t.Fatal(err)
			}
			w.pass(terms.D / 100)
		}
		if n := w.k.count("shut"); n != 1 || w.k.count("unbind") != 1 {
			t.Errorf("released %d times: %q", n, w.k.happened())
		}
		if n := disk.asked.Load(); n < 2 || n > leases+2 {
			t.Errorf("the disk was asked %d times in %d leases", n, leases)
		}
		if w.state().Switches["s2"].Released.Value.Fence != fence || w.k.answers() {
			t.Error("the fence is not answered")
		}
		disk.full.Store(false)
		w.assign(serving(3))
		w.wait("serves again", w.k.answers)
	})
}

// An announcer that hangs in the kernel keeps neither the gate open nor the fence waiting.
func TestGateIsShutBeforeTheAnnouncerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		d.wire.hang = make(chan struct{})
		defer close(d.wire.hang)
		w.assign(serving(1))
		w.wait("serving", func() bool { return w.k.has("announce") })
		w.assign(fenceOf(2, "s2"))
		w.pass(terms.RenewEvery() / 2)
		if w.k.answers() {
			t.Error("open behind an announcer that hangs")
		}
		w.wait("the answer", func() bool { return w.state().Switches["s2"].Released.Mod != 0 })
	})
}

// A look that hung while the site was fenced puts the address back afterwards: it is taken off after the look, and the next serving
// binds after that.
func TestAddressGoesAfterALookThatHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.start("one")
		defer d.cancel()
		w.assign(serving(1))
		w.wait("serving", w.k.answers)
		hang := make(chan struct{})
		w.k.mu.Lock()
		d.binder.hang = hang
		w.k.mu.Unlock()
		w.wait("a look that hangs", func() bool { return w.k.has("extend hangs") })
		w.assign(fenceOf(2, "s2"))
		w.pass(terms.D)
		if w.state().Switches["s2"].Released.Mod == 0 {
			t.Error("the fence waits for the look")
		}
		w.k.mu.Lock()
		d.binder.hang = nil
		w.k.mu.Unlock()
		a := serving(3)
		a.Switch = "s3"
		w.assign(a)
		w.pass(terms.D / 4)
		close(hang)
		w.wait("serving", w.k.answers)
		seen := w.k.happened()
		late, off := slices.Index(seen, "extended late"), slices.Index(seen, "unbind")
		if off < late || slices.Index(seen[off:], "bind") < 0 {
			t.Errorf("wrong order: %q", seen)
		}
		w.pass(2 * terms.D)
		if !w.k.answers() {
			t.Errorf("does not serve on: %q", w.k.happened())
		}
	})
}
