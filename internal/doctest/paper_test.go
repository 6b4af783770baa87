package doctest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
)

// watcher is one rule that sees one target at one beat.
type watcher struct {
	name string
	beat time.Duration
	rule accumulator.Config
}

func inARow(k int) watcher {
	return watcher{fmt.Sprintf("%d in a row", k), time.Second, accumulator.Config{Rule: accumulator.Consecutive, Failures: k, Clear: 1}}
}

func within(k, beats int) watcher {
	window := time.Duration(beats) * time.Second
	return watcher{fmt.Sprintf("%d in %s", k, window), time.Second, accumulator.Config{Rule: accumulator.Cumulative, Failures: k, Window: window, Clear: 1}}
}

// alarm is when the rule trips, counted from the trouble's begin; false: not within the span. The first beat comes at phase.
func (w watcher) alarm(t *testing.T, phase, span time.Duration, failed func(time.Duration) bool) (time.Duration, bool) {
	acc, err := accumulator.New(w.rule)
	if err != nil {
		t.Fatal(err)
	}
	epoch := time.Unix(0, 0)
	for at := phase; at < span; at += w.beat {
		if acc.Add(epoch.Add(at), failed(at)); acc.Tripped(epoch.Add(at)) {
			return at, true
		}
	}
	return 0, false
}

// phases is how many positions of the trouble within a beat are tried, and how often luck is tried anew.
const phases = 2000

// outcome is the share of the runs with an alarm, and the mean time of those.
func (w watcher) outcome(t *testing.T, span time.Duration, trouble func(run int) func(time.Duration) bool) (share float64, mean time.Duration) {
	var sum time.Duration
	n := 0
	for run := range phases {
		phase := w.beat * time.Duration(2*run+1) / (2 * phases)
		if at, ok := w.alarm(t, phase, span, trouble(run)); ok {
			sum += at
			n++
		}
	}
	if n == 0 {
		return 0, 0
	}
	return float64(n) / phases, sum / time.Duration(n)
}

func always(int) func(time.Duration) bool { return func(time.Duration) bool { return true } }

// loss fails each probe by itself with probability p. The seed is fixed: the table is the same in every run.
func loss(p float64) func(int) func(time.Duration) bool {
	return func(run int) func(time.Duration) bool {
		luck := rand.New(rand.NewPCG(1, uint64(run)))
		return func(time.Duration) bool { return luck.Float64() < p }
	}
}

// flap is down and up by turns, and begins anywhere in its period.
func flap(down, up time.Duration) func(int) func(time.Duration) bool {
	return func(run int) func(time.Duration) bool {
		offset := time.Duration(rand.New(rand.NewPCG(2, uint64(run))).Int64N(int64(down + up)))
		return func(at time.Duration) bool { return (at+offset)%(down+up) < down }
	}
}

// TestPaperTimeliness computes the paper's second table: the time to the alarm is linear in interval and count.
func TestPaperTimeliness(t *testing.T) {
	counts := []int{2, 3, 5, 6, 10}
	var b strings.Builder
	b.WriteString("| interval |")
	for _, k := range counts {
		fmt.Fprintf(&b, " k = %d |", k)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(counts)) + "\n")
	for _, beat := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second} {
		fmt.Fprintf(&b, "| %s |", beat)
		for _, k := range counts {
			w := inARow(k)
			w.beat = beat
			_, mean := w.outcome(t, time.Minute, always)
			if law := beat*time.Duration(k) - beat/2; mean-law > time.Millisecond || law-mean > time.Millisecond {
				t.Errorf("%s at %s: %s, the law says %s", w.name, beat, mean, law)
			}
			fmt.Fprintf(&b, " %.2f s |", mean.Seconds())
		}
		b.WriteString("\n")
	}
	generated(t, "docs/paper.md", "timeliness", b.String())
}

// TestPaperFluctuation computes the paper's third and fourth tables with the very rules that the daemon uses.
func TestPaperFluctuation(t *testing.T) {
	steady, fast := cluster.Steady(), cluster.Fast()
	watchers := []watcher{
		inARow(3),
		inARow(5),
		within(3, 6),
		within(5, 10),
		within(6, 15),
		{"`steady`", steady.Interval, accumulator.Steady()},
		{"`fast`", fast.Interval, accumulator.Fast()},
		{"bucket, 500ms", steady.Interval, accumulator.Leaky()},
	}
	troubles := []struct {
		name    string
		happens func(int) func(time.Duration) bool
	}{
		{"down for good", always},
		{"10 % of the probes lost", loss(0.1)},
		{"30 %", loss(0.3)},
		{"50 %", loss(0.5)},
		{"70 %", loss(0.7)},
		{"1 s down, 1 s up", flap(time.Second, time.Second)},
		{"2 s down, 2 s up", flap(2*time.Second, 2*time.Second)},
		{"2 s down, 1 s up", flap(2*time.Second, time.Second)},
		{"3 s down, 3 s up", flap(3*time.Second, 3*time.Second)},
	}
	var b strings.Builder
	b.WriteString("| 30 s of |")
	for _, w := range watchers {
		b.WriteString(" " + w.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(watchers)) + "\n")
	for _, trouble := range troubles {
		b.WriteString("| " + trouble.name + " |")
		for _, w := range watchers {
			share, mean := w.outcome(t, 30*time.Second, trouble.happens)
			if share == 0 {
				b.WriteString(" 0 % |")
				continue
			}
			fmt.Fprintf(&b, " %.0f %% (%.1f s) |", 100*share, mean.Seconds())
		}
		b.WriteString("\n")
	}
	generated(t, "docs/paper.md", "fluctuation", b.String())
}
