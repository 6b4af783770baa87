package check

import (
	"fmt"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

var configChecks = []func(input) []Finding{checkWarnings, checkObservers, checkRPO}

var (
	configInvalid = declare("CONFIG_INVALID", Critical,
		"The daemon does not start with this file, and nothing else was looked at.",
		"Mend the file at the place that is named; all mistakes are listed at once.")
	configUnwise = declare("CONFIG_UNWISE", Warning,
		"The file is allowed, and weaker than it looks.",
		"Change the file as the text says, or keep it knowingly.")
	configModeAdvise = declare("CONFIG_MODE", Info,
		"Baton does not switch by itself in this mode.",
		"When `baton check` has no critical finding on every node and the advice was right for a while, write mode: automatic.")
	configObservers = declare("CONFIG_FEW_OBSERVERS", Warning,
		"One broken observer cannot be outvoted by one other, so mode automatic is refused.",
		"Add a witness: a small host in a third place that runs only the daemon.")
	configBoundedLoss = declare("CONFIG_LOSS_ALLOWED", Info,
		"A failover may lose acknowledged writes, and this version does not yet hold it to the limits. What the old site has beyond the new one is named as GTID sets when it comes back.",
		"If no write may be lost, set up lossless semi-sync and write policy: {rpo: zero}.")
)

func checkWarnings(in input) []Finding {
	var fs []Finding
	for _, w := range in.cfg.Warnings {
		fs = append(fs, configUnwise.at(w.Place, w.Text))
	}
	return fs
}

func checkObservers(in input) []Finding {
	var fs []Finding
	if in.cfg.Mode != policy.Automatic {
		fs = append(fs, configModeAdvise.at(in.cfg.Path, fmt.Sprintf("mode: %s", in.cfg.Mode)))
	}
	if n := len(in.cfg.Cluster.Nodes); n < 3 {
		fs = append(fs, configObservers.at(in.cfg.Path, fmt.Sprintf("%d nodes", n)))
	}
	return fs
}

func checkRPO(in input) []Finding {
	rpo := in.cfg.Policy.RPO
	if rpo.Zero {
		return nil
	}
	return []Finding{configBoundedLoss.at(in.cfg.Path, fmt.Sprintf("policy: {rpo: {transactions: %d, seconds: %d}}", rpo.Transactions, int(rpo.Lag.Seconds())))}
}

// active is the site that serves: by the assignment, or else the one whose instances are all writable. Empty: nobody can tell.
func (in input) active() cluster.SiteName {
	if a := in.facts.Etcd.Assignment; a != nil {
		return a.Site
	}
	writable := map[cluster.SiteName]int{}
	for _, x := range in.facts.Instances {
		if x.Err == nil && !x.on("read_only") {
			writable[x.Site]++
		}
	}
	for _, s := range in.cfg.Cluster.Sites {
		if writable[s.Name] == len(s.Instances) && len(writable) == 1 {
			return s.Name
		}
	}
	return ""
}

// source is the instance of the shard on the active site, if it answered.
func (in input) source(shard cluster.ShardName) (Instance, bool) {
	active := in.active()
	for _, x := range in.facts.Instances {
		if x.Shard == shard && x.Site == active && active != "" {
			return x, x.Err == nil
		}
	}
	return Instance{}, false
}

// answered is every instance that could be looked at.
func (in input) answered() []Instance {
	var xs []Instance
	for _, x := range in.facts.Instances {
		if x.Err == nil {
			xs = append(xs, x)
		}
	}
	return xs
}
