package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

// Defaults that the file may leave out.
const (
	defaultStateDir  = "/var/lib/baton/state"
	defaultSQLPort   = 8066
	defaultAdminPort = 9066
	defaultMySQLPort = 3306
	defaultRouterID  = 51
	clientPort       = 2379
	peerPort         = 2380
)

// preset is what a profile sets beside cluster.Profile: the rule of DESIGN 8 and the ticks of embedded etcd. Election must stay
// well under D, because D has to outlast a change of etcd's leader (PROTOCOL 2.5).
type preset struct {
	profile             cluster.Profile
	rule                accumulator.Config
	heartbeat, election time.Duration
	cooldown            time.Duration
}

var presets = map[string]preset{
	"steady": {
		profile: cluster.Steady(), rule: accumulator.Steady(),
		heartbeat: 100 * time.Millisecond, election: time.Second, cooldown: 10 * time.Minute,
	},
	"fast": {
		profile: cluster.Fast(), rule: accumulator.Fast(),
		heartbeat: 30 * time.Millisecond, election: 300 * time.Millisecond, cooldown: time.Minute,
	},
}

// read fills a Config from the nodes. The profile is read first, because it gives the defaults of the others.
type read struct {
	*decoder
	host Host
	c    Config

	profile string
	iface   string // vip.interface, the default of each site's
	port    uint16 // vip.port, the default of each Mycat's
	schema  string // mycat.schema, the same on every site
	raw     []rawSite
}

// file reads the whole document.
func (r *read) file(root *yaml.Node) {
	r.defaults(root)
	c := &r.c
	r.object(root, "",
		field{"cluster", scalar(r.decoder, &c.Cluster.Name, word), "write cluster: NAME"},
		field{"node", scalar(r.decoder, &c.Node, text[cluster.NodeName]), ""},
		field{"mode", oneOf(r.decoder, &c.Mode, policy.Observe, policy.Advise, policy.Automatic), "write mode: advise to begin with; automatic switches by itself"},
		field{"profile", oneOf(r.decoder, &r.profile, "steady", "fast"), ""},
		field{"bind", oneOf(r.decoder, &c.Bind, BindKeepalived, BindNetlink), ""},
		field{"vip", r.vip, "write vip: {address: 10.0.0.100, interface: eth0}"},
		field{"nodes", r.nodes, "write nodes: {NAME: ADDRESS, ...}, one for each daemon"},
		field{"etcd", r.etcd, "write etcd: {embedded: {dir: /var/lib/baton/etcd}} or etcd: {endpoints: [...]}"},
		field{"mysql", r.mysql, "write mysql: with the accounts probe, admin and replication"},
		field{"mycat", r.mycat, "write mycat: {user: ..., password_file: ..., schema: ...}"},
		field{"sites", r.sites, "write two sites or more, in the order of takeover"},
		field{"detection", r.detection, ""},
		field{"policy", r.policy, ""},
		field{"business", r.business, ""},
		field{"anchors", r.anchors, ""},
		field{"state_dir", scalar(r.decoder, &c.StateDir, absolute), ""},
		field{"replication", oneOf(r.decoder, &c.Replication, OneWay, DualMaster), ""},
		field{"log", r.log, ""},
	)
}

// defaults fills in what the file may leave out. The profile comes first: the others follow from it.
func (r *read) defaults(root *yaml.Node) {
	r.profile = "steady"
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "profile" {
			if _, ok := presets[root.Content[i+1].Value]; ok {
				r.profile = root.Content[i+1].Value
			}
			break
		}
	}
	p := presets[r.profile]
	r.c.Profile = p.profile
	r.c.Detection = Detection{Rule: p.rule, Scope: ScopeTarget, MySQLFailures: 1}
	r.c.Policy = Policy{RPO: RPO{Zero: true}, Cooldown: p.cooldown, Switches: 3}
	r.c.Etcd.Heartbeat, r.c.Etcd.Election = p.heartbeat, p.election
	r.c.Bind, r.c.Replication, r.c.StateDir = BindKeepalived, OneWay, defaultStateDir
	r.c.RouterID, r.port = defaultRouterID, defaultSQLPort
}

