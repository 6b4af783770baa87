package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestManagementColumns compares the columns and their types with those of mycat.md 2.
func TestManagementColumns(t *testing.T) {
	r := front(t, Config{Periods: Periods{Heartbeat: Duration(10 * time.Millisecond)}}, backendOf(t).sql.String())
	_, err := ask(t.Context(), r.client(t), onDN1) // a connection to show
	wants(t, err, "ok")
	db := r.manager(t)
	eventually(t, "a beat to show", func() bool {
		rows, err := ask(t.Context(), db, "show @@heartbeat.detail where name=host1")
		return err == nil && len(rows) > 0
	})
	for command, want := range map[string]string{
		"show @@version": "VERSION:CHAR",
		"show @@heartbeat": "NAME:VARCHAR TYPE:VARCHAR HOST:VARCHAR PORT:INT RS_CODE:INT RETRY:INT STATUS:VARCHAR TIMEOUT:BIGINT " +
			"EXECUTE_TIME:VARCHAR LAST_ACTIVE_TIME:VARCHAR STOP:VARCHAR",
		"show @@heartbeat.detail where name=host1": "NAME:VARCHAR TYPE:VARCHAR HOST:VARCHAR PORT:INT TIME:DATETIME EXECUTE_TIME:VARCHAR",
		"show @@datasource where dataNode = dn1": "DATANODE:VARCHAR NAME:VARCHAR TYPE:VARCHAR HOST:VARCHAR PORT:INT W/R:VARCHAR ACTIVE:INT " +
			"IDLE:INT SIZE:INT EXECUTE:BIGINT READ_LOAD:INT WRITE_LOAD:INT",
		"show @@datanode where schema = bank": "NAME:VARCHAR DATHOST:VARCHAR INDEX:INT TYPE:VARCHAR ACTIVE:INT IDLE:INT SIZE:INT " +
			"EXECUTE:BIGINT TOTAL_TIME:DOUBLE MAX_TIME:DOUBLE MAX_SQL:BIGINT RECOVERY_TIME:BIGINT",
		"show @@server": "UPTIME:VARCHAR USED_MEMORY:BIGINT TOTAL_MEMORY:BIGINT MAX_MEMORY:BIGINT RELOAD_TIME:BIGINT ROLLBACK_TIME:BIGINT " +
			"CHARSET:VARCHAR STATUS:VARCHAR",
		"show @@threadpool": "NAME:VARCHAR POOL_SIZE:INT ACTIVE_COUNT:INT TASK_QUEUE_SIZE:INT COMPLETED_TASK:BIGINT TOTAL_TASK:BIGINT",
		"show @@processor": "NAME:VARCHAR NET_IN:BIGINT NET_OUT:BIGINT REACT_COUNT:BIGINT R_QUEUE:INT W_QUEUE:INT FREE_BUFFER:BIGINT " +
			"TOTAL_BUFFER:BIGINT BU_PERCENT:TINYINT BU_WARNS:INT FC_COUNT:INT BC_COUNT:INT",
		"show @@connection": "PROCESSOR:VARCHAR ID:INT HOST:VARCHAR PORT:INT LOCAL_PORT:INT USER:VARCHAR SCHEMA:VARCHAR CHARSET:VARCHAR " +
			"NET_IN:BIGINT NET_OUT:BIGINT ALIVE_TIME(S):BIGINT RECV_BUFFER:INT SEND_QUEUE:INT txlevel:VARCHAR autocommit:VARCHAR",
		"show @@time.current": "TIMESTAMP:BIGINT",
		"show @@sysparam":     "PARAM_NAME:VARCHAR PARAM_VALUE:VARCHAR PARAM_DESCR:VARCHAR",
	} {
		rows, err := db.QueryContext(t.Context(), command)
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		types, err := rows.ColumnTypes()
		var got []string
		for _, c := range types {
			got = append(got, c.Name()+":"+c.DatabaseTypeName())
		}
		if line := strings.Join(got, " "); err != nil || line != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", command, line, err, want)
		}
		if !rows.Next() {
			t.Errorf("%s: no row", command)
		}
		_ = rows.Close()
	}
	for _, c := range r.commands {
		if strings.HasPrefix(c.words, "show") && !strings.HasSuffix(c.words, "synstatus") {
			if _, err := ask(t.Context(), db, c.words); err != nil {
				t.Errorf("%s: %v", c.words, err)
			}
		}
	}
}

