package lease

import (
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

var terms = Terms{D: 1500 * time.Millisecond, Margin: 60 * time.Millisecond}

func TestDeadlineCountsFromTheSend(t *testing.T) {
	sent := Boot(10 * time.Second)
	if got, want := terms.Deadline(sent), Boot(11440*time.Millisecond); got != want {
		t.Fatalf("deadline %d, want %d", got, want)
	}
}

func TestWaitOut(t *testing.T) {
	base := time.Unix(1000, 0)
	at := func(ms int) time.Time { return base.Add(time.Duration(ms) * time.Millisecond) }
	for _, tc := range []struct {
		name  string
		seen  Renewal
		fence Fence
		want  time.Time
	}{
		{"the last renewal was seen as an event", Renewal{7, at(0)}, Fence{7, at(100), cluster.GateEBPF}, at(1565)},
		{"a newer renewal exists that was not seen", Renewal{7, at(0)}, Fence{8, at(100), cluster.GateEBPF}, at(1665)},
		{"it was read and not seen as an event", Renewal{7, time.Time{}}, Fence{7, at(100), cluster.GateEBPF}, at(1665)},
		{"seen only after the fence's answer", Renewal{7, at(200)}, Fence{7, at(100), cluster.GateEBPF}, at(1665)},
		{"only valid_lft closes", Renewal{7, at(0)}, Fence{7, at(100), cluster.GateValidLft}, at(2615)},
	} {
		if got := WaitOut(terms, tc.seen, tc.fence); !got.Until.Equal(tc.want) {
			t.Errorf("%s: until %s, want %s (%s)", tc.name, got.Until.Sub(base), tc.want.Sub(base), got.Why)
		}
	}
}

// A holder whose clock runs 1 % slow and a waiter whose clock runs 1 % fast... each within 1 % of the other: the gate is shut
// before the wait is over, for every send within the wait's assumptions.
func TestGateShutsBeforeTheWaitEnds(t *testing.T) {
	for _, slow := range []float64{0.99, 0.995, 1, 1.01} {
		for receivedAfter := time.Duration(0); receivedAfter < 50*time.Millisecond; receivedAfter += 7 * time.Millisecond {
			// Real time 0 is the send. The holder counts D-margin on a clock of that rate: real length / rate.
			shut := time.Duration(float64(terms.D-terms.Margin) / slow)
			wait := WaitOut(terms, Renewal{1, time.Unix(0, 0).Add(receivedAfter)}, Fence{1, time.Unix(9, 0), cluster.GateEBPF})
			if open := wait.Until.Sub(time.Unix(0, 0)); shut > open {
				t.Errorf("rate %v: gate shuts at %s, the other site may serve at %s", slow, shut, open)
			}
		}
	}
}

// The wait covers the longer of two configurations: the holder's lease is what its gate was opened for.
func TestOutlasting(t *testing.T) {
	terms := Terms{D: 1500 * time.Millisecond, Margin: 60 * time.Millisecond}
	for own, want := range map[time.Duration]time.Duration{0: 1500 * time.Millisecond, time.Second: 1500 * time.Millisecond, 5 * time.Second: 5 * time.Second} {
		if got := terms.Outlasting(cluster.Holder{Lease: own}); got.D != want || got.Margin != terms.Margin {
			t.Errorf("a holder with a lease of %s is waited out by %+v, want D %s", own, got, want)
		}
	}
}
