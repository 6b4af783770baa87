package mycat

import (
	"context"
	"errors"
	"strings"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/mysql"
)

// answer is one row of the table of what Mycat answers itself: a number, a part of its text (empty: any text), and what it means.
type answer struct {
	number uint16
	text   string // lower case
	cause  health.Cause
}

// answers is read from the top; the first row that fits wins. Mycat's SQLSTATE is always HY000, so number and text are all there is.
// Texts are those of 1.6.7.6; the number alone decides where a text is unknown, and always against "up": a doubt counts as a failure.
var answers = []answer{
	// 1184: Mycat could not get a backend connection. The rest of the text is Java's, or the backend's own refusal.
	{1184, "max activeconnn", health.PoolExhausted}, // sic: three n in 1.6
	{1184, "max activeconnections", health.PoolExhausted},
	{1184, "too many connections", health.Overload},
	{1184, "access denied", health.Config}, // the backend account of schema.xml
	{1184, "is blocked", health.Config},    // the backend blocks Mycat's host: 1129
	{1184, "is not allowed to connect", health.Config},
	{1184, "", health.BackendDown}, // refused, no route, "Invalid DataSource:N" of a dataHost that never came up

	// 1023: the backend connection went away under the statement.
	{1023, "sql timeout", health.Timeout}, // ended by sqlExecuteTimeout
	{1023, "", health.BackendDown},

	// 1105 and 1152: one of several shards failed. Both numbers were seen for the same statement.
	{1152, "", health.BackendDown},
	{1105, "backend connect error", health.BackendDown},
	{1105, "invalid datasource", health.BackendDown},
	{1105, "max activeconn", health.PoolExhausted},
	{1105, "closed connection", health.BackendDown}, // "switch datasource": Mycat's own switch killed it
	{1105, "receive rollback", health.BackendDown},
	{1105, "receive commit", health.BackendDown},
	{1105, "stream closed", health.BackendDown},
	{1105, "program err", health.BackendDown},

	// 3009: an exception that Mycat did not catch.
	{3009, "invalid datasource", health.BackendDown},
	{3009, "", health.Protocol},

	// 1003 (ER_YES) is Mycat's favourite number.
	{1003, "need to rollback", health.BackendDown}, // a transaction after its backend broke
	{1003, "unsupported statement", health.Config},
	{1003, "reload config failure", health.BackendDown},
	{1003, "", health.WrongAnswer},

	// Our account or our statement is wrong.
	{1045, "be degraded", health.Overload}, // the user's `benchmark` of connections is reached
	{1495, "", health.Config},              // "User readonly"
	{3000, "", health.Config},              // "No MyCAT Database selected"
	{1047, "", health.Config},              // "Prepare unsupported!", "Unknown command"
	{1053, "has been shutdown", health.Config},
}

// Classify says what an error of a connection to Mycat means: what Mycat itself answers by its own table, all else (sockets, the
// driver, and what Mycat passes through from MySQL, such as 1290) as internal/mysql does. ctx is the context that the call ran under.
//
// 1053 "The server has been shutdown" is `offline`, which stops no SQL: an operator's act, so it never counts.
func Classify(ctx context.Context, err error) (health.Cause, uint16) {
	if errors.Is(err, ErrDataNode) || errors.Is(err, ErrRows) || errors.Is(err, ErrColumn) {
		return health.Config, 0
	}
	me, ok := errors.AsType[*mysqldriver.MySQLError](err)
	if !ok {
		return mysql.Classify(ctx, err)
	}
	text := strings.ToLower(me.Message)
	for _, a := range answers {
		if a.number == me.Number && strings.Contains(text, a.text) {
			return a.cause, me.Number
		}
	}
	return mysql.Classify(ctx, err)
}
