package mysql

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// dialect is one family's words for what the steps say, and its way of answering. Statements only: order and proofs are the steps'.
type dialect interface {
	statusSQL() string
	readStatus(sets [][]row) (Status, error)
	progressSQL() string
	readProgress(sets [][]row) (progress, error)
	ackersSQL() string
	quietSQL() string   // one row: events, source_half
	waitingSQL() string // one value: sessions that wait for an acknowledgement

	// readOnlySQL makes the instance read-only for every account that can be bound; bounded says that the statement itself ends after
	// the time given, and not only its client's patience.
	readOnlySQL(bound time.Duration) (sql string, bounded bool)
	writableSQL() string
	// epochDoorSQL lets the admin account write while clients still cannot; empty where its privileges do already.
	epochDoorSQL() string

	// ioCommand is the process list's word for the IO thread, where it is stopped by killing it (see cut); else empty.
	ioCommand() string
	stopIOSQL(channel string) string
	stopSQL(channel string) string
	stopApplierSQL(channel string) string
	startSQL(channel string) string
	startApplierSQL(channel string) string
	// purgesOnStart says whether starting the applier while both threads stand deletes the relay log and fetches it again.
	purgesOnStart() bool
	waitSQL(set gtid.Set, timeout time.Duration) string

	// adoptPositionSQL makes a former source start replicating where its own binlog ends; empty where the protocol does it.
	adoptPositionSQL() string
	changeSourceSQL(channel string, r Replication) (string, []driver.Value)

	// semiSyncSourceOffSQL and the others set the halves of semi-sync.
	semiSyncSourceOffSQL() string
	semiSyncSourceOnSQL() string
	semiSyncReplicaOnSQL() string

	// passingSQL lists the accounts that write in spite of the fence; empty: nobody can.
	passingSQL() string
}

// version is a server's version as numbers.
type version struct {
	text                string
	family              Family
	major, minor, patch int
}

func parseVersion(text string) (version, error) {
	v := version{text: text, family: MySQL}
	if strings.Contains(text, "MariaDB") {
		v.family = MariaDB
	}
	text = strings.TrimPrefix(text, "5.5.5-") // old MariaDB behind a proxy
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &v.major, &v.minor, &v.patch); err != nil {
		return v, seen(ErrUnsupported, "version %q", v.text)
	}
	return v, nil
}

// atLeast compares versions of one family.
func (v version) atLeast(major, minor, patch int) bool {
	if v.major != major {
		return v.major > major
	}
	if v.minor != minor {
		return v.minor > minor
	}
	return v.patch >= patch
}

// dialect picks the words: MariaDB 10.5 and later (SHOW ALL SLAVES STATUS with GTID columns, fine-grained privileges), MySQL 5.7 and
// later, with the new words from 8.0.22/8.0.26 on.
func (v version) dialect() (dialect, error) {
	switch {
	case v.family == MariaDB && v.atLeast(10, 5, 2):
		return mariadb{v}, nil
	case v.family == MySQL && v.atLeast(8, 0, 26):
		return mysql8{modern: true}, nil
	case v.family == MySQL && v.atLeast(5, 7, 0):
		return mysql8{}, nil
	}
	return nil, seen(ErrUnsupported, "%q; Baton speaks MariaDB from 10.5.2 and MySQL from 5.7", v.text)
}

// quote makes an SQL string literal of a name that the server itself told or the configuration holds.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
