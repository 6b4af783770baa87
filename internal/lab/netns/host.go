// Package netns builds the laboratory's network: a switch with a bridge, and hosts on it, each with namespaces of its own for
// network, mounts and host name. Its faults happen at the switch, so that no host's own state is touched.
//
// It works only inside a box (package box) and never runs a program by itself.
package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
)

// Interface is the name of every host's only network interface.
const Interface = "eth0"

// Host is one machine of the laboratory: a locked thread that lives in the host's namespaces and starts its programs.
type Host struct {
	Name string
	Addr netip.Addr // the zero Addr for the switch
	MAC  net.HardwareAddr
	Dir  string // of the host, as seen from the box: run (its /run, which no other host sees) and log

	tid    int
	inode  uint64
	net    *os.File        // handle of the network namespace
	link   *netlink.Handle // in it
	parent *os.File        // handle of the box's
	work   chan func()
	ended  chan struct{}
}

// hostSysctls: a forwarding old holder would pass traffic on to the new one and hide every loss; a new namespace inherits the
// machine's 1. IPv6 is off because nobody here speaks it and its router solicitations are noise in the capture.
var hostSysctls = map[string]string{
	"net/ipv4/ip_forward":                "0",
	"net/ipv6/conf/all/disable_ipv6":     "1",
	"net/ipv6/conf/default/disable_ipv6": "1",
}

// newHost makes the namespaces. With dir, the host gets a /run of its own under it; the switch has none.
func newHost(name, dir string) (*Host, error) {
	parent, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the box's namespace: %w", err)
	}
	h := &Host{Name: name, Dir: dir, parent: parent, work: make(chan func()), ended: make(chan struct{})}
	ready := make(chan error)
	go h.live(ready)
	if err := <-ready; err != nil {
		return nil, errors.Join(fmt.Errorf("make host %s: %w", name, err), parent.Close())
	}
	return h, nil
}

// live is the host's thread. It is never unlocked: the thread ends with the goroutine and takes the namespaces along.
func (h *Host) live(ready chan<- error) {
	defer close(h.ended)
	runtime.LockOSThread()
	err := h.enter()
	ready <- err
	if err != nil {
		return
	}
	for fn := range h.work {
		fn()
	}
}

func (h *Host) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	h.tid = unix.Gettid()
	inode, err := box.NetInode("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	if err := box.CheckNet(inode); err != nil {
		return err
	}
	h.inode = inode
	if h.net, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(h.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	for key, value := range hostSysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return h.mounts()
}

// mounts gives the host its own sysfs (it shows the interfaces of the namespace that mounted it), its own bpffs (pinned programs
// must not be shared between hosts) and its own /run.
func (h *Host) mounts() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	if h.Dir == "" {
		return nil
	}
	for _, dir := range []string{"run", "log"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(filepath.Join(h.Dir, "run"), "/run", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /run: %w", err)
	}
	return nil
}

// Do runs fn on the host's thread: what it opens, mounts or starts belongs to the host. fn must be short.
func (h *Host) Do(fn func() error) error {
	result := make(chan error, 1)
	select {
	case h.work <- func() { result <- fn() }:
		return <-result
	case <-h.ended:
		return fmt.Errorf("host %s is closed", h.Name)
	}
}

// Start starts the command on the host.
func (h *Host) Start(cmd *exec.Cmd) error {
	if err := h.Do(cmd.Start); err != nil {
		return fmt.Errorf("start %s on %s: %w", filepath.Base(cmd.Path), h.Name, err)
	}
	return nil
}

// Output runs the command on the host to its end and returns what it printed; an error carries what it complained about.
func (h *Host) Output(cmd *exec.Cmd) ([]byte, error) {
	out, errOut := &limited{}, &limited{}
	cmd.Stdout, cmd.Stderr = out, errOut
	if err := h.Start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		if len(errOut.b) == 0 {
			errOut = out // some say on stdout why they failed
		}
		return out.b, fmt.Errorf("run %s on %s: %w: %s", filepath.Base(cmd.Path), h.Name, err, bytes.TrimSpace(errOut.b))
	}
	return out.b, nil
}

// limited keeps the first megabyte of what is written to it.
type limited struct{ b []byte }

// Write never fails: what is beyond the limit is dropped.
func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), 1<<20-len(l.b))]...)
	return len(p), nil
}

// DialContext opens a connection from the host. It may be used by any goroutine: a driver's dial function.
func (h *Host) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	runtime.LockOSThread()
	if err := unix.Setns(int(h.net.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter host %s: %w", h.Name, err)
	}
	// One address and one family: the dialer stays on this goroutine, and so on this thread.
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if back := unix.Setns(int(h.parent.Fd()), unix.CLONE_NEWNET); back != nil {
		return nil, fmt.Errorf("leave host %s: %w", h.Name, back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return conn, err
}

// Inode identifies the host's network namespace.
func (h *Host) Inode() uint64 { return h.inode }

// ThreadID is the thread whose /proc entry leads into the host's namespaces.
func (h *Host) ThreadID() int { return h.tid }

// close ends the host's thread. Programs that were started on it keep the namespaces alive until they end.
func (h *Host) close() error {
	close(h.work)
	<-h.ended
	if h.link != nil {
		h.link.Close()
	}
	return errors.Join(h.net.Close(), h.parent.Close())
}
