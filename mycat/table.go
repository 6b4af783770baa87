package mycat

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// table finds the columns of a management table by name: Mycat's versions and forks add columns and move them.
type table struct {
	index map[string]int
	rows  [][]driver.Value
}

// newTable refuses a table without the columns that it cannot do without: it is not Mycat's then.
func newTable(rows Rows, needs ...string) (table, error) {
	t := table{index: make(map[string]int, len(rows.Columns)), rows: rows.Values}
	for i, name := range rows.Columns {
		name = strings.ToUpper(strings.TrimSpace(name)) // DBLE's "RS_MESSAGE " has a space at its end
		if _, twice := t.index[name]; !twice {
			t.index[name] = i
		}
	}
	for _, name := range needs {
		if _, ok := t.index[name]; !ok {
			return table{}, fmt.Errorf("%w: no column %s among %q: is it Mycat 1.6?", ErrColumn, name, rows.Columns)
		}
	}
	return t, nil
}

// decode turns each row into a value; the first value that cannot be read is the error.
func decode[T any](t table, from func(*record) T) ([]T, error) {
	all := make([]T, 0, len(t.rows))
	for _, values := range t.rows {
		r := record{index: t.index, values: values}
		v := from(&r)
		if r.err != nil {
			return nil, r.err
		}
		all = append(all, v)
	}
	return all, nil
}

// record reads one row. An absent column or NULL is the zero value; a value that is there and cannot be read is an error.
type record struct {
	index  map[string]int
	values []driver.Value
	err    error
}

func (r *record) value(name string) driver.Value {
	i, ok := r.index[name]
	if !ok || i >= len(r.values) {
		return nil
	}
	return r.values[i]
}

func (r *record) text(name string) string {
	switch v := r.value(name).(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}

func (r *record) long(name string) int64 {
	if n, ok := r.value(name).(int64); ok {
		return n
	}
	text := strings.TrimSpace(r.text(name))
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("%w: column %s holds %q, not a number", ErrColumn, name, text))
	}
	return n
}

// small reads a number that fits 32 bits: one that does not is no count, port or code, and would overflow as a duration.
func (r *record) small(name string) int {
	n := r.long(name)
	if n < math.MinInt32 || n > math.MaxInt32 {
		r.err = errors.Join(r.err, fmt.Errorf("%w: column %s holds %d, out of range", ErrColumn, name, n))
		return 0
	}
	return int(n)
}

func orColumn(err error) error {
	if err == nil {
		return ErrColumn
	}
	return err
}
