package mysql

import (
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

const uuid1, uuid2 = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"

// variables turns pairs into the rows of SHOW VARIABLES and SHOW STATUS.
func variables(pairs ...string) []row {
	var out []row
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, row{"Variable_name": pairs[i], "Value": pairs[i+1]})
	}
	return out
}

// recorded is what MySQL answers to statusSQL, in the words of either age.
func recorded(source, replica, upSource, upReplica string) [][]row {
	return [][]row{
		variables("server_id", "7", "server_uuid", uuid1, "read_only", "ON", "super_read_only", "ON",
			"gtid_executed", uuid1+":1-5,\n"+uuid2+":1-9", "log_"+replica+"_updates", "ON", "gtid_mode", "ON", "enforce_gtid_consistency", "ON",
			"sync_binlog", "1", "innodb_flush_log_at_trx_commit", "1", "skip_name_resolve", "ON", "event_scheduler", "ON",
			"auto_increment_increment", "2", "auto_increment_offset", "1",
			"rpl_semi_sync_"+source+"_enabled", "ON", "rpl_semi_sync_"+source+"_wait_point", "AFTER_SYNC",
			"rpl_semi_sync_"+source+"_timeout", "4294967295", "rpl_semi_sync_"+source+"_wait_no_"+replica, "ON",
			"rpl_semi_sync_"+source+"_wait_for_"+replica+"_count", "1", "rpl_semi_sync_"+replica+"_enabled", "OFF"),
		{{
			upReplica + "_IO_State": "Waiting for source to send event", upSource + "_Host": "10.0.0.1", upSource + "_Port": "3306",
			upReplica + "_IO_Running": "Yes", upReplica + "_SQL_Running": "No", "Last_IO_Errno": "0", "Last_IO_Error": "",
			"Last_SQL_Errno": "1062", "Last_SQL_Error": "Duplicate entry", "Seconds_Behind_" + upSource: "3",
			"Retrieved_Gtid_Set": uuid2 + ":1-12", "Executed_Gtid_Set": uuid2 + ":1-9", "Auto_Position": "1", "Channel_Name": "",
		}},
		variables("Uptime", "60", "Rpl_semi_sync_"+source+"_status", "ON", "Rpl_semi_sync_"+source+"_clients", "1",
			"Rpl_semi_sync_"+source+"_wait_sessions", "2", "Rpl_semi_sync_"+replica+"_status", "OFF"),
	}
}

func TestMySQLStatus(t *testing.T) {
	for _, m := range []mysql8{{modern: true}, {}} {
		sets := recorded("master", "slave", "Master", "Slave")
		if m.modern {
			sets = recorded("source", "replica", "Source", "Replica")
		}
		st, err := m.readStatus(sets)
		if err != nil {
			t.Fatal(err)
		}
		if st.ServerID != 7 || st.UUID != uuid1 || !st.ReadOnly || !st.SuperReadOnly || !st.LogReplicaUpdates || !st.GTIDStrict ||
			st.SyncBinlog != 1 || st.FlushLog != 1 || st.EventScheduler != "ON" || st.AutoIncrement != (AutoIncrement{2, 1}) || st.Uptime != time.Minute {
			t.Errorf("%+v: %+v", m, st)
		}
		if !st.SemiSync.Lossless() || st.SemiSync.Clients != 1 || st.SemiSync.Waiting != 2 || st.SemiSync.WaitCount != 1 || st.SemiSync.ReplicaOn {
			t.Errorf("%+v: semi-sync %+v", m, st.SemiSync)
		}
		r := st.Replica
		if r == nil || r.Source.String() != "10.0.0.1:3306" || r.IORunning != "Yes" || r.SQLRunning != "No" || r.IOError != "" ||
			r.SQLError != "1062 Duplicate entry" || *r.Lag != 3*time.Second || !r.UsingGTID {
			t.Errorf("%+v: replica %+v", m, r)
		}
		if got := st.Received.Subtract(st.Executed).String(); got != uuid2+":10-12" {
			t.Errorf("%+v: not applied %s", m, got)
		}
	}
}

