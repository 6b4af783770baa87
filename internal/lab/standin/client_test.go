package standin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// backendOf makes a stand-in the backend of another: it answers `select 1`, and every fault of it is a fault of a backend.
func backendOf(t *testing.T) *running {
	t.Helper()
	return serve(t, Config{
		DataHosts: []DataHost{{Name: "dh0", WriteHosts: []WriteHost{{Name: "nobody", Addr: "127.0.0.1:1"}}}},
		DataNodes: []DataNode{{Name: "dn0", Host: "dh0", Database: "bank"}},
	})
}

// front is a stand-in before these backends, dn1 at the first and so on, with its other settings from cfg.
func front(t *testing.T, cfg Config, addrs ...string) *running {
	t.Helper()
	table := Table{Name: "ledger"}
	for i, addr := range addrs {
		n := fmt.Sprint(i + 1)
		cfg.DataHosts = append(cfg.DataHosts, DataHost{
			Name: "dh" + n, MaxCon: 5, SwitchType: -1, NotSwitch: true,
			WriteHosts: []WriteHost{{Name: "host" + n, Addr: addr, User: "root", Password: "secret"}},
		})
		cfg.DataNodes = append(cfg.DataNodes, DataNode{Name: "dn" + n, Host: "dh" + n, Database: "bank"})
		table.Nodes = append(table.Nodes, "dn"+n)
	}
	cfg.Tables = []Table{table}
	return serve(t, cfg)
}

// TestDSNMatrix is the matrix of mycat.md 1.2 with the driver that Baton uses. One cell differs: the stand-in has no server-side
// prepared statements on 8066 either.
func TestDSNMatrix(t *testing.T) {
	r := front(t, Config{}, backendOf(t).sql.String())
	const hinted = "/*!mycat:datanode=dn1*/select 1"
	for _, tt := range []struct {
		name, options, schema string
		args                  []any
		admin, sql            string // what a statement says on each port
	}{
		{"plain", "", "bank", nil, "ok", "ok"},
		{"no schema", "", "", nil, "ok", "3000 No MyCAT Database selected"},
		{"charset", "charset=utf8mb4", "bank", nil, "ok", "ok"},
		{"maxAllowedPacket=0", "maxAllowedPacket=0", "bank", nil, "1003 Unsupported statement", "ok"},
		{"server prepare", "", "bank", []any{1}, "1047 Prepare unsupported!", "1047 Prepare unsupported!"},
		{"interpolated", "interpolateParams=true", "bank", []any{1}, "ok", "ok"},
		{"no native passwords", "allowNativePasswords=false", "bank", nil, mysql.ErrNativePassword.Error(), mysql.ErrNativePassword.Error()},
		{"tls preferred", "tls=preferred", "bank", nil, "ok", "ok"},
		{"tls", "tls=true", "bank", nil, mysql.ErrNoTLS.Error(), mysql.ErrNoTLS.Error()},
		{"ignored", "compress=true&multiStatements=true&connectionAttributes=a:b", "bank", nil, "ok", "ok"},
		{"session variable", "lock_wait_timeout=1", "bank", nil, "ok", "ok"},
	} {
		for _, port := range []string{"admin", "sql"} {
			dsn, query, want := r.dsn("root", r.admin, "", tt.options), "show @@version", tt.admin
			if port == "sql" {
				dsn, query, want = r.dsn("root", r.sql, tt.schema, tt.options), hinted, tt.sql
			}
			if len(tt.args) > 0 { // the same statement, or one with as harmless an answer
				query = map[string]string{"sql": "/*!mycat:datanode=dn1*/select ?", "admin": "kill @@connection ?"}[port]
			}
			_, err := open(t, dsn).QueryContext(t.Context(), query, tt.args...)
			if got := said(err); got != want {
				t.Errorf("%s, %s port: %q, want %q", tt.name, port, got, want)
			}
		}
	}
}

