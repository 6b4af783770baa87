package record

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

// burst is an answer every 10 ms from one time to another.
func burst(host string, from, to int) []Answer {
	var out []Answer
	for ms := from; ms <= to; ms += 10 {
		out = append(out, Answer{At: at(ms), Host: host, Kind: "ip"})
	}
	return out
}

func fold(parts ...[]Answer) []Hold {
	var h Holds
	for _, p := range parts {
		for _, a := range p {
			h.Add(a)
		}
	}
	return h.List()
}

func TestDouble(t *testing.T) {
	tests := []struct {
		name  string
		holds []Hold
		want  time.Duration
	}{
		{"nobody", nil, 0},
		{"one holder", fold(burst("a", 0, 5000)), 0},
		{"a move", fold(burst("a", 0, 1000), burst("b", 1100, 3000)), 0},
		{"a move without a gap", fold(burst("a", 0, 1000), burst("b", 1001, 3000)), 0},
		{"a move and back again after a stay", fold(burst("a", 0, 1000), burst("b", 1100, 3000), burst("a", 3100, 4000)), 0},
		{"both for 200 ms", fold(burst("a", 0, 1000), burst("b", 800, 3000)), 200 * time.Millisecond},
		{"the old one answers once, soon after", fold(burst("a", 0, 1000), burst("b", 1100, 3000), burst("a", 1200, 1200)), 100 * time.Millisecond},
		{"the old one answers once, late", fold(burst("a", 0, 1000), burst("b", 1100, 5000), burst("a", 4000, 4000)), time.Millisecond},
		{"twice late counts twice", fold(burst("a", 0, 1000), burst("b", 1100, 9000), burst("a", 4000, 4000), burst("a", 6000, 6000)), 2 * time.Millisecond},
		{"three at once count once", fold(burst("a", 0, 1000), burst("b", 0, 1000), burst("c", 0, 1000)), time.Second},
		{"a long silence is not a hold", fold(burst("a", 0, 1000), burst("b", 2000, 2500), burst("a", 3000, 4000)), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Double(tt.holds); got != tt.want {
				t.Errorf("Double = %v, want %v of %+v", got, tt.want, tt.holds)
			}
		})
	}
}

// naiveDouble looks at every half millisecond and asks each pair of neighbouring answers whether their host holds then.
func naiveDouble(answers []Answer, end int) (ms float64) {
	for half := range 2 * end {
		now := start.Add(time.Duration(2*half+1) * 250 * time.Microsecond)
		holders := map[string]bool{}
		for i, a := range answers {
			for _, b := range answers[i+1:] {
				if b.Host != a.Host {
					continue
				}
				if a.At.Before(now) && b.At.After(now) && b.At.Sub(a.At) <= Window {
					holders[a.Host] = true
				}
				break
			}
		}
		if len(holders) > 1 {
			ms += 0.5
		}
	}
	return ms
}

func TestDoubleAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var answers []Answer
		ms, strays := 0, 0
		for range rapid.IntRange(0, 12).Draw(t, "answers") {
			ms += rapid.SampledFrom([]int{1, 7, 400, 999, 1000, 1001, 1500}).Draw(t, "gap")
			answers = append(answers, Answer{At: at(ms), Host: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "host")})
		}
		holds := fold(answers)
		for _, h := range holds {
			if h.Answers == 1 {
				strays++ // a point: charged, though it has no length
			}
		}
		got := float64(Double(holds)) / float64(time.Millisecond)
		naive := naiveDouble(answers, ms+1)
		if got < naive || got > naive+float64(strays) {
			t.Fatalf("Double = %v ms, naive %v ms with %d single answers", got, naive, strays)
		}
	})
}
