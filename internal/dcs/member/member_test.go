package member

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestLog: what etcd says reaches Baton's log a level lower, with its fields; daily chatter does not.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	etcd := newLogger(log, "a", make(chan error, 1)).With(zap.String("from", "x"))
	etcd.Info("chatter")
	etcd.Warn("slow", zap.Duration("took", time.Second))
	etcd.Error("bad", zap.Error(errors.New("disk")), zap.Int("n", 3))
	for _, want := range []string{
		`level=DEBUG msg="embedded etcd" node=a from=x says=slow took=1s`,
		`level=WARN msg="embedded etcd" node=a from=x says=bad error=disk n=3`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "chatter") {
		t.Errorf("log has chatter:\n%s", out.String())
	}
}

// TestFatal: where etcd would end the process, the goroutine ends and the reason is handed on, also when the log is silent.
func TestFatal(t *testing.T) {
	broken := make(chan error, 1)
	log := newLogger(slog.New(slog.DiscardHandler), "a", broken)
	cause := errors.New("no space left on device")
	for range 2 { // the second finds the channel full and must not block
		ended := make(chan bool, 1)
		go func() {
			alive := false
			defer func() { ended <- alive }()
			log.Fatal("failed to save", zap.Error(cause))
			alive = true
		}()
		if wait(t, ended) {
			t.Error("the goroutine went on")
		}
	}
	if err := wait(t, broken); !errors.Is(err, cause) || !strings.Contains(err.Error(), "failed to save") {
		t.Errorf("got %v", err)
	}
}

func wait[T any](t *testing.T, ch <-chan T) (v T) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case v = <-ch:
	case <-limit.C:
		t.Fatal("waited for 30s")
	}
	return v
}

func config(t *testing.T, name string, others ...string) Config {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "baton-member-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := Config{Name: name, Dir: filepath.Join(dir, name), ClientAddr: freeAddr(t), PeerAddr: freeAddr(t), TickMS: 30, ElectionMS: 300}
	cfg.Cluster = map[string]string{name: cfg.PeerAddr}
	for _, other := range others {
		cfg.Cluster[other] = freeAddr(t)
	}
	return cfg
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a member and returns its end, its readiness, and what stops it.
func start(t *testing.T, m *Member) (done <-chan error, ready <-chan struct{}, stop context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended, up := make(chan error, 1), make(chan struct{})
	go func() { ended <- m.Run(ctx, func() { close(up) }) }()
	return ended, up, cancel
}

// TestNewTouchesNothing: neither directory nor port.
func TestNewTouchesNothing(t *testing.T) {
	cfg := config(t, "a")
	m := New(cfg)
	if _, err := os.Stat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
	if m.LeaderIs() || m.ID() != 0 || !errors.Is(m.MoveLeader(t.Context(), "a"), ErrNotRunning) {
		t.Error("a member that does not run claims to")
	}
}

// TestLifecycle: start, lead, stop, and again on the same data, under the same identity.
func TestLifecycle(t *testing.T) {
	m := New(config(t, "a"))
	var id uint64
	for round := range 2 {
		done, ready, stop := start(t, m)
		wait(t, ready)
		if !m.LeaderIs() {
			t.Error("the only member does not lead")
		}
		if round == 1 && m.ID() != id {
			t.Errorf("identity changed from %x to %x", id, m.ID())
		}
		id = m.ID()
		stop()
		if err := wait(t, done); err != nil {
			t.Error(err)
		}
		if m.LeaderIs() || m.ID() != 0 {
			t.Error("a stopped member claims to run")
		}
	}
}

// TestStopBeforeReady: a member that never finds its peers can be stopped.
func TestStopBeforeReady(t *testing.T) {
	m := New(config(t, "a", "b", "c"))
	done, _, stop := start(t, m)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for m.ID() == 0 {
		<-ticker.C
	}
	stop()
	if err := wait(t, done); err != nil {
		t.Error(err)
	}
}

// TestStopBeforeTurn: so can one that waits for its turn to start.
func TestStopBeforeTurn(t *testing.T) {
	done, _, stop := start(t, New(config(t, "z", "a", "b")))
	stop()
	if err := wait(t, done); err != nil {
		t.Error(err)
	}
}

// TestStartFails: the reason is named, and nothing stays behind that keeps a second start from working.
func TestStartFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, spoil := range map[string]func(*Config){
		"port in use":       func(c *Config) { c.ClientAddr = taken.Addr().String() },
		"no address":        func(c *Config) { c.PeerAddr = "%" },
		"not in cluster":    func(c *Config) { c.Cluster = map[string]string{"b": c.PeerAddr} },
		"election too fast": func(c *Config) { c.ElectionMS = c.TickMS },
		"no directory":      func(c *Config) { c.Dir = "/proc/none" },
		"no certificates":   func(c *Config) { c.ClientTLS = TLS{Cert: "/none", Key: "/none", CA: "/none"} },
	} {
		t.Run(name, func(t *testing.T) {
			good := config(t, "a")
			bad := good
			spoil(&bad)
			done, _, _ := start(t, New(bad))
			if err := wait(t, done); err == nil || errors.Is(err, ErrBroken) {
				t.Errorf("got %v, want the reason of a failed start", err)
			}
			done, ready, stop := start(t, New(good))
			wait(t, ready)
			stop()
			if err := wait(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLostDirectory: a member that forgot what it had promised must not come back as if it were new.
func TestLostDirectory(t *testing.T) {
	names := []string{"a", "b", "c"}
	cfgs := map[string]Config{}
	peers := map[string]string{}
	for _, name := range names {
		cfgs[name] = config(t, name)
		peers[name] = cfgs[name].PeerAddr
	}
	ends, stops := map[string]<-chan error{}, map[string]context.CancelFunc{}
	var ready []<-chan struct{}
	for _, name := range names {
		cfg := cfgs[name]
		cfg.Cluster = peers
		cfgs[name] = cfg
		done, up, stop := start(t, New(cfg))
		ends[name], stops[name] = done, stop
		ready = append(ready, up)
	}
	for _, up := range ready {
		wait(t, up)
	}
	stops["c"]()
	if err := wait(t, ends["c"]); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfgs["c"].Dir); err != nil {
		t.Fatal(err)
	}
	again, _, _ := start(t, New(cfgs["c"]))
	if err := wait(t, again); err == nil || !strings.Contains(err.Error(), "already been bootstrapped") {
		t.Errorf("got %v, want a refusal", err)
	}
	for _, name := range names[:2] {
		stops[name]()
	}
	for _, name := range names[:2] {
		if err := wait(t, ends[name]); err != nil {
			t.Error(err)
		}
	}
}
