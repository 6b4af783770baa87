package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

// check fills in what one part of the file takes from another, and looks for what no single key shows.
func (r *read) check() {
	r.finishNode()
	r.finishSites()
	r.finishEtcd()
	// Only what nothing else has reported: what could not be read is not wrong twice, and what a site takes from elsewhere in the
	// file is wrong there.
	fresh := slices.DeleteFunc(r.c.Cluster.Problems(), func(p *cluster.Problem) bool { return r.wrong(p.Path) || r.derived(p.Path) })
	for _, p := range fresh {
		r.failErr(r.place(p.Path), p.Path, p.Err, "%s", p.Text)
	}
	r.checkAutomatic()
	r.checkEtcd()
	r.checkDetection()
	r.checkTheRest()
	r.warnings()
}

// derived says whether the path is a site's value that the file does not give, so that it came from vip or nodes.
func (r *read) derived(path string) bool {
	_, given := r.at[path]
	return !given && (strings.HasSuffix(path, "].interface") || strings.HasSuffix(path, "].mycat.address"))
}

// finishNode finds out which node this host is.
func (r *read) finishNode() {
	if r.c.Node == "" {
		if r.wrong("node") {
			return
		}
		host, err := r.host.Hostname()
		if err != nil {
			r.failErr(r.place(""), "node", err, "node is missing and the hostname cannot be read (%v): write node: NAME", err)
			return
		}
		r.c.Node = cluster.NodeName(host)
	}
	if r.wrong("nodes") || slices.ContainsFunc(r.c.Cluster.Nodes, func(n cluster.Node) bool { return n.Name == r.c.Node }) {
		return
	}
	names := r.nodeNames()
	if _, given := r.at["node"]; !given {
		r.fail(r.place("nodes"), "node", "this host is called %q, which is not among nodes (%s): write node: NAME with the one that it is", r.c.Node, names)
		return
	}
	r.fail(r.place("node"), "node", "node %q is not among nodes (%s)", r.c.Node, names)
}

func (r *read) nodeNames() string {
	var names []string
	for _, n := range r.c.Cluster.Nodes {
		names = append(names, string(n.Name))
	}
	return strings.Join(names, ", ")
}

// checkAutomatic: two observers cannot outvote a broken one, and two members of etcd lose their quorum with either.
func (r *read) checkAutomatic() {
	if r.c.Mode != policy.Automatic {
		return
	}
	if n := len(r.c.Cluster.Nodes); n < 3 && !r.wrong("nodes") {
		r.fail(r.place("mode"), "mode", "mode automatic needs three nodes, here are %d: add a witness, a small host in a third place that runs only the daemon; until then use mode: advise", n)
	}
	if e := r.c.Etcd.Embedded; e != nil && len(e.Members) < 3 && len(r.c.Cluster.Nodes) >= 3 && !r.wrong("etcd") {
		r.fail(r.place("etcd.embedded.members"), "etcd.embedded.members", "mode automatic needs three members of etcd, here are %d: fewer lose their quorum together with one host", len(e.Members))
	}
}

func (r *read) checkEtcd() {
	if r.wrong("etcd") {
		return
	}
	e := r.c.Etcd
	if e.Embedded == nil {
		isHTTPS := func(u string) bool { return strings.HasPrefix(u, "https:") }
		if slices.ContainsFunc(e.Endpoints, isHTTPS) && e.TLS.CA == "" {
			r.fail(r.place("etcd.endpoints"), "etcd.endpoints", "https endpoints need tls: {ca: FILE}: without it nobody knows who answers")
		}
		if e.TLS != (TLS{}) && !slices.ContainsFunc(e.Endpoints, isHTTPS) {
			r.fail(r.place("etcd.tls"), "etcd.tls", "tls is given and no endpoint begins with https:// : nothing would be encrypted")
		}
		return
	}
	if e.TLS != (TLS{}) && e.TLS.Cert == "" {
		r.fail(r.place("etcd.tls"), "etcd.tls", "embedded members with TLS need cert and key: each is a server as well")
	}
	for i, m := range e.Embedded.Members {
		path := "etcd.embedded.members"
		if !slices.ContainsFunc(r.c.Cluster.Nodes, func(n cluster.Node) bool { return n.Name == m }) && !r.wrong("nodes") {
			r.fail(r.place(path), path, "member %q is not among nodes (%s)", m, r.nodeNames())
		}
		if slices.Contains(e.Embedded.Members[:i], m) {
			r.fail(r.place(path), path, "member %q is there twice", m)
		}
	}
}

