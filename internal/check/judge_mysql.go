package check

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
)

var mysqlChecks = []func(input) []Finding{
	checkReach, checkLatency, checkVersions, checkReadOnly, checkWriters, checkBinlog, checkServerIDs, checkNames, checkOffsets, checkSchema,
}

var (
	mysqlUnreachable = declare("MYSQL_UNREACHABLE", Critical,
		"Baton can neither probe this instance from here nor take its part in a switch.",
		"Start the server, or open the way to it from every node.")
	mysqlLogin = declare("MYSQL_LOGIN", Critical,
		"The server answers and refuses Baton's account. A wrong account never counts as a failure of the site; it freezes automatic switching.",
		"Create the account on the source, for every node's address, with the grants of docs/accounts.md; check the password file.")
	mysqlSlow = declare("MYSQL_SLOW", Warning,
		"A first statement takes more than a quarter of a probe's life. One slow moment more and it counts as a failure.",
		"Look at the network and at the server's load; with skip_name_resolve off, at its DNS.")
	mysqlVersion = declare("MYSQL_VERSION", Critical,
		"Baton does not know this server's words for replication.",
		"Use MySQL 5.7, 8.x or 9.x, or MariaDB 10.5 or later.")
	mysqlVersionsDiffer = declare("MYSQL_VERSIONS_DIFFER", Warning,
		"Replication from the newer to the older server is not supported. After a switch that is the direction.",
		"Bring both instances of the shard to the same release.")
	mysqlReadOnlyAtBoot = declare("MYSQL_READ_ONLY_AT_BOOT", Critical,
		"When this server restarts by itself it accepts writes at once, also when the other site serves: two writers.",
		"Write read_only = ON (MySQL: super_read_only = ON too) into its my.cnf. Baton makes the active side writable by itself.")
	mysqlReadOnlyUnseen = declare("MYSQL_READ_ONLY_AT_BOOT_UNSEEN", Info,
		"read_only was changed by a statement since the start, as Baton does at each switch, so the server no longer tells what its file says.",
		"Look at my.cnf on that host: it must have read_only = ON (MySQL: super_read_only = ON too).")
	mysqlStandbyWritable = declare("MYSQL_STANDBY_WRITABLE", Critical,
		"Two instances of one shard accept writes. What is written here is errant, and the site is no candidate.",
		"On this instance: SET GLOBAL %s = ON")
	mysqlTwoWriters = declare("MYSQL_TWO_WRITERS", Critical,
		"Several instances of one shard accept writes, and no assignment says which site is meant to.",
		"Make all but the one that applications use read-only (SET GLOBAL %s = ON), and look for writes on the others.")
	mysqlActiveReadOnly = declare("MYSQL_ACTIVE_READ_ONLY", Critical,
		"The active site's instance refuses writes: the service is down for this shard.",
		"baton status says who is expected to be writable; baton repairs it under the current epoch, unless it is in mode observe or advise.")
	mysqlBinlog = declare("MYSQL_BINLOG", Critical,
		"Without its own binary log of everything it applied, this instance cannot be a source after a switch, and errant writes cannot be told.",
		"Set log_bin and %s = ON in my.cnf and restart it.")
	mysqlGTID = declare("MYSQL_GTID", Critical,
		"Without GTIDs nobody can say whether the standby has everything.",
		"MySQL: gtid_mode = ON and enforce_gtid_consistency = ON. MariaDB: CHANGE MASTER ... MASTER_USE_GTID = slave_pos.")
	mysqlGTIDStrict = declare("MYSQL_GTID_STRICT", Critical,
		"Without gtid_strict_mode MariaDB lets GTIDs out of order into the binary log, and errant writes cannot be told by comparing numbers.",
		"Set gtid_strict_mode = ON in my.cnf, and SET GLOBAL gtid_strict_mode = ON.")
	mysqlServerID = declare("MYSQL_SERVER_ID", Critical,
		"Two servers with one server_id skip each other's transactions as their own, silently.",
		"Give each instance of the shard its own server_id in my.cnf.")
	mysqlNames = declare("MYSQL_SKIP_NAME_RESOLVE", Warning,
		"The server asks DNS for the name of each new client. When DNS fails, every fresh connection hangs, and healthy servers look down.",
		"Set skip_name_resolve = ON in my.cnf; write accounts with addresses, not names.")
	mysqlOffsets = declare("MYSQL_AUTO_INCREMENT", Critical,
		"With replication: dual-master a row that was on its way at the switch and a new one can get the same key.",
		"Set auto_increment_increment = 2 or more on both, and a different auto_increment_offset on each.")
	mysqlSchema = declare("MYSQL_BATON_SCHEMA", Warning,
		"The heartbeats and the epoch that travels with the data have no place: the write probe finds an error instead of an answer.",
		"The first start of the service creates it on the active instance; on a standby it comes by replication. docs/accounts.md has the statements.")
)

