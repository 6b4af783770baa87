package detector

import (
	"context"
	"errors"
	"hash/fnv"
	"sync"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
)

// runner is one probe in the loop. At most one look is in flight: probes that pile up become the fault that they look for.
type runner struct {
	probe  *probe.Probe
	site   cluster.SiteName
	slot   int
	beats  int
	flight *flight   // nil: none
	again  time.Time // next look at the confirm spacing; zero: at the beat
}

// flight is a look that was not answered yet.
type flight struct {
	sent time.Time
	gen  int
}

type result struct {
	runner  *runner
	flight  *flight
	samples []health.Sample
}

var errProbeTimeout = errors.New("detector: the look's life is over")

func newRunner(p *probe.Probe) *runner {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Targets[0].String()))
	return &runner{probe: p, site: p.Targets[0].Site, slot: int(h.Sum32() % slotsPerBeat)}
}

// due says whether the probe is to be used at all now.
func (d *Detector) due(r *runner, now time.Time) bool {
	switch {
	case r.probe.Factor == health.VIP:
		return d.sit.Assignment.Site == r.site // through one address: only one site's
	case r.probe.Factor == health.Heartbeat && r.probe.Targets[0].Kind == health.MySQL && d.writer(r.site, r.probe.Targets[0].Shard):
		// Without the right to write, its read would be taken for a good write.
		return d.mayWrite(now)
	}
	return true
}

// writer says whether the shard is expected to be writable at the site.
func (d *Detector) writer(site cluster.SiteName, shard cluster.ShardName) bool {
	return d.sit.Assignment.Phase == cluster.Serving && site != "" && d.sit.Assignment.Shards[shard] == site
}

// mayWrite: the assignment that we know was read less than an interval ago, and serves. A heartbeat on a site that is being fenced would
// be a transaction that the new site lacks (PROTOCOL 6).
func (d *Detector) mayWrite(now time.Time) bool {
	return d.sit.Assignment.Phase == cluster.Serving && now.Sub(d.sit.ReadAt) < d.cfg.Profile.Interval
}

// beatOf is the probe's beat: a look, or a failure when the last one is unanswered.
func (d *Detector) beatOf(ctx context.Context, group *sync.WaitGroup, r *runner, now time.Time) {
	every := max(1, r.probe.Every)
	if !d.serving[r.site] {
		every *= standbyEvery
	}
	turn := r.beats%every == 0
	r.beats++
	switch {
	case !turn:
	case r.flight != nil:
		d.pending(r, now)
	case d.due(r, now):
		d.launch(ctx, group, r, now, false)
	}
}

// pending counts the look in flight as failed at now; it lives on to its own end.
func (d *Detector) pending(r *runner, now time.Time) {
	// One that left a moment ago, for a tripwire or a recheck, is no failure yet.
	if d.void(r.flight) || now.Sub(r.flight.sent) < d.cfg.Profile.Interval/2 {
		return
	}
	for _, s := range r.probe.Pending(now, now.Sub(r.flight.sent)) {
		d.observe(r, s, now)
	}
}

// void says whether what the look brings counts for nothing: it is of another assignment, or was sent before we stalled.
func (d *Detector) void(f *flight) bool {
	return f.gen != d.gen || f.sent.Before(d.voidBefore)
}

func (d *Detector) launch(ctx context.Context, group *sync.WaitGroup, r *runner, now time.Time, anew bool) {
	r.again = time.Time{}
	f := &flight{sent: now, gen: d.gen}
	r.flight = f
	m := probe.Mode{Anew: anew}
	if d.mayWrite(now) {
		site, shards := r.site, d.sit.Assignment.Shards
		m.Write = func(s cluster.ShardName) bool { return shards[s] == site }
	}
	group.Go(func() {
		ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.Profile.ProbeTimeout, errProbeTimeout)
		defer cancel()
		d.results <- result{r, f, r.probe.Do(ctx, m)}
	})
}

// take books a look that has ended.
func (d *Detector) take(ctx context.Context, group *sync.WaitGroup, res result) {
	r := res.runner
	r.flight = nil
	now := time.Now()
	if r.probe.Factor == health.VIP {
		d.outage.take(res.samples)
	}
	for _, s := range res.samples {
		if answered(s.Cause) {
			d.heard = now
		}
	}
	if !d.void(res.flight) {
		for _, s := range res.samples {
			d.observe(r, s, now)
		}
	}
	d.recheckAnswer(ctx, group, r, res.flight, now)
}

// answered says whether somebody at the other end was there, however unwell.
func answered(c health.Cause) bool {
	switch c {
	case health.Timeout, health.Unreachable, health.Pending, health.WriteStall, health.Self, health.Cancelled:
		return false
	}
	return true
}

// observe lets the site's judge see a sample, unless it is void.
func (d *Detector) observe(r *runner, s health.Sample, now time.Time) {
	if d.sit.Assignment.Phase == cluster.Switching || d.sit.Assignment.Phase == cluster.Undoing {
		return // our own cut makes the old site look down
	}
	if d.blind != "" && !answered(s.Cause) {
		return
	}
	if r.probe.Factor == health.VIP && !d.arrived(s, now) {
		return
	}
	if d.judges[r.site].Observe(s) {
		r.again = now.Add(d.cfg.Profile.ConfirmEvery)
	}
	if s.Cause != health.OK {
		d.dirty = true
	}
}

// arrived says whether the VIP has been seen to work under this assignment, or has had a lease's time to: between the commit and the
// bind it refuses everybody, and to call the new site down for that would move the service back.
func (d *Detector) arrived(s health.Sample, now time.Time) bool {
	d.vipSeen = d.vipSeen || s.Cause == health.OK
	return d.vipSeen || now.Sub(d.since) > d.cfg.Profile.Lease
}

// look repeats looks at the confirm spacing.
func (d *Detector) look(ctx context.Context, group *sync.WaitGroup, now time.Time) {
	for _, r := range d.runners {
		if r.flight != nil || r.again.IsZero() || r.again.After(now) {
			continue
		}
		r.again = time.Time{}
		if d.due(r, now) {
			d.launch(ctx, group, r, now, false)
		}
	}
}

// trip looks at once at a target whose idle connection was closed.
func (d *Detector) trip(ctx context.Context, group *sync.WaitGroup, now time.Time, t health.Target) {
	for _, r := range d.runners {
		p := r.probe.Targets[0]
		same := p == t || t.Kind == health.Mycat && p.Kind == health.Mycat && p.Site == t.Site
		if same && r.flight == nil && r.probe.Every == 1 && d.due(r, now) {
			d.launch(ctx, group, r, now, false)
		}
	}
}

// Pauses before a tripwire is armed again: a server that closes idle connections must not get a login in every round trip.
const (
	rearmFirst = time.Second
	rearmMost  = 8 * time.Second
)

// arm keeps one tripwire armed.
func (d *Detector) arm(ctx context.Context, w Tripwire) {
	pause := rearmFirst
	for {
		tripped, _ := w.Wait(ctx, d.cfg.Profile.ProbeTimeout) // why it cannot connect is the probes' to say
		switch {
		case ctx.Err() != nil:
			return
		case tripped:
			pause = rearmFirst
			select {
			case d.trips <- w.Target:
			case <-ctx.Done():
				return
			}
		default:
			pause = min(2*pause, rearmMost)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
