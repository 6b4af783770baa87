package detector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
)

// lab is a detector over scripted targets, in a bubble of virtual time.
type lab struct {
	t *testing.T
	d *Detector

	mu      sync.Mutex
	show    map[string]health.Cause // by "mysql a/s1 sql"; not there: ok. hang hangs until the look's life is over
	looks   map[string]int
	flying  map[string]int
	most    int // looks of one probe in flight at once
	wrote   map[string]int
	anew    map[string]int
	sit     Situation
	stall   time.Duration // the next Situation takes this long
	took    time.Duration // of a look; 0: a millisecond
	reports []health.Report
	refuse  error
	log     bytes.Buffer
	trips   map[string]chan struct{}
}

const hang health.Cause = 100

var names = cluster.Cluster{
	Name: "bank", Nodes: []cluster.Node{{Name: "w"}}, Shards: []cluster.ShardName{"s1", "s2"},
	Sites: []cluster.Site{
		{Name: "a", Node: "mc-a", Instances: []cluster.Instance{{Shard: "s1"}, {Shard: "s2"}}},
		{Name: "b", Node: "mc-b", Instances: []cluster.Instance{{Shard: "s1"}, {Shard: "s2"}}},
	},
}

func serving(epoch int64, site cluster.SiteName) cluster.Assignment {
	return cluster.Assignment{Epoch: epoch, Site: site, Phase: cluster.Serving, Shards: map[cluster.ShardName]cluster.SiteName{"s1": site, "s2": site}}
}

// Write makes the log a safe writer.
func (l *lab) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(b)
}

func (l *lab) probe(factor health.Factor, targets ...health.Target) *probe.Probe {
	name := targets[0].String() + " " + string(factor)
	return &probe.Probe{Targets: targets, Factor: factor, Every: 1, Look: func(ctx context.Context, m probe.Mode, st *probe.Stage) []health.Sample {
		l.mu.Lock()
		cause, took := l.show[name], max(l.took, time.Millisecond)
		l.looks[name]++
		l.flying[name]++
		l.most = max(l.most, l.flying[name])
		if m.Write != nil && m.Write(targets[0].Shard) {
			l.wrote[name]++
			if factor == health.Heartbeat {
				st.Writing(0)
			}
		}
		if m.Anew {
			l.anew[name]++
		}
		l.mu.Unlock()
		if cause == hang {
			<-ctx.Done()
			cause = health.Timeout
		} else {
			timer := time.NewTimer(took)
			<-timer.C
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flying[name]--
		var out []health.Sample
		for _, t := range targets {
			out = append(out, health.Sample{Target: t, Cause: cause})
		}
		return out
	}}
}

// run runs body while the detector runs.
func run(t *testing.T, body func(*lab), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lab{
			t: t, show: map[string]health.Cause{}, looks: map[string]int{}, flying: map[string]int{}, wrote: map[string]int{},
			anew: map[string]int{}, trips: map[string]chan struct{}{},
		}
		l.sit = Situation{Assignment: serving(1, "a"), Holder: cluster.Holder{Site: "a"}}
		cfg := Config{
			Cluster: names, Profile: cluster.Fast(), Node: "w", Rule: accumulator.Fast(), Scope: health.ScopeTarget, MySQLFailures: 1, Stall: health.StallFast,
			Situation: l.situation, Publish: l.publish, Log: slog.New(slog.NewTextHandler(l, nil)),
		}
		for _, site := range names.Sites {
			mycat := health.Target{Site: site.Name, Kind: health.Mycat}
			cfg.Probes = append(cfg.Probes, l.probe(health.Port, mycat))
			vip := health.Target{Site: site.Name, Kind: health.Site, Shard: "s1"}
			other := vip
			other.Shard = "s2"
			cfg.Probes = append(cfg.Probes, l.probe(health.VIP, vip, other))
			for _, in := range site.Instances {
				mysql := health.Target{Site: site.Name, Kind: health.MySQL, Shard: in.Shard}
				mycat.Shard = in.Shard
				cfg.Probes = append(cfg.Probes, l.probe(health.SQL, mycat), l.probe(health.Port, mysql), l.probe(health.SQL, mysql), l.probe(health.Heartbeat, mysql))
				wire := make(chan struct{})
				l.trips[mysql.String()] = wire
				cfg.Tripwires = append(cfg.Tripwires, Tripwire{mysql, func(ctx context.Context, _ time.Duration) (bool, error) {
					select {
					case <-wire:
						return true, nil
					case <-ctx.Done():
						return false, ctx.Err()
					}
				}})
			}
		}
		for _, f := range change {
			f(&cfg)
		}
		d, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.d = d
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		body(l)
		stop := errors.New("stopped")
		cancel(stop)
		if err := <-done; !errors.Is(err, stop) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// situation is fresh, and the holder renews, unless the test has set the times.
func (l *lab) situation() Situation {
	l.mu.Lock()
	stall, s := l.stall, l.sit
	l.stall = 0
	l.mu.Unlock()
	if stall > 0 {
		timer := time.NewTimer(stall)
		<-timer.C
	}
	if s.ReadAt.IsZero() {
		s.ReadAt = time.Now()
	}
	if s.Renewed.IsZero() {
		s.Renewed = time.Now()
	}
	return s
}

func (l *lab) publish(_ context.Context, r health.Report) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports = append(l.reports, r)
	return l.refuse
}

func (l *lab) set(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

// fault makes every probe whose name begins so show the cause.
func (l *lab) fault(prefix string, c health.Cause) {
	l.set(func() {
		for _, r := range l.d.runners {
			if name := r.probe.Targets[0].String() + " " + string(r.probe.Factor); strings.HasPrefix(name, prefix) {
				l.show[name] = c
			}
		}
	})
}

// pass lets virtual time pass, and everything settle.
func (l *lab) pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

func (l *lab) state(site cluster.SiteName) health.State { return l.d.View().Sites[site].State }

func (l *lab) want(site cluster.SiteName, state health.State, words string) {
	l.t.Helper()
	if v := l.d.View().Sites[site]; v.State != state || !strings.Contains(v.Reason, words) {
		l.t.Errorf("site %s is %s (%s), want %s with %q", site, v.State, v.Reason, state, words)
	}
}

// until is how long it takes until the site has that state.
func (l *lab) until(site cluster.SiteName, state health.State) time.Duration {
	l.t.Helper()
	start := time.Now()
	for l.state(site) != state {
		if time.Since(start) > 20*time.Second {
			l.t.Fatalf("site %s never became %s: %s", site, state, l.d.View().Sites[site].Reason)
		}
		l.pass(time.Millisecond)
	}
	return time.Since(start)
}

func (l *lab) last() health.Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reports[len(l.reports)-1]
}

func TestSteadyBeat(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(2 * time.Second)
		l.want("a", health.Up, "")
		l.want("b", health.Up, "")
		l.set(func() {
			if n := l.looks["mysql a/s1 sql"]; n < 19 || n > 21 {
				l.t.Errorf("%d looks at the active site in 20 beats", n)
			}
			if n := l.looks["mysql b/s1 sql"]; n < 9 || n > 11 {
				l.t.Errorf("%d looks at the standby in 20 beats", n)
			}
			if l.looks["site b/s1 vip"] != 0 {
				l.t.Error("the VIP was probed as the standby's")
			}
			if n := len(l.reports); n < 20 || n > 26 {
				l.t.Errorf("%d reports in 20 beats", n)
			}
		})
		r := l.last()
		if r.Node != "w" || r.Epoch != 1 || r.Blind != "" || len(r.Verdicts) != 2 || len(r.Verdicts["a"].Targets) > 1 {
			l.t.Errorf("report is %+v", r)
		}
	})
}

