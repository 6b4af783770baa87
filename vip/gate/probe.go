package gate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Method is how the gate stands in the path of frames.
type Method string

// The methods, the better one first.
const (
	TCX    Method = "tcx"    // a pinned link at the head of the interface's multi-program hook (Linux 6.6): tools that replace qdiscs do not touch it
	Clsact Method = "clsact" // a direct-action filter of priority 1 at the clsact qdisc: removing the qdisc removes, that is opens, the gate
)

// Why this host can have no gate.
var (
	ErrUnsupported  = errors.New("gate: not supported by this kernel")
	ErrNotPermitted = errors.New("gate: not permitted")
	ErrClock        = errors.New("gate: the kernel's program and this process read different boot clocks")
)

// clockTolerance is how far the two clocks may be apart. They are one clock, read twice within microseconds; a time namespace sets them apart by seconds at least.
const clockTolerance = time.Millisecond

// Probe finds what this kernel can, by trying and never by its version. It attaches nothing.
//
// The error wraps ErrUnsupported, ErrNotPermitted or ErrClock and says what to do. Clsact means that tcx was refused; whether the modules sch_ingress and cls_bpf
// are there is seen when Install attaches, because only an attachment to an interface could show it.
func Probe(ctx context.Context) (Method, error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("probe kernel for gate: %w", context.Cause(ctx))
	}
	raiseMemlock()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Name: "baton_clock", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return "", fmt.Errorf("probe kernel for gate: create map: %w", refusal(err))
	}
	defer func() { _ = seen.Close() }()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "baton_clock", Type: ebpf.SchedCLS, License: "Dual MIT/GPL", Instructions: clockInstructions(seen.FD())})
	if err != nil {
		return "", fmt.Errorf("probe kernel for gate: load program: %w", refusal(err))
	}
	defer func() { _ = prog.Close() }()
	if err := checkClock(prog, seen); err != nil {
		return "", fmt.Errorf("probe kernel for gate: %w", err)
	}
	return probeTCX(prog)
}

// probeTCX tries to attach to an interface that cannot exist: a kernel with tcx misses the interface, one without does not know the request.
func probeTCX(prog *ebpf.Program) (Method, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	switch {
	case err == nil:
		_ = l.Close()
		return TCX, nil
	case errors.Is(err, unix.ENODEV):
		return TCX, nil
	case errors.Is(err, unix.EPERM):
		return "", fmt.Errorf("probe kernel for gate: attach: %w", refusal(err))
	}
	return Clsact, nil
}

// checkClock runs the program between two readings of our clock.
func checkClock(prog *ebpf.Program, seen *ebpf.Map) error {
	before := Now()
	if _, err := prog.Run(&ebpf.RunOptions{Data: make([]byte, 60)}); err != nil {
		return fmt.Errorf("run program: %w", refusal(err))
	}
	after := Now()
	var kernel uint64
	if err := seen.Lookup(uint32(0), &kernel); err != nil {
		return fmt.Errorf("read the program's clock: %w", err)
	}
	if k := Word(kernel); k < before.Add(-clockTolerance) || k > after.Add(clockTolerance) {
		return fmt.Errorf("%w: the program reads %.6f s, this process %.6f s: the daemon runs in a time namespace, and each of its deadlines would be wrong by the difference; start it outside (no unshare -T, /proc/self/timens_offsets all zero)",
			ErrClock, float64(k)/1e9, float64(after)/1e9)
	}
	return nil
}

// refusal classifies what bpf(2) answered.
func refusal(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: bpf(2) answers EPERM: give the daemon CAP_BPF and CAP_NET_ADMIN (before Linux 5.8 CAP_SYS_ADMIN, before 5.11 also LimitMEMLOCK=infinity); if it has them, kernel lockdown forbids BPF: %w", ErrNotPermitted, err)
	}
	return fmt.Errorf("%w: the gate needs sched_cls programs with bpf_ktime_get_boot_ns (Linux 5.8): %w", ErrUnsupported, err)
}

// raiseMemlock lifts the limit that BPF memory counts against before Linux 5.11. Without CAP_SYS_RESOURCE it stays as it is, and the refusal, if any, says so.
func raiseMemlock() {
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
}
