package vip

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip/gate"
	"github.com/baton-ha/baton/vip/internal/nettest"
)

// installed puts the real gate on the host, closed.
func installed(t testing.TB, h *nettest.Host) *gate.Gate {
	t.Helper()
	g, err := gate.New(gate.Config{VIP: testVIP, Interfaces: []string{"eth0"}, StateDir: t.TempDir()})
	check(t, err)
	h.Do(func() { check(t, g.Install(patience(t), 0)) })
	t.Cleanup(func() {
		h.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			check(t, g.Uninstall(ctx))
		})
	})
	if t.Failed() {
		t.FailNow()
	}
	return g
}

// TestBehindTheRealGate shows that what must work while the gate is closed does, and what must not does not.
func TestBehindTheRealGate(t *testing.T) {
	l := newLab(t)
	g := installed(t, l.a)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Hour)) })
	server(t, l.a, "tcp", ":8066")
	if got := g.Swap(g.Word(), gate.Now().Add(time.Hour)); got != gate.Swapped {
		t.Fatal(got)
	}
	established := l.waiting(t, 2)
	s := newSockets(t, 0)
	ann := newAnnouncer(t, AnnouncerConfig{})
	listening := make(chan struct{})
	r, err := NewResetter(ResetterConfig{VIP: testVIP, Interface: "eth0", Closed: l.owned, Listening: func() { close(listening) }})
	check(t, err)
	running(t, l.a, r.Run)
	<-listening
	if _, err := g.Close(); err != nil {
		t.Fatal(err)
	}
	l.believe(t, l.a.MAC)
	var took []time.Duration
	l.client.Do(func() { // segments come in and are answered, though the gate drops them
		for range 20 {
			took = append(took, refused(t))
		}
		_, err := established[0].Write([]byte("x"))
		check(t, err)
	})
	resets(t, established[:1])
	l.a.Do(func() {
		_, err := s.Destroy(patience(t)) // the kernel's own resets leave as well
		check(t, err)
		if err := ann.Announce(patience(t), l.owned); !errors.Is(err, ErrGateClosed) {
			t.Errorf("Announce behind a closed gate = %v", err)
		}
		if _, err := ann.Poke(patience(t), l.owned, []netip.Addr{l.client.Addr}); !errors.Is(err, ErrGateClosed) {
			t.Errorf("Poke behind a closed gate = %v", err)
		}
	})
	resets(t, established[1:])
	t.Logf("refused after %v (median of 20), %d resets", median(took), r.Sent())

	p := newProber(t, ProberConfig{})
	running(t, l.a, p.Run)
	nettest.Until(t, "silence behind the gate", func() bool { return p.Silence(time.Now()).Probes >= 3 })
	l.b.Do(func() { check(t, l.addrB.Add(patience(t), time.Minute)) })
	nettest.Until(t, "the other holder is heard", func() bool { return p.Silence(time.Now()).LastMAC.String() == l.b.MAC.String() })
	l.client.Do(func() {
		mac, err := newProber(t, ProberConfig{}).Resolve(patience(t), 5*time.Second)
		check(t, err)
		if mac.String() != l.b.MAC.String() {
			t.Errorf("resolved %s", mac)
		}
	})
}

// TestMove is the actuation of a planned move by the package's own parts, as the client sees it: its waiting connection is reset, its
// next one is served by the new holder.
func TestMove(t *testing.T) {
	l := newLab(t)
	from, to := installed(t, l.a), installed(t, l.b)
	server(t, l.a, "tcp", ":8066")
	server(t, l.b, "tcp", ":8066")
	sockA, sockB := newSockets(t, 0), newSockets(t, 0)
	bindA, bindB := NewNetlink(l.addrA), NewNetlink(l.addrB)
	ann := newAnnouncer(t, AnnouncerConfig{})
	l.a.Do(func() { check(t, sockA.Open(patience(t))); check(t, bindA.Bind(patience(t), time.Hour)) })
	l.b.Do(func() { check(t, sockB.Open(patience(t))); check(t, ann.Open(patience(t))) })
	if got := from.Swap(from.Word(), gate.Now().Add(time.Hour)); got != gate.Swapped {
		t.Fatal(got)
	}
	conns := l.waiting(t, 10)
	listening := make(chan struct{})
	r, err := NewResetter(ResetterConfig{VIP: testVIP, Interface: "eth0", Closed: l.owned, Listening: func() { close(listening) }})
	check(t, err)
	running(t, l.a, r.Run)
	<-listening

	start := time.Now()
	l.a.Do(func() {
		_, err := from.Close()
		check(t, err)
		n, err := sockA.Destroy(patience(t))
		check(t, err)
		if n != len(conns) {
			t.Errorf("destroyed %d", n)
		}
		check(t, bindA.Unbind(patience(t)))
	})
	released := time.Now()
	l.b.Do(func() {
		_, err := sockB.Destroy(patience(t))
		check(t, err)
		check(t, bindB.Bind(patience(t), time.Hour))
	})
	if got := to.Swap(to.Word(), gate.Now().Add(time.Hour)); got != gate.Swapped {
		t.Fatal(got)
	}
	running(t, l.b, func(ctx context.Context) error { return ann.Announce(ctx, l.owned) })
	nettest.Until(t, "the first announcement", func() bool { return !ann.Report().First.IsZero() })
	t.Logf("released after %v, first announcement after %v", released.Sub(start), ann.Report().First.Sub(start))
	last := resets(t, conns)
	l.client.Do(func() {
		nettest.Until(t, "the new holder serves", func() bool {
			c, err := dial(patience(t), "8066")
			if err != nil {
				return false // refused by the old one until the announcement is here
			}
			_ = c.Close()
			return true
		})
	})
	t.Logf("waiting clients knew after %v, served again after %v", last.Sub(start), time.Since(start))
	if got := l.neighbour(t); got != l.b.MAC.String() {
		t.Errorf("the client believes %s", got)
	}
}
