package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

var syncChecks = []func(input) []Finding{checkSemiSync, checkDurable, checkAckers}

var (
	syncOff = declare("MYSQL_SEMISYNC_OFF", Critical,
		"Half of semi-sync is missing: a standby acknowledges nothing, or the instance could not wait for one. An acknowledged write can be lost with one host.",
		"SET GLOBAL %s = ON; the replica's half belongs into my.cnf too (MySQL: both plugins have to be installed on every instance).")
	syncLetGo = declare("MYSQL_SEMISYNC_LET_GO", Critical,
		"The active source waits for nobody: an acknowledged write can be lost with its host. Baton lets it go, so that its writers do not hang, when no standby follows, and arms it again by itself when one does.",
		"Do not switch it on by hand: with no standby every commit would hang. Get the standby back: `baton status` names what does not replicate, `baton history` why it was let go.")
	syncStandby = declare("MYSQL_SEMISYNC_STANDBY_SOURCE", Critical,
		"The source half is on at a standby that nobody acknowledges to: its own applier waits for an answer that never comes, and nothing is applied any more.",
		"SET GLOBAL %s = OFF on the standby. Baton arms it after a switch, when the other side follows.")
	syncPoint = declare("MYSQL_SEMISYNC_AFTER_COMMIT", Critical,
		"Others see a write before the standby has it. When the source dies in between, what was read is gone (MariaDB's default).",
		"Set %s = AFTER_SYNC in my.cnf, and SET GLOBAL %s = AFTER_SYNC.")
	syncTimeout = declare("MYSQL_SEMISYNC_TIMEOUT", Critical,
		"After this time without an answer the source goes on without its standby, silently: from then on each write can be lost. Only Baton relaxes semi-sync, and only after it has recorded that.",
		"Set %s to its maximum, 4294967295, in my.cnf.")
	syncNoReplica = declare("MYSQL_SEMISYNC_NO_REPLICA", Critical,
		"With no standby connected the source goes on by itself, silently.",
		"Set %s = ON in my.cnf.")
	syncInactive = declare("MYSQL_SEMISYNC_INACTIVE", Critical,
		"Semi-sync is configured and not in force: the source is not waiting for its standby now.",
		"Look at the standby's replication; with both halves enabled, STOP and START its IO thread.")
	syncDurable = declare("MYSQL_NOT_DURABLE", Critical,
		"The instance acknowledges, as source or as standby, what it has not written to its disk: a power cut of both loses it.",
		"Set sync_binlog = 1 and innodb_flush_log_at_trx_commit = 1 in my.cnf.")
	syncStrangers = declare("MYSQL_ACKER_OUTSIDE", Critical,
		"A replica that is no instance of this cluster answers the source's semi-sync: a write can be acknowledged that no site of the cluster has, and Baton cannot stop it at a switch.",
		"Turn semi-sync off on that replica (%s = OFF), or make it an instance of a site.")
	syncReplicas = declare("MYSQL_REPLICA_OUTSIDE", Info,
		"A replica that is no instance of this cluster hangs on this one. Baton does not move it at a switch.",
		"Point it at the new source after a switch, or at the instance of its own site.")
	syncCount = declare("MYSQL_SEMISYNC_COUNT", Critical,
		"The source waits for more acknowledgements than it has semi-sync replicas: the next write hangs.",
		"Set %s = 1, or connect the missing replicas.")
)

// words of semi-sync, the new ones first.
var (
	sourceEnabled   = []string{"rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"}
	replicaEnabled  = []string{"rpl_semi_sync_replica_enabled", "rpl_semi_sync_slave_enabled"}
	waitPoint       = []string{"rpl_semi_sync_source_wait_point", "rpl_semi_sync_master_wait_point"}
	waitTimeout     = []string{"rpl_semi_sync_source_timeout", "rpl_semi_sync_master_timeout"}
	waitNoReplica   = []string{"rpl_semi_sync_source_wait_no_replica", "rpl_semi_sync_master_wait_no_slave"}
	waitCount       = []string{"rpl_semi_sync_source_wait_for_replica_count", "rpl_semi_sync_master_wait_for_slave_count"}
	syncClients     = []string{"rpl_semi_sync_source_clients", "rpl_semi_sync_master_clients"}
	sourceStatus    = []string{"rpl_semi_sync_source_status", "rpl_semi_sync_master_status"}
	longTimeoutInMS = 86_400_000 // a day: whoever waits this long is called; anything shorter degrades before somebody looks
)

