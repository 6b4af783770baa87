package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	driverpkg "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
)

func expired(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	t.Cleanup(cancel)
	return ctx
}

func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func dialErr(err error) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
}

func TestClassifyLocal(t *testing.T) {
	at := func(p Phase, err, wire error) error { return &PhaseError{Phase: p, Err: err, Wire: wire} }
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want health.Cause
	}{
		{"nothing", t.Context(), nil, health.OK},
		{"refused", t.Context(), dialErr(syscall.ECONNREFUSED), health.Refused},
		{"refused as the deadline passed", expired(t), dialErr(syscall.ECONNREFUSED), health.Refused},
		{"nobody answers ARP", t.Context(), dialErr(syscall.EHOSTUNREACH), health.Unreachable},
		{"no route of ours", t.Context(), dialErr(syscall.ENETUNREACH), health.Self},
		{"out of ports", t.Context(), dialErr(syscall.EADDRNOTAVAIL), health.Self},
		{"out of descriptors", t.Context(), dialErr(syscall.EMFILE), health.Self},
		{"local filter", t.Context(), dialErr(syscall.EPERM), health.Self},
		{"name", t.Context(), &net.DNSError{Err: "no such host", Name: "db", IsTimeout: true}, health.Self},
		{"kernel's dial timeout", t.Context(), dialErr(syscall.ETIMEDOUT), health.Timeout},
		{"dial timeout as net error", expired(t), at(PhaseDial, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, nil), health.Timeout},
		{"dial timeout as context error", expired(t), at(PhaseDial, context.DeadlineExceeded, nil), health.Timeout},
		{"hung before the greeting", expired(t), at(PhaseGreeting, context.DeadlineExceeded, nil), health.NoGreeting},
		{"hung in the login", expired(t), at(PhaseAuth, context.DeadlineExceeded, nil), health.Timeout},
		{"hung statement", expired(t), context.DeadlineExceeded, health.Timeout},
		{"connection broken by its own context", expired(t), driverpkg.ErrInvalidConn, health.Timeout},
		{"server died", t.Context(), driverpkg.ErrInvalidConn, health.Reset},
		{"server died earlier", t.Context(), driver.ErrBadConn, health.Reset},
		{"EOF", t.Context(), fmt.Errorf("read status: %w", io.EOF), health.Reset},
		{"reset on the wire", t.Context(), at(PhaseQuery, driverpkg.ErrInvalidConn, syscall.ECONNRESET), health.Reset},
		{"reset while greeting", t.Context(), at(PhaseGreeting, driverpkg.ErrInvalidConn, syscall.ECONNRESET), health.Reset},
		{"accept then close", t.Context(), at(PhaseGreeting, driverpkg.ErrInvalidConn, io.EOF), health.Protocol},
		{"not MySQL", t.Context(), at(PhaseAuth, errors.New("unsupported protocol version 83"), nil), health.Protocol},
		{"malformed", t.Context(), driverpkg.ErrMalformPkt, health.Protocol},
		{"no TLS", t.Context(), at(PhaseAuth, driverpkg.ErrNoTLS, nil), health.Config},
		{"plugin", t.Context(), at(PhaseAuth, driverpkg.ErrUnknownPlugin, nil), health.Config},
		{"certificate", t.Context(), at(PhaseAuth, &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}, nil), health.Config},
		{"authority", t.Context(), at(PhaseAuth, x509.UnknownAuthorityError{}, nil), health.Config},
		{"daemon stops", cancelled(t), driverpkg.ErrInvalidConn, health.Cancelled},
		{"daemon stops, dialing", cancelled(t), context.Canceled, health.Cancelled},
		{"server spoke as the daemon stopped", cancelled(t), &driverpkg.MySQLError{Number: 1053}, health.Shutdown},
		{"unknown", t.Context(), errors.New("something else"), health.Self},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, number := Classify(tt.ctx, tt.err)
			if got != tt.want {
				t.Errorf("Classify(%v) = %v, want %v", tt.err, got, tt.want)
			}
			if (number != 0) != (tt.want == health.Shutdown) {
				t.Errorf("Classify(%v): number %d", tt.err, number)
			}
		})
	}
}

// The classes of the code table, by number, written down a second time from faults.md 1.2 so that a slip in the map is seen.
func TestClassifyNumbers(t *testing.T) {
	byClass := map[health.Class][]uint16{
		health.ClassHard:   {1053, 1927, 3169, 4031},
		health.ClassStall:  {1021, 1114, 1205},
		health.ClassBusy:   {1040, 1041, 1135, 1159, 1161, 1203, 1213, 1226, 1317, 1969, 3024},
		health.ClassConfig: {1044, 1045, 1049, 1129, 1130, 1142, 1227, 1251, 1275, 1524, 1698, 1820, 1862, 3118, 3159, 4151},
		health.ClassRole:   {1036, 1290, 1792, 1836, 3032},
		health.ClassSoft:   {1030, 1034, 1146, 1194, 1812, 1932, 1023, 1152, 1184, 9001, 1043, 65535},
	}
	for class, nums := range byClass {
		for _, n := range nums {
			cause, number := Classify(t.Context(), fmt.Errorf("run probe: %w", &driverpkg.MySQLError{Number: n}))
			if cause.Class() != class || number != n {
				t.Errorf("%d: %v (class %d), number %d; want class %d", n, cause, cause.Class(), number, class)
			}
		}
	}
}

// FuzzClassify builds arbitrary trees of errors: every one gets a named cause, the server's number is passed on untouched, and no
// local error ever comes out as a server's answer.
func FuzzClassify(f *testing.F) {
	f.Add(uint16(1290), uint16(0), uint8(0), uint8(3), true)
	f.Add(uint16(0), uint16(syscall.ECONNREFUSED), uint8(1), uint8(0), false)
	f.Add(uint16(0), uint16(0), uint8(4), uint8(1), true)
	base := []error{driverpkg.ErrInvalidConn, driver.ErrBadConn, io.EOF, context.DeadlineExceeded, os.ErrDeadlineExceeded, driverpkg.ErrNoTLS, errors.New("x")}
	f.Fuzz(func(t *testing.T, number, errno uint16, which, phase uint8, late bool) {
		ctx := t.Context()
		if late {
			ctx = expired(t)
		}
		err := base[int(which)%len(base)]
		if errno != 0 {
			err = errors.Join(err, dialErr(syscall.Errno(errno)))
		}
		if number != 0 {
			err = fmt.Errorf("wrapped: %w", errors.Join(err, &driverpkg.MySQLError{Number: number}))
		}
		cause, got := Classify(ctx, &PhaseError{Phase: Phase(phase % 4), Err: err, Wire: io.EOF})
		if cause == health.OK || cause.String() == "invalid" {
			t.Errorf("Classify(%v) = %v", err, cause)
		}
		if got != number {
			t.Errorf("number %d, want %d", got, number)
		}
		if number == 0 && (cause == health.Role || cause == health.Data || cause == health.WrongAnswer || cause == health.Overload) {
			t.Errorf("local error %v came out as a server's answer: %v", err, cause)
		}
	})
}