func TestManagementWords(t *testing.T) {
	r := front(t, Config{}, backendOf(t).sql.String())
	db := r.manager(t)
	for command, want := range map[string]string{
		"SHOW @@Version;": "ok", "  /* hi */ show   @@heartbeat": "ok", "\nshow @@version": "1003 Unsupported statement",
		"\tshow @@version": "1003 Unsupported statement", "select 1": "1003 Unsupported statement", "show @@versions": "1003 Unsupported statement",
		"show @@heartbeat.nothing": "1003 Unsupported statement", "show @@syslog": "1003 Unsupported statement", "set autocommit=1": "ok",
		"reload @@user":               "1003 Unsupported statement",
		"show @@datasource.synstatus": "3009 Could not initialize class io.mycat.manager.response.ShowDatasourceSyn",
		"rollback @@config":           "1003 Rollback config failure", "reload @@config": "ok", "reload @@config_all": "ok",
		"switch @@datasource dh1:x": `3009 For input string: "x"`,
	} {
		_, err := db.ExecContext(t.Context(), command)
		wants(t, err, want)
	}
	same(t, db, "show @@heartbeat.detail where name=nosuch", "NULL NULL NULL NULL NULL NULL")
	same(t, db, "select @@version_comment", "MyCat Server (monitor)")
	for command, want := range map[string]int64{
		"stop @@heartbeat dh1:60": 1, "stop @@heartbeat host1:5": 0, "stop @@heartbeat dh1": 0, "switch @@datasource dh1:1": 0,
		"switch @@datasource dh9:1": 0, "kill @@connection 999,x": 0,
	} {
		if got := do(t, db, command, "ok"); got != want {
			t.Errorf("%s: %d rows, want %d", command, got, want)
		}
	}
	rows, err := ask(t.Context(), db, "show @@datanode")
	if err != nil || len(rows) != 1 || !strings.HasPrefix(rows[0], "dn1 dh1/bank 0 mysql ") || strings.HasSuffix(rows[0], " -1") {
		t.Errorf("paused: %q, %v", rows, err)
	}
}

func TestKillConnection(t *testing.T) {
	r := front(t, Config{}, backendOf(t).sql.String())
	victim, admin := r.client(t), r.manager(t)
	if _, err := ask(t.Context(), victim, "select 1"); err != nil {
		t.Fatal(err)
	}
	rows, err := ask(t.Context(), admin, "show @@connection")
	if err != nil || len(rows) != 2 {
		t.Fatalf("%q, %v: two clients are connected", rows, err)
	}
	port := " " + strconv.Itoa(int(r.sql.Port())) + " "
	i := slices.IndexFunc(rows, func(row string) bool { return strings.Contains(row, port) })
	if i < 0 {
		t.Fatalf("no client of %s in %q", port, rows)
	}
	if n := do(t, admin, "kill @@connection "+strings.Fields(rows[i])[1], "ok"); n != 1 {
		t.Errorf("%d killed", n)
	}
	eventually(t, "it is away", func() bool {
		rows, err := ask(t.Context(), admin, "show @@connection")
		return err == nil && len(rows) == 1
	})
}

func TestOffline(t *testing.T) {
	r := front(t, Config{}, backendOf(t).sql.String())
	db, admin := r.client(t), r.manager(t)
	do(t, admin, "offline", "ok")
	wants(t, db.PingContext(t.Context()), "1053 The server has been shutdown")
	_, err := ask(t.Context(), db, "select user()")
	wants(t, err, "1053 The server has been shutdown")
	same(t, db, onDN1, "1") // it is no fence
	wants(t, admin.PingContext(t.Context()), "ok")
	do(t, admin, "online", "ok")
	wants(t, db.PingContext(t.Context()), "ok")
}

// active is the index of the only dataNode's writeHost.
func active(t *testing.T, r *running) string {
	t.Helper()
	rows, err := ask(t.Context(), r.manager(t), "show @@datanode")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%q, %v", rows, err)
	}
	return strings.Fields(rows[0])[2]
}

// twoWriters is the configuration that Baton's users must not have.
func twoWriters(first, second *running) Config {
	return Config{
		DataHosts: []DataHost{{Name: "dh1", SwitchType: 1, WriteHosts: []WriteHost{
			{Name: "host1", Addr: first.sql.String(), User: "root", Password: "secret"},
			{Name: "host2", Addr: second.sql.String(), User: "root", Password: "secret"},
		}}},
		DataNodes: []DataNode{{Name: "dn1", Host: "dh1", Database: "bank"}},
	}
}

