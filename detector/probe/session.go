package probe

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/mysql"
)

// session is one raw driver connection, kept until something breaks it. It belongs to one goroutine.
type session struct {
	connector driver.Connector
	setup     string // one statement after the login
	wire      *wire  // of the newest dial
	conn      driver.Conn
}

// newSession prepares a connection; it dials nothing. The text protocol without arguments is one round trip; a fixed packet size spares
// another; read-only errors stay what they are.
func newSession(c Config, addr netip.AddrPort, a Account, schema, setup string) (*session, error) {
	s := &session{setup: setup}
	cfg := driverpkg.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = a.User, a.Password, schema
	cfg.Net, cfg.Addr = "tcp", addr.String()
	cfg.InterpolateParams = true
	cfg.WriteTimeout = c.Timeout // bounds COM_QUIT, which the driver sends without a context
	cfg.Logger = &driverpkg.NopLogger{}
	cfg.TLS = c.TLS
	if schema != "" {
		cfg.TLS = nil // Mycat has no TLS
	}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		w, err := dialWire(ctx, c, addr)
		if err != nil {
			return nil, err
		}
		s.wire = w
		return w, nil
	}
	var err error
	s.connector, err = driverpkg.NewConnector(cfg)
	return s, err
}

// open dials and logs in, unless the session is open.
func (s *session) open(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	s.wire = nil
	conn, err := s.connector.Connect(ctx)
	if err != nil {
		if s.wire == nil {
			return &mysql.PhaseError{Phase: mysql.PhaseDial, Err: err}
		}
		return s.wire.phased(err)
	}
	s.conn = conn
	if s.setup == "" {
		return nil
	}
	if err := s.exec(ctx, s.setup); err != nil {
		s.close() // never used without its limits
		return err
	}
	return nil
}

// first runs a query and returns the first column of its first row as text; no row is the empty string.
func (s *session) first(ctx context.Context, sql string) (string, error) {
	q, ok := s.conn.(driver.QueryerContext)
	if !ok {
		return "", errors.New("the driver cannot query under a context")
	}
	rows, err := q.QueryContext(ctx, sql, nil)
	if err != nil {
		return "", s.broken(err)
	}
	values := make([]driver.Value, len(rows.Columns()))
	err = rows.Next(values)
	text := ""
	if err == nil && len(values) > 0 {
		text = valueText(values[0]) // before Close: the driver's buffer lives only until then
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, rows.Close()); err != nil {
		return "", s.broken(err)
	}
	return text, nil
}

func (s *session) exec(ctx context.Context, sql string) error {
	e, ok := s.conn.(driver.ExecerContext)
	if !ok {
		return errors.New("the driver cannot execute under a context")
	}
	if _, err := e.ExecContext(ctx, sql, nil); err != nil {
		return s.broken(err)
	}
	return nil
}

// broken drops the connection unless the error is a plain answer of the server, which leaves the session usable.
func (s *session) broken(err error) error {
	me, ok := errors.AsType[*driverpkg.MySQLError](err)
	if ok {
		if cause, _ := mysql.Classify(context.Background(), me); cause.Class() != health.ClassHard {
			return err
		}
	}
	out := &mysql.PhaseError{Phase: mysql.PhaseQuery, Err: err}
	if p := s.wire.broke.Load(); p != nil {
		out.Wire = *p
	}
	s.drop()
	return out
}

// drop closes the socket without a word: a broken or hung server would not read it.
func (s *session) drop() {
	if s.wire != nil {
		_ = s.wire.Close()
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn = nil
}

// close says goodbye: without it the server would log an aborted connection.
func (s *session) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn = nil
}

func valueText(v driver.Value) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case []byte:
		return string(v)
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case time.Time:
		return v.Format("2006-01-02 15:04:05.999999")
	}
	return fmt.Sprint(v)
}

// wire remembers how far a connection came and what the socket said: the driver's errors cannot tell a frozen server from a dead proxy
// or a reset, and give the socket's error only to their logger.
type wire struct {
	net.Conn
	heard  atomic.Bool
	broke  atomic.Pointer[error]
	thread uint32 // the session's id at the server, 0: unknown; read by the goroutine that reads the greeting
}

func dialWire(ctx context.Context, c Config, addr netip.AddrPort) (*wire, error) {
	conn, err := c.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn}, nil
}

// Read notes the greeting's thread id, and the first error.
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && !w.heard.Swap(true) && n > 4 {
		if g, err := ParseGreeting(b[4:n]); err == nil {
			w.thread = g.Thread
		}
	}
	if err != nil {
		w.broke.CompareAndSwap(nil, &err)
	}
	return n, err
}

// phased wraps the error of a login with its phase.
func (w *wire) phased(err error) error {
	out := &mysql.PhaseError{Phase: mysql.PhaseGreeting, Err: err}
	if w.heard.Load() {
		out.Phase = mysql.PhaseAuth
	}
	if p := w.broke.Load(); p != nil {
		out.Wire = *p
	}
	return out
}

// Tripwire is one idle connection to a target: the kernel closes it at the moment when the process dies.
type Tripwire struct {
	Target  health.Target
	session *session
}

// Wait connects, and blocks until the other side closes the connection; then it returns true, with what was seen. False: it could not
// connect, or ctx ended.
func (t *Tripwire) Wait(ctx context.Context, connect time.Duration) (bool, error) {
	dial, cancel := context.WithTimeoutCause(ctx, connect, errors.New("no login within the connect budget"))
	defer cancel()
	defer t.session.drop()
	if err := t.session.open(dial); err != nil {
		return false, fmt.Errorf("arm tripwire of %s: %w", t.Target, err)
	}
	w := t.session.wire
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer stop()
	// Nobody else reads: the driver does only while a statement runs. A byte that comes unasked is a server's farewell (1053, 4031).
	_, err := w.Read(make([]byte, 1))
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return true, err
}
