// Package config reads baton.yaml into plain structs, strictly: an unknown or misspelt key, a name where an address belongs, a
// password in the file is an error with its line and column and the way to mend it, and all of them are reported at once.
//
// It never touches the network, and no package but the daemon's wiring, the commands and the laboratory imports it: everybody
// else is handed plain values. The file has no key of gate or lease: their times hang together, and a profile sets them all.
package config

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

// Bind says who puts the VIP on the interface. What is missing is an error, never a silent other way.
type Bind string

// The binders.
const (
	BindKeepalived Bind = "keepalived"
	BindNetlink    Bind = "netlink"
)

// Replication says how the sites' instances replicate.
type Replication string

// The kinds of replication.
const (
	OneWay     Replication = "one-way"
	DualMaster Replication = "dual-master"
)

// Scope says whose window decides.
type Scope string

// The scopes.
const (
	ScopeTarget Scope = "target" // the window of one target
	ScopeSite   Scope = "site"   // H of the site, the paper's
)

// Config is a whole baton.yaml, defaults filled in, and nothing in it contradicts anything else.
type Config struct {
	Path        string // as given; the place in every message
	Cluster     cluster.Cluster
	Node        cluster.NodeName // which of Cluster.Nodes this host is
	Mode        policy.Mode
	Profile     cluster.Profile // with the overrides of detection
	Bind        Bind
	RouterID    uint8 // keepalived's virtual_router_id of the first site; the next sites count on from it
	Etcd        Etcd
	MySQL       MySQL
	Mycat       Mycat
	Detection   Detection
	Policy      Policy
	Business    []Business
	Anchors     []netip.Addr // addresses outside the cluster by which an observer tells its own trouble
	StateDir    string
	Replication Replication
	Log         Log
	Warnings    []Warning // what is allowed and unwise; the daemon logs them, `baton check` shows them
}

// Warning is something that is allowed and unwise.
type Warning struct {
	Place string `json:"place"` // "baton.yaml:12:5"
	Text  string `json:"text"`
}

// Account is a user and its password.
type Account struct {
	User     string
	Password Secret
}

// MySQL holds the three accounts on every MySQL instance.
type MySQL struct {
	Probe       Account // looks and writes heartbeat rows; no SUPER, no READ ONLY ADMIN
	Admin       Account // fences, cuts, promotes
	Replication Account // what replicas log in with
}

// Mycat is how to log in to every Mycat, 8066 and 9066.
type Mycat struct {
	Account
	SchemaXML string // this host's schema.xml for `baton check`; empty: not looked at
	ServerXML string // this host's server.xml for `baton check`; empty: not looked at
}

// Etcd says where etcd is. Endpoints are always filled in, also with embedded members: this host's own first.
type Etcd struct {
	Embedded  *Embedded // nil: an existing cluster
	Endpoints []string  // URLs
	TLS       TLS
	Heartbeat time.Duration // tick of embedded members; for an existing cluster, what the profile expects of it
	Election  time.Duration // its election timeout
}

// Embedded runs etcd inside the daemon.
type Embedded struct {
	Dir        string
	ClientPort uint16
	PeerPort   uint16
	Members    []cluster.NodeName // the nodes that run a member: all of them unless the file says otherwise
}

// TLS is the client's and, with embedded members, the servers' TLS. Empty: plain text.
type TLS struct {
	CA, Cert, Key string // PEM files
	ServerName    string // the name in the server's certificate, when it is not its address
}

// Detection says when a site is down.
type Detection struct {
	Rule          accumulator.Config // of every window; its Window is also that of H
	Scope         Scope
	MySQLFailures int // how many MySQL instances of a site must be down; 1 is the paper's "any"
}

// RPO is how much may be lost in a failover. The zero value of both limits with Zero false cannot be configured.
type RPO struct {
	Zero         bool // nothing: lossless semi-sync must have been in force
	Transactions int64
	Lag          time.Duration
}

// Policy says when a switch is allowed.
type Policy struct {
	RPO      RPO
	Cooldown time.Duration // after a completed switch, before the next automatic one
	Switches int           // automatic switches within a day; then a person is needed
}

// Business is one statement of the user's own by which a shard is known to work.
type Business struct {
	Shard  cluster.ShardName
	SQL    string
	Expect string // first column of the first row; empty: any answer
}

// Log says how the daemon logs.
type Log struct {
	JSON  bool
	Level slog.Level
}

// Self is this host's node.
func (c Config) Self() cluster.Node {
	for _, n := range c.Cluster.Nodes {
		if n.Name == c.Node {
			return n
		}
	}
	return cluster.Node{}
}

// Limits are the policy's limits. The grace is not among them: the judge of each observer has applied it, and twice would double it. A view of etcd older than D decides nothing: by then a lease could have ended unseen.
func (c Config) Limits() policy.Limits {
	return policy.Limits{
		Observers: len(c.Cluster.Nodes), Fresh: c.Profile.Lease, Cooldown: c.Policy.Cooldown,
		Budget: c.Policy.Switches, BudgetSpan: 24 * time.Hour, Zero: c.Policy.RPO.Zero,
	}
}

// Site is the site that this host serves; false on a witness.
func (c Config) Site() (cluster.Site, bool) { return c.Cluster.SiteOf(c.Node) }

// RouterIDOf is the virtual_router_id of the site's keepalived. No two sites share one, so that keepalived instances never hold
// an election behind Baton's back.
func (c Config) RouterIDOf(site cluster.SiteName) uint8 {
	for i, s := range c.Cluster.Sites {
		if s.Name == site {
			return c.RouterID + uint8(i)
		}
	}
	return c.RouterID
}

// IsMember says whether this host runs a member of the embedded etcd.
func (c Config) IsMember() bool {
	if c.Etcd.Embedded == nil {
		return false
	}
	for _, m := range c.Etcd.Embedded.Members {
		if m == c.Node {
			return true
		}
	}
	return false
}
