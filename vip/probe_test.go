package vip

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip/internal/nettest"
)

func newProber(t *testing.T, cfg ProberConfig) *Prober {
	t.Helper()
	cfg.VIP, cfg.Interface = testVIP, "eth0"
	p, err := NewProber(cfg)
	check(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestProberFindsTheHolderAndThenSilence(t *testing.T) {
	l := newLab(t)
	p := newProber(t, ProberConfig{})
	if s := p.Silence(time.Now()); !errors.Is(s.Blind, ErrNotProbing) || s.For != 0 {
		t.Errorf("before Run: %+v", s)
	}
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	stop := running(t, l.b, p.Run)
	nettest.Until(t, "the holder answers", func() bool { return p.Silence(time.Now()).LastMAC.String() == l.a.MAC.String() })
	l.a.Do(func() { check(t, l.addrA.Remove(patience(t))) })
	removed := time.Now()
	var s Silence
	nettest.Until(t, "silence", func() bool { s = p.Silence(time.Now()); return s.Probes >= 6 })
	t.Logf("silent since %v after the removal, %d probes", s.Since.Sub(removed), s.Probes)
	if !s.Since.After(s.LastAt) || s.For <= 0 || s.Blind != nil || s.LastMAC.String() != l.a.MAC.String() {
		t.Errorf("silence %+v, removed at %v", s, removed)
	}
	if err := stop(); !errors.Is(err, errStopped) {
		t.Errorf("Run ended with %v", err)
	}
	if s := p.Silence(time.Now()); !errors.Is(s.Blind, ErrNotProbing) || !s.Since.IsZero() {
		t.Errorf("after Run: %+v", s)
	}
}

func TestSilenceIsNotClaimedWhenProbesStall(t *testing.T) {
	p := newProber(t, ProberConfig{Every: 25 * time.Millisecond})
	start := time.Now()
	p.sil = Silence{Since: start, Probes: 4}
	p.sent = start.Add(75 * time.Millisecond)
	if s := p.Silence(start.Add(100 * time.Millisecond)); s.For != 100*time.Millisecond || s.Probes != 4 || s.Blind != nil {
		t.Errorf("running: %+v", s)
	}
	if s := p.Silence(start.Add(200 * time.Millisecond)); !errors.Is(s.Blind, ErrNotProbing) || s.For != 0 || s.Probes != 0 {
		t.Errorf("stalled: %+v", s)
	}
}

func TestProberIsBlindWithoutCarrier(t *testing.T) {
	l := newLab(t)
	p := newProber(t, ProberConfig{})
	running(t, l.b, p.Run)
	nettest.Until(t, "silence", func() bool { return p.Silence(time.Now()).Probes >= 3 })
	l.b.Cable(false)
	nettest.Until(t, "blind", func() bool { return errors.Is(p.Silence(time.Now()).Blind, ErrLinkDown) })
	if s := p.Silence(time.Now()); s.Blind == nil || s.For != 0 || !s.Since.IsZero() {
		t.Errorf("blind and yet %+v", s)
	}
	l.b.Do(func() {
		if _, err := p.Resolve(patience(t), time.Second); !errors.Is(err, ErrLinkDown) {
			t.Errorf("Resolve without carrier = %v", err)
		}
	})
	back := time.Now()
	l.b.Cable(true)
	var s Silence
	nettest.Until(t, "sight again", func() bool { s = p.Silence(time.Now()); return s.Blind == nil && s.Probes >= 3 })
	if s.Since.Before(back) {
		t.Errorf("the silence reaches back over the time without carrier: %+v", s)
	}
	l.b.Do(func() { run(t, "ip", "link", "del", "eth0") })
	nettest.Until(t, "no interface", func() bool { return errors.Is(p.Silence(time.Now()).Blind, ErrNoInterface) })
}

func TestResolve(t *testing.T) {
	l := newLab(t)
	p := newProber(t, ProberConfig{})
	l.client.Do(func() {
		for range 20 {
			if mac, err := p.Resolve(patience(t), 15*time.Millisecond); !errors.Is(err, ErrSilent) {
				t.Errorf("Resolve of nobody = %v, %v", mac, err)
			}
		}
	})
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	var took []time.Duration
	l.client.Do(func() {
		for range 50 {
			start := time.Now()
			mac, err := p.Resolve(patience(t), 5*time.Second)
			check(t, err)
			took = append(took, time.Since(start))
			if mac.String() != l.a.MAC.String() {
				t.Errorf("resolved %s, want %s", mac, l.a.MAC)
			}
		}
	})
	t.Logf("resolved in %v (median of 50)", median(took))
	if got := l.neighbour(t); got != "" {
		t.Errorf("a probe left an entry at the prober: %s", got)
	}
	l.a.Do(func() { // the holder asks: its own kernel does not count
		if mac, err := p.Resolve(patience(t), 60*time.Millisecond); !errors.Is(err, ErrSilent) {
			t.Errorf("the holder resolved %s, %v", mac, err)
		}
	})
}

func TestProberWorksBehindAClosedGate(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() {
		dropAll(t)
		check(t, l.addrA.Add(patience(t), time.Minute)) // gated: it answers nothing
	})
	l.b.Do(func() { check(t, l.addrB.Add(patience(t), time.Minute)) })
	p := newProber(t, ProberConfig{})
	running(t, l.a, p.Run)
	nettest.Until(t, "the other holder answers", func() bool { return p.Silence(time.Now()).LastMAC.String() == l.b.MAC.String() })
	l.b.Do(func() { check(t, l.addrB.Remove(patience(t))) })
	nettest.Until(t, "silence", func() bool { return p.Silence(time.Now()).Probes >= 3 })
	ann := newAnnouncer(t, AnnouncerConfig{})
	before := time.Now()
	stop := running(t, l.b, func(ctx context.Context) error { return ann.Announce(ctx, l.owned) })
	nettest.Until(t, "an announcement ends the silence", func() bool { return p.Silence(time.Now()).LastAt.After(before) })
	_ = stop()
	l.client.Do(func() {
		if mac, err := p.Resolve(patience(t), 15*time.Millisecond); !errors.Is(err, ErrSilent) {
			t.Errorf("a gated host answered: %v, %v", mac, err)
		}
	})
}

func TestPassiveProberHearsClaimsAndIgnoresItsOwn(t *testing.T) {
	l := newLab(t)
	claims := make(chan Claim, 100)
	p := newProber(t, ProberConfig{Passive: true, Claim: func(c Claim) { claims <- c }})
	running(t, l.a, p.Run)
	l.a.Do(func() { check(t, l.addrA.Add(patience(t), time.Minute)) })
	wire := newCapture(t, l.a)
	listening := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.own != nil
	}
	nettest.Until(t, "listening", listening)
	own := newAnnouncer(t, AnnouncerConfig{})
	stopOwn := running(t, l.a, func(ctx context.Context) error { return own.Announce(ctx, l.owned) })
	nettest.Until(t, "own frames", func() bool { return own.Report().Frames >= 4 })
	_ = stopOwn()
	ann := newAnnouncer(t, AnnouncerConfig{})
	stop := running(t, l.b, func(ctx context.Context) error { return ann.Announce(ctx, l.owned) })
	first, second := <-claims, <-claims
	_ = stop()
	if first.MAC.String() != l.b.MAC.String() || first.Answer || !second.Answer {
		t.Errorf("claims %+v, %+v", first, second)
	}
	if s := p.Silence(time.Now()); !errors.Is(s.Blind, ErrNotProbing) || s.LastMAC.String() != l.b.MAC.String() {
		t.Errorf("a passive prober says %+v", s)
	}
	for _, f := range wire.from(unspecified) {
		t.Errorf("a passive prober sent % x", f)
	}
}

func TestOwnSecondCardIsNoClaim(t *testing.T) {
	l := newLab(t)
	p := newProber(t, ProberConfig{})
	l.a.Do(func() { // eth1 is another port of this host on the same segment: a bridge of our own joins it to eth0
		run(t, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1p")
		h, err := p.k.open(patience(t))
		check(t, err)
		eth0, err := linkOf(h, "eth0")
		check(t, err)
		eth1, err := linkOf(h, "eth1")
		check(t, err)
		check(t, p.learnOwn(h, eth0, time.Now()))
		if !p.isOwn(eth1.mac) || !p.isOwn(eth0.mac) || p.isOwn(l.b.MAC) {
			t.Error("the MACs of this host are not told from others")
		}
	})
}