// TestOwnSwitch: with two writeHosts and switchType 1 it switches by itself, but not with notSwitch or -1.
func TestOwnSwitch(t *testing.T) {
	first, second := serve(t, backendConfig(control(t))), backendOf(t)
	cfg := twoWriters(first, second)
	cfg.Periods = Periods{Heartbeat: Duration(20 * time.Millisecond), HeartbeatTimeout: Duration(60 * time.Millisecond)}
	free := serve(t, cfg)
	cfg.DataHosts[0].NotSwitch = true
	bound := serve(t, cfg)
	fault(t, first, "starve on")
	eventually(t, "its own switch", func() bool { return active(t, free) == "1" })
	eventually(t, "the other one sees the timeout, too", func() bool {
		rows, err := ask(t.Context(), bound.manager(t), "show @@heartbeat")
		return err == nil && strings.Contains(strings.Join(rows, "|"), " -2 ")
	})
	if got := active(t, bound); got != "0" {
		t.Errorf("notSwitch: index %s, want 0", got)
	}
}

// TestRestartForgetsSwitch: the index outlives a restart, but with switchType -1 it goes back to writeHost 0 in silence.
func TestRestartForgetsSwitch(t *testing.T) {
	cfg := twoWriters(backendOf(t), backendOf(t))
	cfg.Control, cfg.DNIndex = control(t), filepath.Join(t.TempDir(), "dnindex.properties")
	saved := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(cfg.DNIndex); err != nil || string(got) != "#update\n"+want+"\n" {
			t.Errorf("saved %q, %v, want %s", got, err, want)
		}
	}
	r := serve(t, cfg)
	same(t, r.client(t), onDN1, "1")
	saved("dh1=0")
	fault(t, r, "false-switch dh1")
	saved("dh1=1")
	same(t, r.client(t), onDN1, "1")
	cfg.Control = control(t)
	if got := active(t, serve(t, cfg)); got != "1" {
		t.Errorf("after a restart: index %s, want 1", got)
	}
	cfg.DataHosts[0].SwitchType, cfg.Control = -1, control(t)
	if got := active(t, serve(t, cfg)); got != "0" {
		t.Errorf("after a restart with switchType -1: index %s, want 0", got)
	}
	saved("dh1=0")
}

func TestConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"empty":      {Config{}, "no user"},
		"no hosts":   {Config{Users: []User{{Name: "a"}}}, "no data node"},
		"host":       {Config{Users: []User{{Name: "a"}}, DataNodes: []DataNode{{Name: "dn1", Host: "x"}}}, `names data host "x"`},
		"twice":      {Config{DataHosts: []DataHost{{Name: "a"}, {Name: "a"}}}, `data host "a" is there twice`},
		"no writers": {Config{DataHosts: []DataHost{{Name: "a"}}}, `data host "a" has no write host`},
		"names": {
			Config{DataHosts: []DataHost{{Name: "a", WriteHosts: []WriteHost{{Name: "w"}, {Name: "w"}}}}},
			`write host "w" is there twice`,
		},
		"table":  {Config{Tables: []Table{{Name: "t", Nodes: []string{"x"}}, {Name: "u"}}}, `table "u" has no data node`},
		"schema": {Config{Schemas: []Schema{{Name: "s", DataNode: "x"}}}, `schema "s" names data node "x"`},
	} {
		if _, err := New(tt.cfg, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestRunFile writes a configuration, reads it back, and runs it; a second one on the same port is refused.
func TestRunFile(t *testing.T) {
	r := front(t, Config{Control: control(t)}, backendOf(t).sql.String())
	cfg := r.cfg
	cfg.ServerPort, cfg.ManagerPort, cfg.Control = int(r.sql.Port()), -1, ""
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(cfg) {
		t.Errorf("read back %v, %v, want %v", again, err, cfg)
	}
	log := slog.New(slog.DiscardHandler)
	if err := RunFile(t.Context(), path, log); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("on a port in use: %v", err)
	}
	cfg.ServerPort = -1
	if text, err = json.Marshal(cfg); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wants(t, RunFile(ctx, path, log), "ok")
	if err := os.WriteFile(path, []byte(`{"port": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RunFile(t.Context(), path, log); err == nil || !strings.Contains(err.Error(), "unknown field") {
		t.Errorf("an unknown key: %v", err)
	}
}
