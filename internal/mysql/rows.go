package mysql

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// readAll reads every result set of an answer. Statements without rows have none.
func readAll(rows driver.Rows) ([][]row, error) {
	var sets [][]row
	for {
		if columns := rows.Columns(); len(columns) > 0 {
			set, err := readSet(rows, columns)
			if err != nil {
				return sets, err
			}
			sets = append(sets, set)
		}
		next, ok := rows.(driver.RowsNextResultSet)
		if !ok || !next.HasNextResultSet() {
			return sets, nil
		}
		if err := next.NextResultSet(); err != nil {
			if errors.Is(err, io.EOF) {
				return sets, nil
			}
			return sets, err
		}
	}
}

func readSet(rows driver.Rows, columns []string) ([]row, error) {
	set := []row{}
	values := make([]driver.Value, len(columns))
	for {
		if err := rows.Next(values); err != nil {
			if errors.Is(err, io.EOF) {
				return set, nil
			}
			return set, err
		}
		r := make(row, len(columns))
		for i, v := range values {
			switch v := v.(type) {
			case nil:
			case []byte:
				r[columns[i]] = string(v)
			default:
				r[columns[i]] = fmt.Sprint(v)
			}
		}
		set = append(set, r)
	}
}
