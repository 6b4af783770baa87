package vip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip/internal/nettest"
)

func newAnnouncer(t testing.TB, cfg AnnouncerConfig) *Announcer {
	t.Helper()
	cfg.VIP, cfg.Interface = testVIP, "eth0"
	a, err := NewAnnouncer(cfg)
	check(t, err)
	t.Cleanup(a.Close)
	return a
}

func TestOffsets(t *testing.T) {
	a := newAnnouncer(t, AnnouncerConfig{})
	want := []time.Duration{0, 20, 100, 300, 1100, 2200, 12200, 22200}
	for i, w := range want {
		if got := a.offset(i); got != w*time.Millisecond {
			t.Errorf("offset(%d) = %v, want %v ms", i, got, int64(w))
		}
	}
	none := newAnnouncer(t, AnnouncerConfig{Burst: []time.Duration{}, Refresh: time.Second})
	if got := none.offset(1); got != 2*time.Second {
		t.Errorf("without a burst: %v", got)
	}
}

func TestAnnouncementMovesAClientsEntry(t *testing.T) {
	l := newLab(t)
	wire := newCapture(t, l.client)
	l.believe(t, l.a.MAC)
	if got := l.neighbour(t); got != l.a.MAC.String() {
		t.Fatalf("the client believes %q", got)
	}
	ann := newAnnouncer(t, AnnouncerConfig{})
	l.b.Do(func() { check(t, ann.Open(patience(t))) })
	start := time.Now()
	stop := running(t, l.b, func(ctx context.Context) error { return ann.Announce(ctx, l.owned) })
	nettest.Until(t, "the client's entry moves", func() bool { return l.neighbour(t) == l.b.MAC.String() })
	nettest.Until(t, "three turns", func() bool { return ann.Report().Frames >= 6 })
	r := ann.Report()
	t.Logf("first frame %v after the start", r.First.Sub(start))
	if err := stop(); !errors.Is(err, errStopped) {
		t.Errorf("Announce ended with %v", err)
	}
	if r.MAC != l.b.MAC.String() || r.First.IsZero() || r.Last.Before(r.First) {
		t.Errorf("report %+v", r)
	}
	nettest.Until(t, "frames on the wire", func() bool { return len(wire.from(testVIP)) >= 6 })
	for i, f := range wire.from(testVIP)[:2] {
		op, tha := f[21], net.HardwareAddr(f[32:38])
		wantOp, wantTHA := byte(1), broadcast
		if i == 1 {
			wantOp, wantTHA = 2, l.b.MAC
		}
		if op != wantOp || !slices.Equal(tha, wantTHA) || !slices.Equal(f[38:42], testVIP.AsSlice()) ||
			!slices.Equal(f[22:28], l.b.MAC) || !slices.Equal(f[0:6], broadcast) || len(f) < 60 {
			t.Errorf("frame %d: % x", i, f)
		}
	}
}

func TestNoFrameAfterOwnedSaysNo(t *testing.T) {
	l := newLab(t)
	wire := newCapture(t, l.client)
	lost := errors.New("the lease ended")
	for allowed := range int64(4) {
		before := len(wire.from(testVIP))
		var asked atomic.Int64
		ann := newAnnouncer(t, AnnouncerConfig{Burst: []time.Duration{0, time.Millisecond}, Refresh: time.Millisecond})
		l.b.Do(func() {
			err := ann.Announce(patience(t), func() error {
				if asked.Add(1) > allowed {
					return lost
				}
				return nil
			})
			if !errors.Is(err, lost) {
				t.Errorf("Announce = %v", err)
			}
		})
		if got := int64(ann.Report().Frames); got != allowed || asked.Load() != allowed+1 {
			t.Errorf("%d frames allowed, %d sent, asked %d times", allowed, got, asked.Load())
		}
		nettest.Until(t, "the allowed frames on the wire", func() bool { return int64(len(wire.from(testVIP))-before) >= allowed })
		if got := int64(len(wire.from(testVIP)) - before); got != allowed {
			t.Errorf("%d frames on the wire, %d allowed", got, allowed)
		}
	}
}

// dropAll drops what carries the VIP as the sender, as the real one does; only its effect on the sender matters here.
func dropAll(t *testing.T) {
	t.Helper()
	run(t, "nft", "add table netdev gate; add chain netdev gate out { type filter hook egress device eth0 priority 0; }; "+
		"add rule netdev gate out ether type arp arp saddr ip 10.77.0.100 drop; "+
		"add chain netdev gate in { type filter hook ingress device eth0 priority 0; }; "+
		"add rule netdev gate in ip daddr 10.77.0.100 drop; "+
		"add rule netdev gate in ether type arp arp saddr ip != 10.77.0.100 arp daddr ip 10.77.0.100 drop")
}

