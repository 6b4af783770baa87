package detector

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
)

// View is what this observer believes now, for status pages.
type View struct {
	At    time.Time                           `json:"at"`
	Node  cluster.NodeName                    `json:"node"`
	Epoch int64                               `json:"epoch"`
	Blind string                              `json:"blind,omitempty"`
	Nonce string                              `json:"nonce,omitempty"`
	Sites map[cluster.SiteName]health.Verdict `json:"sites"`
	// The outage as applications saw it, by business SQL through the VIP: the newest one. Zero on the VIP's own host, which cannot see it.
	FailedFrom time.Time `json:"failed_from,omitzero"`
	WorksSince time.Time `json:"works_since,omitzero"` // zero while it lasts
}

// View is a snapshot with every target of every site.
func (d *Detector) View() View {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	v := View{
		At: now, Node: d.cfg.Node, Epoch: d.sit.Assignment.Epoch, Blind: d.blind, Nonce: d.recheck.answered,
		Sites: map[cluster.SiteName]health.Verdict{}, FailedFrom: d.outage.from, WorksSince: d.outage.until,
	}
	for name := range d.judges {
		v.Sites[name] = d.verdict(name, now)
	}
	return v
}

// verdict is the site's; of one that was just rechecked, only on evidence that is newer than the nonce.
func (d *Detector) verdict(site cluster.SiteName, now time.Time) health.Verdict {
	v := d.judges[site].VerdictSince(now, d.recheck.sinceOf(site))
	if p := d.sit.Assignment.Phase; p == cluster.Switching || p == cluster.Undoing {
		v.Reason = "samples are void while the assignment is " + string(p)
	}
	return v
}

// outage is the newest time in which business SQL through the VIP failed.
type outage struct {
	from, until time.Time
	failing     map[health.Target]bool
}

// take books one look through the VIP: the outage lasts until every shard that failed has worked again.
func (o *outage) take(samples []health.Sample) {
	for _, s := range samples {
		switch s.Cause.Class() {
		case health.ClassIgnored, health.ClassConfig:
			continue
		case health.ClassOK:
			if o.failing[s.Target] && len(o.failing) == 1 {
				o.until = s.At.Add(s.Took)
			}
			delete(o.failing, s.Target)
		default:
			if len(o.failing) == 0 {
				o.from, o.until = s.At, time.Time{}
			}
			o.failing[s.Target] = true
		}
	}
}

type shownKey struct {
	target health.Target
	factor health.Factor
}

// tell logs what has changed, and publishes at once when a site's state has.
func (d *Detector) tell(now time.Time) {
	if !d.dirty {
		return
	}
	d.dirty = false
	changed := false
	for _, site := range d.cfg.Cluster.Sites {
		v := d.verdict(site.Name, now)
		for _, t := range v.Targets {
			d.tellTarget(t)
		}
		if was := d.told[site.Name]; was != v.State {
			d.told[site.Name], changed = v.State, true
			d.tellSite(v)
		}
	}
	if changed {
		d.post(now)
	}
}

// tellSite logs a site's new state. Suspect is not worth a line: one blip does not count.
func (d *Detector) tellSite(v health.Verdict) {
	key := shownKey{target: health.Target{Site: v.Site}}
	was := d.shown[key]
	if v.State == health.Suspect || v.State == was {
		return
	}
	d.shown[key] = v.State
	level := slog.LevelInfo
	if was == "" {
		level = slog.LevelDebug // nothing was looked at yet
	}
	d.log.LogAttrs(context.Background(), level, "site changed its state",
		slog.String("site", string(v.Site)), slog.String("state", string(v.State)), slog.String("cause", v.Reason),
		slog.Int("phi", v.Phi), slog.Int("h", v.H), slog.Int("trip", v.HTrip))
}

// frozen stands for a target whose probe is wrongly configured, among the states that were shown.
const frozen health.State = "frozen"

