// Package keepalived is the binder "keepalived": it puts the VIP on the interface by running the real program, as an instance of
// Baton's own.
//
// The instance has its own configuration, pid files and session, and outlives the daemon: what keeps a VIP silent that must not be
// served is the gate, never the end of a process. The package recognises its instances by the path of their configuration in the
// command line, and touches no other keepalived and nothing under /etc. It decides nothing.
package keepalived

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/baton-ha/baton/vip"
)

// The named errors of the package.
var (
	// ErrNotInstalled says that the program was not found.
	ErrNotInstalled = errors.New("keepalived: the program is not installed")
	// ErrNotBound says that the program runs and did not put the VIP on the interface in time.
	ErrNotBound = errors.New("keepalived: it runs and has not put the VIP on the interface")
	// ErrExited says that the program ended instead of binding.
	ErrExited = errors.New("keepalived: it ended before it had put the VIP on the interface")
	// ErrNotRunning says that no instance of ours runs.
	ErrNotRunning = errors.New("keepalived: no instance of ours runs")
	// ErrHalf says that one of an instance's two processes is missing.
	ErrHalf = errors.New("keepalived: one of its two processes is missing")
	// ErrAlive says that processes of ours survived SIGKILL.
	ErrAlive = errors.New("keepalived: processes of ours did not end")
)

// Config describes the instance. StateDir is for this package alone, such as /run/baton/keepalived; the daemon's restart must find
// the same one.
type Config struct {
	VIP       netip.Addr
	Interface string
	RouterID  uint8 // virtual_router_id, 1 to 255: another on each site, so that no VRRP election can happen
	StateDir  string
	Program   string // path or name; empty: "keepalived"
	Log       *slog.Logger
}

// Binder runs one instance for one VIP. Its methods exclude each other.
type Binder struct {
	cfg     Config
	program string
	log     *slog.Logger
	addr    *vip.Address

	mu       sync.Mutex
	adopted  bool        // instances of an earlier daemon have been looked for
	inst     *instance   // nil: none is meant to run
	dying    []*instance // told to end; the VIP is gone from them
	children []int       // started by this process and not yet reaped
	last     vip.BindTimes
}

// New checks the configuration and that the program is there (ErrNotInstalled). It touches nothing.
func New(cfg Config) (*Binder, error) {
	addr, err := vip.NewAddress(vip.AddressConfig{VIP: cfg.VIP, Interface: cfg.Interface, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	if cfg.RouterID == 0 {
		return nil, errors.New("keepalived: the virtual_router_id must be 1 to 255, another on each site")
	}
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("keepalived: the state directory %q must be an absolute path: instances are known by it", cfg.StateDir)
	}
	program, err := find(cfg.Program)
	if err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.StateDir = filepath.Clean(cfg.StateDir)
	return &Binder{cfg: cfg, program: program, log: log, addr: addr}, nil
}

// find looks for the program in PATH and where distributions put it: a daemon's PATH often lacks sbin.
func find(program string) (string, error) {
	if program == "" {
		program = "keepalived"
	}
	for _, name := range []string{program, "/usr/sbin/" + program, "/usr/local/sbin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("look for %s: %w: install it or set bind: netlink", program, ErrNotInstalled)
}

// Close ends the binder's own sockets. The instance and the address stay.
func (b *Binder) Close() { b.addr.Close() }

// Last returns the times of the last Bind and Unbind.
func (b *Binder) Last() vip.BindTimes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}
