package standin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// backendCaps is what Mycat asks of a backend and the stand-in needs: long password, found rows, long flag, connect with db, ignore
// space, protocol 41, interactive, transactions, secure connection, multi results, plugin auth. FOUND_ROWS is why Mycat's clients
// always see matched rows, whatever they asked for. No DEPRECATE_EOF: answers are relayed to clients that do not have it.
const backendCaps = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<8 | 1<<9 | 1<<10 | 1<<13 | 1<<15 | 1<<17 | 1<<19

const (
	backendCharset     = 45 // utf8mb4_general_ci: known to every MySQL and MariaDB
	backendCharsetName = "utf8mb4"

	statusMoreResults = 0x0008
)

// vars is the part of a session's state that lives in the backend connection and is brought over before a statement.
type vars struct {
	charset    string
	autocommit bool
	isolation  string // "" is the server's default
}

// backend is one connection to a writeHost. Between borrow and release one goroutine owns it.
type backend struct {
	framed
	pool     *pool
	id       int64
	threadID atomic.Uint32
	home     string // the database of the connect
	database string
	vars     vars
	born     time.Time
	idle     bool // guarded by pool.mu

	busySince atomic.Int64           // Unix nanoseconds of the statement's send; 0 between statements
	reason    atomic.Pointer[string] // why the stand-in itself closed it
}

// lostError says that a backend connection broke; its text is Mycat's.
type lostError struct {
	text string
}

// Error is Mycat's text.
func (e *lostError) Error() string { return e.text }

// Mycat's texts for a lost connection.
const (
	textReset  = "program err:java.net.SocketException: Connection reset"
	textClosed = "stream closed"
)

// lost turns the error of a broken connection into Mycat's words.
func (b *backend) lost(err error) error {
	if reason := b.reason.Load(); reason != nil {
		return &lostError{*reason}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return &lostError{textClosed}
	}
	return &lostError{textReset}
}

// kill closes the connection under whoever uses it.
func (b *backend) kill(reason string) {
	b.reason.CompareAndSwap(nil, &reason)
	_ = b.Close()
}

// stale says whether the server has closed the connection while it was idle. It never blocks.
func (b *backend) stale() bool {
	sc, ok := b.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = rc.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN)
		return true
	})
	return closed || err != nil
}

// part is what a packet of an answer is.
type part uint8

const (
	partOK part = iota
	partError
	partCount
	partColumn
	partEOF
	partRow
	partMore // the rest of a row over 16 MB
)

// outcome is what an answer said at its end.
type outcome struct {
	refusal  *sqlError // the backend's error packet; nil when it succeeded
	affected uint64
}

// query sends a statement and gives each packet of the answer to visit, which may keep the bytes only until it returns. There is no
// deadline: only the server, the reaper of sqlExecuteTimeout or the end of the stand-in ends the wait. An error is a *lostError.
func (b *backend) query(sql string, visit func(part, []byte)) (outcome, error) {
	b.busySince.Store(time.Now().UnixNano())
	defer b.busySince.Store(0)
	if err := b.command(comQuery, sql); err != nil {
		return outcome{}, b.lost(syscall.ECONNRESET)
	}
	var o outcome
	for more := true; more; {
		var err error
		if more, err = b.answer(&o, visit); err != nil {
			return o, b.lost(err)
		}
	}
	return o, nil
}

// answer reads one result: OK, an error, or columns and rows. It says whether another result follows.
func (b *backend) answer(o *outcome, visit func(part, []byte)) (bool, error) {
	p, err := b.readChunk()
	if err != nil {
		return false, err
	}
	if len(p) == 0 {
		return false, errPacket
	}
	switch p[0] {
	case 0x00:
		s := scanner{b: p[1:]}
		affected, _ := s.lenenc()
		_, _ = s.lenenc()
		o.affected += affected
		visit(partOK, p)
		return s.number(2)&statusMoreResults != 0, nil
	case 0xff:
		o.refusal = parseError(p)
		visit(partError, p)
		return false, nil
	}
	visit(partCount, p)
	if _, err := b.section(o, partColumn, visit); err != nil {
		return false, err
	}
	return b.section(o, partRow, visit)
}

