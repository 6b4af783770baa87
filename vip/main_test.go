package vip

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip/internal/nettest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { nettest.Main(m) }

var testVIP = netip.MustParseAddr("10.77.0.100")

// lab is the usual network: two hosts that may hold the VIP and a client.
type lab struct {
	lan          *nettest.Lan
	a, b, client *nettest.Host
	addrA, addrB *Address
	owned        func() error
}

func newLab(t testing.TB) *lab {
	t.Helper()
	lan := nettest.NewLan(t)
	l := &lab{lan: lan, a: lan.Host(11), b: lan.Host(12), client: lan.Host(21), owned: func() error { return nil }}
	l.addrA, l.addrB = newAddress(t), newAddress(t)
	return l
}

func newAddress(t testing.TB) *Address {
	t.Helper()
	a, err := NewAddress(AddressConfig{VIP: testVIP, Interface: "eth0"})
	check(t, err)
	t.Cleanup(a.Close)
	return a
}

// check reports an error; it may be called from any goroutine.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// neighbour is the MAC that the host of the calling thread has for the VIP; empty: no usable entry.
func neighbour(t testing.TB) string {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	check(t, err)
	defer h.Close()
	entries, err := h.NeighList(0, netlink.FAMILY_V4)
	check(t, err)
	for _, e := range entries {
		if ip, _ := netip.AddrFromSlice(e.IP.To4()); ip == testVIP && e.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
			return e.HardwareAddr.String()
		}
	}
	return ""
}

// believe gives the client an entry for the VIP.
func (l *lab) believe(t testing.TB, mac net.HardwareAddr) {
	t.Helper()
	l.client.Do(func() {
		eth, err := netlink.LinkByName("eth0")
		check(t, err)
		check(t, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: eth.Attrs().Index, IP: testVIP.AsSlice(), HardwareAddr: mac, State: netlink.NUD_REACHABLE,
		}))
	})
}

func (l *lab) neighbour(t testing.TB) (mac string) {
	t.Helper()
	l.client.Do(func() { mac = neighbour(t) })
	return mac
}

// run runs a program in the namespace of the calling thread.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(patience(t), name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %v: %v: %s", name, args, err, out)
	}
}

// running starts fn in the host's namespace; the returned function ends it and gives its error.
func running(t testing.TB, h *nettest.Host, fn func(ctx context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	var err error
	done := h.Go(func() { err = fn(ctx) })
	stop = sync.OnceValue(func() error {
		cancel(errStopped)
		<-done
		return err
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

var errStopped = os.ErrProcessDone // any error that nothing else returns

// capture collects the ARP packets that the host hears, parsed by other code than that under test: by offset.
type capture struct {
	mu     sync.Mutex
	frames [][]byte
	at     []time.Time // when each was received
}

func newCapture(t testing.TB, h *nettest.Host) *capture {
	t.Helper()
	c := &capture{}
	ready := make(chan struct{})
	running(t, h, func(ctx context.Context) error {
		hd, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		check(t, err)
		defer hd.Close()
		l, err := linkOf(hd, "eth0")
		check(t, err)
		conn, err := listen(l, unix.ETH_P_ARP, nil)
		check(t, err)
		close(ready)
		defer func() { _ = conn.Close() }()
		for {
			frame, err := readUntil(ctx, conn, time.Time{})
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.frames, c.at = append(c.frames, frame), append(c.at, time.Now())
			c.mu.Unlock()
		}
	})
	<-ready
	return c
}

// from counts the packets whose sender address is the VIP.
func (c *capture) from(vip netip.Addr) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.frames), func(f []byte) bool {
		return len(f) < 42 || !slices.Equal(f[28:32], vip.AsSlice())
	})
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}
