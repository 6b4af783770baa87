// Package cluster names what Baton looks after: one service with one VIP, two or more sites, one instance a shard on each.
//
// It is pure: plain values, no I/O and no clock. Everything above speaks in these words.
package cluster

import (
	"net/netip"
	"slices"
	"time"
)

// SiteName names a site ("a").
type SiteName string

// NodeName names a daemon's host ("mc-a", "witness").
type NodeName string

// ShardName names a shard ("s1").
type ShardName string

// Cluster is one service: one VIP, two or more sites in the order of takeover, one or more shards in the order of promotion.
type Cluster struct {
	Name   string
	VIP    VIP
	Nodes  []Node      // every daemon of the cluster; each is an observer with one vote
	Sites  []Site      // in the order of takeover
	Shards []ShardName // in the order of promotion
}

// VIP is the one address that applications connect to.
type VIP struct {
	Addr    netip.Addr
	Port    uint16     // Mycat's SQL port behind the VIP, 8066
	Gateway netip.Addr // poked after a move; the zero Addr when there is none
}

// Node is a host that runs a Baton daemon: a Mycat host of a site, or a witness.
type Node struct {
	Name NodeName
	Addr netip.Addr
}

// Site is one Mycat host with its MySQL instances, one a shard.
type Site struct {
	Name      SiteName
	Node      NodeName // the node whose guard binds the VIP for this site
	Interface string   // the interface of Node that carries the VIP, "eth0"
	Mycat     Mycat
	Instances []Instance
}

// Mycat is the proxy of a site.
type Mycat struct {
	SQL       netip.AddrPort // 8066
	Admin     netip.AddrPort // 9066
	Schema    string
	DataNodes map[ShardName]string // Mycat's dataNode of each shard, for the routing hint
}

// Instance is one MySQL server of one shard.
type Instance struct {
	Shard ShardName
	Addr  netip.AddrPort
}

// Site returns the site with that name.
func (c Cluster) Site(name SiteName) (Site, bool) {
	i := slices.IndexFunc(c.Sites, func(s Site) bool { return s.Name == name })
	if i < 0 {
		return Site{}, false
	}
	return c.Sites[i], true
}

// SiteOf returns the site that the node's guard serves; a witness has none.
func (c Cluster) SiteOf(node NodeName) (Site, bool) {
	i := slices.IndexFunc(c.Sites, func(s Site) bool { return s.Node == node })
	if i < 0 {
		return Site{}, false
	}
	return c.Sites[i], true
}

// Others returns every site but the named one, in the order of takeover.
func (c Cluster) Others(name SiteName) []Site {
	return slices.DeleteFunc(slices.Clone(c.Sites), func(s Site) bool { return s.Name == name })
}

// Instance returns the site's instance of the shard.
func (s Site) Instance(shard ShardName) (Instance, bool) {
	i := slices.IndexFunc(s.Instances, func(in Instance) bool { return in.Shard == shard })
	if i < 0 {
		return Instance{}, false
	}
	return s.Instances[i], true
}

// Quorum is the number of observers that must agree: a majority of the configured ones.
func (c Cluster) Quorum() int { return len(c.Nodes)/2 + 1 }

// Profile is a set of times that belong together. All are durations of the monotonic or boot clock.
type Profile struct {
	Name         string        // "steady" or "fast"
	Interval     time.Duration // one beat of every probe
	ConfirmEvery time.Duration // spacing of probes after hard evidence (a tripwire)
	ProbeTimeout time.Duration // life of one probe
	Lease        time.Duration // D: how long a renewal lets a site serve
	Margin       time.Duration // taken off D by the guard: clock rate error, queue latency, a scheduler tick
	LockPulse    time.Duration // L: the lock's beat unchanged for this long may be taken over
	StepBudget   time.Duration // fence-writes at an old instance that does not answer
	Grace        time.Duration // a restart within it is never a switch
}

// Steady is the recommended profile: 500 ms, a lease of 5 s.
func Steady() Profile {
	return Profile{
		Name: "steady", Interval: 500 * time.Millisecond, ConfirmEvery: 100 * time.Millisecond, ProbeTimeout: time.Second,
		Lease: 5 * time.Second, Margin: 150 * time.Millisecond, LockPulse: 2 * time.Second, StepBudget: time.Second, Grace: 3 * time.Second,
	}
}

// Fast is the profile of the benchmarks: 100 ms, a lease of 1.5 s, no grace.
func Fast() Profile {
	return Profile{
		Name: "fast", Interval: 100 * time.Millisecond, ConfirmEvery: 15 * time.Millisecond, ProbeTimeout: 450 * time.Millisecond,
		Lease: 1500 * time.Millisecond, Margin: 60 * time.Millisecond, LockPulse: 400 * time.Millisecond, StepBudget: 150 * time.Millisecond,
	}
}
