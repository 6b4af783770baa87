package keepalived

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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

// daemonEnv makes the test binary a daemon that binds, says so, and waits to be killed: its state directory.
const daemonEnv = "BATON_TEST_DAEMON"

func TestMain(m *testing.M) {
	if dir := os.Getenv(daemonEnv); dir != "" {
		if err := daemon(dir); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	nettest.Main(m)
}

func daemon(dir string) error {
	b, err := New(config(dir))
	if err != nil {
		return err
	}
	if err := b.Bind(context.Background(), time.Minute); err != nil {
		return err
	}
	fmt.Println("bound")
	select {}
}

var testVIP = netip.MustParseAddr("10.77.0.100")

func config(dir string) Config {
	return Config{VIP: testVIP, Interface: "eth0", RouterID: 51, StateDir: dir, Log: slog.New(slog.DiscardHandler)}
}

type lab struct {
	host, peer *nettest.Host
	dir        string
	addr       *vip.Address
}

func newLab(t *testing.T) *lab {
	t.Helper()
	lan := nettest.NewLan(t)
	l := &lab{host: lan.Host(11), peer: lan.Host(12), dir: filepath.Join(t.TempDir(), "keepalived")}
	var err error
	l.addr, err = vip.NewAddress(vip.AddressConfig{VIP: testVIP, Interface: "eth0"})
	check(t, err)
	t.Cleanup(l.addr.Close)
	return l
}

// binder makes a binder whose instances end with the test.
func (l *lab) binder(t *testing.T, change func(*Config)) *Binder {
	t.Helper()
	cfg := config(l.dir)
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.host.Do(func() { check(t, b.Kill(patience())) })
		nettest.Until(t, "children are reaped", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reap()
			return len(b.children) == 0
		})
		b.Close()
	})
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// patience is a generous deadline, also for clean-up after the test's own context has ended.
func patience() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func (l *lab) state(t *testing.T) vip.AddressState {
	t.Helper()
	s, err := l.addr.State(patience())
	check(t, err)
	return s
}

// bound checks that the VIP is there, once, with a lifetime.
func (l *lab) bound(t *testing.T) {
	t.Helper()
	if s := l.state(t); !s.Present || s.Forever || s.Prefix != 32 || s.Interface != "eth0" || s.Others != nil {
		t.Errorf("bound: %+v", s)
	}
}

