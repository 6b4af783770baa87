package keepalived

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/internal/nettest"
	"golang.org/x/sys/unix"
)

func TestBindAndUnbind(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	var bind, unbind []time.Duration
	l.host.Do(func() {
		if err := b.Bind(patience(), 0); !errors.Is(err, vip.ErrNoLifetime) {
			t.Errorf("Bind without a lifetime = %v", err)
		}
		if s, err := b.State(patience()); err != nil || s.Running || !errors.Is(s.Cause, ErrNotRunning) {
			t.Errorf("state before: %+v, %v", s, err)
		}
		check(t, b.Unbind(patience()))
		for range 10 { // each Bind meets the dying predecessor
			check(t, b.Bind(patience(), time.Minute))
			l.bound(t)
			first := running(t, b)
			check(t, b.Bind(patience(), time.Hour)) // renews
			if s := running(t, b); s.PID != first.PID || s.Address.Left <= time.Minute {
				t.Errorf("bound again: %+v", s)
			}
			bind = append(bind, b.Last().Bind)
			check(t, b.Unbind(patience()))
			unbind = append(unbind, b.Last().Unbind)
			if s := l.state(t); s.Present {
				t.Errorf("after Unbind: %+v", s)
			}
		}
		check(t, b.Unbind(patience()))
	})
	t.Logf("renewal %v, unbind %v (median of 10)", median(bind), median(unbind))
}

func TestBindTimes(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	var bind, unbind []time.Duration
	l.host.Do(func() {
		for range 20 {
			check(t, b.Bind(patience(), time.Minute))
			bind = append(bind, b.Last().Bind)
			check(t, b.Unbind(patience()))
			unbind = append(unbind, b.Last().Unbind)
		}
		scan := time.Now()
		_, err := b.running()
		check(t, err)
		t.Logf("one look at all processes %v", time.Since(scan))
	})
	t.Logf("bind %v, %v at most; unbind %v, %v at most (20 rounds)", median(bind), slices.Max(bind), median(unbind), slices.Max(unbind))
}

func TestVIPOutlivesTheDyingPredecessor(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	var old, now State
	var changes []vip.AddressEvent
	l.host.Do(func() {
		var p process
		nettest.Until(t, "a Bind meets a dying predecessor", func() bool { // on a slow machine it may be dead too soon
			check(t, b.Bind(patience(), time.Minute))
			old = running(t, b)
			p = b.inst.parent
			check(t, b.Unbind(patience()))
			check(t, b.Bind(patience(), time.Minute))
			return p.alive()
		})
		now = running(t, b)
		sub, err := l.addr.Subscribe(patience())
		check(t, err)
		defer sub.Close()
		nettest.Until(t, "the predecessor ends", func() bool { return !p.alive() })
		for {
			e, err := nextWithin(patience(), sub, 100*time.Millisecond)
			if err != nil {
				break
			}
			changes = append(changes, e)
		}
		l.bound(t)
		running(t, b)
		for _, f := range []string{b.inst.pid, b.inst.vrrpPID, b.inst.conf} {
			if _, err := os.Stat(f); err != nil {
				t.Errorf("the predecessor took a file of its successor along: %v", err)
			}
		}
	})
	if len(changes) != 1 || !changes[0].Present || old.PID == now.PID {
		t.Errorf("the address changed while the predecessor ended: %+v", changes)
	}
}

func TestInstanceIsItsOwnAndOutlivesTheDaemon(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, nil)
	l.host.Do(func() {
		self, err := os.Executable()
		check(t, err)
		cmd := exec.CommandContext(patience(), self)
		cmd.Env = append(os.Environ(), daemonEnv+"="+l.dir, "NOTIFY_SOCKET=/run/daemon.sock")
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		line := make([]byte, 100)
		n, _ := out.Read(line)
		if got := string(line[:n]); got != "bound\n" {
			t.Errorf("the daemon said %q", got)
		}
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		l.bound(t)
		start := time.Now()
		a, err := b.Adopt(patience())
		check(t, err)
		t.Logf("adopted in %v", time.Since(start))
		if !a.Found || !a.Bound || a.PID == 0 || a.VRRPPID == 0 || a.Killed != 0 || filepath.Dir(a.Config) != l.dir {
			t.Errorf("adopted %+v", a)
		}
		if age := time.Since(a.Started); age < -2*time.Second || age > time.Minute {
			t.Errorf("started %v ago", age)
		}
		if sid, err := unix.Getsid(a.PID); err != nil || sid != a.PID {
			t.Errorf("session %d of process %d: %v", sid, a.PID, err)
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(a.PID) + "/environ")
		check(t, err)
		if strings.Contains(string(env), "NOTIFY_SOCKET") {
			t.Errorf("it got the daemon's environment: %q", env)
		}
		if s := running(t, b); s.PID != a.PID || s.VRRPPID != a.VRRPPID || s.Config != a.Config {
			t.Errorf("state %+v, adopted %+v", s, a)
		}
		check(t, b.Bind(patience(), time.Hour))
		if s := running(t, b); s.PID != a.PID {
			t.Errorf("Bind started another: %+v", s)
		}
		check(t, b.Unbind(patience()))
		if s := l.state(t); s.Present {
			t.Errorf("after Unbind: %+v", s)
		}
	})
}

func TestAdoptKillsWhatItDoesNotKeep(t *testing.T) {
	l := newLab(t)
	first := l.binder(t, nil)
	l.host.Do(func() {
		check(t, first.Bind(patience(), time.Minute))
		old := running(t, first)
		other := l.binder(t, func(c *Config) { c.RouterID = 52 }) // the site was configured anew
		a, err := other.Adopt(patience())
		check(t, err)
		if a.Found || a.Killed != 1 || !a.Bound {
			t.Errorf("with another configuration: %+v", a)
		}
		check(t, other.Bind(patience(), time.Minute))
		l.bound(t)
		if s := running(t, other); s.PID == old.PID {
			t.Error("the old one was adopted")
		}
		check(t, other.Unbind(patience())) // and while it lingers another daemon comes
		third := l.binder(t, func(c *Config) { c.RouterID = 52 })
		if a, err := third.Adopt(patience()); err != nil || a.Found || a.Bound || a.Killed > 1 {
			t.Errorf("a dying instance: %+v, %v", a, err)
		}
		if a, err := third.Adopt(patience()); err != nil || a.Found || a.Killed != 0 {
			t.Errorf("nothing: %+v, %v", a, err)
		}
	})
}
