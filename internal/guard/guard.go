package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
)

// Config is one guard: the site that it serves, its lease and its outside.
type Config struct {
	Site        cluster.SiteName
	Node        cluster.NodeName
	Incarnation string // one per life of the daemon
	Level       cluster.GateLevel
	Terms       lease.Terms
	Keys        dcs.Keys
	Store       Store
	Gate        Gate
	Binder      Binder
	Wire        Wire
	Data        Data
	Memory      Memory
	Now         func() lease.Boot // CLOCK_BOOTTIME
	Moved       <-chan struct{}   // the kernel says that the address came or went; nil: nobody watches
	Log         *slog.Logger
}

// Guard follows the assignment for one site.
type Guard struct {
	Config
	states chan dcs.State
	status statusBox

	// The fields below belong to the goroutine of Run.
	last      dcs.State // the newest state handed in
	follow    dcs.Versioned[cluster.Assignment]
	firstSeen time.Time // of follow, by the monotonic clock
	tenure    *tenure   // nil: not serving and not about to
	holder    holding
	renewed   chan renewal
	opened    chan opening
	kept      chan keeping
	retry     <-chan time.Time // the next try to serve after one that failed
	yielded   int64            // revision of the assignment that was yielded to last, also when it could not be written down
	refused   refusal          // of the memory, the newest
	unbinding *changing        // the newest taking off of the address, ended or not
	reports   reports
	installed bool
	prober    context.CancelFunc
	clients   atomic.Pointer[[]string] // as published last
	held      bool                     // this incarnation has held the lease: whoever holds it for this host now has replaced it
	heldMod   int64                    // revision of its newest renewal: an older view of the holder says nothing
	fenced    atomic.Bool              // this guard set its MySQL read-only when its lease ended by itself, and has not given it back
	unfencing *changing                // the newest try to give it back
	changing  *changing                // of the own MySQL: the newest, ended or not
}

// tenure is one time of serving, from the sight of the assignment to the release.
type tenure struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	since   time.Time
	own     bool           // this host held the lease already: a restart, with nothing to wait for
	before  cluster.Holder // who held the lease before
	busy    bool           // a renewal is under way
	grant   grant          // of the newest renewal that succeeded
	binding bool           // bind runs
	bound   bool           // the address is on the host
	rebind  time.Time      // no new try to start a lost binder before, while the address serves without it
	keeping bool           // a look at what it stands on is under way
	again   bool           // and another is asked for
	seen    time.Time      // when such a look had an answer last
	work    sync.WaitGroup // what may touch the address: looks and binds
	open    bool           // the gate was opened by this tenure
	fresh   bool           // and no renewal has been settled since
	from    uint64         // the word that it was opened from
	facts   Facts          // for the journal
	done    chan struct{}  // closed when the announcer has ended; nil before it began
}

// refusal is an assignment that could not be written down, and when to try again: a full disk must not be asked at each event.
type refusal struct {
	mod   int64
	until time.Time
}

// grant is what a renewal allows.
type grant struct {
	word     uint64     // of the gate before the send: the only word that may be swapped
	deadline lease.Boot // 0: none yet
}

// holding is what this incarnation wrote into holder last.
type holding struct {
	mod    int64 // 0: nothing; the answer to an unknown outcome corrects it
	seq    int64
	mac    string
	shared time.Time // when the clients were looked at last
}

// New returns a guard. Nothing is touched before Run.
func New(c Config) *Guard {
	return &Guard{
		Config: c, states: make(chan dcs.State, 1),
		renewed: make(chan renewal, 1), opened: make(chan opening, 1), kept: make(chan keeping, 1),
		changing: noChange(), unbinding: noChange(), reports: reports{newest: noChange()},
	}
}

// Observe hands the newest state to the guard; it never blocks, and an unread older one is dropped.
func (g *Guard) Observe(s dcs.State) {
	for {
		select {
		case g.states <- s:
			return
		default:
		}
		select {
		case <-g.states:
		default:
		}
	}
}

// Run follows the assignment until ctx ends or the guard is replaced (ErrReplaced). At its end it cuts nothing: address and gate
// stay as they are until the lease ends or a successor takes them up.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(g.Terms.RenewEvery())
	defer tick.Stop()
	defer g.stopAnnouncing()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case s := <-g.states:
			g.last = s
			err = g.see(ctx, s.Assignment)
		case <-tick.C:
			err = g.beat(ctx)
		case <-g.Moved:
			if t := g.tenure; t != nil && t.open && t.bound {
				g.keep(t)
			}
		case k := <-g.kept:
			err = g.settleKeeping(ctx, k)
		case r := <-g.renewed:
			err = g.settle(ctx, r)
		case o := <-g.opened:
			err = g.settleOpening(ctx, o)
		case <-g.retry:
			g.retry = nil
			err = g.begin(ctx)
		}
		switch {
		case errors.Is(err, ErrReplaced):
			return err
		case err != nil:
			g.Log.Error("guard step", slog.Any("err", err), slog.String("site", string(g.Site)))
		}
		g.publish()
	}
}

