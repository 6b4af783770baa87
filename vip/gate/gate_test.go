package gate

import (
	"testing"
	"time"
)

func TestTrafficPassesOnlyBeforeTheDeadline(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			tr.flows(20) // no gate yet: the laboratory works
			g := l.installed(l.config(v.method, v.unmapped), 0)
			if g.Method() != v.method {
				t.Fatalf("method %s, want %s", g.Method(), v.method)
			}
			closed := Now()
			tr.silentSince(closed, 50)

			deadline := Now().Add(time.Second) // each kind must get through once, also on a busy machine
			if got := g.Swap(g.Word(), deadline); got != Swapped {
				t.Fatal(got)
			}
			after(t, deadline)
			tr.silentSince(deadline, 50)
			for k := range kinds {
				if tr.count(k, closed) == 0 {
					t.Errorf("no %s passed while the gate was open", k)
				}
				t.Logf("last %s sent %v before the deadline", k, time.Duration(deadline-tr.last(k)))
			}

			if got := g.Swap(g.Word(), Now().Add(time.Hour)); got != Swapped {
				t.Fatal(got)
			}
			tr.flows(50)
			w, err := g.Close()
			closed = Now()
			l.must(err)
			if w.Deadline() || g.Word() != w {
				t.Fatalf("closed with %v, word is %v", w, g.Word())
			}
			tr.silentSince(closed, 50)
			if n, err := g.Drops(); err != nil || n < 300 {
				t.Errorf("%d drops counted, %v", n, err)
			}
			l.must(g.Verify(t.Context()))
		})
	}
}
