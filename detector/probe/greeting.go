package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	driver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/mysql"
)

// ErrGreeting means: what came after the connect is not the greeting of a MySQL server.
var ErrGreeting = errors.New("probe: not a MySQL greeting")

// maxGreeting bounds what is read before the login. A greeting has about 100 bytes, an error before it (1040, 1129, 1135) at most 512
// and a few; something else on the port may send anything.
const maxGreeting = 2048

// Greeting is the server's first packet (protocol version 10).
type Greeting struct {
	Version string // "10.11.6-MariaDB-log", "8.0.36", "5.6.29-mycat-1.6.7.5-release-..."
	Thread  uint32 // the session's id
}

// ParseGreeting reads the payload of the server's first packet (Protocol::HandshakeV10). An error that the server sends instead comes
// back as *mysql.MySQLError, anything else that is no greeting as ErrGreeting.
func ParseGreeting(payload []byte) (Greeting, error) {
	if len(payload) == 0 {
		return Greeting{}, fmt.Errorf("%w: empty packet", ErrGreeting)
	}
	body := payload[1:]
	switch payload[0] {
	case 0xff:
		return Greeting{}, parseError(body)
	case 10:
	default:
		return Greeting{}, fmt.Errorf("%w: protocol version %d", ErrGreeting, payload[0])
	}
	end := bytes.IndexByte(body, 0)
	// After the version: thread id 4, first part of the scramble 8, a zero.
	if end < 1 || len(body) < end+1+4+8+1 {
		return Greeting{}, fmt.Errorf("%w: %d bytes", ErrGreeting, len(payload))
	}
	return Greeting{Version: string(body[:end]), Thread: binary.LittleEndian.Uint32(body[end+1:])}, nil
}

// parseError reads ERR_Packet. Before the login the server may leave the SQLSTATE out.
func parseError(body []byte) error {
	if len(body) < 2 {
		return fmt.Errorf("%w: error packet of %d bytes", ErrGreeting, len(body))
	}
	e := &driver.MySQLError{Number: binary.LittleEndian.Uint16(body)}
	text := body[2:]
	if len(text) >= 6 && text[0] == '#' {
		copy(e.SQLState[:], text[1:6])
		text = text[6:]
	}
	e.Message = string(bytes.ToValidUTF8(text, nil))
	return e
}

// readGreeting reads the first packet.
func readGreeting(r io.Reader) (Greeting, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Greeting{}, err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if n > maxGreeting || head[3] != 0 {
		return Greeting{}, fmt.Errorf("%w: first packet of %d bytes with number %d", ErrGreeting, n, head[3])
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return Greeting{}, err
	}
	return ParseGreeting(payload)
}

// port is the probe of TCP and the greeting. A frozen server accepts connections for as long as its kernel has room, and never greets.
// It breaks off before the login, which the server counts against this host (max_connect_errors); a login in between resets the count.
func (c Config) port(t health.Target, addr netip.AddrPort, classify classifier) *Probe {
	look := func(ctx context.Context, _ Mode, _ *Stage) []health.Sample {
		return one(t, classify.sample(ctx, c.greet(ctx, addr)))
	}
	return &Probe{Targets: []health.Target{t}, Factor: health.Port, Every: 1, Look: look}
}

func (c Config) greet(ctx context.Context, addr netip.AddrPort) error {
	w, err := dialWire(ctx, c, addr)
	if err != nil {
		return &mysql.PhaseError{Phase: mysql.PhaseDial, Err: err}
	}
	defer func() { _ = w.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	defer stop()
	if _, err := readGreeting(w); err != nil {
		return w.phased(err)
	}
	return nil
}