// section reads packets of one kind up to the EOF packet or an error packet that ends them.
func (b *backend) section(o *outcome, kind part, visit func(part, []byte)) (bool, error) {
	continued := false
	for {
		p, err := b.readChunk()
		if err != nil {
			return false, err
		}
		switch {
		case continued:
			visit(partMore, p)
		case len(p) > 0 && p[0] == 0xfe && len(p) < 9:
			visit(partEOF, p)
			return len(p) >= 5 && binary.LittleEndian.Uint16(p[3:])&statusMoreResults != 0, nil
		case len(p) > 0 && p[0] == 0xff && kind == partRow:
			o.refusal = parseError(p)
			visit(partError, p)
			return false, nil
		default:
			visit(kind, p)
		}
		continued = len(p) == maxChunk
	}
}

func ignore(part, []byte) {}

// run executes a statement whose rows nobody needs; a refusal is the error.
func (b *backend) run(sql string) error {
	o, err := b.query(sql, ignore)
	if err != nil {
		return err
	}
	if o.refusal != nil {
		return o.refusal
	}
	return nil
}

// sync brings the session's state to the connection; mostly there is nothing to do.
func (b *backend) sync(database string, want vars) error {
	if b.database != database {
		if err := b.useDatabase(database); err != nil {
			return err
		}
	}
	if b.vars == want {
		return nil
	}
	var sets []string
	if b.vars.charset != want.charset {
		sets = append(sets, "SET NAMES "+want.charset)
	}
	if b.vars.autocommit != want.autocommit {
		sets = append(sets, fmt.Sprintf("SET autocommit=%d", b2i(want.autocommit)))
	}
	if b.vars.isolation != want.isolation && want.isolation != "" {
		sets = append(sets, "SET SESSION TRANSACTION ISOLATION LEVEL "+want.isolation)
	}
	for _, set := range sets {
		if err := b.run(set); err != nil {
			return err
		}
	}
	b.vars = want
	return nil
}

func (b *backend) useDatabase(database string) error {
	if err := b.command(comInitDB, database); err != nil {
		return b.lost(err)
	}
	var o outcome
	if _, err := b.answer(&o, ignore); err != nil {
		return b.lost(err)
	}
	if o.refusal != nil {
		return o.refusal
	}
	b.database = database
	return nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// connectError is Mycat's text for a backend that could not be connected: Java's exception, or the server's own refusal.
func connectError(err error) *sqlError {
	var refusal *sqlError
	switch {
	case errors.As(err, &refusal):
		return mycatError(erNewAbort, "%s", refusal.text)
	case errors.Is(err, syscall.ECONNREFUSED):
		return mycatError(erNewAbort, "java.net.ConnectException: Connection refused")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return mycatError(erNewAbort, "java.net.NoRouteToHostException: No route to host")
	case errors.Is(err, syscall.ETIMEDOUT):
		return mycatError(erNewAbort, "java.net.ConnectException: Connection timed out")
	}
	return mycatError(erNewAbort, "%s", strings.TrimPrefix(err.Error(), "standin: "))
}

// connect dials a writeHost and logs in. Like Mycat it waits for ever: only ctx, the stand-in's own life, ends it.
func connect(ctx context.Context, p *pool, database string) (*backend, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", p.host.Addr)
	if err != nil {
		return nil, connectError(err)
	}
	b := &backend{framed: newFramed(c), pool: p, home: database, database: database, born: time.Now(), vars: vars{backendCharsetName, true, ""}}
	if !p.adopt(b) {
		_ = c.Close()
		return nil, &lostError{textClosed}
	}
	if err := b.login(p.host, database); err != nil {
		p.forget(b)
		_ = c.Close()
		var refusal *sqlError
		if errors.As(err, &refusal) {
			return nil, connectError(err)
		}
		return nil, b.lost(err)
	}
	return b, nil
}
