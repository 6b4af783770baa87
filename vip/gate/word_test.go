package gate

import (
	"math"
	"testing"
	"time"
)

func TestWordArithmetic(t *testing.T) {
	const now = Word(100e9)
	tests := []struct {
		name     string
		word     Word
		deadline bool
		open     bool
		left     time.Duration
		text     string
	}{
		{"never written", 0, false, false, 0, "closed #0"},
		{"closed", 7, false, false, 0, "closed #7"},
		{"last counter", firstDeadline - 1, false, false, 0, "closed #67108863"},
		{"first deadline", firstDeadline, true, false, 0, "until 0.067108864s"},
		{"passed", now - 1, true, false, 0, "until 99.999999999s"},
		{"now", now, true, false, 0, "until 100.000000000s"},
		{"to come", now + 1, true, true, 1, "until 100.000000001s"},
		{"end of time", math.MaxUint64, true, true, math.MaxInt64, "until 18446744073.709551615s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.word.Deadline(); got != tt.deadline {
				t.Errorf("Deadline() = %v", got)
			}
			if got := tt.word.Open(now); got != tt.open {
				t.Errorf("Open() = %v", got)
			}
			if got := tt.word.Left(now); got != tt.left {
				t.Errorf("Left() = %v", got)
			}
			if got := tt.word.String(); got != tt.text {
				t.Errorf("String() = %q", got)
			}
		})
	}
}

func TestWordAddStopsAtTheEnds(t *testing.T) {
	tests := []struct {
		word Word
		add  time.Duration
		want Word
	}{
		{100, 50, 150},
		{100, -50, 50},
		{100, -100, 0},
		{100, -101, 0},
		{0, math.MinInt64, 0},
		{1 << 63, math.MinInt64, 0},
		{1<<63 + 5, math.MinInt64, 5},
		{math.MaxUint64 - 1, 1, math.MaxUint64},
		{math.MaxUint64, 1, math.MaxUint64},
		{math.MaxUint64 - 5, math.MaxInt64, math.MaxUint64},
	}
	for _, tt := range tests {
		if got := tt.word.Add(tt.add); got != tt.want {
			t.Errorf("%d.Add(%d) = %d, want %d", tt.word, tt.add, got, tt.want)
		}
	}
}

func TestNowIsADeadlineAndGrows(t *testing.T) {
	a := Now()
	b := Now()
	if !a.Deadline() || b < a || a == math.MaxUint64 {
		t.Fatalf("Now() = %d, then %d", a, b)
	}
}

func TestClosesAreCountersThatDifferAlsoWhenTheyStartOver(t *testing.T) {
	var g Gate
	g.closes.Store(uint64(firstDeadline) - 3)
	seen := map[Word]bool{}
	for range 5 {
		w := g.nextClose()
		if w == 0 || w.Deadline() || seen[w] {
			t.Fatalf("close %d after %v", w, seen)
		}
		seen[w] = true
	}
}

func TestOutcomesHaveNames(t *testing.T) {
	for o, want := range map[Outcome]string{Swapped: "swapped", Overtaken: "overtaken", NotInstalled: "not installed", NotADeadline: "not a deadline", Unwritable: "unwritable", 99: "outcome(99)"} {
		if o.String() != want {
			t.Errorf("outcome %d is %q, want %q", uint8(o), o, want)
		}
	}
}
