package load

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Config is how the writer writes.
type Config struct {
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error) // from the client's host
	Addr     string                                                            // the VIP and Mycat's port
	User     string
	Password string
	Schema   string
	Shards   int
	Every    time.Duration // between two writes, when they are answered faster
	Timeout  time.Duration // of one connect, and of one write
}

// Writer keeps one connection, as a thread of an application would, and reconnects at once after any error.
type Writer struct {
	cfg       Config
	connector driver.Connector

	mu     sync.Mutex
	writes []Write
	notify chan struct{} // closed and replaced at each acknowledged write
}

// New prepares a writer; nothing is sent before Run.
func New(cfg Config) (*Writer, error) {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName, c.Net, c.Addr = cfg.User, cfg.Password, cfg.Schema, "tcp", cfg.Addr
	c.DialFunc = cfg.Dial
	c.MaxAllowedPacket = 1 << 20 // given, or the driver asks the server for it at each connect
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("configure the writer: %w", err)
	}
	return &Writer{cfg: cfg, connector: connector, notify: make(chan struct{})}, nil
}

// Run writes until ctx ends: one row after the other, to the shards in turn. One thread of an application and not one per shard: with
// more, two cores that also run eight servers and three daemons are never idle, and the laboratory measures its own queues.
func (w *Writer) Run(ctx context.Context) error {
	tick := time.NewTicker(w.cfg.Every)
	defer tick.Stop()
	var conn driver.Conn
	defer func() { hangUp(conn) }()
	for id := int64(w.cfg.Shards); ; id++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var result Write
		conn, result = w.one(ctx, conn, id)
		if ctx.Err() != nil && result.Outcome == Unsent {
			return nil
		}
		result.Shard = int(id % int64(w.cfg.Shards))
		w.keep(result)
	}
}

// one writes one row, over the given connection or a new one, and returns the connection to go on with.
func (w *Writer) one(ctx context.Context, conn driver.Conn, id int64) (driver.Conn, Write) {
	result := Write{ID: id, Sent: time.Now()}
	// A write under way when the load ends is still waited for: only the timeout of a client ends it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Timeout)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = w.connector.Connect(ctx); err != nil {
			result.Outcome, result.Err, result.Answered = Unsent, err.Error(), time.Now()
			return nil, result
		}
		result.Sent = time.Now()
	}
	statement := fmt.Sprintf("insert into ledger (id, writer, at_us) values (%d, 'app', %d)", id, result.Sent.UnixMicro())
	_, err = conn.(driver.ExecerContext).ExecContext(ctx, statement, nil)
	result.Answered = time.Now()
	if err == nil {
		return conn, result
	}
	result.Outcome, result.Err = classify(err), err.Error()
	hangUp(conn)
	return nil, result
}

func classify(err error) Outcome {
	var answer *mysql.MySQLError
	switch {
	case errors.As(err, &answer):
		return Refused
	case errors.Is(err, driver.ErrBadConn): // the driver's promise: nothing was sent
		return Unsent
	default:
		return Unknown
	}
}

func hangUp(conn driver.Conn) {
	if conn != nil {
		_ = conn.Close() // a broken connection complains, and there is nobody to tell
	}
}

func (w *Writer) keep(result Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, result)
	if result.Outcome == Acknowledged {
		close(w.notify)
		w.notify = make(chan struct{})
	}
}

// Writes returns what was written so far, in the order of the answers.
func (w *Writer) Writes() []Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// Works waits until every shard has a write acknowledged that was sent after the call.
func (w *Writer) Works(ctx context.Context) error {
	since := time.Now()
	for {
		w.mu.Lock()
		missing, changed := w.missing(since), w.notify
		w.mu.Unlock()
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a good write on every shard: %d of %d have none (last error: %s): %w", missing, w.cfg.Shards, w.lastErr(), context.Cause(ctx))
		case <-changed:
		}
	}
}

func (w *Writer) missing(since time.Time) int {
	good := make(map[int]bool)
	for _, r := range slices.Backward(w.writes) {
		if r.Answered.Before(since) {
			break
		}
		if r.Outcome == Acknowledged && !r.Sent.Before(since) {
			good[r.Shard] = true
		}
	}
	return w.cfg.Shards - len(good)
}

func (w *Writer) lastErr() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range slices.Backward(w.writes) {
		if r.Err != "" {
			return r.Err
		}
	}
	return "none"
}
