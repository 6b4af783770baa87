package keepalived

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/internal/nettest"
	"golang.org/x/sys/unix"
)

// kill9 kills processes as an accident would: both at once.
func kill9(t *testing.T, s State, pids ...int) {
	t.Helper()
	check(t, unix.Kill(s.PID, unix.SIGSTOP)) // or it would react to the child's death
	for _, pid := range pids {
		check(t, unix.Kill(pid, unix.SIGKILL))
	}
	nettest.Until(t, "they are dead", func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { st, ok := readStat(pid); return ok && st.state != 'Z' })
	})
}

func TestRepairAfterBothProcessesDied(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	var gaps, took []time.Duration
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Minute))
		for range 10 {
			s := running(t, b)
			kill9(t, s, s.VRRPPID, s.PID)
			if s, err := b.State(patience()); err != nil || s.Running || !errors.Is(s.Cause, ErrNotRunning) || !s.Address.Present {
				t.Errorf("after kill -9 of both: %+v, %v", s, err)
			}
			stop := l.watchGap(t)
			check(t, b.Bind(patience(), time.Minute))
			took = append(took, b.Last().Bind)
			l.bound(t)
			gaps = append(gaps, stop())
		}
	})
	t.Logf("repaired in %v; the address was away for %v, %v at most (10 rounds)", median(took), median(gaps), slices.Max(gaps))
}

// watchGap watches the address; the returned function waits for its return and says how long it was away.
func (l *lab) watchGap(t *testing.T) func() time.Duration {
	t.Helper()
	events := make(chan vip.AddressEvent, 100)
	ctx, cancel := context.WithCancel(patience())
	done := l.host.Go(func() {
		if err := l.addr.Watch(ctx, func(e vip.AddressEvent) { events <- e }); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch = %v", err)
		}
	})
	next := func(present bool) time.Time {
		t.Helper()
		select {
		case e := <-events:
			if e.Present != present {
				t.Errorf("not swept and bound again, as this version of keepalived does: %+v", e)
			}
			return e.At
		case <-time.After(20 * time.Second):
			t.Error("the address did not change")
			return time.Time{}
		}
	}
	next(true)
	return func() time.Duration {
		gone := next(false)
		back := next(true)
		cancel()
		<-done
		return back.Sub(gone)
	}
}

func TestFrozenInstanceIsForced(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	p, err := vip.NewProber(vip.ProberConfig{VIP: testVIP, Interface: "eth0"})
	check(t, err)
	defer p.Close()
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Hour))
		s := running(t, b)
		check(t, unix.Kill(s.PID, unix.SIGSTOP))
		check(t, unix.Kill(s.VRRPPID, unix.SIGSTOP))
	})
	l.peer.Do(func() {
		mac, err := p.Resolve(patience(), 10*time.Second)
		check(t, err)
		if mac.String() != l.host.MAC.String() {
			t.Errorf("a frozen holder resolves to %s", mac)
		}
	})
	l.host.Do(func() {
		check(t, b.Unbind(patience()))
		t.Logf("unbound a frozen instance in %v", b.Last().Unbind)
		if s := l.state(t); s.Present {
			t.Errorf("after Unbind: %+v", s)
		}
		if found, err := b.running(); err != nil || len(found) != 0 {
			t.Errorf("still running: %v, %v", found, err)
		}
		check(t, b.Bind(patience(), time.Hour))
	})
	l.peer.Do(func() {
		_, err := p.Resolve(patience(), 10*time.Second)
		check(t, err)
	})
}

func TestChildIsStartedAgainByItsParent(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Minute))
		s := running(t, b)
		check(t, unix.Kill(s.VRRPPID, unix.SIGKILL))
		nettest.Until(t, "another child", func() bool {
			now, err := b.State(patience())
			check(t, err)
			return now.Running && now.VRRPPID != s.VRRPPID && now.Address.Forever // swept and bound again, without an end
		})
		check(t, b.Bind(patience(), time.Minute)) // what a renewal does
		l.bound(t)
		if now := running(t, b); now.PID != s.PID {
			t.Errorf("restarted needlessly: %+v", now)
		}
		check(t, b.Unbind(patience()))
	})
}

