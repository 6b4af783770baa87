// Package detector is the loop of an observer: it probes every target of every site at a steady beat, lets health judge the samples, and
// publishes what it believes.
//
// It decides nothing about switching. What it cannot know it says: samples of its own stalls, of another epoch, and of the time between
// a fence and the end of an undo are void, and an observer that reaches nothing abstains.
package detector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
)

const (
	// slotsPerBeat: a beat is divided into so many: targets are spread over them, so that probes neither come in one burst nor wake us for each.
	slotsPerBeat = 10
	// standbyEvery: a site that serves nothing is looked at at every second beat. Its verdict is needed for readiness, and costs the
	// same; at this pace the rule still trips within its window.
	standbyEvery = 2
	// expireBeats: without a valid sample for this many beats a target is unknown. Longer than the turn of all shards through the VIP.
	expireBeats = 10
)

// Config says what to watch, how, and to whom to tell it.
type Config struct {
	Cluster       cluster.Cluster
	Profile       cluster.Profile
	Node          cluster.NodeName
	Rule          accumulator.Config
	Scope         health.Scope
	MySQLFailures int           // shards that must be down before the site is
	Stall         time.Duration // the slower rule of write stalls: health.StallSteady, health.StallFast
	Hold          time.Duration // how long a recheck waits for answers; 0: half the interval
	Anchors       []Anchor      // our own link checks; none: being able to read etcd is the only one
	Probe         probe.Config  // accounts and business SQL; Cluster, Node and Timeout are taken from above

	Situation func() Situation                           // called many times a beat: a snapshot, never I/O
	Publish   func(context.Context, health.Report) error // blocks for at most its context
	Log       *slog.Logger

	Probes    []*probe.Probe // nil: all of Cluster
	Tripwires []Tripwire     // nil with Probes nil: all of Cluster
}

// Anchor is something outside the cluster's targets that this host reaches when its own link works: another node, the gateway, etcd.
type Anchor struct {
	Name  string
	Check func(context.Context) error
}

// Tripwire blocks until the other side closes an idle connection to the target (true), or until it cannot connect (false).
type Tripwire struct {
	Target health.Target
	Wait   func(ctx context.Context, connect time.Duration) (bool, error)
}

// Situation is what this node knows of the cluster.
type Situation struct {
	Assignment cluster.Assignment // its Shards are never changed, only replaced
	ReadAt     time.Time          // when the newest linearizable read that showed this assignment was sent
	Holder     cluster.Holder
	Renewed    time.Time // when the last change of Holder was received here
	Nonce      string    // the controller's newest recheck; empty: none
}

// Detector watches. New makes it, Run runs it, View and Recheck may be called from anywhere.
type Detector struct {
	cfg     Config
	log     *slog.Logger
	runners []*runner
	wires   []Tripwire

	results chan result
	trips   chan health.Target
	nudge   chan struct{}      // somebody called Recheck
	mail    chan health.Report // one: the newest report that is not sent yet
	links   chan linkCheck

	mu sync.Mutex // guards what follows
	watch
}

// watch is the loop's state.
type watch struct {
	judges  map[cluster.SiteName]*health.Judge
	sit     Situation
	since   time.Time                 // when this assignment was first seen
	serving map[cluster.SiteName]bool // the site serves something: it holds the VIP, or is the data site of a shard
	vipSeen bool                      // business SQL through the VIP has worked under this assignment
	gen     int                       // raised by each change of the assignment: looks of an older one are void
	seq     int64
	asked   string // nonce pushed by Recheck
	read    string // newest nonce of the Situation
	recheck recheck

	start      time.Time
	next       int       // number of the slot that comes next
	voidBefore time.Time // looks sent before this are void: we stalled
	stalled    string    // why they are
	heard      time.Time // last answer of anything of any site
	link       linkCheck // newest answer of the anchors
	linking    bool
	blind      string

	dirty  bool                              // something may have changed what is believed
	shown  map[shownKey]health.State         // what was logged last
	told   map[cluster.SiteName]health.State // what was published last
	outage outage
}

// New checks the configuration and makes the probes. Nothing is dialed, and nothing runs yet.
func New(cfg Config) (*Detector, error) {
	p := cfg.Profile
	switch {
	case cfg.Situation == nil || cfg.Publish == nil || cfg.Log == nil:
		return nil, errors.New("detector: situation, publish and log must be given")
	case p.Interval <= 0 || p.ConfirmEvery <= 0 || p.ProbeTimeout <= 0 || p.Lease <= 0:
		return nil, fmt.Errorf("detector: profile %q lacks its interval, confirm spacing, probe timeout or lease", p.Name)
	}
	if cfg.Hold == 0 {
		cfg.Hold = p.Interval / 2
	}
	if cfg.Probes == nil {
		if err := cfg.makeProbes(); err != nil {
			return nil, err
		}
	}
	d := &Detector{
		cfg: cfg, log: cfg.Log, wires: cfg.Tripwires,
		results: make(chan result, len(cfg.Probes)), // one look a probe is in flight: a look never waits for the loop
		trips:   make(chan health.Target, len(cfg.Tripwires)), nudge: make(chan struct{}, 1), mail: make(chan health.Report, 1), links: make(chan linkCheck, 1),
	}
	d.shown, d.told, d.outage = map[shownKey]health.State{}, map[cluster.SiteName]health.State{}, outage{failing: map[health.Target]bool{}}
	for _, pr := range cfg.Probes {
		d.runners = append(d.runners, newRunner(pr))
	}
	if err := d.assign(time.Time{}, Situation{}); err != nil {
		return nil, err
	}
	return d, nil
}

