// Package mycat speaks to one Mycat 1.6: through its SQL port (8066) as an application does, through its management port (9066) as
// an operator does. It is the only place that reads Mycat's error texts and management tables.
//
// It keeps no pool and retries nothing: a caller dials a connection, uses it under a deadline, and dials again after any error. It
// never sends COM_PING and never asks for `select 1`: Mycat answers both by itself, and went on answering for minutes while every
// other statement hung. It never switches a data source, never reloads a configuration and never uses `offline`: none of the three is
// a fence, and each can hang for a minute per frozen backend.
package mycat

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"sync/atomic"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/internal/mysql"
)

// defaultTimeout bounds a call whose context has no deadline: long enough for a garbage collection of a second, short enough that a
// hung Mycat never holds a goroutine for long.
const defaultTimeout = 2 * time.Second

// maxRows bounds what one statement may bring back. The tables of 9066 have a row per backend or client; a business SQL that returns
// more is a configuration error, and must not fill the observer's memory.
const maxRows = 10_000

// Errors of this package; what Mycat itself answers stays a *mysql.MySQLError underneath, for Classify.
var (
	ErrDataNode = errors.New("mycat: not a dataNode name")
	ErrRows     = errors.New("mycat: more rows than expected")
	ErrColumn   = errors.New("mycat: unexpected management table")
)

// Config says how to reach one Mycat. SQL and Admin may be given alone when only one port is used.
type Config struct {
	SQL      netip.AddrPort // serverPort, 8066
	Admin    netip.AddrPort // managerPort, 9066
	User     string         // a <user> of server.xml; 9066 knows no other, and no privileges: guard that port by the network
	Password string
	Schema   string // needed on 8066 (else 3000 "No MyCAT Database selected"), not used on 9066

	// Timeout bounds each call whose context has no earlier deadline; zero means 2 s.
	Timeout time.Duration
	// DialFunc replaces the TCP dialer, for a source address, a network namespace or a test.
	DialFunc func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Client dials one Mycat. It holds no connection itself and is safe for concurrent use; the connections that it dials are not.
type Client struct {
	cfg Config
}

// New checks the configuration. It dials nothing.
func New(cfg Config) (*Client, error) {
	if !cfg.SQL.IsValid() && !cfg.Admin.IsValid() {
		return nil, errors.New("mycat: neither an SQL nor a management address is given")
	}
	if cfg.User == "" {
		return nil, errors.New("mycat: no user is given")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	return &Client{cfg: cfg}, nil
}

// Conn is one connection to the SQL port, for one goroutine at a time. After any error but a server's answer it is dead: close it and
// dial again. A statement that timed out keeps one connection of Mycat's own pool busy until its backend answers or sqlExecuteTimeout
// (300 s) ends it, so keep at most one unanswered probe per dataNode, and back off when one hangs.
type Conn struct {
	session
}

// Dial opens a connection to the SQL port: TCP, greeting and login, which proves nothing about SQL.
func (c *Client) Dial(ctx context.Context) (*Conn, error) {
	s, err := c.dial(ctx, c.cfg.SQL, c.cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("dial mycat %s: %w", c.cfg.SQL, err)
	}
	return &Conn{s}, nil
}

// Query runs a statement that Mycat routes by itself, and reads all of its answer.
func (c *Conn) Query(ctx context.Context, sql string) (Rows, error) {
	return c.query(ctx, sql)
}

// Exec runs a statement that Mycat routes by itself. The number is of the rows that matched: Mycat's backends always count found rows.
func (c *Conn) Exec(ctx context.Context, sql string) (int64, error) {
	return c.exec(ctx, sql)
}

// Hinted runs a query on the backend of one dataNode, whatever its tables are in schema.xml: the only proof that this shard works
// through this Mycat. Ask for something that only the backend can answer, such as `select @@hostname, @@port, @@server_id`.
//
// Mycat acts on SET, USE and BEGIN itself, also when hinted: session variables cannot be set at a backend this way.
func (c *Conn) Hinted(ctx context.Context, dataNode, sql string) (Rows, error) {
	hinted, err := Hint(dataNode, sql)
	if err != nil {
		return Rows{}, err
	}
	return c.query(ctx, hinted)
}

// ExecHinted runs a write on the backend of one dataNode. The table need not be in schema.xml.
func (c *Conn) ExecHinted(ctx context.Context, dataNode, sql string) (int64, error) {
	hinted, err := Hint(dataNode, sql)
	if err != nil {
		return 0, err
	}
	return c.exec(ctx, hinted)
}

// nameRE is what a dataNode may be called: what Mycat accepts between = and */, without anything that could end the comment.
var nameRE = regexp.MustCompile(`^[A-Za-z0-9_.$-]+$`)

// Hint puts Mycat's routing comment before a statement. An ErrDataNode is a configuration error.
func Hint(dataNode, sql string) (string, error) {
	if !nameRE.MatchString(dataNode) {
		return "", fmt.Errorf("%w: %q", ErrDataNode, dataNode)
	}
	return "/*!mycat:datanode=" + dataNode + "*/" + sql, nil
}

// Rows is a whole answer. A value is an int64, a float64, a string, or nil for NULL.
type Rows struct {
	Columns []string
	Values  [][]driver.Value
}

// session is a raw driver connection. The driver closes it by itself when a context ends in the middle of a call.
type session struct {
	raw     driver.Conn
	timeout time.Duration
}

// Close says goodbye and closes. It never waits longer than the client's timeout.
func (s *session) Close() error { return s.raw.Close() }

func (s *session) query(ctx context.Context, sql string) (Rows, error) {
	ctx, cancel := bound(ctx, s.timeout)
	defer cancel()
	q, ok := s.raw.(driver.QueryerContext)
	if !ok {
		return Rows{}, errors.New("mycat: the driver cannot query under a context")
	}
	raw, err := q.QueryContext(ctx, sql, nil)
	if err != nil {
		return Rows{}, err
	}
	rows, err := readAll(raw)
	return rows, errors.Join(err, raw.Close())
}

func (s *session) exec(ctx context.Context, sql string) (int64, error) {
	ctx, cancel := bound(ctx, s.timeout)
	defer cancel()
	e, ok := s.raw.(driver.ExecerContext)
	if !ok {
		return 0, errors.New("mycat: the driver cannot execute under a context")
	}
	result, err := e.ExecContext(ctx, sql, nil)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func readAll(raw driver.Rows) (Rows, error) {
	rows := Rows{Columns: raw.Columns()}
	for {
		values := make([]driver.Value, len(rows.Columns))
		switch err := raw.Next(values); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return rows, err
		case len(rows.Values) == maxRows:
			return rows, fmt.Errorf("%w: over %d", ErrRows, maxRows)
		}
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				values[i] = string(b) // the driver's buffer lives only until the next row
			}
		}
		rows.Values = append(rows.Values, values)
	}
}

func bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("mycat: no answer within %s", limit))
}

// dial opens one raw connection. The options follow what 9066 survives: text protocol with interpolated arguments, because it refuses
// prepared statements; a fixed max_allowed_packet, because asking for it makes the connect fail with 1003; no compression, which its
// handler forgets to undo; read_only errors not turned into bad connections, because that hides 1290.
func (c *Client) dial(ctx context.Context, addr netip.AddrPort, schema string) (session, error) {
	ctx, cancel := bound(ctx, c.cfg.Timeout)
	defer cancel()
	w := &wire{}
	cfg := mysqldriver.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = c.cfg.User, c.cfg.Password, schema
	cfg.Net, cfg.Addr = "tcp", addr.String()
	cfg.InterpolateParams = true
	cfg.WriteTimeout = c.cfg.Timeout // bounds COM_QUIT, which the driver sends without a context
	cfg.Logger = &mysqldriver.NopLogger{}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := c.dialTCP(ctx, addr)
		if err != nil {
			return nil, err
		}
		w.Conn = conn
		return w, nil
	}
	connector, err := mysqldriver.NewConnector(cfg)
	if err != nil {
		return session{}, err
	}
	raw, err := connector.Connect(ctx)
	if err != nil {
		return session{}, w.phased(err)
	}
	return session{raw: raw, timeout: c.cfg.Timeout}, nil
}

func (c *Client) dialTCP(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	if c.cfg.DialFunc != nil {
		return c.cfg.DialFunc(ctx, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr.String())
}

// wire remembers how far a connection came: the driver's errors alone cannot tell a Mycat that accepts and never greets (a frozen one)
// from one that breaks off in the login.
type wire struct {
	net.Conn
	greeted atomic.Bool
	broke   atomic.Pointer[error]
}

// Read notes the first byte and the first error.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.greeted.Store(true)
	}
	if err != nil {
		w.broke.CompareAndSwap(nil, &err)
	}
	return n, err
}

// phased wraps a failed connect with its phase.
func (w *wire) phased(err error) error {
	pe := &mysql.PhaseError{Phase: mysql.PhaseDial, Err: err}
	switch {
	case w.Conn == nil:
	case w.greeted.Load():
		pe.Phase = mysql.PhaseAuth
	default:
		pe.Phase = mysql.PhaseGreeting
	}
	if p := w.broke.Load(); p != nil {
		pe.Wire = *p
	}
	return pe
}
