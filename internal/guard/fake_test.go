package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
)

// kernel is what outlives a daemon: the gate that is attached, and the address. A daemon's gate is one map; the newest installed one
// is attached, as with the real gate.
type kernel struct {
	mu       sync.Mutex
	attached *fakeGate
	bound    bool
	log      []string // what happened, in order
}

func (k *kernel) say(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.log = append(k.log, fmt.Sprintf(format, args...))
}

// happened is what was said so far.
func (k *kernel) happened() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.log)
}

func (k *kernel) has(what string) bool { return slices.Contains(k.happened(), what) }

// count says how often it happened so far.
func (k *kernel) count(what string) int {
	n := 0
	for _, l := range k.happened() {
		if l == what {
			n++
		}
	}
	return n
}

// answers says whether the host would answer for the VIP now.
func (k *kernel) answers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bound && k.attached != nil && lease.Boot(k.attached.word) > boot()
}

var origin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where a synctest bubble's clock starts

// boot is CLOCK_BOOTTIME of the bubble: an hour of it has passed, so that no deadline can be taken for a counter.
func boot() lease.Boot { return lease.Boot(time.Since(origin) + time.Hour) }

type fakeGate struct {
	k      *kernel
	word   uint64
	closes uint64
	wrong  error         // what Verify finds
	refuse error         // what Install says
	hang   chan struct{} // Verify waits for its close, whatever its context says: a lock in the kernel; nil: it does not
	slow   bool          // Verify gives up when its context ends
}

func (g *fakeGate) Install(_ context.Context, preload lease.Boot) error {
	g.k.say("install %t", preload > boot())
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	if g.refuse != nil {
		return g.refuse
	}
	g.word, g.k.attached = uint64(preload), g
	return nil
}

func (g *fakeGate) Word() uint64 {
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	return g.word
}

func (g *fakeGate) Swap(old uint64, deadline lease.Boot) error {
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	if g.word != old {
		return ErrOvertaken
	}
	g.word = uint64(deadline)
	return nil
}

func (g *fakeGate) Shut(ctx context.Context) error {
	g.k.say("shut")
	g.k.mu.Lock()
	g.closes++
	g.word = g.closes
	g.k.mu.Unlock()
	return g.Verify(ctx)
}