func (r *read) vip(n *yaml.Node, path string) {
	v := &r.c.Cluster.VIP
	r.object(n, path,
		field{"address", scalar(r.decoder, &v.Addr, address), "write the address that applications connect to"},
		field{"interface", scalar(r.decoder, &r.iface, interfaceName), ""},
		field{"gateway", scalar(r.decoder, &v.Gateway, address), ""},
		field{"port", scalar(r.decoder, &r.port, port), ""},
		field{"router_id", scalar(r.decoder, &r.c.RouterID, routerID), ""},
	)
	v.Port = r.port
}

func (r *read) nodes(n *yaml.Node, path string) {
	r.pairs(n, path, func(key, value *yaml.Node, sub string) {
		node := cluster.Node{Name: cluster.NodeName(key.Value)}
		scalar(r.decoder, &node.Addr, address)(value, sub)
		r.c.Cluster.Nodes = append(r.c.Cluster.Nodes, node)
	})
}

func (r *read) mysql(n *yaml.Node, path string) {
	m := &r.c.MySQL
	r.object(n, path,
		field{"probe", r.account(&m.Probe), "write the account that looks: {user: baton_probe, password_file: ...}"},
		field{"admin", r.account(&m.Admin), "write the account that switches: {user: baton_admin, password_file: ...}"},
		field{"replication", r.account(&m.Replication), "write the account that replicas log in with: {user: repl, password_file: ...}"},
	)
}

func (r *read) mycat(n *yaml.Node, path string) {
	m := &r.c.Mycat
	r.object(n, path, append(r.accountFields(&m.Account, n),
		field{"schema", scalar(r.decoder, &r.schema, word), "write the schema of schema.xml that applications use"},
		field{"schema_xml", scalar(r.decoder, &m.SchemaXML, absolute), ""},
		field{"server_xml", scalar(r.decoder, &m.ServerXML, absolute), ""},
	)...)
}

func (r *read) detection(n *yaml.Node, path string) {
	t, p := &r.c.Detection, &r.c.Profile
	r.object(n, path,
		field{"rule", oneOf(r.decoder, &t.Rule.Rule, accumulator.Cumulative, accumulator.Consecutive, accumulator.Bucket), ""},
		field{"failures", scalar(r.decoder, &t.Rule.Failures, between(2, 1000)), ""},
		field{"window", scalar(r.decoder, &t.Rule.Window, duration(0, time.Hour)), ""},
		field{"recover", scalar(r.decoder, &t.Rule.Clear, between(1, 1000)), ""},
		field{"scope", oneOf(r.decoder, &t.Scope, ScopeTarget, ScopeSite), ""},
		field{"mysql_failures", scalar(r.decoder, &t.MySQLFailures, anyOr), ""},
		field{"interval", scalar(r.decoder, &p.Interval, duration(10*time.Millisecond, time.Minute)), ""},
		field{"confirm_every", scalar(r.decoder, &p.ConfirmEvery, duration(time.Millisecond, time.Minute)), ""},
		field{"probe_timeout", scalar(r.decoder, &p.ProbeTimeout, duration(10*time.Millisecond, time.Minute)), ""},
		field{"grace", scalar(r.decoder, &p.Grace, duration(0, 10*time.Minute)), ""},
	)
	if t.Rule.Rule == accumulator.Bucket {
		leaky := accumulator.Leaky()
		t.Rule.Up, t.Rule.Down, t.Rule.Limit = leaky.Up, leaky.Down, leaky.Limit
	}
}

func (r *read) policy(n *yaml.Node, path string) {
	p := &r.c.Policy
	r.object(n, path,
		field{"rpo", r.rpo, ""},
		field{"cooldown", scalar(r.decoder, &p.Cooldown, duration(0, 7*24*time.Hour)), ""},
		field{"switches_per_day", scalar(r.decoder, &p.Switches, between(1, 1000)), ""},
	)
}

