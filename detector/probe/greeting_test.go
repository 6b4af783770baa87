package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/mysql"
)

// hello is the greeting of a server with that version and session.
func hello(version string, thread byte) []byte {
	p := append([]byte{10}, version...)
	p = append(p, 0, thread, 0, 0, 0)
	p = append(p, "scramble"...)
	return append(p, 0, 0xff, 0xf7, 33, 2, 0)
}

// packet puts the four bytes before a payload.
func packet(seq byte, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), seq}, payload...)
}

func TestParseGreeting(t *testing.T) {
	blocked := append([]byte{0xff, 0x69, 0x04}, "Host '10.0.0.1' is blocked"...) // 1129, without an SQLSTATE
	full := append([]byte{0xff, 0x10, 0x04}, "#08004Too many connections"...)    // 1040
	tests := []struct {
		name    string
		payload []byte
		want    Greeting
		number  uint16
		is      error
	}{
		{"mariadb", hello("10.11.19-MariaDB", 7), Greeting{"10.11.19-MariaDB", 7}, 0, nil},
		{"blocked", blocked, Greeting{}, 1129, nil},
		{"full", full, Greeting{}, 1040, nil},
		{"empty", nil, Greeting{}, 0, ErrGreeting},
		{"protocol 9", []byte{9, 'x', 0}, Greeting{}, 0, ErrGreeting},
		{"no version", []byte{10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, Greeting{}, 0, ErrGreeting},
		{"cut off", hello("8.0.36", 1)[:12], Greeting{}, 0, ErrGreeting},
		{"error cut off", []byte{0xff, 1}, Greeting{}, 0, ErrGreeting},
		{"http", []byte("HTTP/1.1 400 Bad Request"), Greeting{}, 0, ErrGreeting},
	}
	for _, tt := range tests {
		got, err := ParseGreeting(tt.payload)
		var me *driver.MySQLError
		switch {
		case tt.number != 0:
			if !errors.As(err, &me) || me.Number != tt.number {
				t.Errorf("%s: error is %v, want number %d", tt.name, err, tt.number)
			}
		case !errors.Is(err, tt.is) || got != tt.want:
			t.Errorf("%s: %+v, %v; want %+v, %v", tt.name, got, err, tt.want, tt.is)
		}
	}
	var me *driver.MySQLError
	if _, err := ParseGreeting(full); !errors.As(err, &me) || me.Message != "Too many connections" || string(me.SQLState[:]) != "08004" {
		t.Errorf("1040 is %+v", me)
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add(packet(0, hello("10.11.19-MariaDB", 7)))
	f.Add(packet(0, []byte{0xff, 0x10, 0x04, '#', '0', '8', '0', '0', '4', 'T'}))
	f.Add([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		g, err := readGreeting(r)
		if err == nil && (g.Version == "" || len(data) < 19) {
			t.Fatalf("%q is a greeting: %+v", data, g)
		}
		if read := len(data) - r.Len(); read > 4+maxGreeting {
			t.Fatalf("read %d bytes of a first packet", read)
		}
		if err != nil {
			if cause, _ := mysql.Classify(t.Context(), &mysql.PhaseError{Phase: mysql.PhaseAuth, Err: err}); cause == health.OK || cause.Class() == health.ClassIgnored {
				t.Fatalf("%q is %s", data, cause)
			}
		}
	})
}

// listen serves each connection on loopback with fn.
func listen(t *testing.T, fn func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go fn(c)
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// look runs one look that is to end with that cause.
func look(t *testing.T, p *Probe, m Mode, want health.Cause) []health.Sample {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifeOf(want.String()))
	defer cancel()
	return p.Do(ctx, m)
}

func TestPortAgainstStrangers(t *testing.T) {
	shut := func(c net.Conn) { _ = c.Close() }
	reset := func(c net.Conn) {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	say := func(b []byte) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Write(b)
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}
	gone := listen(t, shut)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := l.Addr().(*net.TCPAddr).AddrPort()
	_ = l.Close()
	tests := []struct {
		name string
		addr netip.AddrPort
		want health.Cause
	}{
		{"greets", listen(t, say(packet(0, hello("8.0.36", 1)))), health.OK},
		{"accepts and closes", gone, health.Protocol},
		{"accepts and resets", listen(t, reset), health.Reset},
		{"accepts only", listen(t, func(net.Conn) {}), health.NoGreeting},
		{"half a greeting", listen(t, say(packet(0, hello("8.0.36", 1))[:9])), health.Timeout},
		{"another protocol", listen(t, say([]byte("SSH-2.0-OpenSSH_9.2\r\n"))), health.Protocol},
		{"full", listen(t, say(packet(0, []byte{0xff, 0x10, 0x04}))), health.Overload},
		{"nobody listens", refused, health.Refused},
	}
	target := health.Target{Site: "a", Kind: health.MySQL, Shard: "s1"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Config{}.port(target, tt.addr, mysql.Classify)
			got := look(t, p, Mode{}, tt.want)
			if len(got) != 1 || got[0].Cause != tt.want || got[0].Target != target || got[0].Factor != health.Port || got[0].At.IsZero() || got[0].Took == 0 {
				t.Errorf("samples are %+v, want one of cause %s", got, tt.want)
			}
		})
	}
}

func TestPanicIsOurOwnFault(t *testing.T) {
	target := health.Target{Site: "a", Kind: health.Mycat}
	p := &Probe{Targets: []health.Target{target}, Factor: health.Port, Look: func(context.Context, Mode, *Stage) []health.Sample { panic("boom") }}
	got := p.Do(t.Context(), Mode{})
	if len(got) != 1 || got[0].Cause != health.Self || got[0].Target != target || got[0].Factor != health.Port {
		t.Errorf("samples are %+v", got)
	}
}

func TestPendingKnowsTheStage(t *testing.T) {
	targets := []health.Target{{Site: "a", Kind: health.Site, Shard: "s1"}, {Site: "a", Kind: health.Site, Shard: "s2"}}
	p := &Probe{Targets: targets, Factor: health.VIP}
	now := time.Now()
	tests := []struct {
		name  string
		stage func()
		want  []health.Target
		cause health.Cause
	}{
		{"connecting", func() {}, targets, health.Pending},
		{"reading the second", func() { p.stage.Reading(1) }, targets[1:], health.Pending},
		{"writing the first", func() { p.stage.Writing(0) }, targets[:1], health.WriteStall},
	}
	for _, tt := range tests {
		p.stage.v.Store(0)
		tt.stage()
		got := p.Pending(now, time.Second)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %d samples, want %d", tt.name, len(got), len(tt.want))
			continue
		}
		for i, s := range got {
			if s.Target != tt.want[i] || s.Cause != tt.cause || !s.At.Equal(now) || s.Factor != health.VIP {
				t.Errorf("%s: %+v", tt.name, s)
			}
		}
	}
}
