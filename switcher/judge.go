package switcher

import (
	"fmt"
	"slices"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

// Seen is one MySQL as it was read, before it is judged.
type Seen struct {
	Instance
	Replicates  bool   // it has a source configured
	IORunning   string // Yes, No, Connecting
	SQLRunning  string
	SQLError    string
	SourceOn    bool   // the source half of semi-sync is in force
	Clients     int    // semi-sync replicas
	LosslessSet bool   // AFTER_SYNC and the longest timeout
	Errant      string // transactions that it has and the active instance of its shard has not
}

// Judge says from what was read which sites could take over, and what must be mended. It is pure.
//
// A replica's IO thread that is not connected blocks nothing: that is how every replica looks a moment after its source has died, and
// under lossless semi-sync whatever was acknowledged has been received. An applier that has stopped blocks: it would never catch up.
func Judge(c cluster.Cluster, a cluster.Assignment, sync map[cluster.ShardName]cluster.SyncState, seen []Seen, now time.Time) Readiness {
	r := Readiness{At: now, Epoch: a.Epoch, Active: a.Site, Sites: map[cluster.SiteName]SiteReady{}}
	at := map[string]Seen{}
	for _, s := range seen {
		at[string(s.Site)+"/"+string(s.Shard)] = s
		r.Instances = append(r.Instances, s.Instance)
	}
	alone := map[cluster.SiteName][]cluster.ShardName{}
	for _, site := range c.Sites {
		var out SiteReady
		for _, shard := range c.Shards {
			home := a.Shards[shard]
			if home == "" {
				home = a.Site
			}
			me, active := at[string(site.Name)+"/"+string(shard)], at[string(home)+"/"+string(shard)]
			if site.Name == home {
				judgeActive(&out, me)
				continue
			}
			judgeStandby(&out, &r, me, active, sync[shard])
			if me.Err != "" && active.Err == "" && active.SourceOn && active.Clients <= 1 {
				alone[home] = append(alone[home], shard) // the source still counts it: it notices only when it sends something, and does not while it waits
			}
		}
		out.RPO = rpo(c, sync)
		r.Sites[site.Name] = out
	}
	for name, shards := range alone {
		s := r.Sites[name]
		for _, shard := range shards {
			if !slices.Contains(s.Alone, shard) && !slices.Contains(s.Unreached, shard) {
				s.Unreached = append(s.Unreached, shard)
			}
		}
		r.Sites[name] = s
	}
	return r
}

func rpo(c cluster.Cluster, sync map[cluster.ShardName]cluster.SyncState) string {
	for _, shard := range c.Shards {
		if sync[shard].State != cluster.SyncArmed {
			return "unknown: semi-sync of " + string(shard) + " is not armed"
		}
	}
	return "0"
}

func judgeActive(out *SiteReady, me Seen) {
	switch {
	case me.Err != "":
	case me.ReadOnly:
		out.Rejoin = append(out.Rejoin, fmt.Sprintf("%s of the active site is read-only", me.Shard))
	case me.SourceOn && me.Clients == 0:
		out.Alone = append(out.Alone, me.Shard)
	}
}

func judgeStandby(out *SiteReady, r *Readiness, me, active Seen, sync cluster.SyncState) {
	block := func(code, format string, args ...any) {
		out.Blockers = append(out.Blockers, policy.Blocker{Code: code, Shard: me.Shard, Text: fmt.Sprintf(format, args...)})
	}
	mend := func(format string, args ...any) {
		if active.Err == "" && !active.ReadOnly && active.Addr != "" { // without a source there is nothing to replicate from
			out.Rejoin = append(out.Rejoin, fmt.Sprintf(format, args...))
		}
	}
	name := string(me.Site) + "/" + string(me.Shard)
	switch {
	case me.Err != "":
		block("UNREACHABLE", "%s does not answer: %s", name, me.Err)
		return
	case !me.ReadOnly:
		r.Alarms = append(r.Alarms, fmt.Sprintf("%s is writable although its site does not serve: two writers could diverge", name))
		block("STANDBY_WRITABLE", "%s is writable", name)
		mend("%s is writable", name)
	case !me.Replicates || me.Source != active.Addr:
		block("NOT_REPLICATING", "%s does not replicate from %s (source: %s)", name, active.Addr, orNone(me.Source))
		mend("%s does not replicate from %s", name, active.Addr)
	case me.SQLRunning != "Yes":
		text := "the applier of " + name + " does not run"
		if me.SQLError != "" {
			text += ": " + me.SQLError
		}
		block("APPLIER_STOPPED", "%s", text)
		mend("the applier of %s does not run", name)
	case me.IORunning == "No":
		mend("the receiver of %s does not run", name)
	}
	if me.Errant != "" {
		block("ERRANT", "%s has executed %s and %s has not: promoted, it would serve what was never acknowledged; find out who wrote it", name, me.Errant, active.Addr)
		r.Alarms = append(r.Alarms, fmt.Sprintf("%s has errant transactions %s", name, me.Errant))
	}
	if sync.State != cluster.SyncArmed || active.Err == "" && !active.SourceOn {
		mend("semi-sync of %s is not armed", me.Shard)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