func TestLogin(t *testing.T) {
	cfg := Config{
		Users: []User{
			{Name: "root", Password: "secret"}, {Name: "few", Password: "secret", Schemas: []string{"bank"}, Benchmark: 1},
		},
		Schemas: []Schema{{Name: "bank"}, {Name: "vault"}},
	}
	for _, old := range []bool{false, true} {
		cfg.OldHandshake = old
		r := front(t, cfg, "127.0.0.1:1")
		at := "@tcp(" + r.sql.String() + ")/"
		for dsn, want := range map[string]string{
			"root:secret" + at + "bank": "ok",
			"root:wrong" + at + "bank":  "1045 Access denied for user 'root', because password is error ",
			"nobody:secret" + at:        "1045 Access denied for user 'nobody' with host '127.0.0.1'",
			"root:secret" + at + "none": "1049 Unknown database 'none'",
			"few:secret" + at + "vault": "1044 Access denied for user 'few' to database 'vault'",
		} {
			wants(t, open(t, dsn).PingContext(t.Context()), want)
		}
		first := open(t, "few:secret"+at+"bank")
		wants(t, first.PingContext(t.Context()), "ok")
		wants(t, open(t, "few:secret"+at+"bank").PingContext(t.Context()), "1045 Access denied for user 'few', because service be degraded ")
	}
}

// dialRaw connects without a driver.
func dialRaw(t *testing.T, addr string) *framed {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(budget))
	f := newFramed(c)
	return &f
}

// TestAuthSwitch logs in as a MySQL 8 client does: with another plugin first, and with a wrong password before the right one on the
// same connection.
func TestAuthSwitch(t *testing.T) {
	r := front(t, Config{}, "127.0.0.1:1")
	f := dialRaw(t, r.sql.String())
	hello, err := f.readPacket()
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{}
	seed, plugin, err := b.readGreeting(hello)
	if err != nil || plugin != nativePassword {
		t.Fatalf("greeting: plugin %q, %v", plugin, err)
	}
	for _, try := range []struct{ password, want string }{{"wrong", "\xff"}, {"secret", "\x00"}} {
		login := make([]byte, 32)
		login[0], login[1], login[2] = 0, capProtocol41>>8, capPluginAuth>>16
		login = append(append(login, "root\x00\x00"...), "caching_sha2_password\x00"...)
		if err := f.send(login); err != nil {
			t.Fatal(err)
		}
		ask, err := f.readPacket()
		if want := "\xfe" + nativePassword + "\x00" + string(seed) + "\x00"; err != nil || string(ask) != want {
			t.Fatalf("asked %q, %v, want %q", ask, err, want)
		}
		if err := f.send(scramble(try.password, seed)); err != nil {
			t.Fatal(err)
		}
		answer, err := f.readPacket()
		if err != nil || answer[0] != try.want[0] {
			t.Fatalf("password %s: answer %q, %v", try.password, answer, err)
		}
	}
	if f.seq != 9 { // two rounds of four packets behind the greeting; the answer was number 8
		t.Errorf("next sequence number is %d, want 9", f.seq)
	}
}