func TestHangIsPendingAndNeverPilesUp(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s2", hang)
		took := l.until("a", health.Down)
		if took > 600*time.Millisecond {
			l.t.Errorf("a hang of all factors took %v", took)
		}
		l.want("a", health.Down, "mysql a/s2")
		l.pass(3 * time.Second)
		if l.most > 1 {
			l.t.Errorf("%d looks of one probe in flight", l.most)
		}
		l.fault("mysql a/s2", health.OK)
		l.until("a", health.Up)
		l.pass(200 * time.Millisecond) // a window that runs empty is noticed at the beat
		if log := l.log.String(); strings.Count(log, "site=a state=down") != 1 || strings.Count(log, "site=a state=up") != 2 {
			l.t.Errorf("log is %s", log)
		}
	})
}

func TestHungWritesAreAStall(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1 heartbeat", hang)
		l.pass(2 * time.Second)
		l.want("a", health.Suspect, "reads are fine")
		if took := l.until("a", health.Down); took > 2*time.Second {
			l.t.Errorf("the stall rule took %v more", took)
		}
	})
}

func TestHardEvidenceIsConfirmedFast(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", health.Refused)
		close(l.trips["mysql a/s1"])
		if took := l.until("a", health.Down); took > 60*time.Millisecond {
			l.t.Errorf("a tripped wire took %v, want the looks of three confirm spacings", took)
		}
		var before int
		l.set(func() { before = l.looks["mysql a/s1 port"] })
		l.pass(time.Second)
		l.set(func() {
			if n := l.looks["mysql a/s1 port"] - before; n > 12 {
				l.t.Errorf("%d looks in ten beats after the verdict: a storm", n)
			}
		})
	})
}

func TestOneTimeoutReturnsToTheBeat(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", health.Timeout)
		close(l.trips["mysql a/s1"])
		l.pass(50 * time.Millisecond)
		l.set(func() { l.looks = map[string]int{} })
		l.pass(200 * time.Millisecond)
		l.set(func() {
			if n := l.looks["mysql a/s1 port"]; n > 3 {
				l.t.Errorf("%d looks in two beats of timeouts", n)
			}
		})
	})
}

