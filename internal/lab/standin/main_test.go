package standin

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/mariadb"
)

// budget is what a condition is waited for: far more than it ever takes.
const budget = 30 * time.Second

type boxed struct{ *testing.M }

// Run brings up the box's loopback, which a new network namespace has down.
func (b boxed) Run() int {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bring up loopback: %v: %s\n", err, out)
		return 1
	}
	return b.M.Run()
}

func TestMain(m *testing.M) { box.Main(boxed{m}) }

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := time.After(budget)
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("never: %s", what)
		}
	}
}

// server is one real MariaDB on loopback.
type server struct {
	port int
	dir  string
	cmd  *exec.Cmd
}

// seed is baked once for all tests of the package.
var seed = sync.OnceValues(func() (mariadb.Seed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return mariadb.Bake(ctx, "/dev/shm/seed")
})

// startServer copies the seed and starts a server that is writable.
func startServer(t testing.TB, port int) *server {
	t.Helper()
	from, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{port: port, dir: filepath.Join("/dev/shm", fmt.Sprintf("%s-%d", filepath.Base(t.Name()), port))}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", "--sparse=always", from.Dir, s.dir+"/data").CombinedOutput(); err != nil {
		t.Fatalf("copy the seed: %v: %s", err, out)
	}
	s.start(t)
	t.Cleanup(func() {
		s.signal(t, unix.SIGKILL)
		_ = s.cmd.Wait()
		_ = os.RemoveAll(s.dir)
	})
	return s
}

func (s *server) start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command("mariadbd", "--no-defaults", "--user=root", "--datadir="+s.dir+"/data", "--socket="+s.dir+"/sock",
		"--pid-file="+s.dir+"/pid", fmt.Sprintf("--port=%d", s.port), fmt.Sprintf("--server-id=%d", s.port), "--bind-address=127.0.0.1",
		"--skip-name-resolve", "--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M", "--innodb-data-file-path=ibdata1:5M:autoextend",
		"--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF", "--max-allowed-packet=64M")
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	db := open(t, fmt.Sprintf("mycat:mycat@tcp(127.0.0.1:%d)/bank", s.port))
	eventually(t, "MariaDB answers", func() bool { return db.PingContext(t.Context()) == nil })
	_ = db.Close()
}

func (s *server) signal(t testing.TB, sig unix.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if sig == unix.SIGSTOP { // the kernel stops one thread after the other, and the last may still answer
		eventually(t, "every thread stands", func() bool { return stands(s.cmd.Process.Pid) })
	}
}

// stands says whether every thread of the process is stopped.
func stands(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(b, []byte(") T ")) {
			return false
		}
	}
	return true
}

// kill is kill -9, and waits for the end.
func (s *server) kill(t *testing.T) {
	t.Helper()
	s.signal(t, unix.SIGKILL)
	_ = s.cmd.Wait()
}

// running is a stand-in under test.
type running struct {
	*Server
	sql, admin netip.AddrPort
}

// serve runs a stand-in on free ports until the test ends, and fails the test when something of it is left behind.
func serve(t testing.TB, cfg Config) *running {
	t.Helper()
	cfg.Bind, cfg.ServerPort, cfg.ManagerPort = "127.0.0.1", -1, -1
	if cfg.Users == nil {
		cfg.Users = []User{{Name: "root", Password: "secret"}, {Name: "reader", Password: "secret", ReadOnly: true}}
	}
	if cfg.Schemas == nil {
		cfg.Schemas = []Schema{{Name: "bank"}}
	}
	srv, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	select {
	case <-srv.Ready():
	case err := <-done:
		t.Fatalf("stand-in ended: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(budget):
			t.Error("Run does not end with its context")
		}
	})
	r := &running{Server: srv}
	r.sql, r.admin = srv.Addrs()
	return r
}

// dsn is a client's data source name for one of the ports.
func (r *running) dsn(user string, port netip.AddrPort, schema, options string) string {
	return fmt.Sprintf("%s:secret@tcp(%s)/%s?%s", user, port, schema, options)
}

// open makes a handle with one connection at most; nothing is dialed yet.
func open(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// client is a handle on the SQL port as an application would have it.
func (r *running) client(t testing.TB) *sql.DB {
	t.Helper()
	return open(t, r.dsn("root", r.sql, "bank", "interpolateParams=true"))
}

// manager is a handle on the management port.
func (r *running) manager(t *testing.T) *sql.DB {
	t.Helper()
	return open(t, r.dsn("root", r.admin, "", "interpolateParams=true"))
}

// ask runs a query and returns its rows, cells joined by a space; NULL is "NULL".
func ask(ctx context.Context, db *sql.DB, query string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var out []string
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		words := make([]string, len(cells))
		for i, c := range cells {
			words[i] = "NULL"
			if c.Valid {
				words[i] = c.String
			}
		}
		out = append(out, strings.Join(words, " "))
	}
	return out, rows.Err()
}

// said is what an error of the driver says: "1184 text" for a server's answer, its text otherwise, "ok" for none.
func said(err error) string {
	var me *mysql.MySQLError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &me):
		return fmt.Sprintf("%d %s", me.Number, me.Message)
	}
	return err.Error()
}

// wants fails the test unless the error says that.
func wants(t *testing.T, err error, want string) {
	t.Helper()
	if got := said(err); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// within is a context that ends with the test, or after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
