// Package nettest gives tests a small switched network of real namespaces: a bridge and hosts on it, in a box of their own.
//
// It is test support. It never touches the machine's own network namespace: Main runs the tests in new namespaces, and refuses when
// they are not.
package nettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const boxed = "BATON_TEST_BOX" // holds the name of the network namespace outside the box

// Main runs the tests of a package in a box: namespaces of network, mounts, processes, host name and IPC, with a /run of their own.
// It needs root and fails without; nothing is skipped.
func Main(m *testing.M) {
	outside, inBox := os.LookupEnv(boxed)
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		fail(err)
	}
	if !inBox {
		os.Exit(rerun(here))
	}
	if here == outside {
		fail(fmt.Errorf("the tests would run in the machine's own network namespace %s", here))
	}
	if err := furnish(); err != nil {
		fail(err)
	}
	os.Exit(m.Run())
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "nettest:", err)
	os.Exit(1)
}

// rerun starts this test binary again inside the box. It dies with us, and the box with it.
func rerun(here string) int {
	runtime.LockOSThread() // Pdeathsig follows the thread
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	box := []string{"-n", "-m", "-p", "-u", "-i", "-f", "--kill-child", "--mount-proc", self}
	cmd := exec.Command("unshare", append(box, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), boxed+"="+here)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "nettest: tests in a box:", err)
		return 1
	}
	return 0
}

func furnish() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a /run of our own: %w", err)
	}
	return quiet()
}

// quiet sets up the namespace of the calling thread: loopback up, no forwarding (a stale neighbour entry would be served by a detour
// over the old holder, and hide every loss), no IPv6 chatter.
func quiet() error {
	for name, value := range map[string]string{"ipv4/ip_forward": "0", "ipv6/conf/all/disable_ipv6": "1"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Host is a namespace with one interface, eth0.
type Host struct {
	t    testing.TB
	Addr netip.Addr
	MAC  net.HardwareAddr
	ns   netns.NsHandle
	lan  *Lan
	port string // the other end of eth0, on the switch
}

// Lan is a bridge with hosts.
type Lan struct {
	t  testing.TB
	ns netns.NsHandle
	h  *netlink.Handle
	br *netlink.Bridge
	n  int
}

// NewLan builds an empty network, gone at the end of the test.
func NewLan(t testing.TB) *Lan {
	t.Helper()
	l := &Lan{t: t, br: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}}
	l.ns, l.h = namespace(t)
	must(t, l.h.LinkAdd(l.br))
	must(t, l.h.LinkSetUp(l.br))
	return l
}

func namespace(t testing.TB) (netns.NsHandle, *netlink.Handle) {
	t.Helper()
	var ns netns.NsHandle
	var h *netlink.Handle
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var err error
		if ns, err = netns.New(); err == nil {
			err = quiet()
		}
		if err == nil {
			h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		done <- err
	}()
	must(t, <-done)
	t.Cleanup(func() {
		h.Close()
		must(t, ns.Close())
	})
	return ns, h
}

// Host adds a host with an address of 10.77.0.0/24 and plugs it in.
func (l *Lan) Host(last int) *Host {
	l.t.Helper()
	l.n++
	h := &Host{t: l.t, lan: l, port: fmt.Sprintf("p%d", l.n), Addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(last)})}
	var nl *netlink.Handle
	h.ns, nl = namespace(l.t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: h.port}, PeerName: "eth0", PeerNamespace: netlink.NsFd(h.ns)}
	must(l.t, l.h.LinkAdd(veth))
	must(l.t, l.h.LinkSetMaster(veth, l.br))
	must(l.t, l.h.LinkSetUp(veth))
	eth, err := nl.LinkByName("eth0")
	must(l.t, err)
	must(l.t, nl.AddrAdd(eth, &netlink.Addr{IPNet: &net.IPNet{IP: h.Addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	must(l.t, nl.LinkSetUp(eth))
	h.MAC = eth.Attrs().HardwareAddr
	Until(l.t, "the cable carries", func() bool { return isUp(l.t, nl, "eth0") && isUp(l.t, l.h, h.port) })
	return h
}

// isUp says whether the kernel has noticed the carrier, which it does by and by: until then a bridge drops what comes in at the port,
// and a SYN that is lost so costs its sender a second.
func isUp(t testing.TB, h *netlink.Handle, name string) bool {
	t.Helper()
	link, err := h.LinkByName(name)
	must(t, err)
	return link.Attrs().OperState == netlink.OperUp
}

// Cable plugs the host's cable in or pulls it.
func (h *Host) Cable(in bool) {
	h.t.Helper()
	port, err := h.lan.h.LinkByName(h.port)
	must(h.t, err)
	if in {
		must(h.t, h.lan.h.LinkSetUp(port))
		Until(h.t, "the cable carries", func() bool { return isUp(h.t, h.lan.h, h.port) })
	} else {
		must(h.t, h.lan.h.LinkSetDown(port))
	}
}

// Do runs fn in the host's namespace and waits for it. Goroutines that fn starts are not in it.
func (h *Host) Do(fn func()) {
	h.t.Helper()
	<-h.Go(fn)
}

// Go runs fn in the host's namespace, on a thread of its own that ends with it. The channel is closed at its end.
func (h *Host) Go(fn func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := netns.Set(h.ns); err != nil {
			h.t.Errorf("enter the namespace of %s: %v", h.Addr, err)
			return
		}
		fn()
	}()
	return done
}

// Until waits for a condition with a generous deadline.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