// checkDetection: a rule that cannot trip, or trips on one blip, is a mistake and not a choice.
func (r *read) checkDetection() {
	d, p := r.c.Detection, r.c.Profile
	_, failures := r.at["detection.failures"]
	_, window := r.at["detection.window"]
	if r.wrong("detection") {
		return
	}
	switch d.Rule.Rule {
	case accumulator.Cumulative:
		if need := p.Interval * (time.Duration(d.Rule.Failures) - 1); d.Rule.Window <= need {
			r.fail(r.place("detection"), "detection.window", "%d failures, one every %s, take %s and do not fit into a window of %s: lengthen the window or lower failures", d.Rule.Failures, p.Interval, need, d.Rule.Window)
		}
	case accumulator.Consecutive:
		if window && d.Scope == ScopeTarget {
			r.fail(r.place("detection.window"), "detection.window", "rule consecutive counts failures in a row and has no window: leave it out")
		}
	case accumulator.Bucket:
		if failures || window && d.Scope == ScopeTarget {
			r.fail(r.place("detection"), "detection.failures", "rule bucket has fixed weights (4 a failure, -1 a success, down at 20): leave failures and window out")
		}
	}
	if p.ConfirmEvery > p.Interval {
		r.fail(r.place("detection.confirm_every"), "detection.confirm_every", "confirm_every %s is slower than the beat of %s: after hard evidence probes are meant to be faster", p.ConfirmEvery, p.Interval)
	}
	if n := len(r.c.Cluster.Shards); d.MySQLFailures > n && n > 0 {
		r.fail(r.place("detection.mysql_failures"), "detection.mysql_failures", "%d of %d instances can never be down: write any, or a number up to %d", d.MySQLFailures, n, n)
	}
}

func (r *read) checkTheRest() {
	for i, b := range r.c.Business {
		path := "business[" + strconv.Itoa(i) + "].shard"
		if len(r.c.Cluster.Shards) > 0 && !slices.Contains(r.c.Cluster.Shards, b.Shard) && !r.wrong(path) {
			r.fail(r.place(path), path, "there is no shard %q", b.Shard)
		}
	}
	for i, a := range r.c.Anchors {
		path := "anchors[" + strconv.Itoa(i) + "]"
		if a == r.c.Cluster.VIP.Addr && a.IsValid() {
			r.fail(r.place(path), path, "%s is the VIP, which is silent during a switch: name something outside the cluster, like the router", a)
		}
	}
	if int(r.c.RouterID)+len(r.c.Cluster.Sites)-1 > 255 {
		r.fail(r.place("vip.router_id"), "vip.router_id", "router_id %d and one more for each further site go beyond 255: write a lower one", r.c.RouterID)
	}
}

// warnings says what is allowed and unwise.
func (r *read) warnings() {
	c := r.c
	members := len(c.Etcd.Endpoints)
	if c.Etcd.Embedded != nil {
		members = len(c.Etcd.Embedded.Members)
	}
	switch {
	case members == 1:
		r.warning("etcd", "etcd has one member: when its host dies nobody can switch; use three")
	case members%2 == 0:
		r.warning("etcd", "etcd has %d members, an even number: it survives no more failures than %d would; use %d or %d", members, members-1, members-1, members+1)
	}
	if len(c.Cluster.Nodes)%2 == 0 {
		r.warning("nodes", "%d observers, an even number: when half of them is cut off no side has a majority; use an odd number", len(c.Cluster.Nodes))
	}
	if c.Etcd.TLS == (TLS{}) && !r.onlyLoopback() {
		r.warning("etcd", "etcd is used without TLS: whoever reaches its port can order a switch; give tls: {ca, cert, key}, or close the ports to others")
	}
	if len(c.Business) == 0 {
		r.warning("", "no business SQL: a table that is broken or a lock that never ends is seen only by chance; add business: [{shard: ..., sql: ..., expect: ...}]")
	}
	if len(c.Anchors) == 0 && !c.Cluster.VIP.Gateway.IsValid() {
		r.warning("", "neither anchors nor vip.gateway: an observer whose own link is down knows it only by etcd; add anchors: [ROUTER]")
	}
	for i, s := range c.Cluster.Sites {
		for _, in := range s.Instances {
			if in.Addr.Addr().IsLoopback() {
				r.warning("sites["+strconv.Itoa(i)+"].shards."+string(in.Shard), "%s is a loopback address, which every host takes for itself", in.Addr.Addr())
			}
		}
	}
}

func (r *read) onlyLoopback() bool {
	return !slices.ContainsFunc(r.c.Etcd.Endpoints, func(u string) bool {
		_, hostPort, _ := strings.Cut(u, "://")
		ap, err := netip.ParseAddrPort(hostPort)
		return err != nil || !ap.Addr().IsLoopback()
	})
}
