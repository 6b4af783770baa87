package mysql

import (
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// mariadb speaks MariaDB 10.5.2 to 11.x: SHOW ALL SLAVES STATUS, domain-server-sequence GTIDs, read_only with no super_read_only.
type mariadb struct{ v version }

func (mariadb) statusSQL() string {
	return `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id','server_uid','read_only','gtid_current_pos','gtid_binlog_state',
'log_slave_updates','gtid_strict_mode','sync_binlog','innodb_flush_log_at_trx_commit','skip_name_resolve','event_scheduler',
'auto_increment_increment','auto_increment_offset','rpl_semi_sync_master_enabled','rpl_semi_sync_master_wait_point',
'rpl_semi_sync_master_timeout','rpl_semi_sync_master_wait_no_slave','rpl_semi_sync_slave_enabled'); SHOW ALL SLAVES STATUS;
SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime','Rpl_semi_sync_master_status','Rpl_semi_sync_master_clients',
'Rpl_semi_sync_master_wait_sessions','Rpl_semi_sync_slave_status')`
}

func (m mariadb) readStatus(sets [][]row) (Status, error) {
	if len(sets) != 3 {
		return Status{}, seen(ErrUnsupported, "%d result sets for 3 queries", len(sets))
	}
	v, s := byName(sets[0]), byName(sets[2])
	var err error
	st := Status{
		Family: MariaDB, ServerID: uint32(v.num("server_id", &err)), UUID: v["server_uid"], ReadOnly: v.on("read_only"),
		Executed:          v.set(gtid.MariaDBPos, "gtid_current_pos", &err),
		BinlogState:       v.set(gtid.MariaDBState, "gtid_binlog_state", &err),
		LogReplicaUpdates: v.on("log_slave_updates"), GTIDStrict: v.on("gtid_strict_mode"),
		SyncBinlog: v.num("sync_binlog", &err), FlushLog: v.num("innodb_flush_log_at_trx_commit", &err),
		SkipNameResolve: v.on("skip_name_resolve"), EventScheduler: v["event_scheduler"],
		AutoIncrement: AutoIncrement{v.num("auto_increment_increment", &err), v.num("auto_increment_offset", &err)},
		Uptime:        time.Duration(s.num("Uptime", &err)) * time.Second,
		SemiSync: SemiSync{
			SourceEnabled: v.on("rpl_semi_sync_master_enabled"), SourceOn: s.on("Rpl_semi_sync_master_status"),
			WaitPoint:     v["rpl_semi_sync_master_wait_point"],
			Timeout:       time.Duration(v.num("rpl_semi_sync_master_timeout", &err)) * time.Millisecond,
			WaitNoReplica: v.on("rpl_semi_sync_master_wait_no_slave"), WaitCount: 1,
			Clients: s.num("Rpl_semi_sync_master_clients", &err), Waiting: s.num("Rpl_semi_sync_master_wait_sessions", &err),
			ReplicaEnabled: v.on("rpl_semi_sync_slave_enabled"), ReplicaOn: s.on("Rpl_semi_sync_slave_status"),
		},
	}
	st.Replica, st.Received, st.Channels = m.replicas(sets[1], &err)
	return st, err
}

// replicas reads SHOW ALL SLAVES STATUS; of several channels, the first.
func (mariadb) replicas(set []row, err *error) (*Replica, gtid.Set, int) {
	if len(set) == 0 {
		return nil, gtid.Set{}, 0
	}
	r := replicaRow(set[0], "Master", "Slave", "Connection_name")
	r.UsingGTID = set[0]["Using_Gtid"] == "Slave_Pos" || set[0]["Using_Gtid"] == "Current_Pos"
	return r, set[0].set(gtid.MariaDBPos, "Gtid_IO_Pos", err), len(set)
}

// progressSQL reads what was executed before what was received: in doubt the replica looks behind, never ahead.
func (mariadb) progressSQL() string {
	return `SELECT @@global.read_only AS read_only, @@global.gtid_current_pos AS executed, @@global.gtid_binlog_state AS state;
SHOW ALL SLAVES STATUS`
}

func (m mariadb) readProgress(sets [][]row) (progress, error) {
	if len(sets) != 2 || len(sets[0]) != 1 {
		return progress{}, seen(ErrUnsupported, "%d result sets for 2 queries", len(sets))
	}
	var err error
	v := sets[0][0]
	p := progress{
		readOnly: v.on("read_only"),
		executed: v.set(gtid.MariaDBPos, "executed", &err), state: v.set(gtid.MariaDBState, "state", &err),
	}
	p.replica, p.received, p.channels = m.replicas(sets[1], &err)
	return p, err
}

func (mariadb) quietSQL() string {
	return "SELECT @@global.event_scheduler AS events, @@global.rpl_semi_sync_master_enabled AS source_half"
}

func (mariadb) waitingSQL() string {
	return "SELECT VARIABLE_VALUE AS n FROM information_schema.global_status WHERE VARIABLE_NAME = 'RPL_SEMI_SYNC_MASTER_WAIT_SESSIONS'"
}

func (mariadb) ackersSQL() string { return "SHOW SLAVE HOSTS" }

// readOnlySQL takes the global read lock (it waits for running commits and statements), so it needs a bound of its own; lock_wait_timeout
// has whole seconds only.
func (mariadb) readOnlySQL(bound time.Duration) (string, bool) {
	return fmt.Sprintf("SET STATEMENT max_statement_time=%.6f, lock_wait_timeout=%d FOR SET GLOBAL read_only=1", bound.Seconds(), wholeSeconds(bound)), true
}

func (mariadb) writableSQL() string { return "SET GLOBAL read_only=0" }

// epochDoorSQL: READ ONLY ADMIN passes read_only.
func (mariadb) epochDoorSQL() string { return "" }

// ioCommand: STOP SLAVE IO_THREAD of a semi-sync replica first connects to its source, to kill its dump thread there; a frozen source lets
// that wait 2 s (measured, 10.11.19). Killing the thread shuts its socket at once: nothing can be acknowledged any more.
func (mariadb) ioCommand() string { return "Slave_IO" }

func (mariadb) stopIOSQL(channel string) string { return "STOP SLAVE " + quote(channel) + " IO_THREAD" }
func (mariadb) stopSQL(channel string) string   { return "STOP SLAVE " + quote(channel) }
func (mariadb) startSQL(channel string) string  { return "START SLAVE " + quote(channel) }
func (mariadb) semiSyncSourceOffSQL() string    { return "SET GLOBAL rpl_semi_sync_master_enabled=0" }
func (mariadb) purgesOnStart() bool             { return true } // measured, 10.11.19
func (mariadb) stopApplierSQL(ch string) string { return "STOP SLAVE " + quote(ch) + " SQL_THREAD" }

func (mariadb) startApplierSQL(ch string) string { return "START SLAVE " + quote(ch) + " SQL_THREAD" }

func (mariadb) waitSQL(set gtid.Set, timeout time.Duration) string {
	return fmt.Sprintf("SELECT MASTER_GTID_WAIT(%s, %.6f)", quote(set.String()), timeout.Seconds())
}

// adoptPositionSQL: a former source has its own transactions in its binlog, not in gtid_slave_pos; without this it would fetch from where
// it was last a replica, and strict mode would refuse.
func (mariadb) adoptPositionSQL() string {
	return "SET GLOBAL gtid_slave_pos = @@global.gtid_current_pos"
}

func (mariadb) changeSourceSQL(channel string, r Replication) (string, []driver.Value) {
	return "CHANGE MASTER " + quote(channel) + fmt.Sprintf(" TO MASTER_HOST=?, MASTER_PORT=%d, MASTER_USER=?, MASTER_PASSWORD=?, MASTER_SSL=%d, MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos",
		r.Addr.Port(), bit(r.TLS)), []driver.Value{r.Addr.Addr().String(), r.Account.User, r.Account.Password}
}

func (mariadb) semiSyncSourceOnSQL() string {
	return fmt.Sprintf("SET GLOBAL rpl_semi_sync_master_wait_point='AFTER_SYNC', GLOBAL rpl_semi_sync_master_timeout=%d, GLOBAL rpl_semi_sync_master_wait_no_slave=1, GLOBAL rpl_semi_sync_master_enabled=1",
		maxSemiSync.Milliseconds())
}

// semiSyncReplicaOnSQL also lets an IO thread that ends give up its dead source after 1 s (the least there is) instead of 5 s.
func (mariadb) semiSyncReplicaOnSQL() string {
	return "SET GLOBAL rpl_semi_sync_slave_enabled=1, GLOBAL rpl_semi_sync_slave_kill_conn_timeout=1"
}

// passingSQL lists who passes read_only: since 10.11 SUPER no longer does (measured, 10.11.19). Without SELECT on mysql.* the view shows the
// asking account alone and no error, hence the look at the table first.
func (m mariadb) passingSQL() string {
	privileges := "'READ_ONLY ADMIN', 'SUPER'"
	if m.v.atLeast(10, 11, 0) {
		privileges = "'READ_ONLY ADMIN'"
	}
	return "SELECT 1 FROM mysql.global_priv LIMIT 1; SELECT DISTINCT GRANTEE AS grantee FROM information_schema.user_privileges WHERE PRIVILEGE_TYPE IN (" + privileges + ")"
}

// wholeSeconds rounds up, for variables that have no fractions.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
