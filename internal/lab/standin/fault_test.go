package standin

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hangs says whether a query is unanswered after a while that is far longer than an answer takes.
func hangs(t *testing.T, f func(context.Context) error) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	return errors.Is(f(ctx), context.DeadlineExceeded)
}

func fault(t *testing.T, r *running, command string) {
	t.Helper()
	if err := Fault(within(t, budget), r.cfg.Control, command); err != nil {
		t.Fatal(err)
	}
}

func control(t *testing.T) string { return filepath.Join(t.TempDir(), "control") }

const onDN1, onDN2 = "/*!mycat:datanode=dn1*/select 1", "/*!mycat:datanode=dn2*/select 1"

// TestStarve is the headline of mycat.md: TCP, login and COM_PING are green while all SQL of both ports hangs.
func TestStarve(t *testing.T) {
	r := front(t, Config{Control: control(t)}, backendOf(t).sql.String())
	db, admin := r.client(t), r.manager(t)
	fault(t, r, "starve on")
	wants(t, db.PingContext(t.Context()), "ok")
	for name, hung := range map[string]bool{
		"hinted SQL":  hangs(t, func(ctx context.Context) error { _, err := ask(ctx, db, onDN1); return err }),
		"select 1":    hangs(t, func(ctx context.Context) error { _, err := ask(ctx, db, "select 1"); return err }),
		"show @@help": hangs(t, func(ctx context.Context) error { _, err := ask(ctx, admin, "show @@help"); return err }),
	} {
		if !hung {
			t.Errorf("%s is answered while the server starves", name)
		}
	}
	wants(t, db.PingContext(t.Context()), "ok")
	fault(t, r, "starve off")
	_, err := ask(within(t, budget), db, onDN1)
	wants(t, err, "ok")
}

func TestReactorHang(t *testing.T) {
	r := front(t, Config{Control: control(t)}, backendOf(t).sql.String())
	kept, fresh := r.client(t), r.client(t)
	wants(t, kept.PingContext(t.Context()), "ok")
	fault(t, r, "reactor-hang on")
	if !hangs(t, kept.PingContext) || !hangs(t, fresh.PingContext) {
		t.Error("a ping or a login is answered while the reactor hangs")
	}
	fault(t, r, "clear")
	wants(t, fresh.PingContext(within(t, budget)), "ok")
}

func TestAcceptOnly(t *testing.T) {
	r := front(t, Config{Control: control(t)}, backendOf(t).sql.String())
	kept, fresh := r.client(t), r.client(t)
	wants(t, kept.PingContext(t.Context()), "ok")
	fault(t, r, "accept-only on")
	wants(t, kept.PingContext(t.Context()), "ok")
	if !hangs(t, fresh.PingContext) {
		t.Error("a new client is greeted")
	}
	fault(t, r, "accept-only off")
	wants(t, fresh.PingContext(within(t, budget)), "ok")
}

func TestSlowAndPauses(t *testing.T) {
	r := front(t, Config{Control: control(t)}, backendOf(t).sql.String())
	db := r.client(t)
	wants(t, db.PingContext(t.Context()), "ok")
	for _, command := range []string{"slow=60000", "gc-pause 1ms/60s"} {
		fault(t, r, command)
		if strings.HasPrefix(command, "gc") { // every 1 ms, for a minute
			eventually(t, "a pause", func() bool {
				return hangs(t, func(ctx context.Context) error { _, err := ask(ctx, db, "select 1"); return err })
			})
		} else if !hangs(t, func(ctx context.Context) error { _, err := ask(ctx, db, "select 1"); return err }) {
			t.Errorf("%s does not slow SQL down", command)
		}
		fault(t, r, strings.Fields(strings.ReplaceAll(command, "=", " "))[0]+" off")
		_, err := ask(within(t, budget), db, "select 1")
		wants(t, err, "ok")
	}
}

