package probe

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/mysql"
)

// sqlProbe runs the business SQL of a shard on a kept connection, and on a fresh one after any failure and every tenth time.
type sqlProbe struct {
	target     health.Target
	statements []Statement
	kept, next *session
	failed     bool
	looks      int // begins with the instance's number: five hundred logins in the same beat would be late together
}

func newSQLProbe(c Config, t health.Target, in cluster.Instance, n int) (*sqlProbe, error) {
	p := &sqlProbe{target: t, looks: n, statements: c.business(in.Shard)}
	// What we abandon must not pile up in the server: it ends by itself at twice the life of a look.
	setup := fmt.Sprintf("SET SESSION lock_wait_timeout=1%s", statementLimit(2*c.Timeout))
	var err error
	if p.kept, err = newSession(c, in.Addr, c.MySQL, "", setup); err != nil {
		return nil, err
	}
	p.next, err = newSession(c, in.Addr, c.MySQL, "", setup)
	return p, err
}

// statementLimit makes the server end a statement after that time: MySQL reads the first comment, MariaDB the second. Here it only
// cleans up after a look that is over; the look's own deadline is the context's.
func statementLimit(d time.Duration) string {
	return fmt.Sprintf("/*!50708 , max_execution_time=%d*//*M!100101 , max_statement_time=%.3f*/", max(1, d.Milliseconds()), d.Seconds())
}

func (p *sqlProbe) look(ctx context.Context, m Mode, _ *Stage) []health.Sample {
	p.looks++
	if p.kept.conn != nil && !p.failed && !m.Anew && p.looks%freshEvery != 0 {
		s := p.ask(ctx, p.kept)
		// A connection that was closed under us may be a killed session or wait_timeout: only a fresh one can tell.
		if s.Cause.Class() != health.ClassHard {
			p.failed = s.Cause != health.OK
			return one(p.target, s)
		}
	}
	s := p.ask(ctx, p.next)
	p.failed = s.Cause != health.OK
	if p.failed {
		p.next.close()
	} else {
		p.kept.close()
		p.kept, p.next = p.next, p.kept
	}
	return one(p.target, s)
}

func (p *sqlProbe) ask(ctx context.Context, s *session) health.Sample {
	if err := s.open(ctx); err != nil {
		return classifier(mysql.Classify).sample(ctx, err)
	}
	for _, st := range p.statements {
		got, err := s.first(ctx, st.SQL)
		if err == nil {
			err = st.check(got)
		}
		if err != nil {
			return classifier(mysql.Classify).sample(ctx, err)
		}
	}
	return health.Sample{Cause: health.OK}
}

func (p *sqlProbe) close() {
	p.kept.close()
	p.next.close()
}

// beatProbe commits this observer's row on the active site, and looks at the age of the same row on a standby. One row an observer:
// they never wait for each other; and an age by the clock that wrote it needs no agreement of clocks.
type beatProbe struct {
	target   health.Target
	observer string // quoted
	stale    time.Duration
	session  *session
	seq      int64
	hung     uint32 // session at the server whose write we gave up, 0: none
}

func newBeatProbe(c Config, t health.Target, in cluster.Instance) (*beatProbe, error) {
	p := &beatProbe{target: t, observer: quote(string(c.Node)), stale: c.Stale}
	// lock_wait_timeout counts whole seconds and is a year by default: under FLUSH TABLES WITH READ LOCK abandoned writes would queue.
	setup := "SET SESSION autocommit=1, lock_wait_timeout=1, innodb_lock_wait_timeout=1" + statementLimit(2*c.Timeout)
	var err error
	p.session, err = newSession(c, in.Addr, c.MySQL, "", setup)
	return p, err
}

func (p *beatProbe) look(ctx context.Context, m Mode, st *Stage) []health.Sample {
	kept := p.session.conn != nil
	s := p.ask(ctx, m, st)
	if kept && s.Cause.Class() == health.ClassHard {
		s = p.ask(ctx, m, st) // closed under us; the row is the same however often it is written
	}
	if s.Cause.Class() == health.ClassHard {
		p.hung = 0 // the server that had it is gone
	}
	return one(p.target, s)
}

func (p *beatProbe) ask(ctx context.Context, m Mode, st *Stage) health.Sample {
	st.Reading(0)
	if err := p.session.open(ctx); err != nil {
		return classifier(mysql.Classify).sample(ctx, err)
	}
	if !m.write(p.target.Shard) {
		return p.age(ctx)
	}
	return p.write(ctx, st)
}

// write commits the row; it retries nothing. While a write that we gave up still hangs in the server no other is sent: each would hold a session until
// its cause is gone (a semi-sync acknowledgement may never come), and the probes would use up max_connections by themselves.
func (p *beatProbe) write(ctx context.Context, st *Stage) health.Sample {
	if p.hung != 0 {
		sql := fmt.Sprintf("SELECT 1 FROM information_schema.processlist WHERE id=%d AND command<>'Sleep'", p.hung)
		row, err := p.session.first(ctx, sql)
		if err != nil {
			return classifier(mysql.Classify).sample(ctx, err)
		}
		if row != "" {
			return health.Sample{Cause: health.WriteStall, Detail: fmt.Sprintf("the write of session %d still waits", p.hung)}
		}
		p.hung = 0
	}
	p.seq++
	now := time.Now().UnixMicro()
	thread := p.session.wire.thread
	st.Writing(0)
	err := p.session.exec(ctx, fmt.Sprintf(
		"INSERT INTO baton.heartbeat (observer, at_us, seq) VALUES (%s, %d, %d) ON DUPLICATE KEY UPDATE at_us=%[2]d, seq=%[3]d", p.observer, now, p.seq))
	s := classifier(mysql.Classify).sample(ctx, err)
	switch {
	case s.Cause == health.Timeout:
		p.hung = thread
	case s.Number == 1146:
		s.Cause = health.Config // our own table, which `baton` installs: its DROP has replicated to the standby as well
	}
	return stalled(s)
}

func (p *beatProbe) age(ctx context.Context) health.Sample {
	got, err := p.session.first(ctx, "SELECT at_us FROM baton.heartbeat WHERE observer="+p.observer)
	s := classifier(mysql.Classify).sample(ctx, err)
	if s.Cause != health.OK {
		return s
	}
	us, err := strconv.ParseInt(got, 10, 64)
	if err != nil {
		return health.Sample{Cause: health.Stale, Detail: "no heartbeat of this observer has come here yet"}
	}
	age := time.Since(time.UnixMicro(us))
	s.Detail = "replicated heartbeat is " + age.Round(time.Millisecond).String() + " old"
	if age > p.stale {
		s.Cause = health.Stale
	}
	return s
}

func (p *beatProbe) close() { p.session.close() }

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
