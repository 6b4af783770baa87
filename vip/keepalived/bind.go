package keepalived

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/baton-ha/baton/vip"
	"golang.org/x/sys/unix"
)

const (
	// obey is how long SIGTERM may take to bring the address down: 2 ms, 5 at p99, 51 measured on a busy machine. After it, force.
	obey = 100 * time.Millisecond
	// settle is how long to wait for a new child to sweep a VIP that was there before: it does so some 10 ms after it wrote its pid
	// file. A version that does not sweep is taken to have bound after this.
	settle = time.Second
	// look is how often a wait for the address checks that the process is still there.
	look = 5 * time.Millisecond
)

// Bind starts the instance and returns when the address is on the interface with the lifetime. keepalived itself binds for ever:
// the lifetime is put on in answer to the address event.
//
// When the instance runs and has the VIP, its lifetime is renewed. When it runs without it (the kernel removed it at its end, which
// no_track lets stand) or half of it is dead, it is killed and started anew. When the VIP is up but the instance is dead, it
// keeps serving while the new one starts: keepalived sweeps it and binds it again, a gap of some 0.2 ms.
// A Bind that fails leaves no process, and no address that was not there before.
func (b *Binder) Bind(ctx context.Context, lifetime time.Duration) error {
	if lifetime <= 0 {
		return fmt.Errorf("bind %s by keepalived: %w", b.cfg.VIP, vip.ErrNoLifetime)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	start := time.Now()
	if err := b.bind(ctx, lifetime); err != nil {
		return fmt.Errorf("bind %s by keepalived: %w", b.cfg.VIP, err)
	}
	b.last.Bind = time.Since(start)
	return nil
}

func (b *Binder) bind(ctx context.Context, lifetime time.Duration) error {
	inst, err := b.current(ctx)
	if err != nil {
		return err
	}
	if inst != nil {
		if inst.cause() == nil {
			if err := b.addr.Extend(ctx, lifetime); !errors.Is(err, vip.ErrAbsent) {
				return err
			}
		}
		if err := b.kill(ctx, inst); err != nil {
			return err
		}
		b.inst = nil
	}
	return b.start(ctx, lifetime)
}

// start runs a new instance and waits until it has bound.
func (b *Binder) start(ctx context.Context, lifetime time.Duration) error {
	state, err := b.addr.State(ctx)
	if err != nil {
		return err
	}
	if state.Present && state.Interface != b.cfg.Interface {
		if err := b.addr.Remove(ctx); err != nil {
			return err
		}
		state.Present = false
	}
	if state.Present { // it goes on serving meanwhile, and a start may take longer than the rest of its lifetime
		if err := b.addr.Extend(ctx, lifetime); err != nil && !errors.Is(err, vip.ErrAbsent) {
			return err
		}
	}
	f, err := b.prepare()
	if err != nil {
		return err
	}
	sub, err := b.addr.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer sub.Close()
	inst, err := b.spawn(f)
	if err != nil {
		return err
	}
	err = b.awaitBound(ctx, sub, inst)
	if err == nil {
		err = b.addr.Extend(ctx, lifetime)
	}
	if err != nil {
		return errors.Join(err, b.abandon(ctx, inst, state.Present))
	}
	inst.child = b.childOf(f)
	b.inst = inst
	return nil
}

// abandon undoes a start. It has a second of its own, for ctx may be what ended the start.
func (b *Binder) abandon(ctx context.Context, inst *instance, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := b.kill(ctx, inst)
	if !keep {
		err = errors.Join(err, b.addr.Remove(ctx))
	}
	return err
}

// spawn starts the program in a session of its own, so that no signal meant for the daemon reaches it, without the daemon's
// environment, so that it does not speak to systemd in the daemon's name, and without a death signal: it outlives the daemon.
func (b *Binder) spawn(f files) (*instance, error) {
	log, err := b.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start keepalived: %w", err)
	}
	defer func() { _ = null.Close() }()
	args := []string{b.program, "--dont-fork", "--vrrp", "-D", "-G", "-l", "-f", f.conf, "-p", f.pid, "-r", f.vrrpPID}
	p, err := os.StartProcess(b.program, args, &os.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Files: []*os.File{null, log, log},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		f.remove()
		return nil, fmt.Errorf("start keepalived: %w", err)
	}
	pid := p.Pid
	_ = p.Release() // it is reaped by number, without a goroutine that would wait for as long as it lives
	b.children = append(b.children, pid)
	s, _ := readStat(pid) // a child of ours stays readable until it is reaped
	return &instance{files: f, parent: process{pid, s.start}}, nil
}

