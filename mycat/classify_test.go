package mycat

import (
	"context"
	"fmt"
	"strings"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
)

// TestClassify has every text of mycat.md 4 and 1.1, and some of MySQL that Mycat passes through.
func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		number uint16
		text   string
		want   health.Cause
	}{
		{1184, "java.net.ConnectException: Connection refused", health.BackendDown},
		{1184, "java.net.NoRouteToHostException: No route to host", health.BackendDown},
		{1184, "Access denied for user 'mycat'@'10.0.0.1' (using password: YES)", health.Config},
		{1184, "Too many connections", health.Overload},
		{1184, "Host '10.0.0.1' is blocked because of many connection errors; unblock with 'mysqladmin flush-hosts'", health.Config},
		{1184, "Host '10.0.0.1' is not allowed to connect to this MariaDB server", health.Config},
		{1184, "the max activeConnnections size can not be max than maxconnections", health.PoolExhausted},
		{1184, "Invalid DataSource:0", health.BackendDown},
		{3009, "Invalid DataSource:0", health.BackendDown},
		{1105, "Invalid DataSource:0", health.BackendDown},
		{1023, "program err:java.net.SocketException: Connection reset", health.BackendDown},
		{1023, "stream closed", health.BackendDown},
		{1023, "sql timeout", health.Timeout},
		{1105, "Backend connect Error, Connection{DataHost[10.0.0.1:3306],Schema[bank]} refused", health.BackendDown},
		{1152, "Backend connect Error, Connection{DataHost[10.0.0.1:3306],Schema[bank]} refused", health.BackendDown},
		{1105, "closed connection:switch datasource hostM1", health.BackendDown},
		{1105, "receive rollback,but find backend con is closed or quit", health.BackendDown},
		{1105, "something of MySQL", health.WrongAnswer},
		{1003, "Transaction error, need to rollback. errno:1023 stream closed", health.BackendDown},
		{1003, "Unsupported statement", health.Config},
		{1003, "Reload config failure", health.BackendDown},
		{1003, "something else", health.WrongAnswer},
		{1495, "User readonly", health.Config},
		{1064, "can't find hint datanode:dn9", health.Config},
		{1064, "can't find table define in schema HB schema:bank", health.Config},
		{3000, "No MyCAT Database selected", health.Config},
		{1053, "The server has been shutdown", health.Config},
		{1053, "Server shutdown in progress", health.Shutdown},
		{1045, "Access denied for user 'x', because password is error ", health.Config},
		{1045, "Access denied for user 'x', because service be degraded ", health.Overload},
		{1044, "Access denied for user 'x' to database 'y'", health.Config},
		{1049, "Unknown database 'x'", health.Config},
		{1047, "Prepare unsupported!", health.Config},
		{3009, "Could not initialize class io.mycat.manager.response.ShowDatasourceSyn", health.Protocol},
		{1290, "The MariaDB server is running with the --read-only option", health.Role},
		{1205, "Lock wait timeout exceeded; try restarting transaction", health.WriteStall},
		{1146, "Table 'bank.hb' doesn't exist", health.Data},
	} {
		err := fmt.Errorf("ask: %w", &mysqldriver.MySQLError{Number: tt.number, Message: tt.text})
		if cause, number := Classify(t.Context(), err); cause != tt.want || number != tt.number {
			t.Errorf("%d %s: %v %d, want %v", tt.number, tt.text, cause, number, tt.want)
		}
	}
	if cause, number := Classify(t.Context(), nil); cause != health.OK || number != 0 {
		t.Errorf("no error: %v %d", cause, number)
	}
	for _, err := range []error{ErrColumn, ErrRows, ErrDataNode} {
		if cause, _ := Classify(t.Context(), fmt.Errorf("x: %w", err)); cause != health.Config {
			t.Errorf("%v: %v, want config", err, cause)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if cause, _ := Classify(ctx, ctx.Err()); cause != health.Cancelled {
		t.Errorf("cancelled: %v", cause)
	}
}

// TestAnswersReachable: a row of the table behind a wider one of the same number would never be read.
func TestAnswersReachable(t *testing.T) {
	for i, a := range answers {
		if a.text != strings.ToLower(a.text) {
			t.Errorf("row %d: %q is not in lower case", i, a.text)
		}
		for _, before := range answers[:i] {
			if before.number == a.number && strings.Contains(a.text, before.text) {
				t.Errorf("row %d (%d %q) is hidden by %q", i, a.number, a.text, before.text)
			}
		}
	}
}

// FuzzClassify: an error is never OK, keeps its number, and the cause is one that has a name.
func FuzzClassify(f *testing.F) {
	for _, a := range answers {
		f.Add(a.number, a.text)
	}
	f.Add(uint16(0), "")
	f.Fuzz(func(t *testing.T, number uint16, text string) {
		cause, got := Classify(context.Background(), &mysqldriver.MySQLError{Number: number, Message: text})
		if cause == health.OK || cause.String() == "invalid" || got != number {
			t.Fatalf("%d %q: %v %d", number, text, cause, got)
		}
	})
}
