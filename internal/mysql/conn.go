package mysql

import (
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"
)

// Account is a login. Baton has two: baton_admin for steps, baton_probe for probes. Only Baton may use baton_admin: KillSteps kills
// every other session of it.
type Account struct {
	User     string
	Password string
}

// Server says how to reach one instance.
type Server struct {
	Addr    netip.AddrPort
	Account Account
	Timeout time.Duration // for connecting and for each status query; a step's own time is its context's
	TLS     *tls.Config   // nil: no TLS

	// Dial replaces the dialer: another namespace, a source address, a pipe in a test. nil: plain TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Conn is one connection to one instance: no pool, no retry. It is for one goroutine at a time, and of no use after an error that is
// not the server's own answer.
type Conn struct {
	server  Server
	link    *link
	id      uint64 // the server's connection id
	user    string // the account's name as the process list shows it
	version version
	dialect dialect
}

// link is the driver's connection, and the socket under it.
type link struct {
	conn driver.Conn
	tap  *Tap
}

// Check is asked right before every statement that changes anything: are term, switch and fence revision still the current ones
// (PROTOCOL 4)? An error refuses the statement, and ends the procedure.
type Check func() error

// defaultTimeout bounds connecting and status queries when Server.Timeout is 0: ten times what a busy server was seen to need.
const defaultTimeout = time.Second

// setup makes every lock wait of the session end by itself after a second, so that a statement whose client is gone does not stay in
// the server's queue for ever; on MariaDB every statement is bounded too.
const setup = "SET SESSION lock_wait_timeout=1, innodb_lock_wait_timeout=1 /*M!100103 , max_statement_time=10 */; " +
	"SELECT VERSION() AS version, CONNECTION_ID() AS id, SUBSTRING_INDEX(USER(), '@', 1) AS user"

// Connect dials, logs in and prepares the session. Its errors are *PhaseError (for Classify) or wrap ErrUnsupported. The caller closes
// the connection.
func (s Server) Connect(ctx context.Context) (*Conn, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	l, err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.Addr, err)
	}
	c := &Conn{server: s, link: l}
	if err := c.greet(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %s: %w", s.Addr, err)
	}
	return c, nil
}

// bound limits one short exchange.
func (s Server) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := s.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer of %s within %v: %w", s.Addr, timeout, context.DeadlineExceeded))
}

func (s Server) open(ctx context.Context) (*link, error) {
	cfg := driverpkg.NewConfig()
	cfg.Net, cfg.Addr = "tcp", s.Addr.String()
	cfg.User, cfg.Passwd, cfg.TLS = s.Account.User, s.Account.Password, s.TLS
	cfg.MultiStatements, cfg.InterpolateParams = true, true // one round trip for what belongs together
	cfg.ConnectionAttributes = "program_name:baton-step"
	cfg.Logger = &driverpkg.NopLogger{}
	l := &link{}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dial := s.Dial
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		l.tap = NewTap(conn)
		return l.tap, nil
	}
	connector, err := driverpkg.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure the driver: %w", err)
	}
	l.conn, err = connector.Connect(ctx)
	if err != nil {
		return nil, l.tap.Wrap(err)
	}
	l.tap.LoggedIn()
	return l, nil
}

// greet prepares the session and picks the dialect.
func (c *Conn) greet(ctx context.Context) error {
	sets, err := c.query(ctx, setup)
	if err != nil {
		return err
	}
	if len(sets) != 1 || len(sets[0]) != 1 {
		return seen(ErrUnsupported, "the server answered its version in %d result sets", len(sets))
	}
	r := sets[0][0]
	c.user = r["user"]
	if c.id, err = strconv.ParseUint(r["id"], 10, 64); err != nil {
		return fmt.Errorf("read connection id: %w", err)
	}
	if c.version, err = parseVersion(r["version"]); err != nil {
		return err
	}
	c.dialect, err = c.version.dialect()
	return err
}

// Close ends the connection without waiting for the server.
func (c *Conn) Close() {
	if c.link != nil {
		_ = c.link.conn.Close() // nothing can be done about a goodbye that fails
	}
}

// ID is the server's id of this connection, as its process list shows it.
func (c *Conn) ID() uint64 { return c.id }