// Without the plugins and without replication the halves are off and nobody is followed.
func TestMySQLPlain(t *testing.T) {
	sets := recorded("source", "replica", "Source", "Replica")
	var plain []row
	for _, r := range sets[0] {
		if !strings.HasPrefix(r["Variable_name"], "rpl_semi_sync") {
			plain = append(plain, r)
		}
	}
	st, err := mysql8{modern: true}.readStatus([][]row{plain, {}, variables("Uptime", "1")})
	if err != nil || st.SemiSync != (SemiSync{}) || st.Replica != nil || st.Channels != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestMySQLProgress(t *testing.T) {
	p, err := mysql8{modern: true}.readProgress([][]row{
		{{"read_only": "1", "executed": uuid1 + ":1-5"}},
		{{"Source_Host": "db", "Source_Port": "3306", "Replica_IO_Running": "No", "Replica_SQL_Running": "Yes", "Retrieved_Gtid_Set": uuid1 + ":1-7"}},
	})
	if err != nil || !p.readOnly || p.replica.IORunning != "No" || p.replica.SourceHost != "db" || p.replica.Source.IsValid() {
		t.Fatalf("%+v, %v", p, err)
	}
	if left, done := p.missing(gtid.Set{}); done || left.String() != uuid1+":6-7" {
		t.Errorf("missing %s, %v", left, done)
	}
}

func TestMySQLWords(t *testing.T) {
	source := Replication{Account: Account{"repl", "x"}}
	for _, tt := range []struct {
		m    mysql8
		want []string
	}{
		{mysql8{modern: true}, []string{
			"STOP REPLICA IO_THREAD FOR CHANNEL ''", "STOP REPLICA FOR CHANNEL ''", "START REPLICA FOR CHANNEL ''",
			"SET GLOBAL rpl_semi_sync_source_enabled=0", "SET GLOBAL rpl_semi_sync_replica_enabled=1", "SHOW REPLICAS",
			"CHANGE REPLICATION SOURCE TO SOURCE_HOST=?, SOURCE_PORT=0, SOURCE_USER=?, SOURCE_PASSWORD=?, SOURCE_SSL=0, SOURCE_CONNECT_RETRY=1, SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1 FOR CHANNEL ''",
			"SET GLOBAL rpl_semi_sync_source_wait_point='AFTER_SYNC', GLOBAL rpl_semi_sync_source_timeout=4294967295, GLOBAL rpl_semi_sync_source_wait_no_replica=1, GLOBAL rpl_semi_sync_source_enabled=1",
		}},
		{mysql8{}, []string{
			"STOP SLAVE IO_THREAD FOR CHANNEL ''", "STOP SLAVE FOR CHANNEL ''", "START SLAVE FOR CHANNEL ''",
			"SET GLOBAL rpl_semi_sync_master_enabled=0", "SET GLOBAL rpl_semi_sync_slave_enabled=1", "SHOW SLAVE HOSTS",
			"CHANGE MASTER TO MASTER_HOST=?, MASTER_PORT=0, MASTER_USER=?, MASTER_PASSWORD=?, MASTER_SSL=0, MASTER_CONNECT_RETRY=1, MASTER_AUTO_POSITION=1 FOR CHANNEL ''",
			"SET GLOBAL rpl_semi_sync_master_wait_point='AFTER_SYNC', GLOBAL rpl_semi_sync_master_timeout=4294967295, GLOBAL rpl_semi_sync_master_wait_no_slave=1, GLOBAL rpl_semi_sync_master_enabled=1",
		}},
	} {
		m := tt.m
		change, args := m.changeSourceSQL("", source)
		got := []string{m.stopIOSQL(""), m.stopSQL(""), m.startSQL(""), m.semiSyncSourceOffSQL(), m.semiSyncReplicaOnSQL(), m.ackersSQL(), change, m.semiSyncSourceOnSQL()}
		for i, want := range tt.want {
			if got[i] != want {
				t.Errorf("%+v says\n%s, want\n%s", m, got[i], want)
			}
		}
		if len(args) != strings.Count(change, "?") {
			t.Errorf("%d arguments for %s", len(args), change)
		}
	}
}
