package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/mariadb"
)

type boxed struct{ *testing.M }

// Run brings up the box's loopback, which a new network namespace has down.
func (b boxed) Run() int {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bring up loopback: %v: %s\n", err, out)
		return 1
	}
	return b.M.Run()
}

// TestMain boxes the tests: real servers and their ports are nobody else's.
func TestMain(m *testing.M) { box.Main(boxed{m}) }

var seed = sync.OnceValues(func() (mariadb.Seed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return mariadb.Bake(ctx, "/dev/shm/seed")
})

// server is a real MariaDB on loopback, its data in memory.
type server struct {
	t    *testing.T
	dir  string
	addr netip.AddrPort
	cmd  *exec.Cmd
	dead chan struct{}
}

func newServer(t *testing.T) *server {
	t.Helper()
	sd, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "baton-probe-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", "--sparse=always", sd.Dir, filepath.Join(dir, "data")).CombinedOutput(); err != nil {
		t.Fatalf("copy the seed: %v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: dir, addr: l.Addr().(*net.TCPAddr).AddrPort()}
	_ = l.Close()
	s.start()
	return s
}

func (s *server) start() {
	s.t.Helper()
	path := func(name string) string { return filepath.Join(s.dir, name) }
	s.cmd = exec.CommandContext(context.WithoutCancel(s.t.Context()), "mariadbd", "--no-defaults", "--user=root", "--datadir="+path("data"), "--socket="+path("sock"),
		"--pid-file="+path("pid"), fmt.Sprintf("--port=%d", s.addr.Port()), "--bind-address=127.0.0.1", "--skip-name-resolve", "--log-error="+path("log.err"),
		"--innodb-buffer-pool-size=8M", "--innodb-data-file-path=ibdata1:5M:autoextend", "--innodb-temp-data-file-path=ibtmp1:4M:autoextend",
		"--innodb-log-file-size=4M", "--performance-schema=OFF", "--max-connections=20")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.dead = make(chan struct{})
	go func(cmd *exec.Cmd, dead chan struct{}) {
		_ = cmd.Wait()
		close(dead)
	}(s.cmd, s.dead)
	s.t.Cleanup(s.kill)
	s.eventually("the server answers", func() bool { _, err := s.root("SELECT 1"); return err == nil })
}

func (s *server) signal(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig)
	if sig == syscall.SIGSTOP { // the kernel stops one thread after the other, and the last may still answer
		s.eventually("every thread stands", func() bool { return stands(s.cmd.Process.Pid) })
	}
}

// stands says whether every thread of the process is stopped.
func stands(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), ") T ") {
			return false
		}
	}
	return true
}

func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	<-s.dead
}

// root runs statements through the socket with the client of the distribution: past everything that is under test.
func (s *server) root(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "mariadb", "--no-defaults", "--socket="+filepath.Join(s.dir, "sock"), "-uroot", "-N", "-e", sql).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (s *server) must(sql string) string {
	s.t.Helper()
	out, err := s.root(sql)
	if err != nil {
		s.t.Fatalf("%s: %v: %s", sql, err, out)
	}
	return out
}

func (s *server) eventually(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("never: %s", what)
		}
	}
}

// eyes are the three probes and the tripwire of the server.
type eyes struct {
	port, sql, beat *Probe
	wire            *Tripwire
}

func (s *server) eyes(change ...func(*Config)) eyes {
	s.t.Helper()
	c := Config{Node: "w'1", MySQL: Account{"baton_probe", "probe"}, Timeout: time.Second, Stale: time.Minute}
	for _, f := range change {
		f(&c)
	}
	ps, w, err := c.instance(cluster.Site{Name: "a"}, cluster.Instance{Shard: "s1", Addr: s.addr}, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ps[1].Close(); ps[2].Close() })
	return eyes{ps[0], ps[1], ps[2], w}
}

var writing = Mode{Write: func(cluster.ShardName) bool { return true }}

// Lives of looks on a busy machine: of one that is to be answered, and of one that is to be given up, which still has to get that far.
const (
	life  = 10 * time.Second
	brief = 500 * time.Millisecond
)