// rpo is the word zero, or a mapping with both limits: one alone leaves the other without bound, silently.
func (r *read) rpo(n *yaml.Node, path string) {
	if n.Kind == yaml.ScalarNode {
		var only string
		oneOf(r.decoder, &only, "zero")(n, path)
		return
	}
	r.c.Policy.RPO.Zero = false
	rpo, transactions, seconds := &r.c.Policy.RPO, 0, 0
	r.object(n, path,
		field{"transactions", scalar(r.decoder, &transactions, between(0, math.MaxInt32)), "write how many transactions may be lost at most"},
		field{"seconds", scalar(r.decoder, &seconds, between(0, 86400)), "write how many seconds the new site may lag at most"},
	)
	if transactions == 0 && seconds == 0 {
		r.fail(n, path, "no transaction and no second may be lost: write rpo: zero, which holds failovers to it; as limits both would hold nothing back")
	}
	rpo.Transactions, rpo.Lag = int64(transactions), time.Duration(seconds)*time.Second
}

func (r *read) business(n *yaml.Node, path string) {
	r.items(n, path, func(item *yaml.Node, sub string) {
		var b Business
		r.object(item, sub,
			field{"shard", scalar(r.decoder, &b.Shard, text[cluster.ShardName]), "write the shard that it runs on"},
			field{"sql", scalar(r.decoder, &b.SQL, statement), "write the statement"},
			field{"expect", scalar(r.decoder, &b.Expect, word), ""},
		)
		r.c.Business = append(r.c.Business, b)
	})
}

func (r *read) anchors(n *yaml.Node, path string) {
	r.items(n, path, func(item *yaml.Node, sub string) {
		var a netip.Addr
		scalar(r.decoder, &a, address)(item, sub)
		r.c.Anchors = append(r.c.Anchors, a)
	})
}

func (r *read) log(n *yaml.Node, path string) {
	format, level := "text", "info"
	r.object(n, path,
		field{"format", oneOf(r.decoder, &format, "text", "json"), ""},
		field{"level", oneOf(r.decoder, &level, "debug", "info", "warn", "error"), ""},
	)
	r.c.Log = Log{JSON: format == "json", Level: map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[level]}
}

// word reads any text that is not empty.
func word(s string) (string, error) { return text[string](s) }

func text[T ~string](s string) (T, error) {
	if s == "" {
		return "", errors.New("is empty")
	}
	return T(s), nil
}

func interfaceName(s string) (string, error) {
	if !cluster.ValidInterface(s) {
		return "", fmt.Errorf("%q is no interface: write its name, like eth0 or bond0.100, not an alias like eth0:1", s)
	}
	return s, nil
}

func absolute(s string) (string, error) {
	if !filepath.IsAbs(s) {
		return "", fmt.Errorf("%q is no absolute path, and the daemon's working directory is not yours: begin with /", s)
	}
	return filepath.Clean(s), nil
}

// statement bounds a business SQL: it is sent every beat.
func statement(s string) (string, error) {
	if s == "" || len(s) > 4096 {
		return "", fmt.Errorf("%d bytes: write one statement of at most 4096 bytes, it is sent at every beat", len(s))
	}
	return s, nil
}

func port(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port: write a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

func routerID(s string) (uint8, error) {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no virtual router id: write a number from 1 to 255 that no other VRRP instance of the network uses", s)
	}
	return uint8(n), nil
}

func between(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("%q is no whole number from %d to %d", s, low, high)
		}
		return n, nil
	}
}

func anyOr(s string) (int, error) {
	if s == "any" {
		return 1, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is neither any nor a number of shards from 1", s)
	}
	return n, nil
}

func duration(low, high time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		t, err := time.ParseDuration(s)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: write a number with its unit, like 500ms, 6s or 10m", s)
		}
		if t < low || t > high {
			return 0, fmt.Errorf("%s is not between %s and %s", t, low, high)
		}
		return t, nil
	}
}

// address reads an IP address. Names are refused on purpose.
func address(s string) (netip.Addr, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return netip.Addr{}, fmt.Errorf("%q has a prefix length: write %s, without /%d", s, p.Addr(), p.Bits())
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is no IP address: write the address; a name would need DNS at the moment of a failure", s)
	}
	return a.Unmap(), nil
}

// addressPort reads an address with or without a port.
func addressPort(defaultPort uint16) func(string) (netip.AddrPort, error) {
	return func(s string) (netip.AddrPort, error) {
		if ap, err := netip.ParseAddrPort(s); err == nil {
			return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
		}
		a, err := address(s)
		return netip.AddrPortFrom(a, defaultPort), err
	}
}