func (c *Config) makeProbes() error {
	pc := c.Probe
	pc.Cluster, pc.Node, pc.Timeout = c.Cluster, c.Node, c.Profile.ProbeTimeout
	if pc.Stale == 0 {
		pc.Stale = max(time.Second, expireBeats*c.Profile.Interval)
	}
	probes, wires, err := probe.All(pc)
	if err != nil {
		return fmt.Errorf("make probes: %w", err)
	}
	c.Probes = probes
	for _, w := range wires {
		c.Tripwires = append(c.Tripwires, Tripwire{w.Target, w.Wait})
	}
	return nil
}

// Run watches until ctx ends, and returns its cause. Every goroutine that it started has ended then.
func (d *Detector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer func() {
		cancel()
		group.Wait()
		for _, r := range d.runners {
			if r.probe.Close != nil {
				r.probe.Close()
			}
		}
	}()
	group.Go(func() { d.publish(ctx) })
	for _, w := range d.wires {
		group.Go(func() { d.arm(ctx, w) })
	}
	d.mu.Lock()
	d.start = time.Now()
	d.heard = d.start
	d.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var t health.Target
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		case r := <-d.results:
			d.locked(func() {
				d.onTime(time.Now())
				d.take(ctx, &group, r)
			})
		case t = <-d.trips:
		case l := <-d.links:
			d.locked(func() { d.link, d.linking = l, false })
		case <-d.nudge:
		}
		d.locked(func() { d.step(ctx, &group, t) })
		timer.Reset(time.Until(d.wake()))
	}
}

func (d *Detector) locked(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn()
}

// step does all that is due now.
func (d *Detector) step(ctx context.Context, group *sync.WaitGroup, tripped health.Target) {
	d.onTime(time.Now())
	d.drain(ctx, group) // first: a look that was answered before its beat is not pending
	now := time.Now()
	d.follow(now)
	if tripped != (health.Target{}) {
		d.trip(ctx, group, now, tripped)
	}
	d.slots(ctx, group, now)
	d.look(ctx, group, now)
	d.recheckStep(ctx, group, now)
	d.tell(now)
}

func (d *Detector) drain(ctx context.Context, group *sync.WaitGroup) {
	for {
		select {
		case r := <-d.results:
			d.take(ctx, group, r)
		default:
			return
		}
	}
}

func (d *Detector) slotAt(n int) time.Time {
	return d.start.Add(time.Duration(n) * d.cfg.Profile.Interval / slotsPerBeat)
}

// onTime notices that this process itself stood still. It comes before anything is booked: what ran into its timeout meanwhile says nothing.
func (d *Detector) onTime(now time.Time) {
	if late := now.Sub(d.slotAt(d.next)); late > d.cfg.Profile.Interval/2 {
		d.stall(now, late)
	}
}

// slots runs the slots that are due. They lie on a fixed grid: sleeping after each look would stretch the beat by every hang.
func (d *Detector) slots(ctx context.Context, group *sync.WaitGroup, now time.Time) {
	for ; !d.slotAt(d.next).After(now); d.next++ {
		slot := d.next % slotsPerBeat
		if slot == 0 {
			d.beat(now)
		}
		for _, r := range d.runners {
			if r.slot == slot && d.worthwhile() {
				d.beatOf(ctx, group, r, now)
			}
		}
	}
	d.checkLinks(ctx, group, now)
}

// voidEvery: while a switch is under way every sample is void, so that most of them are not taken: the instances have better things to do,
// and applications wait for them. One beat in three keeps kept connections alive and shows that we reach anything at all.
const voidEvery = 3

func (d *Detector) worthwhile() bool {
	p := d.sit.Assignment.Phase
	return p != cluster.Switching && p != cluster.Undoing || (d.next/slotsPerBeat)%voidEvery == 0
}

// beat does what is done once a beat.
func (d *Detector) beat(now time.Time) {
	d.observeLease(now)
	d.dirty = true
	d.post(now)
}

// wake is when the loop has something to do next.
func (d *Detector) wake() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.slotAt(d.next)
	for _, r := range d.runners {
		if !r.again.IsZero() && r.flight == nil && r.again.Before(at) {
			at = r.again
		}
	}
	if d.recheck.running() && d.recheck.deadline.Before(at) {
		at = d.recheck.deadline
	}
	return at
}
