package vip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestSecondsRoundsUpAndRefusesForever(t *testing.T) {
	for _, c := range []struct {
		in   time.Duration
		want int
		err  error
	}{
		{0, 0, ErrNoLifetime},
		{-time.Second, 0, ErrNoLifetime},
		{time.Nanosecond, 1, nil},
		{999 * time.Millisecond, 1, nil},
		{time.Second, 1, nil},
		{1001 * time.Millisecond, 2, nil},
		{5 * time.Second, 5, nil},
		{1<<63 - 1, 0, ErrNoLifetime},
	} {
		got, err := seconds(c.in)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("seconds(%v) = %d, %v; want %d, %v", c.in, got, err, c.want, c.err)
		}
	}
}

func TestNewAddressRefuses(t *testing.T) {
	for _, c := range []struct {
		vip, ifc string
		want     error
	}{
		{"fd00::1", "eth0", ErrIPv4Only},
		{"0.0.0.0", "eth0", ErrIPv4Only},
		{"224.0.0.1", "eth0", ErrIPv4Only},
		{"127.0.0.1", "eth0", ErrIPv4Only},
		{"10.0.0.1", "", ErrNoInterface},
	} {
		_, err := NewAddress(AddressConfig{VIP: netip.MustParseAddr(c.vip), Interface: c.ifc})
		if !errors.Is(err, c.want) {
			t.Errorf("NewAddress(%s, %q) = %v, want %v", c.vip, c.ifc, err, c.want)
		}
	}
}

func state(t *testing.T, a *Address) AddressState {
	t.Helper()
	s, err := a.State(patience(t))
	check(t, err)
	return s
}

func TestAddressAddExtendRemove(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() {
		ctx, a := patience(t), l.addrA
		if s := state(t, a); s.Present || !s.LinkUp || s.MAC.String() != l.a.MAC.String() || s.Interface != "eth0" {
			t.Errorf("before: %+v", s)
		}
		if err := a.Extend(ctx, time.Minute); !errors.Is(err, ErrAbsent) {
			t.Errorf("Extend of an absent address = %v", err)
		}
		for _, f := range []func() error{
			func() error { return a.Add(ctx, 0) }, func() error { return a.Extend(ctx, -1) },
			func() error { return NewNetlink(a).Bind(ctx, 0) },
		} {
			if err := f(); !errors.Is(err, ErrNoLifetime) {
				t.Errorf("without lifetime: %v", err)
			}
		}
		if s := state(t, a); s.Present {
			t.Errorf("a refused request left %+v", s)
		}
		check(t, a.Add(ctx, 59500*time.Millisecond))
		if s := state(t, a); !s.Present || s.Forever || s.Left > time.Minute || s.Left <= 0 || s.Prefix != 32 || s.Others != nil {
			t.Errorf("after Add: %+v", s)
		}
		check(t, a.Add(ctx, time.Hour))
		check(t, a.Extend(ctx, 2*time.Hour))
		if s := state(t, a); s.Left <= time.Hour || s.Left > 2*time.Hour {
			t.Errorf("after Extend: %+v", s)
		}
		check(t, a.Remove(ctx))
		check(t, a.Remove(ctx))
		if s := state(t, a); s.Present {
			t.Errorf("after Remove: %+v", s)
		}
	})
}

func TestAddressIsFoundWithAnyPrefixOnAnyInterface(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() {
		ctx, a := patience(t), l.addrA
		run(t, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth2")
		run(t, "ip", "addr", "add", "10.77.0.100/16", "dev", "eth1")
		s := state(t, a)
		if !s.Present || s.Interface != "eth1" || s.Prefix != 16 || !s.Forever {
			t.Errorf("elsewhere: %+v", s)
		}
		if err := a.Extend(ctx, time.Minute); !errors.Is(err, ErrAbsent) {
			t.Errorf("Extend must not adopt another interface: %v", err)
		}
		run(t, "ip", "addr", "add", "10.77.0.100/24", "dev", "eth0")
		check(t, a.Add(ctx, time.Minute)) // the /24 gets the lifetime; no /32 appears beside it
		s = state(t, a)
		if s.Interface != "eth0" || s.Prefix != 24 || s.Forever || len(s.Others) != 1 || s.Others[0] != "eth1/16" {
			t.Errorf("in two places: %+v", s)
		}
		check(t, a.Remove(ctx))
		if s := state(t, a); s.Present {
			t.Errorf("Remove left %+v", s)
		}
		missing, err := NewAddress(AddressConfig{VIP: testVIP, Interface: "nope0"})
		check(t, err)
		defer missing.Close()
		if err := missing.Add(ctx, time.Minute); !errors.Is(err, ErrNoInterface) {
			t.Errorf("Add on a missing interface = %v", err)
		}
		if _, err := missing.State(ctx); !errors.Is(err, ErrNoInterface) {
			t.Errorf("State on a missing interface = %v", err)
		}
	})
}