// awaitBound waits for the event of the address. A VIP that was there before is swept first: then its return counts.
func (b *Binder) awaitBound(ctx context.Context, sub *vip.Subscription, inst *instance) error {
	var child time.Time // when its pid file was seen
	leftover := false
	for first := true; ; first = false {
		e, err := nextWithin(ctx, sub, look)
		switch {
		case err == nil && (first || !e.Present):
			leftover = e.Present
		case err == nil && !leftover:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w; it said: %s", ErrNotBound, context.Cause(ctx), b.said())
		case err != nil && !errors.Is(err, errQuiet):
			return err
		case !inst.parent.alive():
			return fmt.Errorf("%w; it said: %s", ErrExited, b.said())
		case leftover && child.IsZero():
			if b.childOf(inst.files).alive() {
				child = time.Now()
			}
		case leftover && time.Since(child) > settle:
			return nil
		}
	}
}

// errQuiet says that no event came in the time given.
var errQuiet = errors.New("no event")

func nextWithin(ctx context.Context, sub *vip.Subscription, d time.Duration) (vip.AddressEvent, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errQuiet)
	defer cancel()
	return sub.Next(ctx)
}

// Unbind ends the instance and returns when the address is gone, 2 ms after SIGTERM; the process itself stays for a second and is
// reaped later. An instance that does not obey (frozen, say) is killed and its address removed. Without an instance the address is
// removed all the same. Again is no error.
func (b *Binder) Unbind(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	start := time.Now()
	if err := b.unbind(ctx); err != nil {
		return fmt.Errorf("unbind %s by keepalived: %w", b.cfg.VIP, err)
	}
	b.last.Unbind = time.Since(start)
	return nil
}

func (b *Binder) unbind(ctx context.Context) error {
	inst, err := b.current(ctx)
	if err != nil {
		return err
	}
	if inst == nil {
		return b.addr.Remove(ctx)
	}
	if err := b.terminate(ctx, inst); err != nil {
		b.log.Warn("keepalived does not give the VIP up: killed, and the address removed", slog.String("addr", b.cfg.VIP.String()),
			slog.Any("err", err))
		return b.force(ctx, inst)
	}
	b.dying, b.inst = append(b.dying, inst), nil
	return b.addr.Remove(ctx) // whatever else had it: another prefix length, another interface
}

// terminate asks the instance to end and waits for the address to go. It is an error, for the caller to use force, when the VIP is
// not there to begin with: the removal on the way out, at a time nobody can see, would hit the VIP of a successor.
func (b *Binder) terminate(ctx context.Context, inst *instance) error {
	if err := inst.cause(); err != nil {
		return err
	}
	sub, err := b.addr.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer sub.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, obey, ErrAlive)
	defer cancel()
	e, err := sub.Next(ctx)
	if err != nil {
		return err
	}
	if !e.Present {
		return vip.ErrAbsent
	}
	if err := os.Remove(inst.conf); err != nil && !errors.Is(err, os.ErrNotExist) { // without it nobody adopts the dying instance
		return fmt.Errorf("remove its configuration: %w", err)
	}
	if err := inst.parent.signal(unix.SIGTERM); err != nil {
		return err
	}
	for e.Present {
		if e, err = sub.Next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// force kills the instance and removes the address.
func (b *Binder) force(ctx context.Context, inst *instance) error {
	if err := b.kill(ctx, inst); err != nil {
		return errors.Join(err, b.addr.Remove(ctx))
	}
	b.inst = nil
	return b.addr.Remove(ctx)
}

// Kill ends every instance of ours for this VIP by SIGKILL, none of which can touch the address then, and removes the address.
// It is for when Unbind failed, and for an operator.
func (b *Binder) Kill(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	found, err := b.running()
	if err != nil {
		return errors.Join(err, b.addr.Remove(ctx))
	}
	errs := make([]error, 0, len(found)+1)
	for _, inst := range found {
		errs = append(errs, b.kill(ctx, inst))
	}
	b.inst, b.dying = nil, nil
	return errors.Join(append(errs, b.addr.Remove(ctx))...)
}