func TestOwnStallIsVoid(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", hang)
		l.pass(120 * time.Millisecond)
		l.fault("mysql a/s1", health.OK)
		fill := 0
		for _, ts := range l.d.View().Sites["a"].Targets {
			fill = max(fill, ts.Fill)
		}
		l.set(func() { l.stall = 2 * time.Second }) // every answer of these two seconds is late by our own fault
		l.pass(2010 * time.Millisecond)
		if b := l.d.View().Blind; !strings.Contains(b, "own beat was") {
			l.t.Errorf("blind is %q after a stall", b)
		}
		l.pass(40 * time.Millisecond)
		for _, ts := range l.d.View().Sites["a"].Targets {
			if ts.Fill > fill {
				l.t.Errorf("%s %s has %d failures after our own stall", ts.Target, ts.Factor, ts.Fill)
			}
		}
		l.pass(time.Second)
		l.want("a", health.Up, "")
		if b := l.d.View().Blind; b != "" || !strings.Contains(l.log.String(), "own beat was late") {
			l.t.Errorf("still blind: %q", b)
		}
	})
}

// A recheck looks everywhere at once, and some targets' beats fall into the round trip: a look that has just left is no failure.
func TestYoungLookIsNotPending(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.set(func() { l.took, l.sit.Nonce = 40*time.Millisecond, "s1/1" })
		l.pass(300 * time.Millisecond)
		for _, v := range l.d.View().Sites {
			for _, ts := range v.Targets {
				if ts.Fill > 0 {
					l.t.Errorf("%s %s has %d failures, and every look was answered within 40 ms", ts.Target, ts.Factor, ts.Fill)
				}
			}
		}
	})
}

func TestOutageThroughTheVIP(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		if v := l.d.View(); !v.FailedFrom.IsZero() {
			l.t.Errorf("failed from %v", v.FailedFrom)
		}
		l.fault("site a/s1 vip", health.Refused)
		from := time.Now()
		l.pass(300 * time.Millisecond)
		l.set(func() { l.sit.Assignment, l.sit.Holder.Site = serving(2, "b"), "b" })
		l.pass(200 * time.Millisecond)
		v := l.d.View()
		if d := v.FailedFrom.Sub(from); d < 0 || d > 110*time.Millisecond {
			l.t.Errorf("failed from %v after the fault", d)
		}
	})
	o := outage{failing: map[health.Target]bool{}}
	s := func(shard cluster.ShardName, c health.Cause, ms int) []health.Sample {
		return []health.Sample{{Target: health.Target{Shard: shard}, Cause: c, At: time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond)}}
	}
	for _, step := range [][]health.Sample{
		s("s1", health.OK, 1), s("s1", health.Refused, 2), s("s2", health.Timeout, 3), s("s1", health.OK, 4), s("s1", health.Config, 5), s("s1", health.Self, 6),
	} {
		o.take(step)
	}
	if o.from.UnixMilli() != 2 || !o.until.IsZero() {
		t.Errorf("outage is %v to %v while s2 fails", o.from, o.until)
	}
	o.take(s("s2", health.OK, 7))
	if o.from.UnixMilli() != 2 || o.until.UnixMilli() != 7 {
		t.Errorf("outage is %v to %v", o.from, o.until)
	}
}

func TestFrozenProbeIsLogged(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1 sql", health.Config)
		l.pass(time.Second)
		l.want("a", health.Up, "")
		if !strings.Contains(l.log.String(), "level=ERROR msg=\"probe is misconfigured: it never counts") {
			l.t.Errorf("log is %s", l.log.String())
		}
		if f := l.last().Verdicts["a"].Frozen; len(f) != 1 {
			l.t.Errorf("report has frozen %q", f)
		}
	})
}

func TestPublisherSaysOnceThatItFails(t *testing.T) {
	run(t, func(l *lab) {
		l.set(func() { l.refuse = errors.New("no quorum") })
		l.pass(2 * time.Second)
		l.set(func() { l.refuse = nil })
		l.pass(time.Second)
		log := l.log.String()
		if strings.Count(log, "reports cannot be published") != 1 || strings.Count(log, "reports are published again") != 1 {
			l.t.Errorf("log is %s", log)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	ok := Config{Situation: func() Situation { return Situation{} }, Publish: func(context.Context, health.Report) error { return nil }, Log: slog.New(slog.DiscardHandler)}
	for name, c := range map[string]Config{"nothing": {}, "no profile": ok} {
		if _, err := New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	ok.Profile, ok.Cluster, ok.Probes = cluster.Steady(), names, []*probe.Probe{}
	if _, err := New(ok); !errors.Is(err, accumulator.ErrConfig) || !errors.Is(err, health.ErrConfig) {
		t.Errorf("no rule: %v", fmt.Sprint(err))
	}
}