// on says whether a variable is switched on.
func (x Instance) on(name string) bool {
	switch strings.ToUpper(x.Vars[name]) {
	case "ON", "1", "YES", "TRUE":
		return true
	}
	return false
}

// first gives the name among several spellings (old and new words) that the server has.
func (x Instance) first(names ...string) (name string, known bool) {
	for _, n := range names {
		if _, ok := x.Vars[n]; ok {
			return n, true
		}
	}
	return names[0], false
}

func (x Instance) logUpdates() string {
	name, _ := x.first("log_replica_updates", "log_slave_updates")
	return name
}

// readOnlyName is the variable that stops writes of everybody that it can.
func (x Instance) readOnlyName() string {
	name, _ := x.first("super_read_only", "read_only")
	return name
}

func checkReach(in input) []Finding {
	var fs []Finding
	for _, x := range in.facts.Instances {
		switch {
		case x.Err != nil && x.Foreign:
			fs = append(fs, mysqlVersion.at(mysqlPlace(x), x.Err.Error()))
		case x.Err != nil && x.Login:
			fs = append(fs, mysqlLogin.at(mysqlPlace(x), "admin account: "+x.Err.Error()))
		case x.Err != nil:
			fs = append(fs, mysqlUnreachable.at(mysqlPlace(x), x.Err.Error()))
		case x.Probe.Err != nil:
			fs = append(fs, mysqlLogin.at(mysqlPlace(x), "probe account: "+x.Probe.Err.Error()))
		}
	}
	return fs
}

func checkLatency(in input) []Finding {
	var fs []Finding
	limit := in.cfg.Profile.ProbeTimeout / 4
	for _, x := range in.answered() {
		if x.Took > limit {
			fs = append(fs, mysqlSlow.at(mysqlPlace(x), fmt.Sprintf("connect, login and a statement took %s, a probe lives %s", ms(x.Took), in.cfg.Profile.ProbeTimeout)))
		}
	}
	return fs
}

func checkVersions(in input) []Finding {
	var fs []Finding
	first := map[cluster.ShardName]Instance{}
	for _, x := range in.answered() {
		v := x.Version
		o, ok := first[x.Shard]
		if !ok {
			first[x.Shard] = x
		} else if o.Version.MariaDB != v.MariaDB || o.Version.Major != v.Major || o.Version.Minor != v.Minor {
			fs = append(fs, mysqlVersionsDiffer.at(mysqlPlace(x), fmt.Sprintf("version %s here, %s on site %s", v.Text, o.Version.Text, o.Site)))
		}
	}
	return fs
}

// checkReadOnly judges my.cnf from outside. The running value of a variable is no evidence of the file; where the value came
// from is, as long as no statement has changed it since the start.
func checkReadOnly(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		name := x.readOnlyName()
		switch origin := x.Origin[name]; {
		case origin == OriginCompiled:
			fs = append(fs, mysqlReadOnlyAtBoot.at(mysqlPlace(x), fmt.Sprintf("%s has its compiled-in value: no option file names it", name)))
		case origin == OriginFile && !x.on(name):
			fs = append(fs, mysqlReadOnlyAtBoot.at(mysqlPlace(x), fmt.Sprintf("%s = %s, from an option file or the command line", name, x.Vars[name])))
		case origin == OriginRuntime, origin == OriginUnknown && x.Site == in.active():
			fs = append(fs, mysqlReadOnlyUnseen.at(mysqlPlace(x), fmt.Sprintf("%s = %s, changed at run time", name, x.Vars[name])))
		}
	}
	return fs
}

