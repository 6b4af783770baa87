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
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/internal/nettest"
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
