// Package accumulator holds the rules that turn single misses into an alarm: one blip does not count, k in the window do.
//
// It is pure: the time of each sample comes in as an argument. It knows nothing of targets, causes or clocks, and it never
// decides what an alarm means. An Accumulator belongs to one goroutine.
package accumulator

import (
	"errors"
	"fmt"
	"time"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("accumulator: bad rule")

// Rule names a way to accumulate.
type Rule string

// The rules.
const (
	Cumulative  Rule = "cumulative"  // Failures within the sliding Window: finds an outage that comes and goes; the default
	Consecutive Rule = "consecutive" // Failures in a row: misses any periodic outage shorter than the run
	Bucket      Rule = "bucket"      // leaky: an integer CUSUM (Page 1954), no window and no edge at exactly k
)

// maxFailures bounds the memory of one accumulator and what a typing error can ask for.
const maxFailures = 1000

// Config says which rule, and its numbers. Fields of the other rules are ignored.
type Config struct {
	Rule     Rule
	Failures int           // cumulative, consecutive: this many trip
	Window   time.Duration // cumulative: a failure counts for less than this
	Up       int           // bucket: added by a failure
	Down     int           // bucket: taken by a success, down to 0
	Limit    int           // bucket: trips at this level
	Clear    int           // a tripped rule is left after this many good samples in a row, and its count below the trip
}

// Steady is the rule of the profile steady: 6 failures in 6 s. At 1 % of lost probes one target alone gives a false alarm in
// decades; the run that clears it is as long as the one that trips it.
func Steady() Config {
	return Config{Rule: Cumulative, Failures: 6, Window: 6 * time.Second, Clear: 6}
}

// Fast is the rule of the profile fast: 3 failures in 1 s, for three observers that must agree.
func Fast() Config {
	return Config{Rule: Cumulative, Failures: 3, Window: time.Second, Clear: 5}
}

// Leaky is the bucket of faults.md 3.2: +4 a failure, -1 a success, alarm at 20. It trips on a crash like five in a row, finds
// every failure share above 20 %, and gives ten years per target at 1 % of lost probes.
func Leaky() Config {
	return Config{Rule: Bucket, Up: 4, Down: 1, Limit: 20, Clear: 5}
}

// Validate joins every mistake of the rule that the Config names; each wraps ErrConfig.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	switch c.Rule {
	case Cumulative, Consecutive:
		if c.Failures < 1 || c.Failures > maxFailures {
			bad("failures is %d, want 1 to %d", c.Failures, maxFailures)
		}
		if c.Rule == Cumulative && c.Window <= 0 {
			bad("window is %v, want more than 0", c.Window)
		}
	case Bucket:
		if c.Up < 1 || c.Down < 1 || c.Limit < c.Up {
			bad("bucket is +%d -%d limit %d, want +1 or more, -1 or more, limit at least one failure", c.Up, c.Down, c.Limit)
		}
	default:
		bad("rule is %q, want %s, %s or %s", c.Rule, Cumulative, Consecutive, Bucket)
	}
	if c.Clear < 1 {
		bad("clear is %d, want 1 or more good samples", c.Clear)
	}
	return errors.Join(errs...)
}

// Accumulator is one rule at work on one stream of samples.
//
// Times must not go backwards; a sample that comes late counts at the newest time seen, which keeps it at most as long as its
// delay more.
type Accumulator interface {
	// Add takes one sample. It allocates nothing.
	Add(at time.Time, failed bool)
	// Count is how full the rule is at now; it never exceeds Trip, because more would say nothing.
	Count(now time.Time) int
	// Trip is the count that trips the rule.
	Trip() int
	// Tripped says whether the rule has tripped and was not left since.
	Tripped(now time.Time) bool
	// Reset forgets every sample.
	Reset()
}

// New returns an accumulator of that rule; its error joins every mistake of the Config.
func New(c Config) (Accumulator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var r rule
	switch c.Rule {
	case Cumulative:
		r = &window{length: c.Window, failures: make([]time.Time, c.Failures)}
	case Consecutive:
		r = &run{k: c.Failures}
	case Bucket:
		r = &bucket{up: c.Up, down: c.Down, limit: c.Limit}
	}
	return &latch{rule: r, clear: c.Clear}, nil
}

// rule counts; the latch around it remembers.
type rule interface {
	add(at time.Time, failed bool)
	count(now time.Time) int
	trip() int
	reset()
}

// latch is the hysteresis of every rule: tripped is left only after a run of good samples and with the count below the trip.
type latch struct {
	rule    rule
	clear   int
	good    int // good samples in a row, up to clear
	tripped bool
	newest  time.Time
}

func (l *latch) Add(at time.Time, failed bool) {
	if at.Before(l.newest) {
		at = l.newest
	}
	l.newest = at
	// Between two samples the count only falls, so that looking here is the same as having looked all the time: without it a
	// failure just after the rule was left would undo the leaving when nobody asked in between.
	l.tripped = l.Tripped(at)
	l.rule.add(at, failed)
	if failed {
		l.good = 0
	} else {
		l.good = min(l.good+1, l.clear)
	}
	if l.rule.count(at) >= l.rule.trip() {
		l.tripped = true
	}
}

func (l *latch) Count(now time.Time) int { return l.rule.count(now) }

func (l *latch) Trip() int { return l.rule.trip() }

func (l *latch) Tripped(now time.Time) bool {
	return l.tripped && (l.good < l.clear || l.rule.count(now) >= l.rule.trip())
}

func (l *latch) Reset() {
	l.rule.reset()
	l.good, l.tripped, l.newest = 0, false, time.Time{}
}

// window is the cumulative rule. It keeps the newest k failures in a ring: k of them in the window is all that must be known.
type window struct {
	length   time.Duration
	failures []time.Time // ring of k; zero: empty
	next     int         // where the next failure goes: the oldest one
}

func (w *window) add(at time.Time, failed bool) {
	if !failed {
		return
	}
	w.failures[w.next] = at
	w.next = (w.next + 1) % len(w.failures)
}

func (w *window) count(now time.Time) int {
	n := 0
	for _, at := range w.failures {
		if !at.IsZero() && now.Sub(at) < w.length {
			n++
		}
	}
	return n
}

func (w *window) trip() int { return len(w.failures) }

func (w *window) reset() {
	clear(w.failures)
	w.next = 0
}

// run is the consecutive rule.
type run struct{ n, k int }

func (r *run) add(_ time.Time, failed bool) {
	if !failed {
		r.n = 0
		return
	}
	r.n = min(r.n+1, r.k)
}

func (r *run) count(time.Time) int { return r.n }

func (r *run) trip() int { return r.k }

func (r *run) reset() { r.n = 0 }

// bucket is the leaky rule. It is full at its limit: what would run over would only delay the leaving after a long outage.
type bucket struct{ level, up, down, limit int }

func (b *bucket) add(_ time.Time, failed bool) {
	if failed {
		b.level = min(b.level+b.up, b.limit)
		return
	}
	b.level = max(b.level-b.down, 0)
}

func (b *bucket) count(time.Time) int { return b.level }

func (b *bucket) trip() int { return b.limit }

func (b *bucket) reset() { b.level = 0 }
