package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
)

// Phase says how far a connection had come when it failed. The driver's error types cannot tell: a context that ends while dialing
// comes back as a net.OpError or as the context's error, at random.
type Phase uint8

// The phases of a connection, in order.
const (
	PhaseDial     Phase = iota // no TCP connection yet
	PhaseGreeting              // connected, the server has sent nothing
	PhaseAuth                  // the server has spoken, the login is not through
	PhaseQuery                 // logged in
)

// PhaseError is an error of a connection with the phase it came in. Errors of Server.Connect are of this type; a prober that dials by
// itself wraps its errors likewise, so that Classify can tell a hung server (NoGreeting) and a dead proxy (Protocol) from the rest.
type PhaseError struct {
	Phase Phase
	Err   error
	Wire  error // the socket's own error, which the driver only logs; nil if none was seen
}

// Error is the driver's message, and the socket's where there is one.
func (e *PhaseError) Error() string {
	if e.Wire == nil || errors.Is(e.Err, e.Wire) {
		return e.Err.Error()
	}
	return e.Err.Error() + ": " + e.Wire.Error()
}

// Unwrap gives both errors to errors.Is and errors.As.
func (e *PhaseError) Unwrap() []error {
	if e.Wire == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Wire}
}

// numbers is the code table of the field for what a server answers (numbers only: errors before the handshake's end have no SQLSTATE).
var numbers = map[uint16]health.Cause{
	1053: health.Shutdown, // ER_SERVER_SHUTDOWN

	1927: health.Reset, // MariaDB: connection was killed
	3169: health.Reset, // MySQL: session was killed
	4031: health.Reset, // MySQL: disconnected by wait_timeout

	1021: health.WriteStall, // disk full
	1114: health.WriteStall, // table full
	1205: health.WriteStall, // lock wait timeout

	1040: health.Overload, // too many connections
	1041: health.Overload, // out of memory
	1135: health.Overload, // cannot create a thread
	1158: health.Overload, // the server's network reads and writes were interrupted
	1159: health.Overload,
	1160: health.Overload,
	1161: health.Overload,
	1203: health.Overload, // max_user_connections
	1213: health.Overload, // deadlock
	1226: health.Overload, // a resource limit of the account
	1317: health.Overload, // query interrupted
	1969: health.Overload, // MariaDB: max_statement_time
	3024: health.Overload, // MySQL: max_execution_time

	1042: health.Config, // the server cannot resolve our address
	1044: health.Config, // no right on the schema
	1045: health.Config, // access denied
	1046: health.Config, // no database selected
	1049: health.Config, // unknown database
	1054: health.Config, // unknown column: the configured SQL is wrong
	1064: health.Config, // syntax: the configured SQL is wrong
	1129: health.Config, // host blocked
	1130: health.Config, // host not allowed
	1142: health.Config, // no right on the table
	1143: health.Config, // no right on the column
	1153: health.Config, // statement larger than max_allowed_packet
	1227: health.Config, // a privilege is missing
	1251: health.Config, // authentication protocol
	1275: health.Config, // old password
	1370: health.Config, // no right on the routine
	1524: health.Config, // plugin not loaded
	1698: health.Config, // access denied, socket authentication
	1820: health.Config, // password must be reset
	1862: health.Config, // password expired
	3118: health.Config, // MySQL: account locked
	3159: health.Config, // insecure transport refused
	4151: health.Config, // MariaDB: account locked

	1036: health.Role, // opened read-only (innodb_force_recovery)
	1290: health.Role, // read_only, super_read_only
	1792: health.Role, // transaction_read_only
	1836: health.Role, // InnoDB read-only mode
	3032: health.Role, // offline_mode

	1030: health.Data, // error from the storage engine
	1034: health.Data, // index corrupt
	1035: health.Data, // old key file
	1146: health.Data, // no such table (also out of file descriptors)
	1194: health.Data, // table crashed
	1195: health.Data, // table crashed, repair failed
	1812: health.Data, // tablespace missing
	1814: health.Data, // tablespace discarded
	1932: health.Data, // MariaDB: no such table in engine

	1043: health.Protocol, // bad handshake

	1023: health.BackendDown, // Mycat: its backend
	1152: health.BackendDown,
	1184: health.BackendDown,
	9001: health.BackendDown, // ProxySQL: no backend in time
}

