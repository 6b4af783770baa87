package accumulator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const beat = 100 * time.Millisecond

// step is one sample of a trace; a gap is a beat without one.
type step struct {
	at     time.Time
	failed bool
}

// steps reads a trace: x a failure, . a success, a space no sample at this beat.
func steps(trace string) []step {
	var out []step
	for i, c := range trace {
		if c != ' ' {
			out = append(out, step{epoch.Add(time.Duration(i) * beat), c == 'x'})
		}
	}
	return out
}

// naive replays the whole history at each question; it shares no code with the rules.
type naive struct {
	cfg     Config
	history []step
}

// level is the count after the first n samples, asked at now.
func (m naive) level(n int, now time.Time) int {
	count := 0
	for _, s := range m.history[:n] {
		switch m.cfg.Rule {
		case Cumulative:
			if s.failed && s.at.Add(m.cfg.Window).After(now) {
				count++
			}
		case Consecutive:
			count++
			if !s.failed {
				count = 0
			}
		case Bucket:
			if s.failed {
				count += m.cfg.Up
			} else {
				count -= m.cfg.Down
			}
			count = max(0, min(count, m.cfg.Limit))
		}
	}
	return min(count, m.trip())
}

func (m naive) trip() int {
	if m.cfg.Rule == Bucket {
		return m.cfg.Limit
	}
	return m.cfg.Failures
}

func (m naive) goodRun(n int) int {
	good := 0
	for i := n - 1; i >= 0 && !m.history[i].failed; i-- {
		good++
	}
	return good
}

func (m naive) tripped(now time.Time) bool {
	on := false
	for n := 1; n <= len(m.history); n++ {
		if m.level(n, m.history[n-1].at) >= m.trip() {
			on = true
		}
		until := now
		if n < len(m.history) {
			until = m.history[n].at
		}
		if on && m.goodRun(n) >= m.cfg.Clear && m.level(n, until) < m.trip() {
			on = false
		}
	}
	return on
}

func (m *naive) add(at time.Time, failed bool) {
	if n := len(m.history); n > 0 && at.Before(m.history[n-1].at) {
		at = m.history[n-1].at
	}
	m.history = append(m.history, step{at, failed})
}

// agree fails when the rule and its naive twin differ at now.
func agree(t interface{ Fatalf(string, ...any) }, a Accumulator, m naive, now time.Time) {
	if got, want := a.Count(now), m.level(len(m.history), now); got != want {
		t.Fatalf("count at %v of %+v is %d, want %d", now.Sub(epoch), m.history, got, want)
	}
	if got, want := a.Tripped(now), m.tripped(now); got != want {
		t.Fatalf("tripped at %v of %+v is %v, want %v", now.Sub(epoch), m.history, got, want)
	}
}

func TestTraces(t *testing.T) {
	cumulative := Config{Rule: Cumulative, Failures: 3, Window: time.Second, Clear: 2}
	consecutive := Config{Rule: Consecutive, Failures: 3, Clear: 2}
	tests := []struct {
		name, trace string
		cfg         Config
		want        string // one letter a beat: D tripped, - not
	}{
		{"blip", "..x......", cumulative, "---------"},
		{"three in a row", "..xxx....", cumulative, "----DDDDD"},
		{"three spread out", "x...x...x..", cumulative, "--------DD-"},
		{"the window forgets", "x....x.....x", cumulative, "------------"},
		{"left when good and empty", "xxx.........", cumulative, "--DDDDDDDD--"},
		{"good alone does not clear it", "xxx......x..", cumulative, "--DDDDDDDDD-"},
		{"empty alone does not clear", "xxx             . .", cumulative, "--DDDDDDDDDDDDDDDD-"},
		{"consecutive", "xx.xxx..x", consecutive, "-----DD--"},
		{"consecutive misses what comes and goes", "xx.xx.xx.xx.", consecutive, "------------"},
		{"cumulative does not", "xx.xx.xx.xx.", cumulative, "---DDDDDDDDD"},
		{"bucket", "xxxxx.....", Leaky(), "----DDDDD-"},
		{"bucket drifts up", "x.x.x.x.x.x.x.x.x.x.", Leaky(), "------------DDDDDDDD"},
		{"bucket below its share", "x.....x.....x.....x.....x.....", Leaky(), strings.Repeat("-", 30)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := New(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for i, c := range tt.trace {
				at := epoch.Add(time.Duration(i) * beat)
				if c != ' ' {
					a.Add(at, c == 'x')
				}
				if a.Tripped(at) {
					got.WriteByte('D')
				} else {
					got.WriteByte('-')
				}
			}
			if got.String() != tt.want {
				t.Errorf("trace %q\n got %q\nwant %q", tt.trace, got.String(), tt.want)
			}
		})
	}
}

func TestLateSampleCountsAtTheNewest(t *testing.T) {
	a, err := New(Config{Rule: Cumulative, Failures: 2, Window: time.Second, Clear: 1})
	if err != nil {
		t.Fatal(err)
	}
	a.Add(epoch.Add(2*time.Second), true)
	a.Add(epoch, true)
	if got := a.Count(epoch.Add(2 * time.Second)); got != 2 {
		t.Errorf("count is %d, want 2", got)
	}
}