// see takes a newer assignment up. Older ones (a late watch message after an answer to a renewal) are ignored.
func (g *Guard) see(ctx context.Context, a dcs.Versioned[cluster.Assignment]) error {
	if a.Mod == 0 || a.Mod <= g.follow.Mod || a.Mod == g.refused.mod && time.Now().Before(g.refused.until) {
		return nil
	}
	mine := a.Value.Serves(g.Site)
	// Also between two tries to serve: the gate is shut then, and whoever waits for the answer would wait the whole lease out.
	yields := !mine && a.Mod != g.yielded && (g.tenure != nil || g.held && g.follow.Value.Serves(g.Site))
	var err error
	if yields {
		g.yielded = a.Mod     // once, also when it cannot be written down below: who repeated it would take off, and answer, at each event
		err = g.yield(ctx, a) // before anything is written down: the service waits for the answer, and a disk may be slow or full
	}
	if merr := g.Memory.Admit(a.Value.Epoch, a.Mod); merr != nil {
		g.refused = refusal{a.Mod, time.Now().Add(g.Terms.D)}
		return errors.Join(err, fmt.Errorf("follow assignment of epoch %d: %w", a.Value.Epoch, merr))
	}
	g.follow, g.firstSeen, g.retry = a, time.Now(), nil
	g.Log.Info("assignment", slog.Int64("epoch", a.Value.Epoch), slog.String("phase", string(a.Value.Phase)),
		slog.String("site", string(a.Value.Site)), slog.String("switch", a.Value.Switch))
	if mine {
		return g.resume(ctx)
	}
	g.changing.cancel()
	if a.Value.To == g.Site && a.Value.Phase == cluster.Switching {
		g.probe(ctx)
	} else {
		g.stopProbing()
	}
	if yields {
		return err
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	return g.clean(ctx)
}

// yield ends the tenure and answers the fence.
func (g *Guard) yield(ctx context.Context, a dcs.Versioned[cluster.Assignment]) error {
	g.retry = nil
	if err := g.ready(ctx); err != nil {
		// No answer: this gate is not in force. But nothing may be renewed any more, or the fence itself would be served under.
		t := g.tenure
		if t != nil {
			g.tenure = nil
			t.end(err)
		}
		g.unbind(ctx, t, Facts{})
		return err
	}
	return g.release(ctx, a)
}

// resume goes on under an assignment that lets this site serve. An undo gives it back while the lease still lasts: the next renewal
// compares the new revision. Where it does not last, another site may have held it in between, unseen by a guard that slept or was cut
// off: everything begins anew, with evidence and silence.
func (g *Guard) resume(ctx context.Context) error {
	t := g.tenure
	switch {
	case t == nil:
	case !t.open:
		t.end(errAnew)
	case g.Now() < t.grant.deadline:
		return nil
	default:
		return g.stop(ctx, t, errAnew)
	}
	g.tenure = nil
	return g.begin(ctx)
}

var errAnew = errors.New("the lease had ended when the assignment changed: serving begins anew")

// soon bounds what the loop asks the kernel: renewals and fences wait for it, and past the lease's end the kernel has shut the gate anyway.
func (g *Guard) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, g.Terms.D/4, errors.New("this host took longer than a quarter of the lease"))
}

// ready installs the gate shut, once, before anything else is touched. A site that no assignment has ever named is left alone: its
// VIP may be served by somebody whom Baton does not know yet.
func (g *Guard) ready(ctx context.Context) error {
	if g.installed {
		return nil
	}
	ctx, cancel := g.soon(ctx)
	defer cancel()
	if err := g.Gate.Install(ctx, 0); err != nil {
		return fmt.Errorf("install gate: %w", err)
	}
	g.installed = true
	return nil
}

// clean takes a leftover address off a host that does not serve: of a crash, or of a keepalived that outlived its daemon.
func (g *Guard) clean(ctx context.Context) error {
	ctx, cancel := g.soon(ctx)
	defer cancel()
	held, err := g.Binder.Held(ctx)
	if err != nil || !held {
		return err
	}
	g.Log.Warn("the VIP is on this host although another site is assigned: it is taken off", slog.String("site", string(g.Site)))
	_, err = g.Binder.Unbind(ctx)
	return err
}

// probe asks the wire for the VIP while a switch to this site is under way, so that at the commit the silence is already known.
func (g *Guard) probe(ctx context.Context) {
	if g.prober != nil {
		return
	}
	ctx, g.prober = context.WithCancel(ctx)
	go func() {
		if err := g.Wire.Probe(ctx); err != nil && ctx.Err() == nil {
			g.Log.Error("probe for the VIP", slog.Any("err", err))
		}
	}()
}

func (g *Guard) stopProbing() {
	if g.prober != nil {
		g.prober()
		g.prober = nil
	}
}

func (g *Guard) stopAnnouncing() {
	if g.tenure != nil {
		g.tenure.end(errors.New("the daemon ends"))
	}
}

// end stops all that the tenure runs, and waits for the announcer: a frame sent after the release would poison clients.
func (t *tenure) end(why error) {
	t.cancel(why)
	if t.done != nil {
		<-t.done
	}
}

// shut ends the tenure, if there is one, and shuts the gate, which waits for nobody: an announcer that hangs in the kernel must not
// keep the gate open. Its end is waited for afterwards, within ctx; what it still sends is dropped on its way out.
func (g *Guard) shut(ctx context.Context, t *tenure, why error) error {
	if t != nil {
		t.cancel(why)
	}
	err := g.Gate.Shut(ctx)
	if t == nil || t.done == nil {
		return err
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		g.Log.Warn("the announcer hangs: the shut gate drops what it sends", slog.Any("err", context.Cause(ctx)))
	}
	return err
}
