package keepalived

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/baton-ha/baton/vip"
)

// Adopted says what a daemon found of its predecessor's.
type Adopted struct {
	Found   bool
	PID     int       // of the parent
	VRRPPID int       // of the VRRP child
	Started time.Time // by the kernel's word, to a second or so
	Config  string    // the path of its configuration
	Bound   bool      // the VIP is on the interface
	Killed  int       // other instances of ours that were ended: dying, half dead, or with another configuration
}

// Adopt looks for the instance of an earlier daemon and takes it over as it runs; the VIP is not touched. An instance is adopted when
// both processes run, its configuration is still there (Unbind removes it first) and says what we would write now. All others of ours
// for this VIP are killed, which leaves the address as it is. Bind and Unbind adopt by themselves when nobody called this.
func (b *Binder) Adopt(ctx context.Context) (Adopted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, err := b.adopt(ctx)
	if err != nil {
		return a, fmt.Errorf("adopt the keepalived of %s: %w", b.cfg.VIP, err)
	}
	return a, nil
}

func (b *Binder) adopt(ctx context.Context) (Adopted, error) {
	found, err := b.running()
	if err != nil {
		return Adopted{}, err
	}
	want, err := Render(b.cfg)
	if err != nil {
		return Adopted{}, err
	}
	b.inst, b.dying = nil, nil
	var a Adopted
	for _, gen := range slices.Backward(slices.Sorted(maps.Keys(found))) { // the newest first
		inst := found[gen]
		text, err := os.ReadFile(inst.conf)
		if b.inst == nil && err == nil && bytes.Equal(text, want) && inst.cause() == nil {
			b.inst = inst
			continue
		}
		if err := b.kill(ctx, inst); err != nil {
			return a, err
		}
		a.Killed++
	}
	b.adopted = true
	state, err := b.addr.State(ctx)
	a.Bound = state.Present
	if inst := b.inst; inst != nil {
		a.Found, a.PID, a.VRRPPID, a.Config, a.Started = true, inst.parent.pid, inst.child.pid, inst.conf, inst.parent.started()
		b.log.Info("adopted the keepalived of an earlier daemon", slog.String("addr", b.cfg.VIP.String()))
	}
	return a, err
}

// current is the instance that is meant to run, with its processes as they are now; nil: none is.
func (b *Binder) current(ctx context.Context) (*instance, error) {
	b.reap()
	if !b.adopted {
		if _, err := b.adopt(ctx); err != nil {
			return nil, err
		}
	}
	if b.inst == nil || b.inst.cause() == nil {
		return b.inst, nil
	}
	found, err := b.running() // the child is young, or was started again by its parent
	if err != nil {
		return nil, err
	}
	if now := found[b.inst.gen]; now != nil {
		b.inst = now
	}
	return b.inst, nil
}

// State is what runs now.
type State struct {
	Running bool
	Cause   error // why it does not run whole: ErrNotRunning, ErrHalf; nil when Running
	PID     int   // of the parent; 0: none
	VRRPPID int
	Started time.Time
	Config  string // path
	Log     string // path of what it says
	Address vip.AddressState
}

// State looks at the processes and the address.
func (b *Binder) State(ctx context.Context) (State, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	inst, err := b.current(ctx)
	if err != nil {
		return State{}, fmt.Errorf("look at the keepalived of %s: %w", b.cfg.VIP, err)
	}
	s := State{Cause: ErrNotRunning, Log: b.logFile()}
	if inst != nil {
		s.Cause, s.Config = inst.cause(), inst.conf
		if inst.parent.alive() {
			s.PID, s.Started = inst.parent.pid, inst.parent.started()
		}
		if inst.child.alive() {
			s.VRRPPID = inst.child.pid
		}
	}
	s.Running = s.Cause == nil
	s.Address, err = b.addr.State(ctx)
	return s, err
}

// versionPatience bounds the question for the version, which takes some 5 ms, and on a starved machine more than a second.
const versionPatience = 4 * time.Second

var versionLine = regexp.MustCompile(`(?m)^Keepalived v([0-9][0-9A-Za-z.\-]*)`)

// Version asks the program for its version, "2.2.7".
func Version(ctx context.Context, program string) (string, error) {
	path, err := find(program)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, versionPatience, errNoVersion)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = versionPatience // should it leave somebody behind who holds the pipe
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("ask %s for its version: %w", path, ErrNotInstalled)
	}
	if m := versionLine.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return "", fmt.Errorf("ask %s for its version: no version in %q: %w", path, bytes.TrimSpace(out), errors.Join(err, errNoVersion))
}

var errNoVersion = errors.New("keepalived: the program does not say its version")