// lifeOf is the life of a look that is to end with these causes.
func lifeOf(want string) time.Duration {
	for _, silence := range []health.Cause{health.Timeout, health.NoGreeting, health.WriteStall} {
		if strings.Contains(want, silence.String()) {
			return brief
		}
	}
	return life
}

// see looks once with each probe and compares the causes, "ok ok ok".
func (e eyes) see(t *testing.T, m Mode, want string) {
	t.Helper()
	var got []string
	var details []string
	for i, p := range []*Probe{e.port, e.sql, e.beat} {
		ctx, cancel := context.WithTimeout(t.Context(), lifeOf(strings.Fields(want)[i]))
		s := p.Do(ctx, m)
		cancel()
		got = append(got, s[0].Cause.String())
		details = append(details, s[0].Detail)
	}
	if g := strings.Join(got, " "); g != want {
		t.Errorf("port, sql and heartbeat are %q, want %q: %q", g, want, details)
	}
}

func TestMariaDB(t *testing.T) {
	s := newServer(t)

	t.Run("well", func(t *testing.T) {
		e := s.eyes()
		for range freshEvery + 2 {
			e.see(t, writing, "ok ok ok")
		}
		if got := s.must(`SELECT seq FROM baton.heartbeat WHERE observer='w\'1'`); got != fmt.Sprint(freshEvery+2) {
			t.Errorf("the row has seq %q", got)
		}
		e.see(t, Mode{}, "ok ok ok") // as on a standby: the row is young
	})
	t.Run("standby", func(t *testing.T) {
		s.must("DELETE FROM baton.heartbeat")
		e := s.eyes(func(c *Config) { c.Stale = time.Nanosecond })
		e.see(t, Mode{}, "ok ok stale")
		if got := s.must("SELECT count(*) FROM baton.heartbeat"); got != "0" {
			t.Errorf("a standby has %s rows: it was written", got)
		}
		e.see(t, writing, "ok ok ok")
		e.see(t, Mode{}, "ok ok stale")
	})
	t.Run("read-only", func(t *testing.T) {
		e := s.eyes()
		s.must("SET GLOBAL read_only=1")
		e.see(t, writing, "ok ok role")
		s.must("SET GLOBAL read_only=0")
		e.see(t, writing, "ok ok ok")
	})
	t.Run("wrong password", func(t *testing.T) {
		e := s.eyes(func(c *Config) { c.MySQL.Password = "wrong" })
		e.see(t, writing, "ok config config")
	})
	t.Run("business", func(t *testing.T) {
		ask := func(sql, want string) func(*Config) {
			return func(c *Config) {
				c.Business = map[cluster.ShardName][]Statement{"s1": {{SQL: "select 1"}, {SQL: sql, Want: want}}}
			}
		}
		s.eyes(ask("select count(*) = 0 from bank.ledger", "1")).see(t, writing, "ok ok ok")
		s.eyes(ask("select 41+1", "43")).see(t, writing, "ok wrong-answer ok")
		s.eyes(ask("select id from bank.ledger", "7")).see(t, writing, "ok wrong-answer ok")
		s.eyes(ask("select 1 from bank.nowhere", "")).see(t, writing, "ok data ok")
		s.eyes(ask("selct 1", "")).see(t, writing, "ok config ok")
		s.eyes(ask("select sleep(3)", "")).see(t, writing, "ok timeout ok")
	})
	t.Run("our table is missing", func(t *testing.T) {
		s.must("RENAME TABLE baton.heartbeat TO baton.away")
		e := s.eyes(func(c *Config) { c.Business = map[cluster.ShardName][]Statement{"s1": {{SQL: "select 1"}}} })
		e.see(t, writing, "ok ok config")
		s.must("RENAME TABLE baton.away TO baton.heartbeat")
	})
	t.Run("killed sessions are no failure", func(t *testing.T) {
		e := s.eyes()
		e.see(t, writing, "ok ok ok")
		s.must("KILL USER baton_probe")
		e.see(t, writing, "ok ok ok")
	})
	t.Run("full", func(t *testing.T) {
		e := s.eyes()
		e.see(t, writing, "ok ok ok")
		s.must("SET GLOBAL max_connections=10")
		crowd := make([]eyes, 8)
		s.eventually("no room", func() bool {
			for i := range crowd {
				if crowd[i].sql == nil {
					crowd[i] = s.eyes()
				}
				crowd[i].sql.Do(t.Context(), writing)
			}
			return e.sql.Do(t.Context(), Mode{Anew: true})[0].Cause == health.Overload
		})
		if got := e.beat.Do(t.Context(), writing)[0]; got.Cause != health.OK {
			t.Errorf("the write of a session that is inside is %s (%s)", got.Cause, got.Detail)
		}
		for _, c := range crowd {
			c.sql.Close()
		}
		s.must("SET GLOBAL max_connections=20")
		s.eventually("room again", func() bool { return e.sql.Do(t.Context(), writing)[0].Cause == health.OK })
	})
}

