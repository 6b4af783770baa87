package standin

import (
	"errors"
	"math/rand/v2"
	"strconv"
)

// gathered is the answer of one data node of several.
type gathered struct {
	target  target
	backend *backend
	head    [][]byte // column count, columns and EOF
	rows    [][]byte
	eof     []byte
	outcome outcome
	err     error // *sqlError: no connection; *lostError: it broke
}

// visit keeps an answer.
func (g *gathered) visit(k part, p []byte) {
	keep := append([]byte(nil), p...)
	switch k {
	case partCount, partColumn:
		g.head = append(g.head, keep)
	case partEOF:
		if g.eof == nil {
			g.head = append(g.head, keep)
		}
		g.eof = keep
	case partRow:
		g.rows = append(g.rows, keep)
	case partMore:
		g.rows[len(g.rows)-1] = append(g.rows[len(g.rows)-1], keep...)
	}
}

// failure is the first error of several answers in Mycat's words; nil when all succeeded.
func failure(all []*gathered) *sqlError {
	for _, g := range all {
		if err, ok := errors.AsType[*sqlError](g.err); ok {
			if err.raw != nil {
				return err
			}
			number := []uint16{erUnknown, erNetErrorOnWrite}[rand.IntN(2)] // both were seen for the same statement
			return mycatError(number, "Backend connect Error, Connection{DataHost[%s],Schema[%s]} refused",
				g.target.pool.host.Addr, g.target.node.cfg.Database)
		}
		if err, ok := errors.AsType[*lostError](g.err); ok {
			return mycatError(erUnknown, "%s", err.text)
		}
		if g.outcome.refusal != nil {
			return g.outcome.refusal
		}
	}
	return nil
}

// merge writes several answers as one: rows one behind the other, in no order; a single row of sums; or the total of affected rows.
func (s *session) merge(all []*gathered, sums bool) {
	var affected uint64
	var rows [][]byte
	var first *gathered
	for _, g := range all {
		affected += g.outcome.affected
		if g.head != nil {
			first = g
			rows = append(rows, g.rows...)
		}
	}
	if first == nil {
		s.reply(okPacket(affected, s.status(), ""))
		return
	}
	if sums {
		rows = [][]byte{sumRows(rows, len(first.head)-2)}
	}
	for _, p := range first.head {
		s.reply(p)
	}
	for _, p := range rows {
		s.reply(p)
	}
	s.reply(first.eof)
}

// sumRows adds the columns of text rows up; NULL counts as nothing, and stays NULL when there is nothing else.
func sumRows(rows [][]byte, columns int) []byte {
	totals := make([]any, columns)
	for _, row := range rows {
		sc := scanner{b: row}
		for i := range columns {
			value, null := sc.lenencString()
			if !null && !sc.bad {
				totals[i] = sum(totals[i], value)
			}
		}
	}
	var p []byte
	for _, t := range totals {
		p = appendValue(p, t)
	}
	return p
}

func sum(total any, value string) any {
	n, err := strconv.ParseInt(value, 10, 64)
	before, whole := total.(int64)
	if err == nil && (total == nil || whole) {
		return before + n
	}
	f, _ := strconv.ParseFloat(value, 64)
	if whole {
		return float64(before) + f
	}
	g, _ := total.(float64)
	return g + f
}