func checkSemiSync(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		found := func(k *kind, seen string, args ...any) {
			fs = append(fs, k.at(mysqlPlace(x), seen, args...).as(in.zeroLoss()))
		}
		source, hasSource := x.first(sourceEnabled...)
		replica, hasReplica := x.first(replicaEnabled...)
		clients, _ := x.first(syncClients...)
		active := in.active()
		switch {
		case !hasSource:
			found(syncOff, source+" = "+shown(x, source), source)
		case x.Site == active && !x.on(source):
			found(syncLetGo, source+" = "+shown(x, source))
		case !hasReplica, active != "" && x.Site != active && !x.on(replica):
			found(syncOff, replica+" = "+shown(x, replica), replica)
		case active != "" && x.Site != active && x.on(source) && x.Vars[clients] == "0":
			fs = append(fs, syncStandby.at(mysqlPlace(x), source+" = ON with no semi-sync replica", source))
		}
		if !hasSource {
			continue
		}
		if name, _ := x.first(waitPoint...); x.Vars[name] != "AFTER_SYNC" {
			found(syncPoint, name+" = "+shown(x, name), name, name)
		}
		name, _ := x.first(waitTimeout...)
		if n, err := strconv.ParseUint(x.Vars[name], 10, 64); err != nil || n < uint64(longTimeoutInMS) {
			found(syncTimeout, fmt.Sprintf("%s = %s (milliseconds)", name, shown(x, name)), name)
		}
		if name, ok := x.first(waitNoReplica...); ok && !x.on(name) {
			found(syncNoReplica, name+" = "+shown(x, name), name)
		}
		if name, ok := x.first(sourceStatus...); ok && x.Site == active && x.on(source) && !x.on(name) {
			found(syncInactive, name+" = "+shown(x, name))
		}
	}
	return fs
}

func shown(x Instance, name string) string {
	if v, ok := x.Vars[name]; ok {
		return v
	}
	return "absent (the plugin is not loaded)"
}

func checkDurable(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		if x.Vars["sync_binlog"] != "1" || x.Vars["innodb_flush_log_at_trx_commit"] != "1" {
			fs = append(fs, syncDurable.at(mysqlPlace(x), fmt.Sprintf("sync_binlog = %s, innodb_flush_log_at_trx_commit = %s", x.Vars["sync_binlog"], x.Vars["innodb_flush_log_at_trx_commit"])).as(in.zeroLoss()))
		}
	}
	return fs
}

// checkAckers: who may acknowledge a write must be somebody whom a switch can cut and ask. A server tells how many of its replicas
// acknowledge and not which; strangers do when more acknowledge than the cluster has there.
func checkAckers(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		clientsName, _ := x.first(syncClients...)
		clients, _ := strconv.Atoi(x.Vars[clientsName])
		known, complete := in.replicaIDs(x)
		strangers := slices.DeleteFunc(slices.Clone(x.Acks), func(id uint32) bool { return known[id] })
		if complete && len(strangers) > 0 {
			replica, _ := x.first(replicaEnabled...)
			seen := fmt.Sprintf("replicas with server_id %s are no instances of the cluster", strings.Trim(fmt.Sprint(strangers), "[]"))
			if ours := len(x.Acks) - len(strangers); clients > ours {
				fs = append(fs, syncStrangers.at(mysqlPlace(x), fmt.Sprintf("%s; %d replicas acknowledge, %d of the cluster are connected", seen, clients, ours), replica).as(in.zeroLoss()))
			} else {
				fs = append(fs, syncReplicas.at(mysqlPlace(x), seen))
			}
		}
		name, ok := x.first(waitCount...)
		if n, err := strconv.Atoi(x.Vars[name]); ok && err == nil && x.Site == in.active() && n > clients {
			fs = append(fs, syncCount.at(mysqlPlace(x), fmt.Sprintf("%s = %d, and %d semi-sync replicas are connected", name, n, clients), name))
		}
	}
	return fs
}

// replicaIDs are the server ids of the shard's other instances; incomplete when one of them could not be asked.
func (in input) replicaIDs(of Instance) (ids map[uint32]bool, complete bool) {
	ids, complete = map[uint32]bool{}, true
	for _, o := range in.facts.Instances {
		if o.Shard != of.Shard || o.Site == of.Site {
			continue
		}
		id, err := strconv.ParseUint(o.Vars["server_id"], 10, 32)
		complete = complete && o.Err == nil && err == nil
		ids[uint32(id)] = true
	}
	return ids, complete
}