// Reads are fine and writes hang: a stall. However long it lasts, the server holds at most one abandoned write and one checking session.
func TestWriteStallNeverPilesUp(t *testing.T) {
	s := newServer(t)
	e := s.eyes()
	e.see(t, writing, "ok ok ok")
	lock := exec.CommandContext(t.Context(), "mariadb", "--no-defaults", "--socket="+filepath.Join(s.dir, "sock"), "-uroot", "-e",
		"SET lock_wait_timeout=1; BEGIN; SELECT * FROM baton.heartbeat FOR UPDATE; SELECT sleep(60)")
	if err := lock.Start(); err != nil {
		t.Fatal(err)
	}
	s.eventually("the row is locked", func() bool {
		return s.must("SELECT count(*) FROM information_schema.processlist WHERE state='User sleep'") == "1"
	})
	for range 5 {
		e.see(t, writing, "ok ok write-stall")
		if n := s.must("SELECT count(*) FROM information_schema.processlist WHERE user='baton_probe' AND info LIKE 'INSERT%'"); n != "0" && n != "1" {
			t.Fatalf("%s abandoned writes wait in the server", n)
		}
	}
	_ = lock.Process.Kill()
	_ = lock.Wait()
	s.must("KILL " + s.must("SELECT id FROM information_schema.processlist WHERE state='User sleep'"))
	s.eventually("writes work again", func() bool { return e.beat.Do(t.Context(), writing)[0].Cause == health.OK })
}

// A frozen server accepts and never greets; a killed one refuses, and trips the wire at once.
func TestFrozenAndKilled(t *testing.T) {
	s := newServer(t)
	e := s.eyes()
	e.see(t, writing, "ok ok ok")
	s.signal(syscall.SIGSTOP)
	e.see(t, writing, "no-greeting timeout write-stall") // the judge asks the other two before it calls that a stall of writes
	e.see(t, writing, "no-greeting no-greeting no-greeting")
	s.signal(syscall.SIGCONT)
	s.eventually("it is back", func() bool { return e.sql.Do(t.Context(), writing)[0].Cause == health.OK })
	e.see(t, writing, "ok ok ok")

	tripped := make(chan error, 1)
	go func() {
		yes, err := e.wire.Wait(t.Context(), 3*time.Second)
		if !yes {
			err = fmt.Errorf("not tripped: %w", err)
		}
		tripped <- err
	}()
	s.eventually("the wire is armed", func() bool {
		return s.must("SELECT count(*) FROM information_schema.processlist WHERE user='baton_probe' AND command='Sleep'") == "3"
	})
	s.kill()
	if err := <-tripped; err == nil || strings.Contains(err.Error(), "not tripped") {
		t.Errorf("the wire says %v", err)
	}
	e.see(t, writing, "refused refused refused")
	s.start()
	e.see(t, writing, "ok ok ok")

	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if yes, err := e.wire.Wait(ctx, time.Second); yes || err == nil {
		t.Errorf("a stopped wire says %v, %v", yes, err)
	}
	if log, err := os.ReadFile(filepath.Join(s.dir, "log.err")); err != nil || strings.Count(string(log), "Aborted connection") > 20 {
		t.Errorf("the server's log speaks %d times of aborted connections (%v)", strings.Count(string(log), "Aborted connection"), err)
	}
}