func running(t *testing.T, b *Binder) State {
	t.Helper()
	s, err := b.State(patience())
	check(t, err)
	if !s.Running || s.Cause != nil || s.PID == 0 || s.VRRPPID == 0 {
		t.Errorf("state %+v", s)
	}
	return s
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func TestConfigurationHasWhatWasMeasured(t *testing.T) {
	text, err := Render(config("/run/x"))
	check(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	for _, want := range []string{
		"state MASTER", "priority 255", "virtual_router_id 51", "interface eth0", "garp_master_delay 0", "10.77.0.100/32 dev eth0 no_track",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
	for _, never := range []string{"BACKUP", "nopreempt", "garp_master_refresh", "vrrp_startup_delay", "track_script", "unicast_peer"} {
		if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, never) }) {
			t.Errorf("%q in\n%s", never, text)
		}
	}
	path := filepath.Join(t.TempDir(), "k.conf")
	check(t, os.WriteFile(path, text, 0o600))
	l := newLab(t)
	l.host.Do(func() { // the program's own opinion
		out, err := exec.CommandContext(patience(), "keepalived", "--config-test", "-f", path).CombinedOutput()
		if err != nil {
			t.Errorf("keepalived --config-test: %v: %s", err, out)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   error // nil: any
	}{
		{"no program", func(c *Config) { c.Program = "keepalived-nope" }, ErrNotInstalled},
		{"IPv6", func(c *Config) { c.VIP = netip.MustParseAddr("fd00::1") }, vip.ErrIPv4Only},
		{"no router id", func(c *Config) { c.RouterID = 0 }, nil},
		{"relative directory", func(c *Config) { c.StateDir = "run" }, nil},
	} {
		cfg := config("/run/x")
		c.change(&cfg)
		if _, err := New(cfg); err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Version(patience(), "keepalived-nope"); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("Version = %v", err)
	}
	if v, err := Version(patience(), ""); err != nil || !strings.HasPrefix(v, "2.") {
		t.Errorf("Version = %q, %v", v, err)
	}
}

func TestParseStat(t *testing.T) {
	const rest = " 7 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 11 22"
	for _, c := range []struct {
		text string
		want stat
		ok   bool
	}{
		{"12 (keepalived) S" + rest, stat{'S', 7, 987654}, true},
		{"12 (a) b) Z) T" + rest, stat{'T', 7, 987654}, true},
		{"12 (keepalived) S 7", stat{}, false},
		{"", stat{}, false},
		{"12 (keepalived) S x" + rest[2:], stat{state: 'S', start: 987654}, false},
	} {
		got, ok := parseStat(c.text)
		if got != c.want || ok != c.ok {
			t.Errorf("parseStat(%q) = %+v, %v", c.text, got, ok)
		}
	}
}

func TestGenerationsAreReadFromPaths(t *testing.T) {
	b, err := New(config("/run/x"))
	check(t, err)
	for path, want := range map[string]int{
		"/run/x/10.77.0.100-7.conf": 7, "/run/x/10.77.0.100-12.conf": 12,
		"/run/x/10.77.0.10-7.conf": 0, "/run/y/10.77.0.100-7.conf": 0, "/run/x/10.77.0.100-7.conf.bak": 0, "/run/x/10.77.0.100-.conf": 0,
		"/etc/keepalived/keepalived.conf": 0,
	} {
		if gen, ok := b.genOf(path); gen != want || ok != (want > 0) {
			t.Errorf("genOf(%s) = %d, %v", path, gen, ok)
		}
	}
	if got := b.files(7).conf; got != "/run/x/10.77.0.100-7.conf" {
		t.Errorf("conf %s", got)
	}
}

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
		check(t, b.Bind(patience(), time.Minute))
		old = running(t, b)
		check(t, b.Unbind(patience()))
		check(t, b.Bind(patience(), time.Minute))
		now = running(t, b)
		sub, err := l.addr.Subscribe(patience())
		check(t, err)
		defer sub.Close()
		p := process{pid: old.PID}
		if s, ok := readStat(old.PID); ok {
			p.start = s.start
		}
		if !p.alive() {
			t.Error("the predecessor did not linger: this test shows nothing")
		}
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
		if s := running(t, b); s.PID != a.PID || s.VRRPPID != a.VRRPPID || s.Config != a.Config || s.Version == "" {
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
		if a, err := third.Adopt(patience()); err != nil || a.Found || a.Bound || a.Killed != 1 {
			t.Errorf("a dying instance: %+v, %v", a, err)
		}
		if a, err := third.Adopt(patience()); err != nil || a.Found || a.Killed != 0 {
			t.Errorf("nothing: %+v, %v", a, err)
		}
	})
}

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
		check(t, b.Bind(patience(), time.Second))
		s := running(t, b)
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
		check(t, b.Bind(patience(), time.Second))
		l.bound(t)
		if now := running(t, b); now.PID == s.PID {
			t.Errorf("the instance that does not know was kept: %+v", now)
		}
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
				go func() { // its time is up when it runs
					nettest.Until(t, "it runs", func() bool { found, _ := b.running(); return len(found) > 0 })
					cancel()
				}()
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
			if s, err := b.State(patience()); err != nil || !errors.Is(s.Cause, ErrNotRunning) || s.Version != "" {
				t.Errorf("%s: state %+v, %v", c.name, s, err)
			}
		})
	}
}

func TestFailedRepairLeavesTheServingAddress(t *testing.T) {
	l := newLab(t)
	b := l.binder(t, func(cfg *Config) { cfg.Program = script(t, "exit 1") })
	l.host.Do(func() {
		check(t, l.addr.Add(patience(), time.Minute))
		if err := b.Bind(patience(), time.Minute); !errors.Is(err, ErrExited) {
			t.Errorf("Bind = %v", err)
		}
		l.bound(t)
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