func (g *fakeGate) Verify(ctx context.Context) error {
	g.k.mu.Lock()
	hang, slow := g.hang, g.slow
	g.k.mu.Unlock()
	if slow {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if hang != nil {
		<-hang
	}
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	if g.k.attached != g {
		return errors.New("another gate is attached")
	}
	return g.wrong
}

type fakeBinder struct {
	k      *kernel
	lost   error         // what Extend finds
	refuse error         // what Bind says
	hang   chan struct{} // Extend waits for its close and then puts the address there; nil: it does not
}

func (b *fakeBinder) Bind(context.Context, time.Duration) (Facts, error) {
	b.k.say("bind")
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	if b.refuse != nil {
		return nil, b.refuse
	}
	b.k.bound, b.lost = true, nil
	return Facts{"mac": "02:00:00:00:00:01"}, nil
}

func (b *fakeBinder) Unbind(context.Context) (Facts, error) {
	b.k.say("unbind")
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	b.k.bound = false
	return nil, nil
}

func (b *fakeBinder) Extend(context.Context, time.Duration) error {
	b.k.mu.Lock()
	hang := b.hang
	b.k.mu.Unlock()
	if hang != nil {
		b.k.say("extend hangs")
		<-hang
		b.k.say("extended late")
	}
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	b.k.bound = b.k.bound || hang != nil
	return b.lost
}

func (b *fakeBinder) Held(context.Context) (bool, error) {
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	return b.k.bound, nil
}

type fakeWire struct {
	k     *kernel
	since time.Time
	other net.HardwareAddr // answers for the VIP
	down  error            // what Announce finds
	hang  chan struct{}    // Announce ends with its close and not with its context; nil: with its context
}

func (w *fakeWire) Announce(ctx context.Context, owned func() error, first func(net.HardwareAddr)) error {
	if err := owned(); err != nil {
		return err
	}
	w.k.mu.Lock()
	down := w.down
	w.k.mu.Unlock()
	if down != nil {
		return down
	}
	w.k.say("announce")
	first(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	<-ctx.Done()
	if w.hang != nil {
		<-w.hang
	}
	return context.Cause(ctx)
}

func (w *fakeWire) Probe(ctx context.Context) error {
	w.k.mu.Lock()
	w.since = time.Now()
	w.k.mu.Unlock()
	<-ctx.Done()
	w.k.mu.Lock()
	w.since = time.Time{} // who does not probe knows of no silence
	w.k.mu.Unlock()
	return nil
}

func (w *fakeWire) Silence() Silence {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	if w.other != nil {
		return Silence{Since: time.Now(), MAC: w.other, At: time.Now()}
	}
	if w.since.IsZero() {
		return Silence{}
	}
	return Silence{Since: w.since, Probes: 1 + int(time.Since(w.since)/(10*time.Millisecond))}
}

func (w *fakeWire) Refuse(context.Context) error { return nil }

func (w *fakeWire) Clients(context.Context) ([]netip.AddrPort, error) {
	return []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:1234")}, nil
}

func (w *fakeWire) Destroy(context.Context) (int, error) {
	w.k.say("destroy")
	return 1, nil
}

func (w *fakeWire) Tickle(_ context.Context, c []netip.AddrPort) (int, error) {
	w.k.say("tickle %d", len(c))
	return len(c), nil
}

type fakeData struct{ k *kernel }

func (d fakeData) Fence(_ context.Context, check func() error) error {
	d.k.say("fence %v", check() == nil)
	return nil
}

func (d fakeData) Unfence(_ context.Context, check func() error, epoch int64) error {
	d.k.say("unfence %v %d", check() == nil, epoch)
	return nil
}

type anyMemory struct{}

func (anyMemory) Admit(int64, int64) error { return nil }

var terms = lease.Terms{D: 1500 * time.Millisecond, Margin: 60 * time.Millisecond}

// pausing is a store whose renewals can be held after their answer has come and before the guard sees it: SIGSTOP at the worst moment.
type pausing struct {
	*dcs.Store
	mu   sync.Mutex
	hold chan struct{} // closed: go on; nil: do not hold
	held chan struct{} // closed when a renewal is held
}

func (p *pausing) Renew(ctx context.Context, a, h int64, doc cluster.Holder) (dcs.Renewed, error) {
	r, err := p.Store.Renew(ctx, a, h, doc)
	p.mu.Lock()
	hold, held := p.hold, p.held
	p.hold = nil
	p.mu.Unlock()
	if hold != nil {
		close(held)
		<-hold
	}
	return r, err
}

// world is one host with daemons on it, and etcd.
type world struct {
	t    *testing.T
	mem  *dcs.Mem
	ops  *dcs.Store // of the controller and of tests
	keys dcs.Keys
	k    *kernel

	memory Memory
	data   Data
}

func newWorld(t *testing.T) *world {
	mem, k := dcs.NewMem(), &kernel{}
	return &world{
		t: t, mem: mem, ops: dcs.NewStore(mem.Client("controller"), "bank"), keys: dcs.KeysOf("bank"), k: k, memory: anyMemory{}, data: fakeData{k},
	}
}

type daemon struct {
	*Guard
	w      *world
	gate   *fakeGate
	binder *fakeBinder
	wire   *fakeWire
	store  *pausing
	cancel context.CancelFunc
	err    chan error
}

// start runs a daemon of site a, with a mirror as the real one has.
func (w *world) start(name string) *daemon {
	kv := w.mem.Client(name)
	d := &daemon{w: w, gate: &fakeGate{k: w.k}, binder: &fakeBinder{k: w.k}, wire: &fakeWire{k: w.k}, err: make(chan error, 1)}
	d.store = &pausing{Store: dcs.NewStore(kv, "bank")}
	d.Guard = New(Config{
		Site: "a", Node: "mc-a", Incarnation: name, Level: cluster.GateEBPF, Terms: terms, Keys: w.keys, Store: d.store, Gate: d.gate,
		Binder: d.binder, Wire: d.wire, Data: w.data, Memory: w.memory, Now: boot, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	d.cancel = cancel
	go func() { d.err <- d.Run(ctx) }()
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: w.keys.Prefix()})
	changed, stop := mirror.Subscribe()
	go func() { _ = mirror.Run(ctx) }()
	go func() {
		dec := dcs.NewDecoder(w.keys)
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			d.Observe(dec.DecodeView(mirror.View()))
		}
	}()
	return d
}

// assign writes the assignment as a controller does.
func (w *world) assign(a cluster.Assignment) int64 {
	w.t.Helper()
	r, err := w.ops.Do(w.t.Context(), "assign", nil, dcs.Doc(w.keys.Assignment(), a))
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Revision
}

func (w *world) state() dcs.State {
	w.t.Helper()
	s, err := w.ops.Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// wait lets virtual time pass until cond holds.
func (w *world) wait(what string, cond func() bool) {
	w.t.Helper()
	for range 20000 {
		synctest.Wait()
		if cond() {
			return
		}
		<-time.After(time.Millisecond)
	}
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	w.t.Fatalf("never: %s; happened: %q", what, w.k.log)
}

// pass lets virtual time pass.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func serving(epoch int64) cluster.Assignment {
	return cluster.Assignment{Epoch: epoch, Site: "a", Phase: cluster.Serving, Switch: "s1", Release: &cluster.Release{Epoch: epoch, None: true}}
}