func (d *Detector) tellTarget(t health.TargetState) {
	key, state := shownKey{t.Target, t.Factor}, t.State
	if t.Frozen != "" {
		state = frozen
	}
	was := d.shown[key]
	if state == health.Suspect || state == was {
		return
	}
	d.shown[key] = state
	attrs := []slog.Attr{
		slog.String("target", t.Target.String()), slog.String("factor", string(t.Factor)), slog.String("state", string(state)),
		slog.String("cause", t.Last.Cause.String()), slog.String("seen", t.Last.Detail), slog.Int("fill", t.Fill), slog.Int("trip", t.Trip),
	}
	ctx := context.Background()
	switch {
	case state == frozen:
		d.log.LogAttrs(ctx, slog.LevelError, "probe is misconfigured: it never counts, and automatic switching is frozen until it answers", attrs...)
	case t.Advisory && state == health.Down:
		d.log.LogAttrs(ctx, slog.LevelWarn, "advisory factor is bad: it moves nothing", attrs...)
	case state == health.Down || state == health.Busy:
		d.log.LogAttrs(ctx, slog.LevelWarn, "target changed its state", attrs...)
	case was == health.Down || was == health.Busy || was == frozen:
		d.log.LogAttrs(ctx, slog.LevelInfo, "target changed its state", attrs...)
	default:
		d.log.LogAttrs(ctx, slog.LevelDebug, "target changed its state", attrs...)
	}
}

// post puts the newest report into the mailbox; one that was not sent yet is replaced. Only the loop posts.
func (d *Detector) post(now time.Time) {
	d.seq++
	r := health.Report{
		Node: d.cfg.Node, Seq: d.seq, Nonce: d.recheck.answered, Blind: d.blind, Epoch: d.sit.Assignment.Epoch,
		Verdicts: make(map[cluster.SiteName]health.Verdict, len(d.judges)),
	}
	for name := range d.judges {
		v := d.verdict(name, now)
		// Ten times a second through etcd: only what is not well is worth its bytes, and what nobody has looked at since the assignment changed
		// tells nothing.
		v.Targets = slices.DeleteFunc(v.Targets, func(t health.TargetState) bool {
			return t.Frozen == "" && (t.State == health.Up || t.State == health.Unknown && t.Fill == 0)
		})
		r.Verdicts[name] = v
	}
	select {
	case <-d.mail:
	default:
	}
	d.mail <- r
}

// publish sends reports one after the other; a slow store never holds up the loop.
func (d *Detector) publish(ctx context.Context) {
	failing := false
	for {
		var r health.Report
		select {
		case <-ctx.Done():
			return
		case r = <-d.mail:
		}
		send, cancel := context.WithTimeoutCause(ctx, max(d.cfg.Profile.Interval, d.cfg.Profile.ProbeTimeout), errors.New("detector: the report was not taken in time"))
		err := d.cfg.Publish(send, r)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			d.log.Warn("reports cannot be published: this observer has no vote", slog.Any("err", err))
		case err == nil && failing:
			d.log.Info("reports are published again")
		}
		failing = err != nil
	}
}

// recheck is a controller's question: is it still so, seen after my nonce?
type recheck struct {
	nonce    string
	at       time.Time
	deadline time.Time
	waiting  map[*runner]bool
	rest     []*runner // not looked at yet: they were well before the question

	answered string           // nonce of the newest answer
	site     cluster.SiteName // and the site that it was about
	since    time.Time        // and when it was asked
}

func (r recheck) running() bool { return r.waiting != nil }

func (r recheck) sinceOf(site cluster.SiteName) time.Time {
	if r.site != site {
		return time.Time{}
	}
	return r.since
}

// Recheck asks for new samples of the active site and a report that carries the nonce, without waiting for the next slot to see it in the
// Situation. It returns at once.
func (d *Detector) Recheck(nonce string) {
	d.mu.Lock()
	d.asked = nonce
	d.mu.Unlock()
	select {
	case d.nudge <- struct{}{}:
	default:
	}
}

