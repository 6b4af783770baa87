package mysql

import (
	"database/sql/driver"
	"fmt"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// mysql8 speaks MySQL 5.7 to 9.x: super_read_only, UUID GTID sets, and the old or the new words for the two sides (new: 8.0.26, by when
// both the statements and the semi-sync plugins had them).
type mysql8 struct{ modern bool }

// The placeholders of w, in the words of either age.
var (
	newWords = strings.NewReplacer("{SOURCE}", "SOURCE", "{REPLICA}", "REPLICA", "{source}", "source", "{replica}", "replica")
	oldWords = strings.NewReplacer("{SOURCE}", "MASTER", "{REPLICA}", "SLAVE", "{source}", "master", "{replica}", "slave")
)

// w writes a statement or a name in the server's words.
func (m mysql8) w(text string) string {
	if m.modern {
		return newWords.Replace(text)
	}
	return oldWords.Replace(text)
}

func (m mysql8) statusSQL() string {
	return m.w(`SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id','server_uuid','read_only','super_read_only','gtid_executed',
'log_{replica}_updates','gtid_mode','enforce_gtid_consistency','sync_binlog','innodb_flush_log_at_trx_commit','skip_name_resolve',
'event_scheduler','auto_increment_increment','auto_increment_offset','rpl_semi_sync_{source}_enabled','rpl_semi_sync_{source}_wait_point',
'rpl_semi_sync_{source}_timeout','rpl_semi_sync_{source}_wait_no_{replica}','rpl_semi_sync_{source}_wait_for_{replica}_count',
'rpl_semi_sync_{replica}_enabled'); SHOW {REPLICA} STATUS; SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime',
'Rpl_semi_sync_{source}_status','Rpl_semi_sync_{source}_clients','Rpl_semi_sync_{source}_wait_sessions','Rpl_semi_sync_{replica}_status')`)
}

func (m mysql8) readStatus(sets [][]row) (Status, error) {
	if len(sets) != 3 {
		return Status{}, seen(ErrUnsupported, "%d result sets for 3 queries", len(sets))
	}
	v, s := byName(sets[0]), byName(sets[2])
	var err error
	executed := v.set(gtid.MySQL, "gtid_executed", &err)
	st := Status{
		Family: MySQL, ServerID: uint32(v.num("server_id", &err)), UUID: v["server_uuid"],
		ReadOnly: v.on("read_only"), SuperReadOnly: v.on("super_read_only"), Executed: executed, BinlogState: executed,
		LogReplicaUpdates: v.on(m.w("log_{replica}_updates")),
		GTIDStrict:        v["gtid_mode"] == "ON" && v["enforce_gtid_consistency"] == "ON",
		SyncBinlog:        v.num("sync_binlog", &err), FlushLog: v.num("innodb_flush_log_at_trx_commit", &err),
		SkipNameResolve: v.on("skip_name_resolve"), EventScheduler: v["event_scheduler"],
		AutoIncrement: AutoIncrement{v.num("auto_increment_increment", &err), v.num("auto_increment_offset", &err)},
		Uptime:        time.Duration(s.num("Uptime", &err)) * time.Second,
	}
	st.SemiSync = m.semiSync(v, s, &err)
	st.Replica, st.Received, st.Channels = m.replicas(sets[1], &err)
	return st, err
}

// semiSync reads the plugins' variables; a plugin that is not installed has none, and its half is off.
func (m mysql8) semiSync(v, s row, err *error) SemiSync {
	out := SemiSync{ReplicaEnabled: v.on(m.w("rpl_semi_sync_{replica}_enabled")), ReplicaOn: s.on(m.w("Rpl_semi_sync_{replica}_status"))}
	if _, installed := v[m.w("rpl_semi_sync_{source}_enabled")]; !installed {
		return out
	}
	out.SourceEnabled = v.on(m.w("rpl_semi_sync_{source}_enabled"))
	out.SourceOn = s.on(m.w("Rpl_semi_sync_{source}_status"))
	out.WaitPoint = v[m.w("rpl_semi_sync_{source}_wait_point")]
	out.Timeout = time.Duration(v.num(m.w("rpl_semi_sync_{source}_timeout"), err)) * time.Millisecond
	out.WaitNoReplica = v.on(m.w("rpl_semi_sync_{source}_wait_no_{replica}"))
	out.WaitCount = v.num(m.w("rpl_semi_sync_{source}_wait_for_{replica}_count"), err)
	out.Clients = s.num(m.w("Rpl_semi_sync_{source}_clients"), err)
	out.Waiting = s.num(m.w("Rpl_semi_sync_{source}_wait_sessions"), err)
	return out
}

func (m mysql8) replicas(set []row, err *error) (*Replica, gtid.Set, int) {
	if len(set) == 0 {
		return nil, gtid.Set{}, 0
	}
	source, replica := "Master", "Slave"
	if m.modern {
		source, replica = "Source", "Replica"
	}
	r := replicaRow(set[0], source, replica, "Channel_Name")
	r.UsingGTID = set[0].on("Auto_Position")
	return r, set[0].set(gtid.MySQL, "Retrieved_Gtid_Set", err), len(set)
}

func (m mysql8) progressSQL() string {
	return m.w("SELECT @@global.super_read_only AS read_only, @@global.gtid_executed AS executed; SHOW {REPLICA} STATUS")
}

func (m mysql8) readProgress(sets [][]row) (progress, error) {
	if len(sets) != 2 || len(sets[0]) != 1 {
		return progress{}, seen(ErrUnsupported, "%d result sets for 2 queries", len(sets))
	}
	var err error
	executed := sets[0][0].set(gtid.MySQL, "executed", &err)
	p := progress{readOnly: sets[0][0].on("read_only"), executed: executed, state: executed}
	p.replica, p.received, p.channels = m.replicas(sets[1], &err)
	return p, err
}

// quietSQL: the plugin's variables are missing where it is not installed.
func (m mysql8) quietSQL() string {
	return m.w("SELECT @@global.event_scheduler AS events, (SELECT VARIABLE_VALUE FROM performance_schema.global_variables " +
		"WHERE VARIABLE_NAME = 'rpl_semi_sync_{source}_enabled') AS source_half")
}

func (m mysql8) waitingSQL() string {
	return m.w("SELECT VARIABLE_VALUE AS n FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Rpl_semi_sync_{source}_wait_sessions'")
}

func (m mysql8) ackersSQL() string {
	if m.modern {
		return "SHOW REPLICAS"
	}
	return "SHOW SLAVE HOSTS"
}

// readOnlySQL has no bound of its own: MySQL bounds only SELECT, and lock waits by whole seconds.
func (mysql8) readOnlySQL(time.Duration) (string, bool) {
	return "SET GLOBAL super_read_only=ON", false
}

func (mysql8) writableSQL() string { return "SET GLOBAL read_only=OFF" } // takes super_read_only along

// epochDoorSQL: super_read_only binds everybody; read_only stays on and binds the clients.
func (mysql8) epochDoorSQL() string { return "SET GLOBAL super_read_only=OFF" }

func (mysql8) ioCommand() string { return "" }

func (m mysql8) stopIOSQL(ch string) string { return m.w("STOP {REPLICA} IO_THREAD") + channel(ch) }
func (m mysql8) stopSQL(ch string) string   { return m.w("STOP {REPLICA}") + channel(ch) }
func (m mysql8) stopApplierSQL(ch string) string {
	return m.w("STOP {REPLICA} SQL_THREAD") + channel(ch)
}
func (m mysql8) startSQL(ch string) string { return m.w("START {REPLICA}") + channel(ch) }
func (m mysql8) startApplierSQL(ch string) string {
	return m.w("START {REPLICA} SQL_THREAD") + channel(ch)
}
func (mysql8) purgesOnStart() bool { return false }

func channel(name string) string { return " FOR CHANNEL " + quote(name) }

func (mysql8) waitSQL(set gtid.Set, timeout time.Duration) string {
	return fmt.Sprintf("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %.6f)", quote(set.String()), timeout.Seconds())
}

// adoptPositionSQL: with auto-position the source is told gtid_executed.
func (mysql8) adoptPositionSQL() string { return "" }

func (m mysql8) changeSourceSQL(ch string, r Replication) (string, []driver.Value) {
	sql := "CHANGE MASTER TO "
	key := "" // without TLS, caching_sha2_password needs the source's key
	if m.modern {
		sql = "CHANGE REPLICATION SOURCE TO "
		if !r.TLS {
			key = ", GET_SOURCE_PUBLIC_KEY=1"
		}
	}
	sql += fmt.Sprintf("{SOURCE}_HOST=?, {SOURCE}_PORT=%d, {SOURCE}_USER=?, {SOURCE}_PASSWORD=?, {SOURCE}_SSL=%d, {SOURCE}_CONNECT_RETRY=1, {SOURCE}_AUTO_POSITION=1",
		r.Addr.Port(), bit(r.TLS))
	return m.w(sql) + key + channel(ch), []driver.Value{r.Addr.Addr().String(), r.Account.User, r.Account.Password}
}

func (m mysql8) semiSyncSourceOffSQL() string {
	return m.w("SET GLOBAL rpl_semi_sync_{source}_enabled=0")
}

func (m mysql8) semiSyncSourceOnSQL() string {
	return m.w(fmt.Sprintf("SET GLOBAL rpl_semi_sync_{source}_wait_point='AFTER_SYNC', GLOBAL rpl_semi_sync_{source}_timeout=%d, "+
		"GLOBAL rpl_semi_sync_{source}_wait_no_{replica}=1, GLOBAL rpl_semi_sync_{source}_enabled=1", maxSemiSync.Milliseconds()))
}

func (m mysql8) semiSyncReplicaOnSQL() string {
	return m.w("SET GLOBAL rpl_semi_sync_{replica}_enabled=1")
}

// passingSQL: nobody passes super_read_only.
func (mysql8) passingSQL() string { return "" }
