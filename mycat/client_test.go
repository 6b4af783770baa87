package mycat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/lab/standin"
)

// budget is what a condition is waited for: far more than it ever takes.
const budget = 30 * time.Second

// short is a deadline that only hung calls reach.
const short = 300 * time.Millisecond

// serve runs a stand-in on loopback until the test ends.
func serve(t *testing.T, cfg standin.Config) (sql, admin netip.AddrPort) {
	t.Helper()
	cfg.Bind, cfg.ServerPort, cfg.ManagerPort = "127.0.0.1", -1, -1
	cfg.Users = []standin.User{{Name: "baton", Password: "secret"}, {Name: "reader", Password: "secret", ReadOnly: true}}
	cfg.Schemas = []standin.Schema{{Name: "bank"}}
	srv, err := standin.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-srv.Ready():
	case <-time.After(budget):
		t.Fatal("the stand-in does not start")
	}
	return srv.Addrs()
}

func dataHost(n, addr string) standin.DataHost {
	return standin.DataHost{Name: "dh" + n, MaxCon: 3, SwitchType: -1, NotSwitch: true, WriteHosts: []standin.WriteHost{
		{Name: "host" + n, Addr: addr, User: "baton", Password: "secret"},
	}}
}

// world is a Mycat in front of dn1, whose backend is another stand-in (which answers `select 1`), and dn2, where nobody listens.
type world struct {
	client           *Client
	control, backend string // the two control sockets
	sql, admin, dead netip.AddrPort
	heartbeat        time.Duration
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{control: filepath.Join(t.TempDir(), "c"), backend: filepath.Join(t.TempDir(), "c"), heartbeat: 300 * time.Millisecond}
	w.dead = netip.MustParseAddrPort("127.0.0.1:1") // a free port that was just closed may be the next one that is given out
	back, _ := serve(t, standin.Config{
		Control: w.backend, DataHosts: []standin.DataHost{dataHost("0", w.dead.String())},
		DataNodes: []standin.DataNode{{Name: "dn0", Host: "dh0", Database: "bank"}},
	})
	w.sql, w.admin = serve(t, standin.Config{
		Control: w.control, Periods: standin.Periods{Heartbeat: standin.Duration(w.heartbeat), HeartbeatTimeout: standin.Duration(3 * w.heartbeat)},
		DataHosts: []standin.DataHost{dataHost("1", back.String()), dataHost("2", w.dead.String())},
		DataNodes: []standin.DataNode{{Name: "dn1", Host: "dh1", Database: "bank"}, {Name: "dn2", Host: "dh2", Database: "bank"}},
		Tables:    []standin.Table{{Name: "ledger", Nodes: []string{"dn1", "dn2"}}},
	})
	w.client = w.dialer(t, Config{})
	return w
}

