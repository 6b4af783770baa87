package gate

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestSwapFromAWordReadBeforeAClose(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			l := newLab(t)
			g := l.installed(l.config(v.method, v.unmapped), 0)
			hour := func() Word { return Now().Add(time.Hour) }
			swap := func(old, next Word, want Outcome) {
				t.Helper()
				if got := g.Swap(old, next); got != want {
					t.Fatalf("swap from %v: %v, want %v", old, got, want)
				}
			}
			closeIt := func() {
				t.Helper()
				before := g.Word()
				w, err := g.Close()
				l.must(err)
				if w == before || w.Deadline() {
					t.Fatalf("closed from %v to %v", before, w)
				}
			}

			// Acquiring: read closed, somebody closes again, swap.
			beforeSend := g.Word()
			closeIt()
			swap(beforeSend, hour(), Overtaken)
			// Renewing: read open, somebody closes, swap.
			swap(g.Word(), hour(), Swapped)
			beforeSend = g.Word()
			closeIt()
			swap(beforeSend, hour(), Overtaken)
			// A renewal from before an opening and a close: closed again, but not by the same close.
			beforeSend = g.Word()
			swap(beforeSend, hour(), Swapped)
			closeIt()
			swap(beforeSend, hour(), Overtaken)
			// Two renewals from one word: the second lost.
			beforeSend = g.Word()
			swap(beforeSend, hour(), Swapped)
			swap(beforeSend, hour().Add(time.Minute), Overtaken)
			// Only Close writes counters.
			swap(g.Word(), 99, NotADeadline)
			swap(g.Word(), 0, NotADeadline)
		})
	}
}

// TestCloseWinsAgainstAConcurrentRenewal: whichever comes first, after both the gate is closed, because the renewal swaps from what it read before.
func TestCloseWinsAgainstAConcurrentRenewal(t *testing.T) {
	for _, unmapped := range []bool{false, true} {
		for name, openBefore := range map[string]bool{"while open": true, "while closed": false} {
			t.Run(fmt.Sprintf("%s, by system calls %v", name, unmapped), func(t *testing.T) {
				c, err := newCell(!unmapped)
				if err != nil {
					t.Fatal(err)
				}
				defer c.close()
				g := &Gate{}
				g.cell.Store(c)
				if _, err := g.Close(); err != nil {
					t.Fatal(err)
				}
				seen := map[Outcome]int{}
				for range 2000 {
					if openBefore {
						if got := g.Swap(g.Word(), Now().Add(time.Hour)); got != Swapped {
							t.Fatal(got)
						}
					}
					beforeSend := g.Word()
					next := Now().Add(2 * time.Hour)
					var both sync.WaitGroup
					var outcome Outcome
					both.Go(func() { outcome = g.Swap(beforeSend, next) })
					both.Go(func() {
						if _, err := g.Close(); err != nil {
							t.Error(err)
						}
					})
					both.Wait()
					seen[outcome]++
					if w := g.Word(); w.Deadline() {
						t.Fatalf("open %v after a close, the swap was %v", w, outcome)
					}
				}
				if seen[Swapped]+seen[Overtaken] != 2000 {
					t.Errorf("outcomes %v", seen)
				}
			})
		}
	}
}

func TestDeadlineAppliedLateOpensNothing(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			tr.flows(5)
			g := l.installed(l.config(v.method, v.unmapped), 0)
			closed := Now()
			deadline := Now().Add(20 * time.Millisecond)
			after(t, deadline) // the pause between computing and applying
			if got := g.Swap(g.Word(), deadline); got != Swapped {
				t.Fatal(got)
			}
			if got := g.Word(); got != deadline || got.Open(Now()) {
				t.Errorf("word %v", got)
			}
			tr.silentSince(closed, 100)

			late := l.installed(l.config(v.method, v.unmapped), deadline)
			tr.silentSince(closed, 100)
			l.must(late.Verify(t.Context()))
		})
	}
}

func TestNothingWorksBeforeInstall(t *testing.T) {
	l := newLab(t)
	g, err := New(l.config(TCX, false))
	l.must(err)
	if w, o := g.Word(), g.Swap(0, Now().Add(time.Hour)); w != 0 || o != NotInstalled {
		t.Errorf("word %v, swap %v", w, o)
	}
	_, err = g.Close()
	l.wantErr(err, ErrNotInstalled)
	_, err = g.Drops()
	l.wantErr(err, ErrNotInstalled)
	l.wantErr(g.Verify(t.Context()), ErrNotInstalled)
	l.wantErr(g.Cover(t.Context(), []string{l.dev}), ErrNotInstalled)
	l.must(g.Release())
	l.wantErr(g.Install(t.Context(), 5), ErrConfig)
	l.must(g.Install(t.Context(), 0))
	l.wantErr(g.Install(t.Context(), 0), ErrInstalled)
	l.must(g.Uninstall(t.Context()))
}