// recheckStep begins and ends rechecks.
func (d *Detector) recheckStep(ctx context.Context, group *sync.WaitGroup, now time.Time) {
	nonce := d.asked
	d.asked = ""
	if d.sit.Nonce != d.read {
		d.read, nonce = d.sit.Nonce, d.sit.Nonce
	}
	if nonce != "" && nonce != d.recheck.nonce {
		d.recheckBegin(ctx, group, now, nonce)
	}
	if !d.recheck.running() {
		return
	}
	over := len(d.recheck.waiting) == 0 || !now.Before(d.recheck.deadline)
	if confirmed := d.confirmed(now); !over && !confirmed {
		return
	} else if over && !confirmed && len(d.recheck.rest) > 0 {
		for _, r := range d.recheck.rest { // what made it down is well again: is everything?
			d.recheckLook(ctx, group, r, now)
		}
		d.recheck.rest, d.recheck.deadline = nil, now.Add(d.cfg.Hold)
		return
	}
	for r := range d.recheck.waiting {
		if over && r.flight != nil {
			d.pending(r, now)
		}
	}
	d.recheck.waiting = nil
	d.recheck.answered, d.recheck.site, d.recheck.since = d.recheck.nonce, d.sit.Assignment.Site, d.recheck.at
	d.dirty = true
	d.post(now)
}

// confirmed says whether what was seen since the nonce is enough to call the site down: the answers that are still out could not make
// it up again, and applications wait meanwhile.
func (d *Detector) confirmed(now time.Time) bool {
	j := d.judges[d.sit.Assignment.Site]
	return j != nil && j.VerdictSince(now, d.recheck.at).State == health.Down
}

// calmHolds is how many times longer a recheck waits when nothing is wrong: the burst of looks on a busy host must not be taken for a
// failure by itself, which would stay in the windows for a second.
const calmHolds = 6

// recheckBegin looks anew at the active site. When it is down, first only at what made it so: sixty looks at once from three observers
// would cost the applications that wait more time than the question itself. The others follow if those are well again.
func (d *Detector) recheckBegin(ctx context.Context, group *sync.WaitGroup, now time.Time, nonce string) {
	d.recheck.nonce, d.recheck.at, d.recheck.deadline = nonce, now, now.Add(d.cfg.Hold)
	d.recheck.waiting, d.recheck.rest = map[*runner]bool{}, nil
	d.observeLease(now)
	bad := d.badTargets(now)
	if len(bad) == 0 { // a planned switch of a site that is well: everything is looked at in one burst, and nobody waits meanwhile
		d.recheck.deadline = now.Add(calmHolds * d.cfg.Hold)
	}
	for _, r := range d.runners {
		advisory := r.probe.Factor == health.Heartbeat && r.probe.Targets[0].Kind == health.Mycat
		switch {
		case r.site != d.sit.Assignment.Site || advisory || !d.due(r, now):
		case len(bad) > 0 && !slices.ContainsFunc(r.probe.Targets, func(t health.Target) bool { return bad[shownKey{t, r.probe.Factor}] }):
			d.recheck.rest = append(d.recheck.rest, r)
		default:
			d.recheckLook(ctx, group, r, now)
		}
	}
}

func (d *Detector) recheckLook(ctx context.Context, group *sync.WaitGroup, r *runner, now time.Time) {
	d.recheck.waiting[r] = true
	if r.flight == nil {
		d.launch(ctx, group, r, now, true)
	}
}

// badTargets are the factors that make the active site down; none while it is not.
func (d *Detector) badTargets(now time.Time) map[shownKey]bool {
	j := d.judges[d.sit.Assignment.Site]
	if j == nil {
		return nil
	}
	v := j.Verdict(now)
	if v.State != health.Down {
		return nil
	}
	bad := map[shownKey]bool{}
	for _, t := range v.Targets {
		if t.State == health.Down {
			bad[shownKey{t.Target, t.Factor}] = true
		}
	}
	return bad
}

// recheckAnswer books an answer; a look that was sent before the nonce is followed by a new one at once.
func (d *Detector) recheckAnswer(ctx context.Context, group *sync.WaitGroup, r *runner, f *flight, now time.Time) {
	switch {
	case !d.recheck.waiting[r]:
	case f.sent.Before(d.recheck.at):
		d.launch(ctx, group, r, now, true)
	default:
		delete(d.recheck.waiting, r)
	}
}