func TestHalfAnInstanceIsReplaced(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Minute))
		s := running(t, b)
		kill9(t, s, s.VRRPPID) // and the parent is stopped
		if now, err := b.State(patience()); err != nil || !errors.Is(now.Cause, ErrHalf) || now.PID != s.PID || now.VRRPPID != 0 {
			t.Errorf("half: %+v, %v", now, err)
		}
		check(t, b.Bind(patience(), time.Minute))
		l.bound(t)
		if now := running(t, b); now.PID == s.PID {
			t.Errorf("not replaced: %+v", now)
		}
	})
}

func TestExpiredVIPStaysAwayUntilBoundAgain(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Minute))
		s := running(t, b)
		check(t, l.addr.Extend(patience(), time.Second))
		nettest.Until(t, "the kernel removes it", func() bool { return !l.state(t).Present })
		sub, err := l.addr.Subscribe(patience())
		check(t, err)
		_, err = sub.Next(patience())
		check(t, err)
		if e, err := nextWithin(patience(), sub, 200*time.Millisecond); !errors.Is(err, errQuiet) {
			t.Errorf("keepalived brought it back: %+v, %v", e, err)
		}
		sub.Close()
		running(t, b)
		check(t, b.Bind(patience(), time.Minute))
		l.bound(t)
		if now := running(t, b); now.PID == s.PID {
			t.Errorf("the instance that does not know was kept: %+v", now)
		}
		check(t, l.addr.Extend(patience(), time.Second))
		nettest.Until(t, "the kernel removes it", func() bool { return !l.state(t).Present })
		check(t, b.Unbind(patience())) // by SIGTERM it would sweep the VIP of the next Bind, later
		check(t, b.Bind(patience(), time.Minute))
		l.bound(t)
	})
}

func TestForeignKeepalivedIsNotTouched(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	dir := t.TempDir()
	conf := filepath.Join(dir, "keepalived.conf")
	text, err := Render(Config{VIP: netip.MustParseAddr("10.77.0.200"), Interface: "eth0", RouterID: 99})
	check(t, err)
	check(t, os.WriteFile(conf, text, 0o600))
	l.host.Do(func() {
		foreign, err := vip.NewAddress(vip.AddressConfig{VIP: netip.MustParseAddr("10.77.0.200"), Interface: "eth0"})
		check(t, err)
		defer foreign.Close()
		cmd := exec.CommandContext(patience(), "keepalived", "--dont-fork", "--vrrp", "-G", "-f", conf, "-p", filepath.Join(dir, "p"), "-r", filepath.Join(dir, "r"))
		cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
		check(t, cmd.Start())
		there := func() bool {
			s, err := foreign.State(patience())
			check(t, err)
			return s.Present
		}
		nettest.Until(t, "the foreign VIP", there)
		sub, err := foreign.Subscribe(patience())
		check(t, err)
		defer sub.Close()
		for range 2 {
			check(t, b.Bind(patience(), time.Minute))
			check(t, b.Unbind(patience()))
			check(t, b.Bind(patience(), time.Minute))
			check(t, b.Kill(patience()))
			_, err := b.Adopt(patience())
			check(t, err)
		}
		first, err := sub.Next(patience())
		check(t, err)
		if e, err := nextWithin(patience(), sub, 50*time.Millisecond); !errors.Is(err, errQuiet) || !first.Present {
			t.Errorf("the foreign VIP moved: %+v, %+v, %v", first, e, err)
		}
		if s, ok := readStat(cmd.Process.Pid); !ok || s.state == 'Z' {
			t.Error("the foreign keepalived is dead")
		}
		check(t, cmd.Process.Signal(unix.SIGTERM))
		_ = cmd.Wait()
	})
	if _, err := os.Stat("/etc/keepalived/" + testVIP.String()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("/etc/keepalived: %v", err)
	}
}