// row is one row of an answer by column name; a NULL is absent.
type row map[string]string

// query runs one or more statements that change nothing, in one round trip, and returns the rows of each that has any columns. On an
// error it returns the result sets that came before it.
func (c *Conn) query(ctx context.Context, sql string, args ...driver.Value) ([][]row, error) {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	queryer, ok := c.link.conn.(driver.QueryerContext)
	if !ok {
		return nil, seen(ErrUnsupported, "the driver has no plain queries")
	}
	rows, err := queryer.QueryContext(ctx, sql, named)
	if err != nil {
		return nil, c.link.tap.Wrap(err)
	}
	sets, err := readAll(rows)
	if cerr := rows.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return sets, c.link.tap.Wrap(err)
	}
	return sets, nil
}

// exchange is query with the bound of a short exchange.
func (c *Conn) exchange(ctx context.Context, sql string) ([][]row, error) {
	ctx, cancel := c.server.bound(ctx)
	defer cancel()
	return c.query(ctx, sql)
}

// change runs statements that change something: Check first, then one round trip. When the time is up before the answer came, it spends
// what was kept back of it on killing its own statement and proving it gone; when it cannot, the error is ErrUnproven.
func (c *Conn) change(ctx context.Context, check Check, sql string, args ...driver.Value) ([][]row, error) {
	if err := check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	inner, cancel := keepBack(ctx)
	defer cancel()
	sets, err := c.query(inner, sql, args...)
	if err == nil || serverNumber(err) != 0 || inner.Err() == nil {
		return sets, err // a connection that somebody else broke is never replaced: a new term may have killed it
	}
	if rerr := c.replace(ctx, check); rerr != nil {
		return sets, errors.Join(err, rerr)
	}
	return sets, fmt.Errorf("%w (statement killed and proven gone)", err)
}

// reapReserve is kept back of a step's time for killing its own statement: connect, KILL and one look take 2 ms idle, 10 ms busy.
const reapReserve = 100 * time.Millisecond

// keepBack ends a quarter of the remaining time before ctx does, at most reapReserve.
func keepBack(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	reserve := min(time.Until(deadline)/4, reapReserve)
	return context.WithDeadlineCause(ctx, deadline.Add(-reserve), fmt.Errorf("step's time is up: %w", context.DeadlineExceeded))
}

// replace gives up a connection on which a statement got no answer: a new one takes its place, kills the old one, and proves that the
// server has no trace of it.
func (c *Conn) replace(ctx context.Context, check Check) error {
	c.Close()
	fresh, err := c.server.Connect(ctx)
	if err != nil {
		return fmt.Errorf("%w: connection %d of %s: %w", ErrUnproven, c.id, c.server.Addr, err)
	}
	if _, err := fresh.kill(ctx, check, func(s session) bool { return s.id == c.id }); err != nil {
		fresh.Close()
		return fmt.Errorf("%w: connection %d of %s: %w", ErrUnproven, c.id, c.server.Addr, err)
	}
	*c = *fresh
	return nil
}

// until asks again and again, at growing distances from 200 µs to 10 ms, until done says so or ctx ends.
func until(ctx context.Context, done func() (bool, error)) error {
	pause := 200 * time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, 10*time.Millisecond)
	}
}

// The server's error numbers that steps tell apart.
const (
	errNoSuchThread = 1094
	errNoSuchTable  = 1146
	errNoDatabase   = 1049
	errTableDenied  = 1142
	errSchemaDenied = 1044
	errPrivilege    = 1227
	errLockWait     = 1205
	errMaxStatement = 1969
)

// serverNumber is the server's own error number, or 0 when the error is not the server's answer.
func serverNumber(err error) uint16 {
	if me, ok := errors.AsType[*driverpkg.MySQLError](err); ok {
		return me.Number
	}
	return 0
}

// Alive asks whether the connection still works, in one round trip that changes nothing.
func (c *Conn) Alive(ctx context.Context) error {
	if _, err := c.exchange(ctx, "DO 1"); err != nil {
		return fmt.Errorf("ask %s whether it is there: %w", c.server.Addr, err)
	}
	return nil
}
