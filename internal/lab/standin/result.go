package standin

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// kind is a column's type as Mycat declares it. Clients that key by type (the Go driver gives int64 for the integers) depend on it.
type kind byte

// The types of mycat.md 2: S VAR_STRING, C STRING, V VARCHAR, I LONG, L LONGLONG, D DOUBLE, T DATETIME, TINY.
const (
	kindTiny     kind = 1
	kindInt      kind = 3
	kindDouble   kind = 5
	kindLong     kind = 8
	kindDatetime kind = 12
	kindVarchar  kind = 15
	kindString   kind = 253
	kindChar     kind = 254
)

type column struct {
	name string
	kind kind
}

// resultSet is an answer that the stand-in gives itself. A nil value is NULL.
type resultSet struct {
	columns []column
	rows    [][]any
}

var kinds = map[byte]kind{
	'S': kindString, 'C': kindChar, 'V': kindVarchar, 'I': kindInt, 'L': kindLong, 'D': kindDouble, 'T': kindDatetime, 'Y': kindTiny,
}

// newResult takes columns as "NAME:S", the notation of mycat.md 2 (Y is TINY).
func newResult(columns ...string) *resultSet {
	r := &resultSet{}
	for _, c := range columns {
		r.columns = append(r.columns, column{c[:len(c)-2], kinds[c[len(c)-1]]})
	}
	return r
}

func (r *resultSet) add(values ...any) { r.rows = append(r.rows, values) }

// shuffled puts the rows in any order: Mycat's is that of a Java HashMap, so nobody may depend on it.
func (r *resultSet) shuffled() *resultSet {
	rand.Shuffle(len(r.rows), func(i, j int) { r.rows[i], r.rows[j] = r.rows[j], r.rows[i] })
	return r
}

const statusAutocommit = 0x0002

// Charsets of a column: numbers are binary, text is utf8 (33), as Mycat announces.
const (
	charsetUTF8   = 33
	charsetBinary = 63
)

func columnPacket(c column) []byte {
	p := appendLenencString(nil, "def")
	for _, s := range []string{"", "", "", c.name, ""} { // schema, table, original table, name, original name
		p = appendLenencString(p, s)
	}
	charset := uint16(charsetUTF8)
	switch c.kind {
	case kindTiny, kindInt, kindLong, kindDouble, kindDatetime:
		charset = charsetBinary
	}
	p = append(p, 0x0c)
	p = binary.LittleEndian.AppendUint16(p, charset)
	p = binary.LittleEndian.AppendUint32(p, 256) // the display length; Mycat's is arbitrary too
	return append(p, byte(c.kind), 0, 0, 0, 0, 0)
}

func appendValue(p []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(p, 0xfb)
	case string:
		return appendLenencString(p, v)
	case int:
		return appendLenencString(p, strconv.Itoa(v))
	case int64:
		return appendLenencString(p, strconv.FormatInt(v, 10))
	case float64:
		return appendLenencString(p, strconv.FormatFloat(v, 'f', -1, 64))
	default:
		return appendLenencString(p, fmt.Sprint(v))
	}
}

// packets is the whole answer, packet by packet.
func (r *resultSet) packets() [][]byte {
	out := [][]byte{appendLenenc(nil, uint64(len(r.columns)))}
	for _, c := range r.columns {
		out = append(out, columnPacket(c))
	}
	out = append(out, eofPacket(statusAutocommit))
	for _, row := range r.rows {
		var p []byte
		for _, v := range row {
			p = appendValue(p, v)
		}
		out = append(out, p)
	}
	return append(out, eofPacket(statusAutocommit))
}

func eofPacket(status uint16) []byte {
	return []byte{0xfe, 0, 0, byte(status), byte(status >> 8)}
}

func okPacket(affected uint64, status uint16, info string) []byte {
	p := appendLenenc([]byte{0}, affected)
	p = append(p, 0, byte(status), byte(status>>8), 0, 0)
	if info != "" {
		p = appendLenencString(p, info)
	}
	return p
}

// Mycat's error numbers (config/ErrorCode.java).
const (
	erYes               = 1003 // Mycat's answer to nearly everything
	erErrorOnClose      = 1023
	erDBAccessDenied    = 1044
	erAccessDenied      = 1045
	erUnknownCom        = 1047
	erBadDB             = 1049
	erServerShutdown    = 1053
	erParse             = 1064
	erUnknown           = 1105
	erNetErrorOnWrite   = 1152 // the other number of "Backend connect Error"
	erNewAbort          = 1184
	erUserReadOnly      = 1495
	erNoSchema          = 3000
	erUncaughtException = 3009
)

// sqlError is an error packet: Mycat's own (HY000 always), or a backend's, passed through as it came.
type sqlError struct {
	number uint16
	text   string
	raw    []byte // a backend's packet; nil for Mycat's own
}

func mycatError(number uint16, format string, args ...any) *sqlError {
	return &sqlError{number: number, text: fmt.Sprintf(format, args...)}
}

// Error is the message without the number.
func (e *sqlError) Error() string { return e.text }

func (e *sqlError) packet() []byte {
	if e.raw != nil {
		return e.raw
	}
	p := []byte{0xff, byte(e.number), byte(e.number >> 8)}
	return append(append(p, "#HY000"...), e.text...)
}

// parseError reads a backend's error packet. One sent before the handshake has no SQLSTATE.
func parseError(p []byte) *sqlError {
	s := scanner{b: p[1:]}
	e := &sqlError{number: uint16(s.number(2)), raw: append([]byte(nil), p...)}
	if len(s.b) > 6 && s.b[0] == '#' {
		s.take(6)
	}
	e.text = string(s.b)
	return e
}
