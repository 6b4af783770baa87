package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Errors of a gate's use.
var (
	ErrConfig       = errors.New("gate: configuration")
	ErrNotInstalled = errors.New("gate: not installed by this process")
	ErrInstalled    = errors.New("gate: installed already")
	ErrReopened     = errors.New("gate: opened again during the close")
)

// Config says what to gate, and where.
type Config struct {
	VIP        netip.Addr // the address, IPv4
	Interfaces []string   // every up Ethernet interface of the network namespace but lo, bonds with their slaves: one that is left out serves the VIP ungated
	StateDir   string     // where a BPF filesystem is mounted when the host has none: "/run/baton"
	BPFFS      string     // a BPF filesystem to pin in, trusted to outlive the daemon; "" to choose one
	Log        *slog.Logger

	method   Method            // tests: this one and no other
	unmapped bool              // tests: the word by system calls, as before Linux 5.5
	lasting  func(string) bool // tests: whether a BPF filesystem outlives the daemon
}

// Gate is the gate of one VIP on this host. All methods may be called by anybody at any time. Word, Swap and Close never wait for the others, which wait for each other.
type Gate struct {
	cfg    Config
	log    *slog.Logger
	cell   atomic.Pointer[cell] // nil until the word has its map
	closes atomic.Uint64        // the counter of the last close of this process

	mu     sync.Mutex // guards what is below
	drops  *ebpf.Map
	method Method
	chain  chain
	hooks  []*hook
	nl     *netlink.Handle
}

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Gate, error) {
	var wrong []error
	if !cfg.VIP.Is4() || cfg.VIP.IsUnspecified() || cfg.VIP.IsMulticast() || cfg.VIP.IsLoopback() {
		wrong = append(wrong, fmt.Errorf("%w: VIP %q is not a unicast IPv4 address", ErrConfig, cfg.VIP))
	}
	if cfg.StateDir == "" {
		wrong = append(wrong, fmt.Errorf("%w: no state directory", ErrConfig))
	}
	if err := checkInterfaces(cfg.Interfaces); err != nil {
		wrong = append(wrong, err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.lasting == nil {
		cfg.lasting = inForceAfterUs
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return &Gate{cfg: cfg, log: cfg.Log.With(slog.String("addr", cfg.VIP.String()))}, nil
}

func checkInterfaces(names []string) error {
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if n == "" || seen[n] {
			return fmt.Errorf("%w: interface %q is named twice, or not at all", ErrConfig, n)
		}
		seen[n] = true
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: no interface to gate", ErrConfig)
	}
	return nil
}

// Word reads the word: zero when there is no gate of this process, or it cannot be read. A renewal keeps what it read before its send, and swaps from that.
func (g *Gate) Word() Word {
	c := g.cell.Load()
	if c == nil {
		return 0
	}
	w, err := c.load()
	if err != nil {
		g.log.Error("word of the gate is unreadable, taken as closed", slog.Any("err", err))
		return 0
	}
	return w
}

// Swap writes next if the word is still old: one compare-and-swap in the memory that the kernel's program reads.
func (g *Gate) Swap(old, next Word) Outcome {
	c := g.cell.Load()
	switch {
	case c == nil:
		return NotInstalled
	case !next.Deadline():
		return NotADeadline
	}
	outcome, err := c.compareAndSwap(old, next)
	if err != nil {
		g.log.Error("word of the gate was not swapped", slog.String("cause", outcome.String()), slog.Any("err", err))
	}
	return outcome
}

// Close writes a counter that was never used before, also when the gate is closed, whoever holds the lease, and reads it back from the kernel. Every Swap from a word that was read earlier fails from now on.
//
// It closes only the gate of this process: one that another process put in its place stays as it is, and Verify tells (ErrNotOurs).
// ErrReopened means that a Swap from the counter just written came in between.
func (g *Gate) Close() (Word, error) {
	c := g.cell.Load()
	if c == nil {
		return 0, fmt.Errorf("close gate of %s: %w", g.cfg.VIP, ErrNotInstalled)
	}
	w := g.nextClose()
	if err := c.store(w); err != nil {
		return 0, fmt.Errorf("close gate of %s: %w", g.cfg.VIP, err)
	}
	seen, err := c.loadKernel()
	switch {
	case err != nil:
		return 0, fmt.Errorf("close gate of %s: read back: %w", g.cfg.VIP, err)
	case seen.Deadline():
		return seen, fmt.Errorf("close gate of %s: word is %v: %w", g.cfg.VIP, seen, ErrReopened)
	}
	return seen, nil
}

// nextClose counts the closes from 1. After 67 million it starts over, far from any swap that might still be on its way.
func (g *Gate) nextClose() Word { return Word(g.closes.Add(1)-1)%(firstDeadline-1) + 1 }

// Method tells how the gate stands in the path; "" before Install.
func (g *Gate) Method() Method {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.method
}

// Drops counts the frames that this gate dropped since its Install, on all CPUs and interfaces.
func (g *Gate) Drops() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drops == nil {
		return 0, fmt.Errorf("count drops of gate of %s: %w", g.cfg.VIP, ErrNotInstalled)
	}
	var perCPU []uint64
	if err := g.drops.Lookup(uint32(0), &perCPU); err != nil {
		return 0, fmt.Errorf("count drops of gate of %s: %w", g.cfg.VIP, err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// lasting asks whether pins below dir outlive the daemon.
func (g *Gate) lasting(dir string) bool { return g.cfg.lasting(dir) }

// start opens what every operation on the path needs, for as long as ctx allows.
func (g *Gate) start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if g.nl == nil {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		g.nl = nl
	}
	return setTimeout(ctx, g.nl)
}
