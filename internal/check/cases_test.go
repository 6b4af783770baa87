package check

import (
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/switcher/policy"
)

// asMySQL turns the instance into a MySQL 8.4 as it should be.
func asMySQL(x *Instance) {
	readOnly := x.Vars["read_only"]
	x.Version = Version{Text: "8.4.3", Major: 8, Minor: 4}
	for name, value := range map[string]string{
		"super_read_only": readOnly, "gtid_mode": "ON", "enforce_gtid_consistency": "ON", "log_replica_updates": "ON",
		"rpl_semi_sync_source_enabled": x.Vars["rpl_semi_sync_master_enabled"], "rpl_semi_sync_replica_enabled": "ON", "rpl_semi_sync_source_wait_point": "AFTER_SYNC",
		"rpl_semi_sync_source_timeout": "4294967295", "rpl_semi_sync_source_clients": x.Vars["rpl_semi_sync_master_clients"], "rpl_semi_sync_source_wait_no_replica": "ON", "rpl_semi_sync_source_status": readOnly,
		"rpl_semi_sync_source_wait_for_replica_count": "1",
	} {
		x.Vars[name] = value
	}
	x.Origin["super_read_only"] = OriginFile
}

// cases break one thing each; code is what must be found.
var cases = []struct {
	code, name string
	edit       func(*config.Config, *Facts)
}{
	{"CONFIG_UNWISE", "a warning of the file", func(c *config.Config, _ *Facts) {
		c.Warnings = []config.Warning{{Place: "baton.yaml:5:8", Text: "4 observers, an even number"}}
	}},
	{"CONFIG_MODE", "mode advise", func(c *config.Config, _ *Facts) { c.Mode = policy.Advise }},
	{"CONFIG_FEW_OBSERVERS", "two nodes", func(c *config.Config, f *Facts) {
		c.Mode, c.Cluster.Nodes, f.Nodes = policy.Advise, c.Cluster.Nodes[:2], f.Nodes[:2]
	}},
	{"CONFIG_LOSS_ALLOWED", "bounded loss", func(c *config.Config, _ *Facts) {
		c.Policy.RPO = config.RPO{Transactions: 100, Lag: 5 * time.Second}
	}},
	{"NODE_UNREACHABLE", "node is off", func(_ *config.Config, f *Facts) { f.Nodes[2].Err = errAny }},
	{"NODE_SILENT", "node without a daemon", func(_ *config.Config, f *Facts) { f.Etcd.Reports = f.Etcd.Reports[:2] }},
	{"NODE_SILENT", "Mycat host without a daemon", func(_ *config.Config, f *Facts) { f.Etcd.Reports = f.Etcd.Reports[1:] }},
	{"ETCD_UNAVAILABLE", "no quorum", func(_ *config.Config, f *Facts) { f.Etcd = Etcd{Err: errAny} }},
	{"ETCD_NOT_STARTED", "before the daemons start", func(_ *config.Config, f *Facts) {
		f.Etcd = Etcd{Err: errAny, Members: []Member{{Err: errAny, Refused: true}, {Err: errAny, Refused: true}}}
	}},
	{"ETCD_UNAVAILABLE", "one host is off, no daemon runs on the others", func(_ *config.Config, f *Facts) {
		f.Etcd = Etcd{Err: errAny, Members: []Member{{Err: errAny, Refused: true}, {Err: errAny}}}
	}},
	{"ETCD_MEMBER_DOWN", "one member is off", func(_ *config.Config, f *Facts) {
		f.Etcd.Members = append(f.Etcd.Members, Member{Endpoint: "http://10.77.0.12:2379", Err: errAny})
	}},
	{"ETCD_VERSION", "old etcd", func(_ *config.Config, f *Facts) { f.Etcd.Members[0].Version = "3.5.9" }},
	{"ETCD_ALARM", "etcd is full", func(_ *config.Config, f *Facts) {
		f.Etcd.Members[0].Alarms = []string{"etcdserver: database space exceeded"}
	}},
	{"ETCD_SLOW", "slow etcd", func(_ *config.Config, f *Facts) { f.Etcd.Members[0].Took = 400 * time.Millisecond }},
	{"ETCD_LEASE_TOO_SHORT", "profile fast on somebody's etcd", func(c *config.Config, _ *Facts) {
		c.Profile, c.Etcd.Embedded = cluster.Fast(), nil
	}},
	{"ETCD_LEASE_TOO_SHORT", "ticks that do not fit the profile", func(c *config.Config, _ *Facts) { c.Etcd.Election = 3 * time.Second }},
	{"ETCD_TICKS_UNKNOWN", "profile steady on somebody's etcd", func(c *config.Config, _ *Facts) { c.Etcd.Embedded = nil }},
	{"ETCD_BAD_DOCUMENT", "a key that nobody can read", func(_ *config.Config, f *Facts) {
		f.Etcd.Bad = []string{"/baton/bank/holder: unexpected end of JSON input"}
	}},
	{"ETCD_UNREADABLE", "no right to read", func(_ *config.Config, f *Facts) { f.Etcd.ReadErr = errAny }},
	{"ETCD_NO_ASSIGNMENT", "before the first start", func(_ *config.Config, f *Facts) { f.Etcd.Assignment, f.Etcd.Holder = nil, nil }},
	{"MYSQL_UNREACHABLE", "server is off", func(_ *config.Config, f *Facts) { f.Instances[3].Err = errAny }},
	{"MYSQL_LOGIN", "admin account is refused", func(_ *config.Config, f *Facts) { f.Instances[3].Err, f.Instances[3].Login = errAny, true }},
	{"MYSQL_LOGIN", "probe account is refused", func(_ *config.Config, f *Facts) { f.Instances[3].Probe.Err = errAny }},
	{"MYSQL_SLOW", "slow server", func(_ *config.Config, f *Facts) { f.Instances[0].Took = 600 * time.Millisecond }},
	{"MYSQL_VERSION", "server before GTIDs", func(_ *config.Config, f *Facts) { f.Instances[3].Err, f.Instances[3].Foreign = errAny, true }},
	{"MYSQL_VERSIONS_DIFFER", "standby is older", func(_ *config.Config, f *Facts) {
		f.Instances[2].Version = Version{Text: "10.6.20-MariaDB", MariaDB: true, Major: 10, Minor: 6}
	}},
	{"MYSQL_READ_ONLY_AT_BOOT", "my.cnf does not name read_only", func(_ *config.Config, f *Facts) { f.Instances[2].Origin["read_only"] = OriginCompiled }},
	{"MYSQL_READ_ONLY_AT_BOOT", "my.cnf has read_only = OFF", func(_ *config.Config, f *Facts) { f.Instances[0].Origin["read_only"] = OriginFile }},
	{unseen, "read_only was changed at run time", func(_ *config.Config, _ *Facts) {}},
	{"MYSQL_STANDBY_WRITABLE", "two writers", func(_ *config.Config, f *Facts) {
		f.Instances[2].Vars["read_only"], f.Instances[2].Origin["read_only"] = "OFF", OriginRuntime
	}},
	{"MYSQL_TWO_WRITERS", "two writers, nobody assigned", func(_ *config.Config, f *Facts) {
		f.Etcd.Assignment, f.Etcd.Holder = nil, nil
		f.Instances[2].Vars["read_only"], f.Instances[2].Origin["read_only"] = "OFF", OriginRuntime
	}},
	{"MYSQL_ACTIVE_READ_ONLY", "no writer", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["read_only"] = "ON" }},
	{"MYSQL_BINLOG", "no log_slave_updates", func(_ *config.Config, f *Facts) { f.Instances[2].Vars["log_slave_updates"] = "OFF" }},
	{"MYSQL_GTID", "replication by file and position", func(_ *config.Config, f *Facts) { f.Instances[2].Sources[0].GTID = false }},
	{"MYSQL_GTID", "MySQL without GTIDs", func(_ *config.Config, f *Facts) {
		asMySQL(&f.Instances[0])
		f.Instances[0].Vars["gtid_mode"] = "OFF_PERMISSIVE"
	}},
	{"MYSQL_GTID_STRICT", "MariaDB without strict mode", func(_ *config.Config, f *Facts) { f.Instances[2].Vars["gtid_strict_mode"] = "OFF" }},
	{"MYSQL_SERVER_ID", "one server_id twice", func(_ *config.Config, f *Facts) {
		f.Instances[2].Vars["server_id"], f.Mycats[1].Shards[0].ServerID = "1", 1
	}},
	{"MYSQL_SKIP_NAME_RESOLVE", "server asks DNS", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["skip_name_resolve"] = "OFF" }},
	{"MYSQL_AUTO_INCREMENT", "dual-master, one offset", func(c *config.Config, f *Facts) {
		c.Replication, f.Instances[2].Vars["auto_increment_offset"] = config.DualMaster, "1"
	}},
	{"MYSQL_AUTO_INCREMENT", "dual-master, increment 1", func(c *config.Config, f *Facts) {
		c.Replication, f.Instances[2].Vars["auto_increment_increment"] = config.DualMaster, "1"
	}},
	{"MYSQL_BATON_SCHEMA", "no schema baton", func(_ *config.Config, f *Facts) { f.Instances[0].Schema = errAny }},
	{"MYSQL_SEMISYNC_OFF", "replica half is off", func(_ *config.Config, f *Facts) { f.Instances[2].Vars["rpl_semi_sync_slave_enabled"] = "OFF" }},
	{"MYSQL_SEMISYNC_LET_GO", "source half is off", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["rpl_semi_sync_master_enabled"] = "OFF" }},
	{"MYSQL_SEMISYNC_STANDBY_SOURCE", "source half is on at a standby", func(_ *config.Config, f *Facts) { f.Instances[2].Vars["rpl_semi_sync_master_enabled"] = "ON" }},
	{"MYSQL_SEMISYNC_OFF", "MySQL without the plugin", func(_ *config.Config, f *Facts) {
		x := &f.Instances[2]
		for name := range x.Vars {
			if len(name) > 13 && name[:13] == "rpl_semi_sync" {
				delete(x.Vars, name)
			}
		}
	}},
	{"MYSQL_SEMISYNC_AFTER_COMMIT", "MariaDB's default", func(_ *config.Config, f *Facts) {
		f.Instances[0].Vars["rpl_semi_sync_master_wait_point"] = "AFTER_COMMIT"
	}},
	{"MYSQL_SEMISYNC_TIMEOUT", "ten seconds", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["rpl_semi_sync_master_timeout"] = "10000" }},
	{"MYSQL_SEMISYNC_NO_REPLICA", "goes on alone", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["rpl_semi_sync_master_wait_no_slave"] = "OFF" }},
	{"MYSQL_SEMISYNC_INACTIVE", "configured, not in force", func(_ *config.Config, f *Facts) { f.Instances[0].Vars["rpl_semi_sync_master_status"] = "OFF" }},
	{"MYSQL_NOT_DURABLE", "sync_binlog = 0", func(_ *config.Config, f *Facts) { f.Instances[2].Vars["sync_binlog"] = "0" }},
	{"MYSQL_ACKER_OUTSIDE", "a stranger acknowledges", func(_ *config.Config, f *Facts) {
		f.Instances[0].Acks, f.Instances[0].Vars["rpl_semi_sync_master_clients"] = []uint32{3, 99}, "2"
	}},
	{"MYSQL_REPLICA_OUTSIDE", "a stranger replicates", func(_ *config.Config, f *Facts) {
		f.Instances[2].Acks = []uint32{99}
	}},
	{"MYSQL_SEMISYNC_COUNT", "waits for two of one", func(_ *config.Config, f *Facts) {
		asMySQL(&f.Instances[0])
		f.Instances[0].Vars["rpl_semi_sync_source_status"], f.Instances[0].Vars["rpl_semi_sync_source_wait_for_replica_count"] = "ON", "2"
		f.Instances[0].Origin["super_read_only"] = OriginRuntime
	}},
	{"MYSQL_PROBE_TOO_STRONG", "probe passes read_only", func(_ *config.Config, f *Facts) { f.Instances[0].Passes = []string{f.Instances[0].Probe.Name} }},
	{"MYSQL_ADMIN_GRANTS", "admin is too weak", func(_ *config.Config, f *Facts) {
		f.Instances[0].Lacks = []string{"PROCESS: see sessions", "CONNECTION ADMIN: kill sessions"}
	}},
	{"MYSQL_UNREAD", "events cannot be read", func(_ *config.Config, f *Facts) { f.Instances[0].Gaps = []error{errAny} }},
	{"MYSQL_BACKEND_PASSES_READ_ONLY", "Mycat's account is root", func(_ *config.Config, f *Facts) {
		f.Instances[0].Passes = []string{"'mycat'@'10.77.0.%'"}
	}},
	{"MYSQL_ACCOUNT_PASSES_READ_ONLY", "an application may pass", func(_ *config.Config, f *Facts) {
		f.Instances[0].Passes = []string{"'report'@'%'"}
	}},
	{"MYSQL_EVENT_PASSES_READ_ONLY", "an event may pass", func(_ *config.Config, f *Facts) {
		f.Instances[0].Events = []Event{{"bank.nightly", "'root'@'localhost'"}, {"bank.harmless", "'app'@'%'"}}
	}},
	{"MYSQL_NO_REPLICATION", "standby follows nobody", func(_ *config.Config, f *Facts) { f.Instances[2].Sources = nil }},
	{"MYSQL_REPLICATION_BROKEN", "SQL thread is stopped", func(_ *config.Config, f *Facts) {
		f.Instances[2].Sources[0].SQL, f.Instances[2].Sources[0].SQLErr = false, "1062 Duplicate entry '7' for key 'PRIMARY'"
	}},
	{"MYSQL_REPLICATION_SOURCE", "standby follows the wrong shard", func(_ *config.Config, f *Facts) {
		f.Instances[2].Sources[0].Source = f.Instances[1].Addr
	}},
	{"MYSQL_REPLICATION_LAG", "a minute behind", func(_ *config.Config, f *Facts) { f.Instances[2].Sources[0].Lag = time.Minute }},
	{"MYSQL_REPLICATION_DELAY", "behind on purpose", func(_ *config.Config, f *Facts) { f.Instances[2].Sources[0].Delay = time.Hour }},
	{"MYSQL_REPLICATION_FILTER", "tables are left out", func(_ *config.Config, f *Facts) {
		f.Instances[2].Sources[0].Filters = []string{"Replicate_Do_DB = bank"}
	}},
	{"MYSQL_ACTIVE_REPLICATES", "active follows the standby", func(_ *config.Config, f *Facts) {
		f.Instances[0].Sources = []Channel{{Source: f.Instances[2].Addr, IO: true, SQL: true, GTID: true}}
	}},
	{"MYCAT_LOGIN", "Mycat is off", func(_ *config.Config, f *Facts) { f.Mycats[1] = Mycat{Site: "b", SQL: errAny, Admin: errAny} }},
	{"MYCAT_ADMIN_LOGIN", "management port is closed", func(_ *config.Config, f *Facts) { f.Mycats[1].Admin = errAny }},
	{"MYCAT_VERSION", "another proxy", func(_ *config.Config, f *Facts) { f.Mycats[1].Version = "5.7.11-dble-9.9.9.9" }},
	{"MYCAT_DATANODE_FAILS", "shard fails through Mycat", func(_ *config.Config, f *Facts) { f.Mycats[1].Shards[0].Err = errAny }},
	{"MYCAT_DATANODE_WRONG", "dataNode leads to the other site", func(_ *config.Config, f *Facts) {
		r := &f.Mycats[1].Shards[0]
		r.ServerID, r.Hostname = 1, "db1"
	}},
	{"MYCAT_WRITE_HOSTS", "two writeHosts", func(_ *config.Config, f *Facts) { f.Mycats[0].Sources[0].WriteHosts = []string{"hostM1", "hostM2"} }},
	{"MYCAT_INDEX", "Mycat switched by itself", func(_ *config.Config, f *Facts) { f.Mycats[0].Sources[1].Index = 1 }},
	{"MYCAT_BIND", "bindIp", func(_ *config.Config, f *Facts) { f.Mycats[0].Params["bindip"] = "10.77.0.11" }},
	{"MYCAT_EXECUTOR", "few threads", func(_ *config.Config, f *Facts) { f.Mycats[0].Params["processorexecutor"] = "4" }},
	{"MYCAT_TABLES", "tables cannot be read", func(_ *config.Config, f *Facts) { f.Mycats[0].TableErr = errAny }},
	{"MYCAT_FILE", "file that cannot be read", func(_ *config.Config, f *Facts) {
		f.Lint = []Finding{mycatFile.at("/opt/mycat/conf/schema.xml", errAny.Error())}
	}},
	{"MYCAT_SWITCH_TYPE", "remark on schema.xml", func(_ *config.Config, f *Facts) {
		f.Lint = []Finding{{"MYCAT_SWITCH_TYPE", Critical, "node mc-a schema.xml dataHost dh1", `switchType="1"`, "Mycat switches by itself.", `Set switchType="-1".`}}
	}},
	{"HOST_UNSEEN", "no right to look", func(_ *config.Config, f *Facts) { f.Host.Errs = []error{errAny} }},
	{"HOST_TIME_NAMESPACE", "time namespace", func(_ *config.Config, f *Facts) { f.Host.TimeOffset = "boottime is shifted by 1000 s" }},
	{"HOST_CLOCK_RATE", "chrony's default", func(_ *config.Config, f *Facts) { f.Host.Clock = "chronyd runs with maxslewrate 83333" }},
	{"HOST_CAPABILITIES", "not root", func(_ *config.Config, f *Facts) { f.Host.Missing = []string{"CAP_NET_ADMIN", "CAP_BPF"} }},
	{"HOST_INTERFACE", "no such interface", func(_ *config.Config, f *Facts) { f.Host.Interface = Interface{Name: "eth0", Err: errAny} }},
	{"HOST_INTERFACE", "interface is down", func(_ *config.Config, f *Facts) { f.Host.Interface.Up = false }},
	{"HOST_INTERFACE", "tunnel", func(_ *config.Config, f *Facts) { f.Host.Interface.Ethernet = false }},
	{"HOST_VIP_SUBNET", "VIP in another network", func(_ *config.Config, f *Facts) { f.Host.Interface.Prefixes = prefixes("192.0.2.11/24") }},
	{"HOST_KEEPALIVED", "no keepalived", func(_ *config.Config, f *Facts) { f.Host.Keepalived = Keepalived{Err: errAny} }},
	{"HOST_KEEPALIVED", "old keepalived", func(_ *config.Config, f *Facts) { f.Host.Keepalived.Version = "1.3.5" }},
	{"HOST_SECOND_BINDER", "another keepalived", func(_ *config.Config, f *Facts) {
		f.Host.Keepalived.Others = []string{"/etc/keepalived/keepalived.conf"}
	}},
	{"HOST_NO_GATE", "no gate", func(_ *config.Config, f *Facts) { f.Host.GateErr = errAny }},
	{"HOST_GATE_CLSACT", "older kernel", func(_ *config.Config, f *Facts) { f.Host.GateMethod = "clsact" }},
	{"HOST_VIP_STATIC", "static VIP", func(_ *config.Config, f *Facts) { f.Host.VIP.Forever = true }},
	{"HOST_VIP_STATIC", "VIP in a network file", func(_ *config.Config, f *Facts) { f.Host.VIP.Files = []string{"/etc/netplan/01.yaml"} }},
	{"HOST_VIP_HELD", "two hosts answer", func(_ *config.Config, f *Facts) { f.Host.VIP.MAC = "02:00:00:00:00:99" }},
	{"HOST_VIP_HELD", "a stranger answers", func(c *config.Config, f *Facts) { c.Node, f.Host.VIP = "mc-b", VIP{MAC: "02:00:00:00:00:99"} }},
	{"HOST_VIP_SERVED", "somebody serves without Baton", func(_ *config.Config, f *Facts) {
		f.Etcd.Assignment, f.Etcd.Holder, f.Host.VIP = nil, nil, VIP{MAC: "02:00:00:00:00:0b"}
	}},
	{"HOST_IP_FORWARD", "host forwards", func(_ *config.Config, f *Facts) { f.Host.Sysctl["net/ipv4/ip_forward"] = "1" }},
	{"HOST_ARP", "two interfaces in one network", func(_ *config.Config, f *Facts) {
		f.Host.Others = []Interface{{Name: "eth1", Up: true, Ethernet: true, Prefixes: prefixes("10.77.0.211/24")}}
	}},
	{"HOST_INTERFACE_WITHOUT_ETHERNET", "tunnel beside it", func(_ *config.Config, f *Facts) {
		f.Host.Others = []Interface{{Name: "wg0", Up: true, Prefixes: prefixes("172.16.0.1/24")}}
	}},
}