// checkWriters: exactly the active site's instances are writable.
func checkWriters(in input) []Finding {
	active := in.active()
	if active == "" {
		return checkTwoWriters(in)
	}
	var fs []Finding
	for _, x := range in.answered() {
		name := x.readOnlyName()
		switch {
		case x.Site != active && !x.on(name):
			fs = append(fs, mysqlStandbyWritable.at(mysqlPlace(x), fmt.Sprintf("%s = %s, and site %s is the active one", name, x.Vars[name], active), name))
		case x.Site == active && x.on("read_only") && in.facts.Etcd.Assignment != nil:
			fs = append(fs, mysqlActiveReadOnly.at(mysqlPlace(x), "read_only = "+x.Vars["read_only"]+", and this site is the active one"))
		}
	}
	return fs
}

func checkTwoWriters(in input) []Finding {
	var fs []Finding
	first := map[cluster.ShardName]Instance{}
	for _, x := range in.answered() {
		name := x.readOnlyName()
		if x.on(name) {
			continue
		}
		if o, ok := first[x.Shard]; ok {
			fs = append(fs, mysqlTwoWriters.at(mysqlPlace(x), fmt.Sprintf("%s = %s, and so on site %s", name, x.Vars[name], o.Site), name))
		}
		first[x.Shard] = x
	}
	return fs
}

func checkBinlog(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		place := mysqlPlace(x)
		if !x.on("log_bin") || !x.on(x.logUpdates()) {
			fs = append(fs, mysqlBinlog.at(place, fmt.Sprintf("log_bin = %s, %s = %s", x.Vars["log_bin"], x.logUpdates(), x.Vars[x.logUpdates()]), x.logUpdates()))
		}
		switch {
		case x.Version.MariaDB && !x.on("gtid_strict_mode"):
			fs = append(fs, mysqlGTIDStrict.at(place, "gtid_strict_mode = "+x.Vars["gtid_strict_mode"]).as(in.zeroLoss()))
		case !x.Version.MariaDB && (!x.on("gtid_mode") || !x.on("enforce_gtid_consistency")):
			fs = append(fs, mysqlGTID.at(place, fmt.Sprintf("gtid_mode = %s, enforce_gtid_consistency = %s", x.Vars["gtid_mode"], x.Vars["enforce_gtid_consistency"])))
		}
		for _, ch := range x.Sources {
			if !ch.GTID {
				fs = append(fs, mysqlGTID.at(place, "it replicates by file and position"))
			}
		}
	}
	return fs
}

func checkServerIDs(in input) []Finding {
	var fs []Finding
	type key struct {
		shard cluster.ShardName
		id    string
	}
	seen := map[key]Instance{}
	for _, x := range in.answered() {
		k := key{x.Shard, x.Vars["server_id"]}
		if o, ok := seen[k]; ok {
			fs = append(fs, mysqlServerID.at(mysqlPlace(x), fmt.Sprintf("server_id = %s, as on site %s", k.id, o.Site)))
		}
		seen[k] = x
	}
	return fs
}

func checkNames(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		if !x.on("skip_name_resolve") {
			fs = append(fs, mysqlNames.at(mysqlPlace(x), "skip_name_resolve = "+x.Vars["skip_name_resolve"]))
		}
	}
	return fs
}

// checkOffsets: with n sites, the increment leaves room for n and the offsets differ.
func checkOffsets(in input) []Finding {
	if in.cfg.Replication != config.DualMaster {
		return nil
	}
	var fs []Finding
	taken := map[cluster.ShardName]map[string]cluster.SiteName{}
	for _, x := range in.answered() {
		step, _ := strconv.Atoi(x.Vars["auto_increment_increment"])
		offset := x.Vars["auto_increment_offset"]
		if taken[x.Shard] == nil {
			taken[x.Shard] = map[string]cluster.SiteName{}
		}
		other, same := taken[x.Shard][offset]
		taken[x.Shard][offset] = x.Site
		if step < len(in.cfg.Cluster.Sites) {
			fs = append(fs, mysqlOffsets.at(mysqlPlace(x), fmt.Sprintf("auto_increment_increment = %d with %d sites", step, len(in.cfg.Cluster.Sites))))
		} else if same {
			fs = append(fs, mysqlOffsets.at(mysqlPlace(x), fmt.Sprintf("auto_increment_offset = %s, as on site %s", offset, other)))
		}
	}
	return fs
}

func checkSchema(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		if x.Schema != nil {
			fs = append(fs, mysqlSchema.at(mysqlPlace(x), x.Schema.Error()))
		}
	}
	return fs
}
