package check

import (
	"context"
	"net/netip"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// World is the outside as the checks look at it. Every method only reads, and keeps to ctx's deadline; what went wrong stands in
// the Err of the fact that is missing.
type World interface {
	// Dial connects by TCP and closes again. A refused connection is nil: the host answered.
	Dial(ctx context.Context, to netip.AddrPort) error
	// Instance looks at one MySQL server.
	Instance(ctx context.Context, at cluster.Instance) Instance
	// Mycat looks at one proxy, and at each shard through it.
	Mycat(ctx context.Context, site cluster.Site) Mycat
	// Etcd looks at the store.
	Etcd(ctx context.Context) Etcd
	// Host looks at the host that this process runs on; iface carries the VIP, and is empty on a witness.
	Host(ctx context.Context, iface string) Host
	// Lint reads this host's files of Mycat; nothing when no path is configured.
	Lint(ctx context.Context) []Finding
}

// Facts is all that was seen.
type Facts struct {
	Nodes     []NodeFact
	Instances []Instance
	Mycats    []Mycat
	Etcd      Etcd
	Host      Host
	Lint      []Finding
}

// NodeFact says whether the host of a daemon answers at all.
type NodeFact struct {
	Node cluster.Node
	At   netip.AddrPort
	Err  error
}

// Instance is what one MySQL server said. When Err is set nothing else is known.
type Instance struct {
	Site    cluster.SiteName
	Shard   cluster.ShardName
	Addr    netip.AddrPort
	Err     error             // no connection, or the admin account was refused
	Login   bool              // Err is about the account, not the server
	Foreign bool              // Err is about the server's version
	Probe   Account           // as the server knows it
	Admin   Account           //
	Version Version           //
	Vars    map[string]string // global variables and Rpl_semi_sync status, lower case
	Origin  map[string]Origin // where a variable has its value from, as far as the server tells
	Sources []Channel         // what it replicates from
	Acks    []uint32          // server ids of what replicates from it now
	Lacks   []string          // privileges that the admin account has not, each with its purpose
	Passes  []string          // accounts whose writes read-only does not stop, "'root'@'%'"
	Events  []Event           // enabled ones
	Gaps    []error           // what else could not be read
	Schema  error             // the schema `baton` with its tables is missing or unreadable
	Took    time.Duration     // of a first statement on a fresh connection
}

// Version is a server's.
type Version struct {
	Text         string
	MariaDB      bool
	Major, Minor int
}

// Origin says where a variable's value comes from.
type Origin string

// The origins. Changed at run time hides what the file says.
const (
	OriginUnknown  Origin = ""
	OriginCompiled Origin = "compiled" // no file and no option names it
	OriginFile     Origin = "file"     // my.cnf, the command line, or persisted
	OriginRuntime  Origin = "runtime"  // SET GLOBAL since the start
)

// Account is a MySQL account.
type Account struct {
	Name string // as the server knows it, "'baton_probe'@'10.77.%'"
	Err  error  // it could not log in
}

// Channel is a replication connection from its replica's side.
type Channel struct {
	Name         string
	Source       netip.AddrPort
	SourceText   string // as the server has it, when it is no address
	IO, SQL      bool   // threads that run
	IOErr        string
	SQLErr       string
	GTID         bool // auto-position, or Slave_Pos
	Lag          time.Duration
	LagKnown     bool
	Delay        time.Duration // configured on purpose
	Filters      []string      // "Replicate_Do_DB = bank"
	SourceServer uint32        // server id of the source; 0: never connected
}

// Event is one event that the server runs by itself.
type Event struct{ Name, Definer string }

// Mycat is what one proxy said.
type Mycat struct {
	Site     cluster.SiteName
	SQL      error // login to 8066
	Admin    error // login to 9066
	Version  string
	Shards   []Routed
	Sources  []DataSource
	Params   map[string]string // of server.xml in force, lower case
	TableErr error             // the management tables could not be read
}

// Routed is one shard as seen through a proxy.
type Routed struct {
	Shard    cluster.ShardName
	DataNode string
	Err      error
	ServerID uint32 // of the server that answered
	Hostname string
	Port     uint16
	User     string // the account that the proxy used there, "mycat@10.77.0.11"
}

// DataSource is one dataNode of the proxy with its writeHosts.
type DataSource struct {
	DataNode   string
	WriteHosts []string
	Index      int // of the one in use
}

// Etcd is what the store said.
type Etcd struct {
	Err        error
	Members    []Member
	Reports    []cluster.NodeName // daemons that publish reports now
	Known      bool               // some daemon has published one, ever
	Assignment *cluster.Assignment
	Holder     *cluster.Holder
	Bad        []string // documents that cannot be read
	ReadErr    error    // the cluster's keys could not be read
}

// Member is one endpoint of etcd.
type Member struct {
	Endpoint string
	Err      error
	Refused  bool // Err: its host answers, and nothing listens there
	Version  string
	Leader   bool
	Alarms   []string
	Took     time.Duration
}

// Host is this host, as far as the daemon depends on it.
type Host struct {
	Missing    []string // capabilities that the daemon lacks
	TimeOffset string   // of its time namespace; empty: none
	Clock      string   // why its clock may run at a wrong rate; empty: no reason known
	Interface  Interface
	Others     []Interface // further ones that are up
	Keepalived Keepalived
	GateMethod string
	GateErr    error
	VIP        VIP
	Sysctl     map[string]string // "net/ipv4/ip_forward" → "1"
	Errs       []error           // what could not be looked at
}

// Interface is one network interface.
type Interface struct {
	Name     string
	Err      error // there is none of that name, or it cannot be read
	Up       bool
	Ethernet bool
	Prefixes []netip.Prefix
}

// Keepalived is the program, and who else runs one.
type Keepalived struct {
	Err     error // not found
	Version string
	Others  []string // other configurations that hold the VIP
}

// VIP is who has the address now.
type VIP struct {
	Here    bool     // on this host
	Forever bool     // here without an end: not put there by Baton
	Files   []string // of this host's network configuration that name it
	MAC     string   // the other host that answers for it; empty: none
	Err     error    // it could not be asked for
}