// An operator reads our configuration, or somebody else names it: neither is a binder, to be adopted or killed.
func TestReaderOfTheConfigurationIsNotTouched(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		check(t, b.Bind(patience(), time.Minute))
		a, err := b.Adopt(patience())
		check(t, err)
		reader := exec.CommandContext(patience(), "tail", "-f", a.Config)
		stranger := exec.CommandContext(patience(), "sh", "-c", "read nothing", "--vrrp", "-f", a.Config)
		held, err := stranger.StdinPipe() // it reads until it is killed
		check(t, err)
		defer func() { _ = held.Close() }()
		stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		for _, cmd := range []*exec.Cmd{reader, stranger} {
			check(t, cmd.Start())
			defer func() {
				check(t, cmd.Process.Kill())
				_ = cmd.Wait()
			}()
			if gen, ours := b.belongs(cmd.Process.Pid); ours {
				t.Errorf("%v is taken for our keepalived of generation %d", cmd.Args, gen)
			}
		}
		found, err := b.running()
		check(t, err)
		if len(found) != 1 {
			t.Errorf("found %d instances, want the one", len(found))
		}
		check(t, b.Unbind(patience()))
		for _, cmd := range []*exec.Cmd{reader, stranger} {
			if s, ok := readStat(cmd.Process.Pid); !ok || s.state == 'Z' {
				t.Errorf("%v was killed", cmd.Args)
			}
		}
	})
}

// Two hosts whose processes are seen in one list (containers, a laboratory) and whose paths are the same: each has its own instance.
func TestInstanceOfAnotherHostIsNotTouched(t *testing.T) {
	l := newLab(t)
	here := l.binder(t, nil)
	there, err := New(config(l.dir))
	check(t, err)
	defer there.Close()
	l.peer.Do(func() {
		check(t, there.Bind(patience(), time.Minute))
		running(t, there)
	})
	l.host.Do(func() {
		a, err := here.Adopt(patience())
		check(t, err)
		if a.Found || a.Killed != 0 {
			t.Errorf("takes another host's instance for its own: %+v", a)
		}
		check(t, here.Kill(patience()))
	})
	l.peer.Do(func() {
		running(t, there)
		check(t, there.Kill(patience()))
	})
}

// script stands in for a keepalived that misbehaves.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keepalived")
	check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

func TestBindThatFailsLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       error
	}{
		{"it ends", "echo cannot parse; exit 1", ErrExited},
		{"it never binds", "while :; do sleep 1; done", ErrNotBound},
	} {
		l := newLab(t)
		b := l.binder(t, func(cfg *Config) { cfg.Program = script(t, c.body) })
		l.host.Do(func() {
			ctx, cancel := context.WithCancel(patience())
			defer cancel()
			if errors.Is(c.want, ErrNotBound) {
				l.host.Go(func() { // its time is up when it runs
					nettest.Until(t, "it runs", func() bool { found, _ := b.running(); return len(found) > 0 })
					cancel()
				})
			}
			err := b.Bind(ctx, time.Minute)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
			if errors.Is(c.want, ErrExited) && !strings.Contains(err.Error(), "cannot parse") {
				t.Errorf("%s: its last words are missing: %v", c.name, err)
			}
			if found, err := b.running(); err != nil || len(found) != 0 {
				t.Errorf("%s: still running %v, %v", c.name, found, err)
			}
			if s := l.state(t); s.Present {
				t.Errorf("%s: %+v", c.name, s)
			}
			if s, err := b.State(patience()); err != nil || !errors.Is(s.Cause, ErrNotRunning) {
				t.Errorf("%s: state %+v, %v", c.name, s, err)
			}
		})
	}
}

func TestFailedRepairLeavesTheServingAddress(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, func(cfg *Config) { cfg.Program = script(t, "exit 1") })
	l.host.Do(func() {
		check(t, l.addr.Add(patience(), 10*time.Second))
		if err := b.Bind(patience(), time.Minute); !errors.Is(err, ErrExited) {
			t.Errorf("Bind = %v", err)
		}
		l.bound(t)
		if s := l.state(t); s.Left < 30*time.Second {
			t.Errorf("the address that serves was left to its end while a new instance was tried: %s left", s.Left)
		}
		check(t, b.Unbind(patience()))
		if s := l.state(t); s.Present {
			t.Errorf("Unbind without an instance left %+v", s)
		}
	})
}

func TestBindTakesOverWhatIsThere(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		check(t, l.addr.Add(patience(), time.Minute)) // as by the binder netlink, before the configuration changed
		check(t, b.Bind(patience(), time.Minute))
		l.bound(t)
		running(t, b)
	})
}
