package mysql

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
)

func TestParseVersion(t *testing.T) {
	tests := []struct {
		text string
		want any
	}{
		{"10.11.19-MariaDB-0+deb12u1-log", mariadb{}},
		{"5.5.5-10.6.12-MariaDB", mariadb{}},
		{"11.8.2-MariaDB", mariadb{}},
		{"10.4.34-MariaDB", nil},
		{"9.7.4", mysql8{modern: true}},
		{"8.4.0", mysql8{modern: true}},
		{"8.0.26", mysql8{modern: true}},
		{"8.0.25-debug", mysql8{}},
		{"5.7.44-log", mysql8{}},
		{"5.6.51", nil},
		{"mycat", nil},
	}
	for _, tt := range tests {
		v, err := parseVersion(tt.text)
		var d dialect
		if err == nil {
			d, err = v.dialect()
		}
		switch want := tt.want.(type) {
		case nil:
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: %v", tt.text, err)
			}
		case mariadb:
			if _, ok := d.(mariadb); !ok || v.family != MariaDB {
				t.Errorf("%s: %T, %v", tt.text, d, err)
			}
		default:
			if d != want || v.family != MySQL {
				t.Errorf("%s: %#v, %v", tt.text, d, err)
			}
		}
	}
}

// listener answers every connection with answer, and closes it unless it holds it.
func listener(t *testing.T, answer string, hold bool) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(answer))
			if hold {
				t.Cleanup(func() { c.Close() })
				continue
			}
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Connect's errors carry the phase that Classify needs.
func TestConnectCauses(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().(*net.TCPAddr).AddrPort()
	free.Close()
	noRoute := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}
	}
	tests := []struct {
		name   string
		server Server
		want   health.Cause
	}{
		{"nobody listens", Server{Addr: nobody, Timeout: time.Minute}, health.Refused},
		{"no greeting", Server{Addr: listener(t, "", true), Timeout: time.Second}, health.NoGreeting},
		{"accept, then close", Server{Addr: listener(t, "", false), Timeout: time.Minute}, health.Protocol},
		{"another protocol", Server{Addr: listener(t, "SSH-2.0-OpenSSH_9.2\r\n", false), Timeout: time.Minute}, health.Reset},
		{"too many connections", Server{Addr: listener(t, "\x17\x00\x00\x00\xff\x10\x04Too many connections", true), Timeout: time.Minute}, health.Overload},
		{"no route", Server{Addr: nobody, Timeout: time.Minute, Dial: noRoute}, health.Self},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := tt.server.bound(t.Context())
			defer cancel()
			c, err := tt.server.Connect(ctx)
			if err == nil {
				c.Close()
				t.Fatal("connected")
			}
			if got, _ := Classify(ctx, err); got != tt.want {
				t.Errorf("%v: %v, want %v", err, got, tt.want)
			}
		})
	}
}

func TestConnectRefusesAccount(t *testing.T) {
	a := startNode(t, 1)
	a.Account.Password = "wrong"
	_, err := a.Connect(long(t))
	if cause, n := Classify(t.Context(), err); cause != health.Config || n != 1045 {
		t.Errorf("%v: %v %d", err, cause, n)
	}
}