func TestClosedGateIsNamed(t *testing.T) {
	l := newLab(t)
	ann := newAnnouncer(t, AnnouncerConfig{})
	l.a.Do(func() {
		dropAll(t)
		if err := ann.Announce(patience(t), l.owned); !errors.Is(err, ErrGateClosed) {
			t.Errorf("Announce = %v", err)
		}
		if r := ann.Report(); r.Frames != 0 {
			t.Errorf("report %+v", r)
		}
		if _, err := ann.Poke(patience(t), l.owned, []netip.Addr{l.client.Addr}); !errors.Is(err, ErrGateClosed) {
			t.Errorf("Poke = %v", err)
		}
	})
}

func TestAnnouncerOutlivesTheCableAndFollowsTheMAC(t *testing.T) {
	l := newLab(t)
	turns := make(chan Announced, 1000)
	ann := newAnnouncer(t, AnnouncerConfig{Burst: []time.Duration{0}, Refresh: time.Hour, Sent: func(a Announced) { turns <- a }})
	running(t, l.b, func(ctx context.Context) error { return ann.Announce(ctx, l.owned) })
	<-turns
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	l.b.Do(func() { run(t, "ip", "link", "set", "eth0", "down") })
	ann.Kick() // a turn that fails: the link is down
	l.b.Do(func() { run(t, "ip", "link", "set", "eth0", "address", mac.String(), "up") })
	l.believe(t, l.a.MAC)
	nettest.Until(t, "the entry has the new MAC", func() bool {
		ann.Kick() // what a watcher does on RTM_NEWLINK
		return l.neighbour(t) == mac.String()
	})
}

func TestPokeCreatesEntriesAndCollectsProof(t *testing.T) {
	l := newLab(t)
	ann := newAnnouncer(t, AnnouncerConfig{})
	l.b.Do(func() { check(t, l.addrB.Add(patience(t), time.Minute)) })
	if got := l.neighbour(t); got != "" {
		t.Fatalf("the client has an entry already: %s", got)
	}
	absent, beyond := netip.MustParseAddr("10.77.0.99"), netip.MustParseAddr("192.0.2.7")
	var got []Confirmation
	l.b.Do(func() {
		var err error
		got, err = ann.Poke(patience(t), l.owned, []netip.Addr{l.client.Addr, l.a.Addr, beyond, l.b.Addr})
		check(t, err)
		ctx, cancel := context.WithTimeout(patience(t), 100*time.Millisecond)
		defer cancel()
		if none, err := ann.Poke(ctx, l.owned, []netip.Addr{absent}); err != nil || none != nil {
			t.Errorf("an absent neighbour confirms %v, %v", none, err)
		}
	})
	if len(got) != 2 {
		t.Fatalf("confirmations %+v", got)
	}
	for _, c := range got {
		want := map[netip.Addr]net.HardwareAddr{l.client.Addr: l.client.MAC, l.a.Addr: l.a.MAC}[c.Addr]
		if !slices.Equal(c.MAC, want) || c.Took <= 0 {
			t.Errorf("confirmation %+v, want MAC %s", c, want)
		}
		t.Logf("%s confirmed after %v", c.Addr, c.Took)
	}
	if mac := l.neighbour(t); mac != l.b.MAC.String() {
		t.Errorf("the client believes %q", mac)
	}
	l.b.Do(func() {
		lost := errors.New("lost")
		if _, err := ann.Poke(patience(t), func() error { return lost }, []netip.Addr{l.client.Addr}); !errors.Is(err, lost) {
			t.Errorf("a poke of a loser = %v", err)
		}
		if got, err := ann.Poke(patience(t), l.owned, []netip.Addr{beyond}); err != nil || got != nil {
			t.Errorf("a poke of nobody = %v, %v", got, err)
		}
	})
}

func TestTimeToFirstFrame(t *testing.T) {
	l := newLab(t)
	ann := newAnnouncer(t, AnnouncerConfig{})
	var cold, warm []time.Duration
	stop := errors.New("enough")
	l.b.Do(func() {
		once := func() time.Duration {
			asked, start := 0, time.Now()
			err := ann.Announce(patience(t), func() error {
				if asked++; asked > 1 {
					return stop
				}
				return nil
			})
			if !errors.Is(err, stop) {
				t.Errorf("Announce = %v", err)
			}
			return ann.Report().First.Sub(start)
		}
		for range 20 {
			ann.Close()
			cold = append(cold, once())
			warm = append(warm, once())
		}
	})
	t.Logf("from the call to the first frame: %v with open sockets, %v without (median of 20)", median(warm), median(cold))
}
