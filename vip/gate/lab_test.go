package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience is how long a condition may take on a busy machine; no test passes or fails by being slower or faster.
const patience = 20 * time.Second

// variants are the ways a gate works that every test of traffic runs through.
var variants = []struct {
	name     string
	method   Method
	unmapped bool
}{{"tcx", TCX, false}, {"clsact", Clsact, false}, {"tcx by system calls", TCX, true}, {"clsact by system calls", Clsact, true}}

var labs atomic.Int32

// lab is a host with a VIP (the box) and a peer behind a veth pair.
type lab struct {
	t        testing.TB
	n        int
	dev      string // the host's end
	index    int
	hostMAC  net.HardwareAddr
	peerNS   int
	peerDev  int // index of the peer's end
	peerMAC  net.HardwareAddr
	vip      netip.Addr
	peer     netip.Addr
	stateDir string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	n := int(labs.Add(1))
	l := &lab{
		t: t, n: n, dev: fmt.Sprintf("host%d", n), peerNS: newNamespace(t), stateDir: t.TempDir(),
		vip: netip.AddrFrom4([4]byte{10, 100, byte(n), 200}), // above 127 in the last byte: the sign bit as a little-endian program reads it
	}
	l.peer = netip.AddrFrom4([4]byte{10, byte(n), 0, 2})
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(l.stateDir, "bpf"), unix.MNT_DETACH) })
	l.addPair()
	return l
}

// addPair creates the veth pair with all addresses; the host's end again after it was deleted.
func (l *lab) addPair() {
	l.t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: l.dev}, PeerName: "eth0", PeerNamespace: netlink.NsFd(l.peerNS)}
	l.must(netlink.LinkAdd(pair))
	l.t.Cleanup(func() { _ = netlink.LinkDel(pair) })
	peer, err := netlink.NewHandleAt(netns.NsHandle(l.peerNS), unix.NETLINK_ROUTE)
	l.must(err)
	defer peer.Close()
	host, err := netlink.LinkByName(l.dev)
	l.must(err)
	far, err := peer.LinkByName("eth0")
	l.must(err)
	l.index, l.hostMAC, l.peerDev, l.peerMAC = host.Attrs().Index, host.Attrs().HardwareAddr, far.Attrs().Index, far.Attrs().HardwareAddr

	l.must(netlink.LinkSetUp(host))
	l.must(peer.LinkSetUp(far))
	l.must(netlink.AddrAdd(host, address(netip.AddrFrom4([4]byte{10, byte(l.n), 0, 1}), 16)))
	l.must(netlink.AddrAdd(host, address(l.vip, 32)))
	l.must(peer.AddrAdd(far, address(l.peer, 16)))
	l.must(peer.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: address(l.vip, 32).IPNet, Scope: unix.RT_SCOPE_LINK}))
	// Permanent neighbours: traffic must not depend on ARP, which is tested by itself.
	l.must(peer.NeighSet(&netlink.Neigh{LinkIndex: far.Attrs().Index, IP: l.vip.AsSlice(), HardwareAddr: l.hostMAC, State: unix.NUD_PERMANENT}))
	l.must(netlink.NeighSet(&netlink.Neigh{LinkIndex: l.index, IP: l.peer.AsSlice(), HardwareAddr: l.peerMAC, State: unix.NUD_PERMANENT}))
}

func address(a netip.Addr, bits int) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, 32)}}
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// config is that of a gate for this lab by one method, with a BPF filesystem of its own, which in a box is never one that would outlive a container.
func (l *lab) config(m Method, unmapped bool) Config {
	return Config{
		VIP: l.vip, Interfaces: []string{l.dev}, StateDir: l.stateDir, Log: slog.New(slog.DiscardHandler),
		method: m, unmapped: unmapped, lasting: func(string) bool { return true },
	}
}

// gate returns a gate that is not installed yet and is taken away at the end.
func (l *lab) gate(cfg Config) *Gate {
	l.t.Helper()
	g, err := New(cfg)
	l.must(err)
	l.t.Cleanup(func() {
		if err := g.Uninstall(context.Background()); err != nil {
			l.t.Error(err)
		}
	})
	return g
}

// installed returns a gate in force.
func (l *lab) installed(cfg Config, preload Word) *Gate {
	l.t.Helper()
	g := l.gate(cfg)
	l.must(g.Install(l.t.Context(), preload))
	return g
}

// wantErr checks that err is target, or nil when target is.
func (l *lab) wantErr(err, target error) {
	l.t.Helper()
	if !errors.Is(err, target) {
		l.t.Fatalf("error %v, want %v", err, target)
	}
}

// eventually polls until ok, or fails.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

// after waits until the boot clock has passed w by a while, in which traffic goes on.
func after(t testing.TB, w Word) {
	t.Helper()
	eventually(t, "the deadline to pass", func() bool { return Now() > w.Add(100*time.Millisecond) })
}
