package mycat

import (
	"database/sql/driver"
	"errors"
	"reflect"
	"testing"
	"time"
)

// TestDecode reads a table with columns moved, added and in another case, numbers as text, and NULLs.
func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name    string
		columns []string
		row     []driver.Value
		want    Heartbeat
		err     error
	}{
		{
			name:    "as measured",
			columns: []string{"NAME", "TYPE", "HOST", "PORT", "RS_CODE", "RETRY", "STATUS", "TIMEOUT", "EXECUTE_TIME", "LAST_ACTIVE_TIME", "STOP"},
			row:     []driver.Value{"hostM1", "mysql", "127.0.0.1", int64(13301), int64(-2), int64(1), "checking", int64(30000), "2,2,2", "2026-11-30 10:28:30", "true"},
			want: Heartbeat{
				Name: "hostM1", Type: "mysql", Host: "127.0.0.1", Port: 13301, RSCode: RSTimeout, Retry: 1, Status: "checking",
				Timeout: 30 * time.Second, Averages: "2,2,2", LastActive: "2026-11-30 10:28:30", Stopped: true,
			},
		},
		{
			name: "moved, added, renamed in case, bytes and text", columns: []string{"NEW", "rs_code ", "Name", "PORT"},
			row: []driver.Value{int64(7), []byte(" 1 "), []byte("a"), nil}, want: Heartbeat{Name: "a", RSCode: RSOK},
		},
		{name: "shorter row", columns: []string{"NAME", "RS_CODE"}, row: []driver.Value{"a"}, want: Heartbeat{Name: "a"}},
		{name: "DBLE", columns: []string{"NAME", "RS_CODE"}, row: []driver.Value{"a", "ok"}, err: ErrColumn},
		{name: "out of range", columns: []string{"NAME", "RS_CODE"}, row: []driver.Value{"a", int64(1 << 40)}, err: ErrColumn},
		{name: "not Mycat", columns: []string{"Value"}, row: []driver.Value{"a"}, err: ErrColumn},
	} {
		table, err := newTable(Rows{Columns: tt.columns, Values: [][]driver.Value{tt.row}}, "NAME", "RS_CODE")
		var got []Heartbeat
		if err == nil {
			got, err = decode(table, heartbeatOf)
		}
		if !errors.Is(err, tt.err) || tt.err == nil && (len(got) != 1 || !reflect.DeepEqual(got[0], tt.want)) {
			t.Errorf("%s: %+v, %v, want %+v, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}

// FuzzDecode: no table makes a decoder panic, and durations stay within what they can mean.
func FuzzDecode(f *testing.F) {
	f.Add("NAME", "RS_CODE", "hostM1", "1", int64(1))
	f.Add("TIMEOUT", "RECOVERY_TIME", "30000", "-1", int64(-1))
	f.Add("INDEX", "DATHOST", "0", "dh1/shard1/x", int64(1)<<62)
	f.Fuzz(func(t *testing.T, c1, c2, v1, v2 string, n int64) {
		for _, values := range [][]driver.Value{{v1, v2}, {[]byte(v1), n}, {n, nil}, {n, n}, {v1}, {}} {
			table, err := newTable(Rows{Columns: []string{c1, c2}, Values: [][]driver.Value{values}})
			if err != nil {
				t.Fatal(err)
			}
			if all, err := decode(table, heartbeatOf); err == nil && (all[0].Timeout > 1<<31*time.Millisecond || all[0].Timeout < -1<<31*time.Millisecond) {
				t.Fatalf("%+v", all)
			}
			if all, err := decode(table, dataNodeOf); err == nil && all[0].Paused < 0 {
				t.Fatalf("%+v", all)
			}
			_, _ = decode(table, dataSourceOf)
			_, _ = decode(table, serverOf)
			_, _ = decode(table, threadPoolOf)
			_, _ = decode(table, connectionOf)
		}
	})
}
