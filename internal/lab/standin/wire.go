package standin

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

const (
	maxChunk     = 1<<24 - 1 // payload of one physical packet; exactly this many bytes mean that another follows
	maxStatement = 64 << 20  // what a client may send; MySQL's own default
)

// The commands of the client protocol that Mycat knows (COM_*). comHeartbeat is Mycat's own.
const (
	comQuit            = 0x01
	comInitDB          = 0x02
	comQuery           = 0x03
	comFieldList       = 0x04
	comProcessKill     = 0x0c
	comPing            = 0x0e
	comStmtPrepare     = 0x16
	comStmtExecute     = 0x17
	comStmtLongData    = 0x18
	comStmtClose       = 0x19
	comStmtReset       = 0x1a
	comSetOption       = 0x1b
	comResetConnection = 0x1f
	comHeartbeat       = 0x40
)

var errPacket = errors.New("standin: malformed packet")

// framed is a connection that speaks in MySQL packets. Writes are buffered until flush.
type framed struct {
	net.Conn
	r   *bufio.Reader
	w   *bufio.Writer
	seq byte
	buf []byte // the last chunk read; reused
}

func newFramed(c net.Conn) framed {
	return framed{Conn: c, r: bufio.NewReaderSize(c, 16<<10), w: bufio.NewWriterSize(c, 16<<10)}
}

// readChunk reads one physical packet. The bytes live until the next call.
func (f *framed) readChunk() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	f.seq = head[3] + 1
	if cap(f.buf) < n {
		f.buf = make([]byte, n)
	}
	f.buf = f.buf[:n]
	_, err := io.ReadFull(f.r, f.buf)
	return f.buf, err
}

// readPacket reads one logical packet, at most maxStatement long. The bytes are the caller's.
func (f *framed) readPacket() ([]byte, error) {
	var whole []byte
	for {
		chunk, err := f.readChunk()
		if err != nil {
			return nil, err
		}
		if len(whole)+len(chunk) > maxStatement {
			return nil, fmt.Errorf("%w: over %d bytes", errPacket, maxStatement)
		}
		whole = append(whole, chunk...)
		if len(chunk) < maxChunk {
			return whole, nil
		}
	}
}

// writeChunk buffers one physical packet under the next sequence number.
func (f *framed) writeChunk(p []byte) error {
	head := [4]byte{byte(len(p)), byte(len(p) >> 8), byte(len(p) >> 16), f.seq}
	f.seq++
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	_, err := f.w.Write(p)
	return err
}

// writePacket buffers one logical packet.
func (f *framed) writePacket(p []byte) error {
	for len(p) >= maxChunk {
		if err := f.writeChunk(p[:maxChunk]); err != nil {
			return err
		}
		p = p[maxChunk:]
	}
	return f.writeChunk(p)
}

// command sends a request: sequence numbers begin anew.
func (f *framed) command(com byte, arg string) error {
	f.seq = 0
	p := make([]byte, 0, 1+len(arg))
	p = append(p, com)
	if err := f.writePacket(append(p, arg...)); err != nil {
		return err
	}
	return f.w.Flush()
}

func appendLenenc(b []byte, n uint64) []byte {
	switch {
	case n < 251:
		return append(b, byte(n))
	case n < 1<<16:
		return append(b, 0xfc, byte(n), byte(n>>8))
	case n < 1<<24:
		return append(b, 0xfd, byte(n), byte(n>>8), byte(n>>16))
	default:
		return binary.LittleEndian.AppendUint64(append(b, 0xfe), n)
	}
}

func appendLenencString(b []byte, s string) []byte {
	return append(appendLenenc(b, uint64(len(s))), s...)
}

// scanner takes a packet apart; after the first overrun everything is empty and bad is set.
type scanner struct {
	b   []byte
	bad bool
}

func (s *scanner) take(n int) []byte {
	if n < 0 || n > len(s.b) {
		s.b, s.bad = nil, true
		return nil
	}
	out := s.b[:n]
	s.b = s.b[n:]
	return out
}

// number reads an integer of n bytes, least significant first.
func (s *scanner) number(n int) uint64 {
	var v uint64
	for i, b := range s.take(n) {
		v |= uint64(b) << (8 * i)
	}
	return v
}

// lenenc reads a length-encoded integer; null is MySQL's NULL of a text row.
func (s *scanner) lenenc() (v uint64, null bool) {
	first := s.number(1)
	switch first {
	case 0xfb:
		return 0, true
	case 0xfc:
		return s.number(2), false
	case 0xfd:
		return s.number(3), false
	case 0xfe:
		return s.number(8), false
	default:
		return first, false
	}
}

func (s *scanner) lenencString() (string, bool) {
	n, null := s.lenenc()
	if n > uint64(len(s.b)) {
		s.b, s.bad = nil, true
		return "", false
	}
	return string(s.take(int(n))), null
}

// zeroString reads up to a zero byte, or to the end.
func (s *scanner) zeroString() string {
	for i, c := range s.b {
		if c == 0 {
			out := string(s.b[:i])
			s.b = s.b[i+1:]
			return out
		}
	}
	return string(s.take(len(s.b)))
}
