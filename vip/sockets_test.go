package vip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip/internal/nettest"
	"golang.org/x/sys/unix"
)

// server accepts on a host and never answers, as a query that runs long does. network "tcp" makes it an IPv6 socket for both
// families, as Java's are; "tcp4" an IPv4 one.
func server(t *testing.T, h *nettest.Host, network, addr string) net.Listener {
	t.Helper()
	var ln net.Listener
	h.Do(func() {
		var err error
		lc := net.ListenConfig{}
		ln, err = lc.Listen(t.Context(), network, addr)
		check(t, err)
	})
	if ln == nil {
		t.FailNow()
	}
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}()
	return ln
}

// dial connects from the host of the calling thread.
func dial(ctx context.Context, port string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, "tcp4", testVIP.String()+":"+port)
}

// waiting opens connections from the client that wait for an answer.
func (l *lab) waiting(t *testing.T, n int) []net.Conn {
	t.Helper()
	var conns []net.Conn
	l.client.Do(func() {
		for range n {
			c, err := dial(patience(t), "8066")
			if err != nil {
				t.Error(err)
				return
			}
			_, err = c.Write([]byte("query"))
			check(t, err)
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	if len(conns) != n {
		t.FailNow()
	}
	return conns
}

// resets waits until every connection was reset, and returns when the last was.
func resets(t *testing.T, conns []net.Conn) time.Time {
	t.Helper()
	for _, c := range conns {
		check(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err := c.Read(make([]byte, 1))
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a waiting client got %v, want a reset", err)
		}
	}
	return time.Now()
}

func newSockets(t *testing.T, port uint16) *Sockets {
	t.Helper()
	s, err := NewSockets(SocketsConfig{VIP: testVIP, Port: port})
	check(t, err)
	t.Cleanup(s.Close)
	return s
}

func local(t *testing.T, c net.Conn) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(c.LocalAddr().String())
	check(t, err)
	return a
}

func TestDestroyResetsWaitingClientsAndSparesTheListener(t *testing.T) {
	for _, network := range []string{"tcp", "tcp4"} {
		t.Run(network, func(t *testing.T) {
			l := newLab(t)
			s := newSockets(t, 8066)
			l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
			server(t, l.a, network, ":8066")
			server(t, l.a, network, ":9066")
			conns := l.waiting(t, 200)
			var other net.Conn
			l.client.Do(func() {
				var err error
				other, err = dial(patience(t), "9066")
				check(t, err)
			})
			defer func() { _ = other.Close() }()
			var want []netip.AddrPort
			for _, c := range conns {
				want = append(want, local(t, c))
			}
			slices.SortFunc(want, netip.AddrPort.Compare)
			var start, done time.Time
			l.a.Do(func() {
				check(t, s.Open(patience(t)))
				got, err := s.Connections(patience(t))
				check(t, err)
				if !slices.Equal(got, want) {
					t.Errorf("connections %v, want %v", got, want)
				}
				start = time.Now()
				n, err := s.Destroy(patience(t))
				done = time.Now()
				check(t, err)
				if n != len(conns) {
					t.Errorf("destroyed %d, want %d", n, len(conns))
				}
				if n, err := s.Destroy(patience(t)); n != 0 || err != nil {
					t.Errorf("destroyed again %d, %v", n, err)
				}
				check(t, l.addrA.Remove(patience(t)))
			})
			last := resets(t, conns)
			t.Logf("200 waiting clients: destroyed in %v, the last knew after %v", done.Sub(start), last.Sub(start))
			l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
			l.waiting(t, 1) // the listener still accepts
			l.a.Do(func() {
				got, err := newSockets(t, 9066).Connections(patience(t))
				check(t, err)
				if !slices.Equal(got, []netip.AddrPort{local(t, other)}) {
					t.Errorf("the connection to another port: %v", got)
				}
			})
		})
	}
}

// TestDestroyWithoutItsConnectionSparesTheListener is the race that a request without the socket's cookie loses: the connection ended
// after it was listed, and a look-up by addresses finds the listener.
func TestDestroyWithoutItsConnectionSparesTheListener(t *testing.T) {
	for _, network := range []string{"tcp", "tcp4"} {
		l := newLab(t)
		s := newSockets(t, 0)
		l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
		server(t, l.a, network, ":8066")
		l.waiting(t, 1)
		l.a.Do(func() {
			listed, err := s.all(patience(t))
			check(t, err)
			n, err := s.Destroy(patience(t))
			check(t, err)
			if n != 1 || len(listed) != 1 {
				t.Errorf("%s: listed %d, destroyed %d", network, len(listed), n)
				return
			}
			diag, err := s.diagSocket()
			check(t, err)
			if err := destroy(diag, listed[0]); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) {
				t.Errorf("%s: destroying a connection that is gone = %v", network, err)
			}
		})
		l.waiting(t, 1)
	}
}

func TestOldConnectionsComeAliveUnlessDestroyed(t *testing.T) {
	l := newLab(t)
	s := newSockets(t, 0)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	server(t, l.a, "tcp", ":8066")
	conns := l.waiting(t, 1)
	l.a.Do(func() {
		check(t, l.addrA.Remove(patience(t)))
		got, err := s.Connections(patience(t)) // the zombie: established without the address
		check(t, err)
		if len(got) != 1 {
			t.Errorf("connections after the removal: %v", got)
		}
		check(t, l.addrA.Add(patience(t), time.Minute)) // the VIP comes back
		n, err := s.Destroy(patience(t))
		check(t, err)
		if n != 1 {
			t.Errorf("destroyed %d on acquiring", n)
		}
	})
	resets(t, conns)
}

func TestTickleResetsTheClientsOfADeadHolder(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	server(t, l.a, "tcp", ":8066")
	server(t, l.b, "tcp", ":8066")
	conns := l.waiting(t, 200)
	var clients []netip.AddrPort
	l.a.Do(func() {
		var err error
		clients, err = newSockets(t, 8066).Connections(patience(t))
		check(t, err)
	})
	l.a.Cable(false) // dead
	s := newSockets(t, 8066)
	ann := newAnnouncer(t, AnnouncerConfig{})
	var start time.Time
	l.b.Do(func() {
		check(t, s.Open(patience(t)))
		check(t, l.addrB.Add(patience(t), time.Minute))
		got, err := ann.Poke(patience(t), l.owned, []netip.Addr{l.client.Addr})
		check(t, err)
		if len(got) != 1 {
			t.Errorf("the client does not confirm: %v", got)
		}
		start = time.Now()
		n, err := s.Tickle(patience(t), 8066, clients)
		check(t, err)
		if n != len(conns) {
			t.Errorf("tickled %d of %d", n, len(conns))
		}
		t.Logf("200 tickles sent in %v", time.Since(start))
	})
	t.Logf("the last of 200 waiting clients knew after %v", resets(t, conns).Sub(start))
}

func TestTickleSparesALivingConnection(t *testing.T) {
	l := newLab(t)
	s := newSockets(t, 8066)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	server(t, l.a, "tcp", ":8066")
	c := l.waiting(t, 1)[0]
	l.a.Do(func() {
		_, err := s.Tickle(patience(t), 8066, []netip.AddrPort{local(t, c)})
		check(t, err)
	})
	check(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a living connection got %v", err)
	}
	l.a.Do(func() {
		if _, err := s.Tickle(patience(t), 8066, []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:1")}); !errors.Is(err, ErrIPv4Only) {
			t.Errorf("tickling IPv6 = %v", err)
		}
	})
}

func TestDigest(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:10"), netip.MustParseAddrPort("10.0.0.1:9")
	seen := map[string]bool{}
	for _, list := range [][]netip.AddrPort{nil, {a}, {b}, {a, b}, {a, a}} {
		seen[Digest(list)] = true
	}
	if len(seen) != 5 {
		t.Errorf("digests collide: %v", seen)
	}
	list := []netip.AddrPort{a, b}
	if Digest(list) != Digest([]netip.AddrPort{b, a}) || list[0] != a {
		t.Error("the order matters, or the list was changed")
	}
}

func TestResetterRefusesWhatAClosedGateWouldSwallow(t *testing.T) {
	for _, gated := range []bool{false, true} {
		l := newLab(t)
		l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Hour)) })
		server(t, l.a, "tcp", ":8066")
		established := l.waiting(t, 1)[0]
		l.a.Do(func() {
			if gated {
				dropAll(t) // the address stays; the ingress hook drops
			} else {
				check(t, l.addrA.Remove(patience(t)))
			}
		})
		l.believe(t, l.a.MAC)
		l.client.Do(func() { // the SYN is lost without the resetter
			ctx, cancel := context.WithTimeout(patience(t), 100*time.Millisecond)
			defer cancel()
			if _, err := dial(ctx, "8066"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("gated=%v: without a resetter: %v", gated, err)
			}
		})
		listening := make(chan struct{})
		r, err := NewResetter(ResetterConfig{VIP: testVIP, Interface: "eth0", Closed: l.owned, Listening: func() { close(listening) }})
		check(t, err)
		stop := running(t, l.a, r.Run)
		<-listening
		var took []time.Duration
		l.client.Do(func() {
			for range 50 {
				took = append(took, refused(t))
			}
			_, err := established.Write([]byte("x")) // its socket lives on at the old holder, unreachable
			check(t, err)
		})
		resets(t, []net.Conn{established})
		t.Logf("gated=%v: refused after %v (median of 50), %v at most, %d resets", gated, median(took), slices.Max(took), r.Sent())
		if err := stop(); !errors.Is(err, errStopped) {
			t.Errorf("Run ended with %v", err)
		}
	}
}

// refused connects and returns how long the refusal took.
func refused(t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(patience(t), 5*time.Second)
	defer cancel()
	start := time.Now()
	_, err := dial(ctx, "8066")
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect: %v, want refused", err)
	}
	return time.Since(start)
}

func TestResetterEndsWhenTheGateOpens(t *testing.T) {
	if _, err := NewResetter(ResetterConfig{VIP: testVIP, Interface: "eth0"}); err == nil {
		t.Error("a resetter without Closed")
	}
	l := newLab(t)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Hour)) })
	server(t, l.a, "tcp", ":8066")
	opened := errors.New("the gate is open")
	r, err := NewResetter(ResetterConfig{VIP: testVIP, Interface: "eth0", Closed: func() error { return opened }})
	check(t, err)
	var ended error
	done := l.a.Go(func() { ended = r.Run(patience(t)) })
	nettest.Until(t, "it noticed a segment", func() bool {
		l.waiting(t, 1) // served, not reset
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if !errors.Is(ended, opened) || r.Sent() != 0 {
		t.Errorf("Run = %v after %d resets", ended, r.Sent())
	}
}