func TestResetForgets(t *testing.T) {
	for _, cfg := range []Config{Steady(), Leaky(), {Rule: Consecutive, Failures: 2, Clear: 1}} {
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			a.Add(epoch.Add(time.Duration(i)*beat), true)
		}
		now := epoch.Add(30 * beat)
		if !a.Tripped(now) || a.Count(now) != a.Trip() {
			t.Errorf("%s: 30 failures give %d of %d", cfg.Rule, a.Count(now), a.Trip())
		}
		a.Reset()
		if a.Tripped(now) || a.Count(now) != 0 {
			t.Errorf("%s: %d left after a reset", cfg.Rule, a.Count(now))
		}
	}
}

func TestNewNamesEveryMistake(t *testing.T) {
	tests := []struct {
		cfg   Config
		words []string
	}{
		{Config{}, []string{`rule is ""`, "clear is 0"}},
		{Config{Rule: "wrong", Clear: 1}, []string{`rule is "wrong"`}},
		{Config{Rule: Cumulative}, []string{"failures is 0", "window is 0s", "clear is 0"}},
		{Config{Rule: Consecutive, Failures: maxFailures + 1, Clear: 1}, []string{"failures is 1001"}},
		{Config{Rule: Bucket, Up: 4, Down: 1, Limit: 3, Clear: 1}, []string{"bucket is +4 -1 limit 3"}},
		{Config{Rule: Bucket, Up: 4, Limit: 20, Clear: 1}, []string{"bucket is +4 -0"}},
	}
	for _, tt := range tests {
		a, err := New(tt.cfg)
		if a != nil || !errors.Is(err, ErrConfig) {
			t.Errorf("New(%+v) = %v, %v", tt.cfg, a, err)
			continue
		}
		for _, w := range tt.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error of %+v is %q, want %q in it", tt.cfg, err, w)
			}
		}
	}
	for _, cfg := range []Config{Steady(), Fast(), Leaky()} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestAgainstNaive(t *testing.T) {
	for _, r := range []Rule{Cumulative, Consecutive, Bucket} {
		t.Run(string(r), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				cfg := Config{
					Rule: r, Failures: rapid.IntRange(1, 6).Draw(t, "failures"),
					Window: time.Duration(rapid.IntRange(1, 12).Draw(t, "window")) * beat,
					Up:     rapid.IntRange(1, 4).Draw(t, "up"), Down: rapid.IntRange(1, 3).Draw(t, "down"),
					Limit: rapid.IntRange(4, 20).Draw(t, "limit"), Clear: rapid.IntRange(1, 4).Draw(t, "clear"),
				}
				a, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				m := naive{cfg: cfg}
				at := epoch
				for range rapid.IntRange(0, 40).Draw(t, "samples") {
					at = at.Add(time.Duration(rapid.IntRange(-1, 4).Draw(t, "gap")) * beat / 2)
					failed := rapid.Bool().Draw(t, "failed")
					a.Add(at, failed)
					m.add(at, failed)
					now := m.history[len(m.history)-1].at
					agree(t, a, m, now)
					// Only ask later now and then: an accumulator that nobody asked must behave as one that was asked.
					if rapid.Bool().Draw(t, "ask") {
						agree(t, a, m, now.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "later"))*beat))
					}
				}
			})
		})
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	for _, cfg := range []Config{Steady(), Leaky(), {Rule: Consecutive, Failures: 2, Clear: 1}} {
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		at := epoch
		if n := testing.AllocsPerRun(1000, func() {
			at = at.Add(beat)
			a.Add(at, at.Unix()%2 == 0)
		}); n != 0 {
			t.Errorf("%s: %v allocations in Add, want 0", cfg.Rule, n)
		}
	}
}

func FuzzTrace(f *testing.F) {
	f.Add(uint8(0), uint8(3), uint8(10), uint8(2), "x..x..x")
	f.Add(uint8(1), uint8(2), uint8(1), uint8(1), "xx .. x x")
	f.Add(uint8(2), uint8(4), uint8(20), uint8(3), "xxxxx......")
	f.Fuzz(func(t *testing.T, rule, failures, window, clearRun uint8, trace string) {
		cfg := Config{
			Rule: []Rule{Cumulative, Consecutive, Bucket}[rule%3], Failures: int(failures), Window: time.Duration(window) * beat,
			Up: int(failures), Down: 1, Limit: int(window), Clear: int(clearRun),
		}
		a, err := New(cfg)
		if err != nil {
			return
		}
		if len(trace) > 100 {
			trace = trace[:100]
		}
		m := naive{cfg: cfg}
		for _, s := range steps(trace) {
			a.Add(s.at, s.failed)
			m.add(s.at, s.failed)
			agree(t, a, m, s.at)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	for _, cfg := range []Config{Steady(), Leaky(), {Rule: Consecutive, Failures: 5, Clear: 5}} {
		b.Run(fmt.Sprint(cfg.Rule), func(b *testing.B) {
			a, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			at := epoch
			for i := 0; b.Loop(); i++ {
				at = at.Add(beat)
				a.Add(at, i%5 == 0)
			}
		})
	}
}