func TestKernelRemovesTheAddressAtItsEnd(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() {
		ctx, a := patience(t), l.addrA
		start := time.Now()
		check(t, a.Add(ctx, time.Second))
		sub, err := a.Subscribe(ctx)
		check(t, err)
		defer sub.Close()
		for {
			e, err := sub.Next(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if !e.Present {
				break
			}
		}
		t.Logf("lifetime 1 s: removed after %v", time.Since(start))
		if err := a.Extend(ctx, time.Second); !errors.Is(err, ErrAbsent) {
			t.Errorf("a late renewal brought it back: %v", err)
		}
	})
}

func TestWatchReportsChangesAndNotRenewals(t *testing.T) {
	l := newLab(t)
	events := make(chan AddressEvent, 100)
	stop := running(t, l.a, func(ctx context.Context) error {
		return l.addrA.Watch(ctx, func(e AddressEvent) { events <- e })
	})
	next := func(what string, ok func(AddressEvent) bool) {
		t.Helper()
		select {
		case e := <-events:
			if !ok(e) {
				t.Errorf("%s: got %+v", what, e)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: no event", what)
		}
	}
	next("start", func(e AddressEvent) bool { return !e.Present && e.LinkUp && e.MAC.String() == l.a.MAC.String() })
	other := newAddress(t)
	var took []time.Duration
	for range 20 {
		l.a.Do(func() { check(t, other.Add(patience(t), time.Minute)) })
		next("add", func(e AddressEvent) bool { return e.Present })
		l.a.Do(func() {
			check(t, other.Extend(patience(t), time.Hour))
			start := time.Now()
			check(t, other.Remove(patience(t)))
			took = append(took, time.Since(start))
		})
		next("remove", func(e AddressEvent) bool { return !e.Present })
	}
	t.Logf("Remove took %v (median)", median(took))
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	l.a.Do(func() { run(t, "ip", "link", "set", "eth0", "address", mac.String()) })
	next("mac", func(e AddressEvent) bool { return e.MAC.String() == mac.String() })
	l.a.Cable(false)
	next("cable out", func(e AddressEvent) bool { return !e.LinkUp })
	l.a.Cable(true)
	next("cable in", func(e AddressEvent) bool { return e.LinkUp })
	l.a.Do(func() {
		run(t, "ip", "addr", "add", "10.77.0.100/24", "dev", "eth0")
		run(t, "ip", "addr", "add", "10.77.0.100/32", "dev", "eth0")
	})
	next("two prefixes", func(e AddressEvent) bool { return e.Present })
	l.a.Do(func() { run(t, "ip", "addr", "del", "10.77.0.100/24", "dev", "eth0") }) // still there as /32: no event
	l.a.Do(func() { run(t, "ip", "link", "del", "eth0") })
	next("last prefix gone", func(e AddressEvent) bool { return !e.Present || !e.LinkUp })
	if err := stop(); !errors.Is(err, errStopped) {
		t.Errorf("Watch ended with %v", err)
	}
}

func TestWatchSurvivesAnOverflow(t *testing.T) {
	l := newLab(t)
	l.a.Do(func() {
		ctx := patience(t)
		sub, err := l.addrA.Subscribe(ctx)
		check(t, err)
		defer sub.Close()
		conn, err := sub.file.SyscallConn()
		check(t, err)
		check(t, conn.Control(func(fd uintptr) { check(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096)) }))
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		check(t, err)
		defer h.Close()
		eth, err := h.LinkByName("eth0")
		check(t, err)
		for range 100 {
			check(t, h.AddrReplace(eth, &netlink.Addr{IPNet: &net.IPNet{IP: net.IP{10, 9, 9, 9}, Mask: net.CIDRMask(32, 32)}, ValidLft: 60, PreferedLft: 60}))
		}
		check(t, l.addrA.Add(ctx, time.Minute))
		for {
			e, err := sub.Next(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if e.Present {
				return
			}
		}
	})
}

func TestBindByNetlink(t *testing.T) {
	l := newLab(t)
	var bind, unbind []time.Duration
	l.a.Do(func() {
		ctx := patience(t)
		b := NewNetlink(l.addrA)
		for range 100 {
			check(t, b.Bind(ctx, time.Minute))
			check(t, b.Bind(ctx, time.Minute))
			check(t, b.Unbind(ctx))
			bind, unbind = append(bind, b.Last().Bind), append(unbind, b.Last().Unbind)
			check(t, b.Unbind(ctx))
		}
	})
	t.Logf("bind %v, unbind %v (median of 100)", median(bind), median(unbind))
}
