package detector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
)

// follow takes the newest situation over. Another assignment makes other judges: who should be writable has changed, and what was seen
// under the old one is void.
func (d *Detector) follow(now time.Time) {
	sit := d.cfg.Situation()
	old, a := d.sit.Assignment, sit.Assignment
	if a.Epoch == old.Epoch && a.Phase == old.Phase && a.Site == old.Site && maps.Equal(a.Shards, old.Shards) {
		if !d.since.IsZero() {
			d.sit = sit
			return
		}
	}
	if err := d.assign(now, sit); err != nil {
		panic(err) // New has made judges from the same rules
	}
}

// assign makes the judges of an assignment.
func (d *Detector) assign(now time.Time, sit Situation) error {
	d.sit, d.since, d.dirty, d.vipSeen = sit, now, true, false
	d.gen++
	d.recheck = recheck{}
	d.serving = map[cluster.SiteName]bool{sit.Assignment.Site: true}
	for _, site := range sit.Assignment.Shards {
		d.serving[site] = true
	}
	d.judges = map[cluster.SiteName]*health.Judge{}
	p := d.cfg.Profile
	for _, site := range d.cfg.Cluster.Sites {
		jc := health.JudgeConfig{
			Site: site.Name, Writer: map[cluster.ShardName]bool{}, Active: sit.Assignment.Site == site.Name,
			Rule: d.cfg.Rule, Scope: d.cfg.Scope, MySQLFailures: d.cfg.MySQLFailures,
			Interval: p.Interval, Grace: p.Grace, Stall: d.cfg.Stall, Expire: expireBeats*p.Interval + p.ProbeTimeout,
		}
		for _, in := range site.Instances {
			jc.Shards = append(jc.Shards, in.Shard)
			jc.Writer[in.Shard] = d.writer(site.Name, in.Shard)
		}
		j, err := health.NewJudge(jc)
		if err != nil {
			return fmt.Errorf("detector: %w", err)
		}
		d.judges[site.Name] = j
	}
	return nil
}

// observeLease looks at the holder's renewals: a dead agent on a healthy host would keep the VIP silent for ever. It is a failure only
// on the word of a linearizable read that was sent after the lease's end and still shows no renewal.
func (d *Detector) observeLease(now time.Time) {
	a := d.sit.Assignment
	if !a.Serves(a.Site) || d.judges[a.Site] == nil {
		return
	}
	s := health.Sample{Target: health.Target{Site: a.Site, Kind: health.Site}, Factor: health.Lease, At: now}
	last := d.since // a new holder gets its time, also from an observer that has just started
	if d.sit.Holder.Site == a.Site && d.sit.Renewed.After(last) {
		last = d.sit.Renewed
	}
	switch silent := d.sit.ReadAt.Sub(last); {
	case now.Sub(d.sit.ReadAt) > 2*d.cfg.Profile.Interval:
		s.Cause, s.Detail = health.Self, "our own reads of etcd do not work"
	case silent > d.cfg.Profile.Lease+d.cfg.Profile.Grace:
		s.Cause, s.Detail = health.Stale, "no renewal for "+silent.Round(time.Millisecond).String()
	}
	if d.judges[a.Site].Observe(s); s.Cause != health.OK {
		d.dirty = true
	}
}

// stall voids what was in flight: we were late, so what looks like a late answer may be our own.
func (d *Detector) stall(now time.Time, late time.Duration) {
	d.voidBefore, d.dirty = now, true
	d.stalled = fmt.Sprintf("own beat was %v late", late.Round(time.Millisecond))
	step := d.cfg.Profile.Interval / slotsPerBeat
	d.next = int(now.Sub(d.start) / step) // missed beats are not made up
	for _, r := range d.runners {
		r.again = time.Time{}
	}
	d.log.Warn("own beat was late: samples are void", slog.Duration("took", late))
}

// linkCheck is one answer of the anchors.
type linkCheck struct {
	sent time.Time
	err  error // nil: at least one answered
}

// checkLinks finds out whether this observer is blind: when nothing of any site answers, it is either all of them or our own link.
func (d *Detector) checkLinks(ctx context.Context, group *sync.WaitGroup, now time.Time) {
	p := d.cfg.Profile
	why := ""
	switch {
	case now.Sub(d.voidBefore) < p.Interval:
		why = d.stalled
	case now.Sub(d.heard) <= p.Interval*3/2:
	case len(d.cfg.Anchors) == 0:
		if now.Sub(d.sit.ReadAt) > 2*p.Interval {
			why = "nothing of any site answers, and etcd cannot be read"
		}
	default:
		if !d.linking && now.Sub(d.link.sent) >= p.Interval {
			d.linking = true
			group.Go(func() { d.links <- d.check(ctx, now) })
		}
		switch {
		case d.link.sent.Before(d.heard) || now.Sub(d.link.sent) > 2*p.Interval+p.ProbeTimeout:
			why = "nothing of any site answers, and our own link is being checked"
		case d.link.err != nil:
			why = "nothing of any site answers, nor do the anchors: " + d.link.err.Error()
		}
	}
	if why == d.blind {
		return
	}
	d.blind, d.dirty = why, true
	defer d.post(now)
	if why != "" {
		d.log.Warn("observer is blind and abstains", slog.String("cause", why))
	} else {
		d.log.Info("observer sees again")
	}
}

// check asks every anchor at once; one answer is enough.
func (d *Detector) check(ctx context.Context, now time.Time) linkCheck {
	ctx, cancel := context.WithTimeoutCause(ctx, d.cfg.Profile.ProbeTimeout, errProbeTimeout)
	defer cancel()
	answers := make(chan string, len(d.cfg.Anchors))
	for _, a := range d.cfg.Anchors {
		go func() {
			if err := a.Check(ctx); err != nil {
				answers <- a.Name + ": " + err.Error()
				return
			}
			answers <- ""
		}()
	}
	var failed []string
	for range d.cfg.Anchors {
		a := <-answers
		if a == "" {
			return linkCheck{sent: now}
		}
		failed = append(failed, a)
	}
	slices.Sort(failed)
	return linkCheck{sent: now, err: errors.New(strings.Join(failed, "; "))}
}