// dialer is a client of the world's Mycat with other settings where cfg gives them.
func (w world) dialer(t *testing.T, cfg Config) *Client {
	t.Helper()
	if !cfg.SQL.IsValid() {
		cfg.SQL = w.sql
	}
	cfg.Admin = w.admin
	if cfg.User == "" {
		cfg.User, cfg.Password = "baton", "secret"
	}
	if cfg.Schema == "" {
		cfg.Schema = "bank"
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w world) conn(t *testing.T) *Conn {
	t.Helper()
	conn, err := w.client.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w world) manager(t *testing.T) *Admin {
	t.Helper()
	admin, err := w.client.DialAdmin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	return admin
}

func fault(t *testing.T, socket, command string) {
	t.Helper()
	if err := standin.Fault(t.Context(), socket, command); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
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

func TestHinted(t *testing.T) {
	w := newWorld(t)
	conn := w.conn(t)
	rows, err := conn.Hinted(t.Context(), "dn1", "select 1")
	if err != nil || !slices.Equal(rows.Columns, []string{"1"}) || len(rows.Values) != 1 || rows.Values[0][0] != "1" {
		t.Errorf("%+v, %v", rows, err)
	}
	if n, err := conn.ExecHinted(t.Context(), "dn1", "set names utf8"); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if rows, err := conn.Query(t.Context(), "show tables"); err != nil || len(rows.Values) != 1 {
		t.Errorf("%+v, %v", rows, err)
	}
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "dn1*/ select 1 /*", "dn 1", "dn1'"} {
		_, err := conn.Hinted(t.Context(), bad, "select 1")
		_, err2 := conn.ExecHinted(t.Context(), bad, "select 1")
		if !errors.Is(err, ErrDataNode) || !errors.Is(err2, ErrDataNode) {
			t.Errorf("dataNode %q: %v, %v", bad, err, err2)
		}
	}
}

func TestNew(t *testing.T) {
	for _, cfg := range []Config{{User: "u"}, {SQL: netip.MustParseAddrPort("127.0.0.1:1")}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

func TestTables(t *testing.T) {
	w := newWorld(t)
	if _, err := w.conn(t).Hinted(t.Context(), "dn1", "select 1"); err != nil {
		t.Fatal(err)
	}
	a, ctx := w.manager(t), t.Context()
	version, err := a.Version(ctx)
	if err != nil || !strings.Contains(version, "-mycat-1.6") {
		t.Errorf("version %q, %v", version, err)
	}
	nodes, err := a.DataNodes(ctx)
	slices.SortFunc(nodes, func(a, b DataNode) int { return strings.Compare(a.Name, b.Name) })
	if err != nil || len(nodes) != 2 || nodes[0].Name != "dn1" || nodes[0].DataHost != "dh1" || nodes[0].Database != "bank" || nodes[0].Index != 0 ||
		nodes[0].Size != 3 || nodes[0].Execute == 0 || nodes[0].Paused != 0 {
		t.Errorf("data nodes %+v, %v", nodes, err)
	}
	sources, err := a.DataSources(ctx)
	slices.SortFunc(sources, func(a, b DataSource) int { return strings.Compare(a.Name, b.Name) })
	if err != nil || len(sources) != 2 || sources[1].Name != "host2" || sources[1].Access != "W" || sources[1].Port != int(w.dead.Port()) {
		t.Errorf("data sources %+v, %v", sources, err)
	}
	server, err := a.Server(ctx)
	if err != nil || server.Status != "ON" || server.MaxMemory != 512<<20 || server.UsedMemory == 0 {
		t.Errorf("server %+v, %v", server, err)
	}
	pools, err := a.ThreadPools(ctx)
	if i := slices.IndexFunc(pools, func(p ThreadPool) bool { return p.Name == "BusinessExecutor" }); err != nil || i < 0 || pools[i].Size != 4 || pools[i].Active != 1 {
		t.Errorf("thread pools %+v, %v", pools, err)
	}
	params, err := a.SysParams(ctx)
	if err != nil || params["bindip"] != "127.0.0.1" || params["processorexecutor"] != "4" {
		t.Errorf("parameters %v, %v", params, err)
	}
}

func TestHeartbeats(t *testing.T) {
	w := newWorld(t)
	a := w.manager(t)
	beat := func(name string) Heartbeat {
		t.Helper()
		all, err := a.Heartbeats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(h Heartbeat) bool { return h.Name == name })
		if i < 0 {
			t.Fatalf("no %s in %+v", name, all)
		}
		return all[i]
	}
	eventually(t, "dn2's backend is an error to Mycat", func() bool { return beat("host2").RSCode == RSError })
	h := beat("host1")
	if h.RSCode != RSOK || h.Type != "mysql" || h.Timeout != 3*w.heartbeat || h.Stopped || len(h.LastActive) != len("2026-11-30 10:28:30") {
		t.Errorf("%+v", h)
	}
	fault(t, w.backend, "starve on")
	eventually(t, "checking", func() bool { h := beat("host1"); return h.Status == "checking" && h.RSCode == RSOK })
	eventually(t, "timeout", func() bool { return beat("host1").RSCode == RSTimeout })
}

// TestKill closes every client of the SQL port, as the fence does.
func TestKill(t *testing.T) {
	w := newWorld(t)
	conn, a := w.conn(t), w.manager(t)
	all, err := a.Connections(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	var ids []int64
	for _, c := range all {
		if c.ServerPort == int(w.sql.Port()) && c.User == "baton" && c.Schema == "bank" && c.ClientPort > 0 {
			ids = append(ids, c.ID)
		}
	}
	if n, err := a.Kill(t.Context(), ids...); n != 1 || err != nil {
		t.Errorf("killed %d of %v, %v", n, ids, err)
	}
	if n, err := a.Kill(t.Context()); n != 0 || err != nil {
		t.Errorf("killed %d of none, %v", n, err)
	}
	_, err = conn.Query(t.Context(), "select 1")
	if cause, _ := Classify(t.Context(), err); cause != health.Reset {
		t.Errorf("the killed client sees %v: %v", cause, err)
	}
}

// TestLiveCauses provokes each failure at a live stand-in and compares what Classify makes of it.
func TestLiveCauses(t *testing.T) {
	const on1, on2 = "dn1", "dn2"
	for _, tt := range []struct {
		name, fault, backend string // commands for the two control sockets
		cfg                  Config
		node, statement      string
		want                 health.Cause
		number               uint16
	}{
		{name: "well", node: on1, want: health.OK},
		{name: "backend refused", node: on2, want: health.BackendDown, number: 1184},
		{name: "starved", fault: "starve on", node: on1, want: health.Timeout},
		{name: "backend frozen", backend: "starve on", node: on1, want: health.Timeout},
		{name: "accepts only", fault: "accept-only on", node: on1, want: health.NoGreeting},
		{name: "reactor hangs", fault: "reactor-hang on", node: on1, want: health.NoGreeting},
		{name: "pool exhausted", fault: "pool-exhausted dn1 on", node: on1, want: health.PoolExhausted, number: 1184},
		{name: "not initialised", fault: "init-failed dh1 on", node: on1, want: health.BackendDown, number: 1184},
		{name: "no such node", node: "dn9", want: health.Config, number: 1064},
		{name: "bad node", node: "*/", want: health.Config},
		{name: "wrong password", cfg: Config{User: "baton", Password: "x"}, node: on1, want: health.Config, number: 1045},
		{name: "no such user", cfg: Config{User: "nobody"}, node: on1, want: health.Config, number: 1045},
		{name: "no such schema", cfg: Config{Schema: "none"}, node: on1, want: health.Config, number: 1049},
		{name: "read-only user", cfg: Config{User: "reader", Password: "secret"}, node: on1, statement: "replace into hb (id) values (1)", want: health.Config, number: 1495},
		{name: "nobody listens", cfg: Config{SQL: netip.MustParseAddrPort("127.0.0.1:1")}, node: on1, want: health.Refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			for socket, command := range map[string]string{w.control: tt.fault, w.backend: tt.backend} {
				if command != "" {
					fault(t, socket, command)
				}
			}
			statement := tt.statement
			if statement == "" {
				statement = "select 1"
			}
			limit := budget
			if tt.want == health.Timeout || tt.want == health.NoGreeting {
				limit = short
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			conn, err := w.dialer(t, tt.cfg).Dial(ctx)
			if err == nil {
				_, err = conn.Hinted(ctx, tt.node, statement)
				_ = conn.Close()
			}
			if cause, number := Classify(ctx, err); cause != tt.want || number != tt.number {
				t.Errorf("%v %d, want %v %d: %v", cause, number, tt.want, tt.number, err)
			}
		})
	}
}

// TestOwnDeadline: a context without a deadline gets the client's.
func TestOwnDeadline(t *testing.T) {
	w := newWorld(t)
	fault(t, w.control, "starve on")
	conn, err := w.dialer(t, Config{Timeout: time.Second}).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Query(t.Context(), "select 1")
	if cause, _ := Classify(t.Context(), err); cause != health.Timeout {
		t.Errorf("%v: %v", cause, err)
	}
	_ = conn.Close()
	fault(t, w.control, "accept-only on")
	_, err = w.dialer(t, Config{Timeout: short}).DialAdmin(t.Context())
	if cause, _ := Classify(t.Context(), err); cause != health.NoGreeting {
		t.Errorf("%v: %v", cause, err)
	}
}

// TestDialFunc: the caller's own dialer is used, and its error is classified as the kernel's.
func TestDialFunc(t *testing.T) {
	var dialed []netip.AddrPort
	w := newWorld(t)
	c := w.dialer(t, Config{DialFunc: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		dialed = append(dialed, addr)
		var d net.Dialer
		return d.DialContext(ctx, "tcp", w.dead.String())
	}})
	_, err := c.Dial(t.Context())
	if cause, _ := Classify(t.Context(), err); cause != health.Refused || fmt.Sprint(dialed) != fmt.Sprint([]netip.AddrPort{w.sql}) {
		t.Errorf("dialed %v: %v, %v", dialed, cause, err)
	}
}