// errnos is the table of what the kernel says.
var errnos = map[syscall.Errno]health.Cause{
	syscall.ECONNREFUSED: health.Refused,
	syscall.ECONNRESET:   health.Reset,
	syscall.ECONNABORTED: health.Reset,
	syscall.EPIPE:        health.Reset,
	syscall.ETIMEDOUT:    health.Timeout,
	syscall.EHOSTUNREACH: health.Unreachable,
	syscall.EHOSTDOWN:    health.Unreachable,

	// Our own side: no route, no ports, no descriptors, a local filter. Never evidence against the target.
	syscall.ENETUNREACH:   health.Self,
	syscall.ENETDOWN:      health.Self,
	syscall.EADDRNOTAVAIL: health.Self,
	syscall.EADDRINUSE:    health.Self,
	syscall.EMFILE:        health.Self,
	syscall.ENFILE:        health.Self,
	syscall.ENOBUFS:       health.Self,
	syscall.ENOMEM:        health.Self,
	syscall.EPERM:         health.Self,
	syscall.EACCES:        health.Self,
	syscall.EINVAL:        health.Self,
}

// sentinels is the table of the driver's own errors.
var sentinels = []struct {
	err   error
	cause health.Cause
}{
	{driverpkg.ErrNoTLS, health.Config},
	{driverpkg.ErrUnknownPlugin, health.Config},
	{driverpkg.ErrCleartextPassword, health.Config},
	{driverpkg.ErrNativePassword, health.Config},
	{driverpkg.ErrOldPassword, health.Config},
	{driverpkg.ErrPktTooLarge, health.Config},
	{driverpkg.ErrOldProtocol, health.Protocol},
	{driverpkg.ErrMalformPkt, health.Protocol},
	{driverpkg.ErrPktSync, health.Protocol},
	{driverpkg.ErrPktSyncMul, health.Protocol},
	{driverpkg.ErrBusyBuffer, health.Self},
}

// Classify says what an error of dialing or using a MySQL connection means, once and for all: nothing above this package looks into
// errors. ctx is the context that the call ran under. The number is the server's error number, or 0 when the server did not answer one.
//
// A server's answer goes before everything: it is evidence that it lives. A connection that its own context's end has broken is a
// Timeout, not a Reset. An error that it does not know is Self, so that it never counts.
func Classify(ctx context.Context, err error) (health.Cause, uint16) {
	if err == nil {
		return health.OK, 0
	}
	if me, ok := errors.AsType[*driverpkg.MySQLError](err); ok {
		if cause, known := numbers[me.Number]; known {
			return cause, me.Number
		}
		return health.WrongAnswer, me.Number
	}
	if errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled) {
		return health.Cancelled, 0
	}
	phase := PhaseQuery
	if pe, ok := errors.AsType[*PhaseError](err); ok {
		phase = pe.Phase
	}
	return classifyLocal(ctx, err, phase), 0
}

// classifyLocal judges what the server did not say itself.
func classifyLocal(ctx context.Context, err error, phase Phase) health.Cause {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if cause, known := errnos[errno]; known && cause != health.Timeout {
			return cause
		}
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return health.Self
	}
	if isTLS(err) {
		return health.Config
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.cause
		}
	}
	switch {
	case isTimeout(ctx, err):
		if phase == PhaseGreeting {
			return health.NoGreeting
		}
		return health.Timeout
	case isBroken(err):
		if phase == PhaseGreeting {
			return health.Protocol // accepted, then closed without a word: a proxy with nothing behind it
		}
		return health.Reset
	case phase == PhaseGreeting || phase == PhaseAuth:
		return health.Protocol // connected, and what came is not a MySQL handshake
	}
	return health.Self
}

func isTimeout(ctx context.Context, err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

func isBroken(err error) bool {
	return errors.Is(err, driverpkg.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.UnknownAuthorityError](err)
	return ok
}