// TestCommands sends every command of the matrix of mycat.md 1.1 and compares the kind of the answer.
func TestCommands(t *testing.T) {
	r := front(t, Config{}, "127.0.0.1:1")
	for _, tt := range []struct {
		com     byte
		arg     string
		sql     string // first byte of the answer, and a piece of its text
		admin   string
		silence bool
	}{
		{comPing, "", "\x00", "\x00", false},
		{comHeartbeat, "", "\x00", "\x00", false},
		{comInitDB, "bank", "\x00", "\x00", false},
		{comInitDB, "nothere", "\xffUnknown database 'nothere'", "\xffUnknown database 'nothere'", false},
		{comFieldList, "t\x00", "\xfe", "\xfe", false},
		{comSetOption, "\x00\x00", "\xfe", "\xfe", false},
		{comResetConnection, "", "\x00", "\x00", false},
		{comStmtPrepare, "select ?", "\xffPrepare unsupported!", "\xffPrepare unsupported!", false},
		{comStmtClose, "\x01\x00\x00\x00", "", "", true},
		{0x1d, "", "\xffUnknown command", "\xffUnknown command", false},
	} {
		for addr, want := range map[string]string{r.sql.String(): tt.sql, r.admin.String(): tt.admin} {
			f := loginRaw(t, addr)
			if err := f.command(tt.com, tt.arg); err != nil {
				t.Fatal(err)
			}
			if tt.silence { // the next answer is that of a ping
				want = "\x00"
				if err := f.command(comPing, ""); err != nil {
					t.Fatal(err)
				}
			}
			p, err := f.readPacket()
			if err != nil || p[0] != want[0] || !strings.Contains(string(p), want[1:]) {
				t.Errorf("command %#x at %s: %q, %v, want %q", tt.com, addr, p, err, want)
			}
		}
	}
	f := loginRaw(t, r.sql.String())
	if err := f.command(comProcessKill, "\x01\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	if p, err := f.readPacket(); err == nil {
		t.Errorf("COM_PROCESS_KILL must close the own connection, got %q", p)
	}
}

func loginRaw(t *testing.T, addr string) *framed {
	t.Helper()
	f := dialRaw(t, addr)
	b := &backend{framed: *f}
	if err := b.login(WriteHost{User: "root", Password: "secret"}, "bank"); err != nil {
		t.Fatal(err)
	}
	return &b.framed
}

func TestAuthTimeout(t *testing.T) {
	r := front(t, Config{Periods: Periods{Auth: Duration(50 * time.Millisecond)}}, "127.0.0.1:1")
	f := dialRaw(t, r.sql.String())
	if _, err := f.readPacket(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.readPacket(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a client that does not log in is still connected: %v", err)
	}
}

func TestLocalAnswers(t *testing.T) {
	r := front(t, Config{}, "127.0.0.1:1") // no backend: whatever succeeds was answered by Mycat itself
	db := r.client(t)
	for query, want := range map[string]string{
		"select 1": "1", "SELECT  1;": "1", "select 1 from dual": "1", "select database()": "bank", "select version()": version,
		"select user()": "root@127.0.0.1", "select @@version_comment limit 1": "MyCat Server (OpenCloudDB)", "show databases": "bank",
		"show tables": "ledger", "explain select * from ledger where id=3": "dn1 select * from ledger where id=3",
	} {
		got, err := ask(t.Context(), db, query)
		if err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, %v, want %q", query, got, err, want)
		}
	}
	for query, want := range map[string]string{
		"select 1+0": "1184 Invalid DataSource:0", "use nothere": "1049 Unknown database 'nothere'",
		"/*!mycat:datanode=dn9*/select 1": "1064 can't find hint datanode:dn9", "": "1064 Empty SQL",
		"/*!mycat:datanode=dn1*/select 1": "1184 Invalid DataSource:0",
	} {
		_, err := ask(t.Context(), db, query)
		wants(t, err, want)
	}
}

func TestReadOnlyUser(t *testing.T) {
	back := backendOf(t)
	r := front(t, Config{}, back.sql.String())
	db := open(t, r.dsn("reader", r.sql, "bank", ""))
	for query, want := range map[string]string{
		"/*!mycat:datanode=dn1*/select 1":         "ok",
		"/*!mycat:datanode=dn1*/replace into hb":  "1495 User readonly",
		"insert into ledger (id) values (1)":      "1495 User readonly",
		"/*#mycat:datanode=dn1*/drop table hb":    "1495 User readonly",
		"set autocommit=0":                        "ok",
		"delete from ledger where id in (1,2,3)":  "1495 User readonly",
		"/*!mycat:datanode=dn9*/delete from hb":   "1495 User readonly",
		"/*!mycat:datanode=dn1*/update hb set a=": "1495 User readonly",
	} {
		_, err := db.ExecContext(t.Context(), query)
		wants(t, err, want)
	}
}
