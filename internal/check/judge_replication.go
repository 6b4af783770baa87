package check

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/config"
)

var replicationChecks = []func(input) []Finding{checkStandbys, checkChannels, checkDirection}

var (
	replicaNone = declare("MYSQL_NO_REPLICATION", Critical,
		"The standby replicates from nobody: it falls behind with every write and is no candidate.",
		"Set up replication from the active site's instance, or let Baton, which rejoins site %s by itself in mode automatic.")
	replicaBroken = declare("MYSQL_REPLICATION_BROKEN", Critical,
		"The standby falls behind with every write and is no candidate for a failover.",
		"Mend the error that is named; never skip a transaction without comparing the rows.")
	replicaSource = declare("MYSQL_REPLICATION_SOURCE", Critical,
		"The standby does not replicate from the active site's instance of its shard: what is written there does not come here by that way.",
		"CHANGE REPLICATION SOURCE (MASTER) to the active site's instance; one way only, unless replication: dual-master is configured.")
	replicaLag = declare("MYSQL_REPLICATION_LAG", Warning,
		"A failover has to wait until this is applied, or is refused by the policy.",
		"Look for long transactions and for too few applier threads.")
	replicaDelay = declare("MYSQL_REPLICATION_DELAY", Critical,
		"The standby is behind on purpose, so a failover to it takes at least this long.",
		"Set the delay to 0; a delayed copy belongs on another server.")
	replicaFilter = declare("MYSQL_REPLICATION_FILTER", Critical,
		"The standby does not have everything. GTIDs say that it does.",
		"Remove the filters and set the instance up anew.")
	replicaActive = declare("MYSQL_ACTIVE_REPLICATES", Warning,
		"The active instance replicates from another server, and replication: dual-master is not configured. What comes in that way can collide with what applications write.",
		"STOP REPLICA (SLAVE) on it, or write replication: dual-master when both ways are meant.")
)

// lagNote is when lag is worth a word: it is longer than a failover of the profile takes.
func (in input) lagNote() time.Duration { return max(in.cfg.Profile.Lease, time.Second) }

func checkStandbys(in input) []Finding {
	var fs []Finding
	active := in.active()
	for _, x := range in.answered() {
		if x.Site != active && active != "" && len(x.Sources) == 0 {
			fs = append(fs, replicaNone.at(mysqlPlace(x), "no replication is configured", x.Site))
		}
	}
	return fs
}

func checkChannels(in input) []Finding {
	var fs []Finding
	// Without etcd's quorum the active site has fenced itself: nobody can tell it from a standby that has stopped.
	blind := in.active() == "" && (in.facts.Etcd.Err != nil || in.facts.Etcd.ReadErr != nil)
	for _, x := range in.answered() {
		for _, ch := range x.Sources {
			place := mysqlPlace(x)
			if ch.Name != "" {
				place += " channel " + ch.Name
			}
			if (!ch.IO || !ch.SQL) && !blind && (x.Site != in.active() || in.cfg.Replication == config.DualMaster) {
				fs = append(fs, replicaBroken.at(place, fmt.Sprintf("IO thread %s%s, SQL thread %s%s", running(ch.IO), because(ch.IOErr), running(ch.SQL), because(ch.SQLErr))))
			}
			if ch.Delay > 0 {
				fs = append(fs, replicaDelay.at(place, "delay "+ch.Delay.String()))
			}
			if len(ch.Filters) > 0 {
				fs = append(fs, replicaFilter.at(place, strings.Join(ch.Filters, ", ")))
			}
			if ch.LagKnown && ch.Lag > in.lagNote() {
				fs = append(fs, replicaLag.at(place, fmt.Sprintf("%s behind its source", ch.Lag)))
			}
		}
	}
	return fs
}

func running(yes bool) string {
	if yes {
		return "runs"
	}
	return "is stopped"
}

func because(err string) string {
	if err == "" {
		return ""
	}
	return " (" + err + ")"
}

// checkDirection: data flows from the active site's instance to the others of its shard.
func checkDirection(in input) []Finding {
	var fs []Finding
	active := in.active()
	for _, x := range in.answered() {
		for _, ch := range x.Sources {
			src, ok := in.source(x.Shard)
			switch {
			case x.Site == active && in.cfg.Replication == config.OneWay && (ch.IO || ch.SQL):
				fs = append(fs, replicaActive.at(mysqlPlace(x), "it replicates from "+sourceText(ch)))
			case x.Site == active || !ok:
			case ch.Source != src.Addr && strconv.FormatUint(uint64(ch.SourceServer), 10) != src.Vars["server_id"]:
				fs = append(fs, replicaSource.at(mysqlPlace(x), fmt.Sprintf("it replicates from %s, the active instance is %s", sourceText(ch), src.Addr)))
			}
		}
	}
	return fs
}

func sourceText(ch Channel) string {
	if ch.Source.IsValid() {
		return ch.Source.String()
	}
	return ch.SourceText
}
