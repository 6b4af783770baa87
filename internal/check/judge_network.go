package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

var networkChecks = []func(input) []Finding{checkNodes, checkDaemons}

var (
	nodeUnreachable = declare("NODE_UNREACHABLE", Critical,
		"The host of a daemon does not answer from here: neither its observer's vote nor its guard can be relied on.",
		"Start the host, or open the way to it; a refused connection would be enough for this check.")
	nodeSilent = declare("NODE_SILENT", Critical,
		"No daemon of this node publishes reports in etcd: its vote is missing, and if it is a Mycat host nobody can bind the VIP there and no switch to its site succeeds.",
		"Start the daemon on that node and look at its log.")
)

func checkNodes(in input) []Finding {
	var fs []Finding
	for _, n := range in.facts.Nodes {
		if n.Err != nil {
			fs = append(fs, nodeUnreachable.at(fmt.Sprintf("node %s (%s)", n.Node.Name, n.At), n.Err.Error()))
		}
	}
	return fs
}

// checkDaemons: before the first start nobody has published anything, and that is one sentence and not one for each node.
func checkDaemons(in input) []Finding {
	e := in.facts.Etcd
	if e.Err != nil || e.ReadErr != nil || !e.Known {
		return nil
	}
	var fs []Finding
	for _, n := range in.cfg.Cluster.Nodes {
		if !slices.Contains(e.Reports, n.Name) {
			f := nodeSilent.at("node "+string(n.Name), "observer/"+string(n.Name)+" does not change")
			if !slices.ContainsFunc(in.cfg.Cluster.Sites, func(s cluster.Site) bool { return s.Node == n.Name }) {
				f = f.as(Warning) // a witness: one vote less
			}
			fs = append(fs, f)
		}
	}
	return fs
}

func mysqlPlace(x Instance) string {
	return fmt.Sprintf("mysql %s/%s (%s)", x.Site, x.Shard, x.Addr)
}

func mycatPlace(site cluster.SiteName) string { return "mycat " + string(site) }

func ms(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
