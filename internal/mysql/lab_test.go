package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/internal/mysql/mysqltest"
)

var (
	admin = Account{"baton_admin", "secret'1"}
	probe = Account{"baton_probe", "secret2"}
	repl  = Account{"repl", "secret3"}
	app   = Account{"app", "app"}
)

var (
	seedOnce sync.Once
	seed     *mysqltest.Seed
	errSeed  error
	shmDir   string
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shmDir != "" {
		os.RemoveAll(shmDir)
	}
	os.Exit(code)
}

// baked bakes the seed once in a test run, on the RAM disk: fsync costs nothing there.
func baked(t testing.TB) *mysqltest.Seed {
	t.Helper()
	seedOnce.Do(func() {
		if shmDir, errSeed = os.MkdirTemp("/dev/shm", "baton-mysql-"); errSeed != nil {
			return
		}
		statements := append(Grants(MariaDB, "%", admin, probe),
			"CREATE USER repl@'%' IDENTIFIED BY 'secret3'", "GRANT REPLICATION SLAVE ON *.* TO repl@'%'",
			"CREATE USER app@'%' IDENTIFIED BY 'app'", "CREATE DATABASE app", "GRANT ALL ON app.* TO app@'%'",
			"CREATE TABLE app.t (id BIGINT PRIMARY KEY, who INT) ENGINE=InnoDB",
			"GRANT SELECT ON app.* TO baton_admin@'%'") // the user's own grant, for the verification
		for i, s := range statements {
			statements[i] = strings.ReplaceAll(s, "\n", " ")
		}
		seed, errSeed = mysqltest.Bake(context.Background(), shmDir, statements...)
	})
	if errSeed != nil {
		t.Fatal(errSeed)
	}
	return seed
}

// node is an instance of a test with the admin's way to it.
type node struct {
	*mysqltest.Instance
	Server
}

func startNode(t testing.TB, id int, extra ...string) *node {
	t.Helper()
	s := baked(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := filepath.Join(shmDir, fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), id))
	i, err := s.Start(ctx, dir, id, extra...)
	if i != nil {
		t.Cleanup(func() {
			if err := i.Kill(); err != nil {
				t.Error(err)
			}
			os.RemoveAll(dir)
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &node{i, Server{Addr: i.Addr, Account: admin, Timeout: 10 * time.Second}}
}

// long is a context that no healthy step outlives, also with the race detector on a busy machine.
func long(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (n *node) connect(t testing.TB) *Conn {
	t.Helper()
	c, err := n.Connect(long(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func current() error { return nil }

// replication is how the others follow this node.
func (n *node) replication() Replication { return Replication{Addr: n.Server.Addr, Account: repl} }

// pair starts a source and a replica, lossless semi-sync armed.
func pair(t testing.TB) (a, b *node) {
	t.Helper()
	a, b = startNode(t, 1), startNode(t, 2)
	ca, cb := a.connect(t), b.connect(t)
	defer ca.Close()
	defer cb.Close()
	if _, err := promote(long(t), ca, current, Epoch{1, "first", "a"}, nil); err != nil {
		t.Fatal(err)
	}
	join(t, cb, ca, a)
	return a, b
}

// join makes c a replica of source and arms the source.
func join(t testing.TB, c, source *Conn, at *node) Rejoined {
	t.Helper()
	st := status(t, source)
	r, err := c.Rejoin(long(t), current, at.replication(), st.BinlogState)
	if err != nil {
		t.Fatal(err)
	}
	if err := source.ArmSemiSync(long(t), current, 1); err != nil {
		t.Fatal(err)
	}
	return r
}

// promote takes the steps of a promotion.
func promote(ctx context.Context, c *Conn, check Check, e Epoch, verify []Verification) (Promoted, error) {
	if err := c.Quiesce(ctx, check); err != nil {
		return Promoted{}, err
	}
	if err := c.Prepare(ctx, check, e, verify); err != nil {
		return Promoted{}, err
	}
	if err := c.Mark(ctx, check, e); err != nil {
		return Promoted{}, err
	}
	return c.Open(ctx, check)
}

func status(t testing.TB, c *Conn) Status {
	t.Helper()
	st, err := c.Status(long(t))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// client is an application's connection.
func (n *node) client(ctx context.Context) (driver.Conn, error) {
	cfg := driverpkg.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd = "tcp", n.Server.Addr.String(), app.User, app.Password
	cfg.Logger = &driverpkg.NopLogger{}
	connector, err := driverpkg.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return connector.Connect(ctx)
}

func exec(ctx context.Context, c driver.Conn, sql string) error {
	_, err := c.(driver.ExecerContext).ExecContext(ctx, sql, nil)
	return err
}

// must runs a statement as admin, for what the test itself arranges.
func must(t testing.TB, c *Conn, sql string) [][]row {
	t.Helper()
	sets, err := c.query(long(t), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return sets
}

// writers are clients that insert rows with rising ids, one after the other, and note which were acknowledged.
type writers struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	acked []int64
	codes map[uint16]int
	fails []int // of each writer
}

// write starts n writers on the node. A writer whose connection breaks connects again, until stop.
func write(t testing.TB, at *node, n int, base int64) *writers {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &writers{cancel: cancel, codes: map[uint16]int{}, fails: make([]int, n)}
	for k := range n {
		w.wait.Go(func() {
			for id := base + int64(k); ctx.Err() == nil; {
				c, err := at.client(ctx)
				if err != nil {
					continue
				}
				for ctx.Err() == nil && (err == nil || serverNumber(err) != 0) {
					err = exec(ctx, c, fmt.Sprintf("INSERT INTO app.t VALUES (%d, %d)", id, at.Server.Addr.Port()))
					w.note(k, id, err)
					id += int64(n) // a statement of unknown outcome is never sent again
					if err != nil {
						pause(ctx, time.Millisecond) // a refused client does not spin
					}
				}
				c.Close()
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (w *writers) note(writer int, id int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.acked = append(w.acked, id)
		return
	}
	w.codes[serverNumber(err)]++
	w.fails[writer]++
}

// fenced waits until every writer was refused after this call: what was acknowledged before has then been counted, too. The server lets go
// of its lock before a writer has read the answer.
func (w *writers) fenced(t testing.TB) {
	t.Helper()
	fails := func() []int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(w.fails)
	}
	before := fails()
	eventually(t, "every writer is refused", func() bool {
		for k, n := range fails() {
			if n == before[k] {
				return false
			}
		}
		return true
	})
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

func (w *writers) stop() {
	w.cancel()
	w.wait.Wait()
}

// eventually polls until ok, with a deadline that only a broken test meets.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	err := until(long(t), func() (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("never: %s: %v", what, err)
	}
}

// lost lists acknowledged rows that the instance has not.
func (w *writers) lost(t testing.TB, c *Conn) []int64 {
	t.Helper()
	have := map[string]bool{}
	for _, r := range must(t, c, "SELECT id FROM app.t")[0] {
		have[r["id"]] = true
	}
	var out []int64
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.acked {
		if !have[fmt.Sprint(id)] {
			out = append(out, id)
		}
	}
	return out
}

var errStale = errors.New("a newer term is in force")
