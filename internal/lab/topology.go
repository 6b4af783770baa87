// Package lab is the laboratory: two sites of real MariaDB pairs, stand-ins for Mycat, keepalived and Baton's daemons in boxed
// network namespaces on one machine, the faults that strike them, and the checks of what followed.
//
// It runs inside a box (package box) and knows Baton only from outside: its configuration, its command line and its log.
package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/baton-ha/baton/internal/lab/mariadb"
	"github.com/baton-ha/baton/internal/lab/netns"
	"github.com/baton-ha/baton/internal/lab/standin"
)

// The laboratory's fixed names and addresses.
const (
	vipText    = "10.77.0.100"
	sqlPort    = 8066
	appHost    = "app"
	schema     = "bank"
	shardCount = 4

	// ConfigPath is a daemon's configuration on its host, whose /run is its own.
	ConfigPath = "/run/baton/baton.yaml"
)

// VIP is the address that applications use.
var VIP = netip.MustParseAddr(vipText)

// site is one Mycat host with its servers.
type site struct {
	name, node string
	base       byte // last byte of the address of shard 1; also the base of its server ids
}

var sites = []site{{"a", "mc-a", 31}, {"b", "mc-b", 41}}

// nodes run a daemon each, in the order in which they are asked: the witness sees both sites.
var nodes = []string{"witness", "mc-b", "mc-a"}

func siteOf(name string) (site, error) {
	for _, s := range sites {
		if s.name == name {
			return s, nil
		}
	}
	return site{}, fmt.Errorf("site %q does not exist: there are a and b", name)
}

// siteOfNode is the site whose guard runs on the node; the witness has none.
func siteOfNode(node string) (site, bool) {
	for _, s := range sites {
		if s.node == node {
			return s, true
		}
	}
	return site{}, false
}

func shardName(i int) string { return fmt.Sprintf("s%d", i+1) }

func (s site) dbHost(shard int) string { return fmt.Sprintf("db-%s%d", s.name, shard+1) }

func (s site) dbAddr(shard int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, 0, s.base + byte(shard)})
}

func (s site) serverID(shard int) uint32 { return uint32(s.base) + uint32(shard) }

// specs lists every host.
func specs() []netns.Spec {
	prefix := func(last byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, last}), 24) }
	list := []netns.Spec{
		{Name: "mc-a", Addr: prefix(11)},
		{Name: "mc-b", Addr: prefix(12)},
		{Name: "witness", Addr: prefix(13)},
		{Name: appHost, Addr: prefix(21)},
	}
	for _, s := range sites {
		for i := range shardCount {
			list = append(list, netns.Spec{Name: s.dbHost(i), Addr: prefix(s.base + byte(i))})
		}
	}
	return list
}

// batonConfig is a daemon's whole configuration.
func batonConfig(node, bind, profile string) string {
	var shards strings.Builder
	for _, s := range sites {
		fmt.Fprintf(&shards, "  - {name: %s, node: %s, shards: {", s.name, s.node)
		for i := range shardCount {
			fmt.Fprintf(&shards, "%s%s: %s", map[bool]string{true: ", "}[i > 0], shardName(i), s.dbAddr(i))
		}
		shards.WriteString("}}\n")
	}
	return fmt.Sprintf(`cluster: bank
node: %s
mode: automatic
profile: %s
bind: %s
vip: {address: %s, interface: %s}
nodes: {mc-a: 10.77.0.11, mc-b: 10.77.0.12, witness: 10.77.0.13}
etcd: {embedded: {dir: /run/baton/etcd}}
mysql:
  probe: {user: baton_probe, password_file: /run/baton/probe.pw}
  admin: {user: baton_admin, password_file: /run/baton/admin.pw}
  replication: {user: repl, password_file: /run/baton/repl.pw}
mycat: {user: baton, password_file: /run/baton/mycat.pw, schema: %s}
sites:
%sstate_dir: /run/baton/state
`, node, profile, bind, VIP, netns.Interface, schema, &shards)
}

const (
	mycatPassword = "mycat"
	appUser       = "app"
	appPassword   = "app"
)

// writeBaton writes a daemon's configuration and passwords on its host.
func writeBaton(h *netns.Host, bind, profile string) error {
	dir := filepath.Join(h.Dir, "run", "baton")
	files := map[string]string{
		"baton.yaml": batonConfig(h.Name, bind, profile),
		"probe.pw":   mariadb.Passwords["baton_probe"],
		"admin.pw":   mariadb.Passwords["baton_admin"],
		"repl.pw":    mariadb.Passwords["repl"],
		"mycat.pw":   mycatPassword,
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory of baton on %s: %w", h.Name, err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s on %s: %w", name, h.Name, err)
		}
	}
	return nil
}

// writeMycat writes the stand-in's configuration: each shard is a data host with the site's own server and no switching of its own.
func writeMycat(h *netns.Host, s site) (string, error) {
	cfg := standin.Config{
		Users: []standin.User{
			{Name: "baton", Password: mycatPassword, Schemas: []string{schema}},
			{Name: appUser, Password: appPassword, Schemas: []string{schema}},
		},
		Schemas: []standin.Schema{{Name: schema}},
	}
	table := standin.Table{Name: "ledger"}
	for i := range shardCount {
		name := shardName(i)
		cfg.DataHosts = append(cfg.DataHosts, standin.DataHost{
			Name: "dh-" + name, MaxCon: 50, SwitchType: -1, NotSwitch: true,
			WriteHosts: []standin.WriteHost{{
				Name: s.dbHost(i), Addr: netip.AddrPortFrom(s.dbAddr(i), mariadb.Port).String(),
				User: "mycat", Password: mariadb.Passwords["mycat"],
			}},
		})
		cfg.DataNodes = append(cfg.DataNodes, standin.DataNode{Name: name, Host: "dh-" + name, Database: schema})
		table.Nodes = append(table.Nodes, name)
	}
	cfg.Tables = []standin.Table{table}
	text, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write configuration of mycat on %s: %w", h.Name, err)
	}
	path := filepath.Join(h.Dir, "run", "mycat.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write configuration of mycat on %s: %w", h.Name, err)
	}
	return "/run/mycat.json", nil
}