func TestNamedFaults(t *testing.T) {
	back := backendOf(t).sql.String()
	r := front(t, Config{Control: control(t)}, back, back)
	db := r.client(t)
	for _, tt := range []struct{ command, want string }{
		{"pool-exhausted dn1", "1184 the max activeConnnections size can not be max than maxconnections"},
		{"init-failed dh1", "1184 Invalid DataSource:0"},
	} {
		fault(t, r, tt.command+" on")
		_, err := ask(t.Context(), db, onDN1)
		wants(t, err, tt.want)
		_, err = ask(t.Context(), db, onDN2)
		wants(t, err, "ok")
		fault(t, r, tt.command+" off")
		_, err = ask(t.Context(), db, onDN1)
		wants(t, err, "ok")
	}
	for _, bad := range []string{"", "nonsense", "nonsense on", "starve", "starve perhaps", "slow never", "gc-pause 1s", "pool-exhausted dn9 on", "false-switch dh1"} {
		if err := Fault(t.Context(), r.cfg.Control, bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if err := Fault(t.Context(), r.cfg.Control+"-none", "clear"); err == nil {
		t.Error("a stand-in that is not there answered")
	}
}

// TestFrozenBackend freezes one of two backends: its dataNode hangs without an error until the pool is used up, and stays exhausted;
// the other one, and Mycat itself, notice nothing. Thawed, everything comes back without a restart.
func TestFrozenBackend(t *testing.T) {
	frozen, well := serve(t, backendConfig(control(t))), backendOf(t)
	r := front(t, Config{}, frozen.sql.String(), well.sql.String()) // maxCon 5
	_, err := ask(t.Context(), r.client(t), onDN1)
	wants(t, err, "ok")
	fault(t, frozen, "starve on")
	fault(t, frozen, "accept-only on")
	exhaust(t, r)
	_, err = ask(t.Context(), r.client(t), onDN2)
	wants(t, err, "ok")
	_, err = ask(t.Context(), r.client(t), "select 1")
	wants(t, err, "ok")
	fault(t, frozen, "clear")
	eventually(t, "the dataNode is back", func() bool { _, err := ask(t.Context(), r.client(t), onDN1); return err == nil })
}

// exhaust sends statements to dn1, whose backend is frozen: they hang, until the pool of five is used up and the next are refused.
func exhaust(t *testing.T, r *running) {
	t.Helper()
	hung := 0
	eventually(t, "the pool is exhausted", func() bool {
		var err error
		if hangs(t, func(ctx context.Context) error { _, err = ask(ctx, r.client(t), onDN1); return err }) {
			hung++
			return false
		}
		wants(t, err, "1184 the max activeConnnections size can not be max than maxconnections")
		return true
	})
	if hung < 3 { // the heartbeat may hold places, too
		t.Errorf("only %d statements hung before the pool was exhausted", hung)
	}
}

func backendConfig(control string) Config {
	return Config{
		Control:   control,
		DataHosts: []DataHost{{Name: "dh0", WriteHosts: []WriteHost{{Name: "nobody", Addr: "127.0.0.1:1"}}}},
		DataNodes: []DataNode{{Name: "dn0", Host: "dh0", Database: "bank"}},
	}
}

// TestReaper: a hung statement ends only by sqlExecuteTimeout.
func TestReaper(t *testing.T) {
	frozen := serve(t, backendConfig(control(t)))
	r := front(t, Config{Periods: Periods{SQLExecute: Duration(2 * time.Second), Check: Duration(10 * time.Millisecond)}}, frozen.sql.String())
	db := r.client(t)
	_, err := ask(t.Context(), db, onDN1)
	wants(t, err, "ok")
	fault(t, frozen, "starve on")
	_, err = ask(within(t, budget), db, onDN1)
	wants(t, err, "1023 sql timeout")
}

// TestStartBesideFrozen starts in front of one frozen backend: the data host never gets up, and each statement to it holds one of the
// four executors, so that all SQL of both ports hangs.
func TestStartBesideFrozen(t *testing.T) {
	frozen := serve(t, backendConfig(control(t)))
	fault(t, frozen, "accept-only on")
	r := front(t, Config{}, frozen.sql.String(), backendOf(t).sql.String())
	_, err := ask(t.Context(), r.client(t), onDN2)
	wants(t, err, "ok")
	eventually(t, "the other dataNode hangs, when every executor is held", func() bool {
		if !hangs(t, func(ctx context.Context) error { _, err := ask(ctx, r.client(t), onDN1); return err }) {
			t.Error("a statement to a data host that is not up does not hang")
		}
		return hangs(t, func(ctx context.Context) error { _, err := ask(ctx, r.client(t), onDN2); return err })
	})
	wants(t, r.client(t).PingContext(within(t, budget)), "ok")
	if !hangs(t, func(ctx context.Context) error { _, err := ask(ctx, r.manager(t), "show @@version"); return err }) {
		t.Error("the management port works though every executor is held")
	}
}

// TestHeartbeatTimeline: refused beats leave RS_CODE at 1 until the third; hung ones show as checking; recovery takes one period.
func TestHeartbeatTimeline(t *testing.T) {
	periods := Periods{Heartbeat: Duration(100 * time.Millisecond), HeartbeatTimeout: Duration(time.Second)}
	back := serve(t, backendConfig(control(t)))
	r := front(t, Config{Periods: periods, Control: control(t)}, back.sql.String(), "127.0.0.1:1")
	admin := r.manager(t)
	row := func(name string) string {
		rows, err := ask(t.Context(), admin, "show @@heartbeat")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range rows {
			if strings.HasPrefix(line, name+" ") {
				return line
			}
		}
		t.Fatalf("%s is not in %q", name, rows)
		return ""
	}
	eventually(t, "the refused one is an error", func() bool { return strings.HasPrefix(row("host2"), "host2 mysql 127.0.0.1 1 -1 ") })
	if got := row("host1"); !strings.Contains(got, " 1 0 ") {
		t.Errorf("the healthy one: %s", got)
	}
	fault(t, back, "starve on")
	eventually(t, "checking, and still 1", func() bool { return strings.Contains(row("host1"), " 1 0 checking ") })
	eventually(t, "timeout", func() bool { return strings.Contains(row("host1"), " -2 ") })
	fault(t, r, "hb-lie on")
	if got := row("host2"); !strings.Contains(got, " 1 0 idle ") {
		t.Errorf("the lie: %s", got)
	}
	fault(t, r, "hb-lie off")
	fault(t, back, "starve off")
	eventually(t, "back", func() bool { return strings.Contains(row("host1"), " 1 0 ") })
}
