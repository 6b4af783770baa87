package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// The mistakes that Validate finds. Each one that it reports is a *Problem that wraps one of these.
var (
	ErrName      = errors.New("cluster: name is not usable")
	ErrAddress   = errors.New("cluster: address is not usable")
	ErrPort      = errors.New("cluster: port is not usable")
	ErrInterface = errors.New("cluster: interface is not usable")
	ErrTooFew    = errors.New("cluster: too few of them")
	ErrTwice     = errors.New("cluster: named twice")
	ErrNode      = errors.New("cluster: node is unknown or serves two sites")
	ErrShards    = errors.New("cluster: sites have different shards")
	ErrHost      = errors.New("cluster: host is in two sites")
	ErrVIP       = errors.New("cluster: VIP is not usable")
	ErrSubnet    = errors.New("cluster: VIP is outside the interface's subnet")
)

// Problem is one mistake: where it is in the words of baton.yaml ("sites[1].shards.s2"), what was seen and what to do.
type Problem struct {
	Path string
	Err  error  // one of the sentinels above
	Text string // for people
}

// Error names the place and the mistake.
func (p *Problem) Error() string { return p.Path + ": " + p.Text }

// Unwrap gives the sentinel.
func (p *Problem) Unwrap() error { return p.Err }

// found collects problems; its methods keep the rules below to one line a mistake.
type found []*Problem

func (f *found) add(path string, err error, format string, args ...any) {
	*f = append(*f, &Problem{Path: path, Err: err, Text: fmt.Sprintf(format, args...)})
}

// rules is every check of Validate. Order is the order of the messages.
var rules = []func(*found, Cluster){
	checkNames, checkVIP, checkNodes, checkSites, checkShards, checkInstances, checkHosts,
}

// Problems returns every mistake of the cluster, each a *Problem.
func (c Cluster) Problems() []*Problem {
	var f found
	for _, rule := range rules {
		rule(&f, c)
	}
	return f
}

// Validate joins every mistake, so that an operator mends the file once and not once a mistake. nil: there is none.
func (c Cluster) Validate() error {
	var errs []error
	for _, p := range c.Problems() {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

func checkNames(f *found, c Cluster) {
	if !ValidName(c.Name) {
		f.add("cluster", ErrName, "%q is no cluster name: %s", c.Name, nameRule)
	}
	for i, s := range c.Sites {
		if !ValidName(string(s.Name)) {
			f.add(sitePath(i, "name"), ErrName, "%q is no site name: %s", s.Name, nameRule)
		}
		if j := slices.IndexFunc(c.Sites[:i], func(o Site) bool { return o.Name == s.Name }); j >= 0 {
			f.add(sitePath(i, "name"), ErrTwice, "site %q is there twice: give each site a name of its own", s.Name)
		}
		if sc := s.Mycat.Schema; !ValidName(sc) && (i == 0 || sc != c.Sites[i-1].Mycat.Schema) {
			f.add("mycat.schema", ErrName, "%q is no schema name: %s", sc, nameRule)
		}
	}
	for _, shard := range c.Shards {
		if !ValidName(string(shard)) {
			f.add("shards."+string(shard), ErrName, "%q is no shard name: %s", shard, nameRule)
		}
	}
}

// checkVIP: the VIP is an address that no host owns, and its port is the one that every Mycat listens on: nothing translates
// ports between the VIP and the proxy behind it.
func checkVIP(f *found, c Cluster) {
	if why := unusable(c.VIP.Addr); why != "" {
		f.add("vip.address", ErrAddress, "%s: write the IPv4 address that applications connect to", why)
	} else if c.VIP.Addr.IsLoopback() || c.VIP.Addr.IsLinkLocalUnicast() || !c.VIP.Addr.Is4() {
		f.add("vip.address", ErrVIP, "%s cannot be announced: Baton moves a VIP by ARP, so it must be an IPv4 address of the hosts' own network", c.VIP.Addr)
	}
	if c.VIP.Port == 0 {
		f.add("vip.port", ErrPort, "port 0: write Mycat's SQL port, usually 8066")
	}
	if g := c.VIP.Gateway; g.IsValid() && g == c.VIP.Addr {
		f.add("vip.gateway", ErrVIP, "gateway %s is the VIP itself: write the router's address, or leave it out", g)
	}
	for i, s := range c.Sites {
		if p := s.Mycat.SQL.Port(); p != c.VIP.Port && c.VIP.Port != 0 && p != 0 {
			f.add(sitePath(i, "mycat.port"), ErrVIP, "Mycat of site %s listens on %d, the VIP's port is %d: they must be the same, nothing translates ports in between", s.Name, p, c.VIP.Port)
		}
	}
	for _, h := range c.hosts() {
		if h.addr.IsValid() && h.addr == c.VIP.Addr {
			f.add(h.path, ErrVIP, "%s is the VIP: write the host's own address, the VIP moves between hosts", h.addr)
		}
	}
}

func checkNodes(f *found, c Cluster) {
	for i, n := range c.Nodes {
		path := nodePath(n.Name)
		if !ValidName(string(n.Name)) {
			f.add(path, ErrName, "%q is no node name: %s", n.Name, nameRule)
		}
		if why := unusable(n.Addr); why != "" {
			f.add(path, ErrAddress, "%s: write the node's own address", why)
			continue
		}
		for _, o := range c.Nodes[:i] {
			if o.Name == n.Name {
				f.add(path, ErrTwice, "node %q is there twice: each daemon has one name", n.Name)
			} else if o.Addr == n.Addr {
				f.add(path, ErrTwice, "nodes %s and %s have the same address %s: two daemons on one host are one observer", o.Name, n.Name, n.Addr)
			}
		}
	}
}

func checkSites(f *found, c Cluster) {
	if len(c.Sites) < 2 {
		f.add("sites", ErrTooFew, "%d of the 2 sites that are needed: without a second one there is nothing to switch to", len(c.Sites))
	}
	for i, s := range c.Sites {
		path := sitePath(i, "node")
		if !slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Name == s.Node }) {
			f.add(path, ErrNode, "node %q of site %s is not among nodes (%s): name the node that runs this site's Mycat", s.Node, s.Name, c.nodeNames())
		}
		if j := slices.IndexFunc(c.Sites[:i], func(o Site) bool { return o.Node == s.Node }); j >= 0 {
			f.add(path, ErrNode, "node %s already serves site %s: each site needs a Mycat host of its own", s.Node, c.Sites[j].Name)
		}
		if !ValidInterface(s.Interface) {
			f.add(sitePath(i, "interface"), ErrInterface, "%q is no interface name: at most 15 letters, digits, '.', '_' or '-', no alias like eth0:1", s.Interface)
		}
		checkMycat(f, i, s)
	}
}

func checkMycat(f *found, i int, s Site) {
	if why := unusable(s.Mycat.SQL.Addr()); why != "" {
		f.add(sitePath(i, "mycat.address"), ErrAddress, "%s: write the Mycat host's own address", why)
	}
	if s.Mycat.SQL.Port() == 0 {
		f.add(sitePath(i, "mycat.port"), ErrPort, "port 0: write Mycat's SQL port, usually 8066")
	}
	if s.Mycat.Admin.Port() == 0 {
		f.add(sitePath(i, "mycat.admin_port"), ErrPort, "port 0: write Mycat's management port, usually 9066")
	}
	if s.Mycat.SQL.Port() == s.Mycat.Admin.Port() && s.Mycat.SQL.Port() != 0 {
		f.add(sitePath(i, "mycat.admin_port"), ErrPort, "%d is also Mycat's SQL port: the management port is another, usually 9066", s.Mycat.Admin.Port())
	}
	for _, shard := range slices.Sorted(maps.Keys(s.Mycat.DataNodes)) {
		dn := s.Mycat.DataNodes[shard]
		if !ValidName(dn) { // it stands in a SQL comment, Mycat's routing hint, where nothing can be quoted
			f.add(sitePath(i, "data_nodes."+string(shard)), ErrName, "%q is no dataNode name: %s", dn, nameRule)
		}
		if !s.hasShard(shard) {
			f.add(sitePath(i, "data_nodes."+string(shard)), ErrShards, "site %s has no shard %q", s.Name, shard)
		}
	}
	checkDataNodesDiffer(f, i, s)
}

// checkDataNodesDiffer: two shards behind one dataNode would be one probe counted twice, and one shard never looked at.
func checkDataNodesDiffer(f *found, i int, s Site) {
	seen := map[string]ShardName{}
	for _, in := range s.Instances {
		dn := s.Mycat.DataNodes[in.Shard]
		if other, ok := seen[dn]; ok && dn != "" && other != in.Shard {
			f.add(sitePath(i, "data_nodes."+string(in.Shard)), ErrTwice, "dataNode %s is already that of shard %s: each shard has its own", dn, other)
		}
		seen[dn] = in.Shard
	}
}

// checkShards: a site that lacks a shard cannot take over.
func checkShards(f *found, c Cluster) {
	want := slices.Clone(c.Shards)
	slices.Sort(want)
	if d := firstRepeated(want); d != "" {
		f.add("shards."+string(d), ErrTwice, "shard %q is there twice", d)
	}
	for i, s := range c.Sites {
		if len(s.Instances) == 0 {
			f.add(sitePath(i, "shards"), ErrTooFew, "site %s has no MySQL instance: name one for each shard", s.Name)
			continue
		}
		var have []ShardName
		for _, in := range s.Instances {
			have = append(have, in.Shard)
		}
		slices.Sort(have)
		if d := firstRepeated(have); d != "" {
			f.add(sitePath(i, "shards."+string(d)), ErrTwice, "site %s has shard %q twice", s.Name, d)
		} else if !slices.Equal(have, want) {
			f.add(sitePath(i, "shards"), ErrShards, "site %s has shards %s, the first site has %s: every site needs one instance of each shard", s.Name, list(have), list(want))
		}
	}
}

func checkInstances(f *found, c Cluster) {
	seen := map[netip.AddrPort]string{}
	for i, s := range c.Sites {
		for _, in := range s.Instances {
			path, who := instancePath(i, in), fmt.Sprintf("shard %s of site %s", in.Shard, s.Name)
			if why := unusable(in.Addr.Addr()); why != "" {
				f.add(path, ErrAddress, "%s: write the MySQL host's own address", why)
				continue
			}
			if in.Addr.Port() == 0 {
				f.add(path, ErrPort, "port 0: leave the port out for 3306")
			}
			if other, ok := seen[in.Addr]; ok {
				f.add(path, ErrTwice, "%s is already %s: each shard of each site is an instance of its own", in.Addr, other)
			}
			seen[in.Addr] = who
		}
	}
}

// checkHosts: a host that belongs to two sites takes both along when it dies.
func checkHosts(f *found, c Cluster) {
	owner := map[netip.Addr]int{}
	for _, h := range c.hosts() {
		if h.site < 0 || !h.addr.IsValid() {
			continue
		}
		first, ok := owner[h.addr]
		if !ok {
			owner[h.addr] = h.site
		} else if first != h.site && !h.exact {
			f.add(h.path, ErrHost, "host %s is in site %s and in site %s: when it dies both are gone; give each site hosts of its own", h.addr, c.Sites[first].Name, c.Sites[h.site].Name)
		}
	}
}

// host is one address that the cluster names, and where. exact: it repeats another instance to the port, which checkInstances
// or checkSites has said already.
type host struct {
	addr  netip.Addr
	path  string
	site  int // index of its site, -1 for a node without one
	exact bool
}

func (c Cluster) hosts() []host {
	var hs []host
	for _, n := range c.Nodes {
		at := slices.IndexFunc(c.Sites, func(s Site) bool { return s.Node == n.Name })
		hs = append(hs, host{addr: n.Addr, path: nodePath(n.Name), site: at})
	}
	seen := map[netip.AddrPort]bool{}
	for i, s := range c.Sites {
		node := c.nodeAddr(s.Node)
		if a := s.Mycat.SQL.Addr(); a != node {
			hs = append(hs, host{addr: a, path: sitePath(i, "mycat.address"), site: i})
		}
		for _, in := range s.Instances {
			hs = append(hs, host{addr: in.Addr.Addr(), path: instancePath(i, in), site: i, exact: seen[in.Addr]})
			seen[in.Addr] = true
		}
	}
	return hs
}

func (c Cluster) nodeAddr(name NodeName) netip.Addr {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n.Addr
		}
	}
	return netip.Addr{}
}

func (c Cluster) nodeNames() string {
	var names []NodeName
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return list(names)
}

func (s Site) hasShard(shard ShardName) bool {
	_, ok := s.Instance(shard)
	return ok
}

// SubnetProblem says why a VIP cannot be reached on an interface with those addresses, or nil. Only the host knows its addresses:
// `baton check` and the daemon's start ask. A VIP outside every subnet of its interface is bound and announced, and no
// neighbour ever asks for it.
func SubnetProblem(vip netip.Addr, own []netip.Prefix) error {
	for _, p := range own {
		if p.Addr() != vip && p.Bits() < p.Addr().BitLen() && p.Contains(vip) {
			return nil
		}
	}
	if len(own) == 0 {
		return fmt.Errorf("%w: the interface has no address, so neighbours of %s cannot be reached: name the interface of the VIP's network", ErrSubnet, vip)
	}
	return fmt.Errorf("%w: %s is in none of %s: choose a VIP in one of them, or name another interface", ErrSubnet, vip, list(own))
}

const nameRule = "1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"

// ValidName says whether a name can stand in an etcd key, a file name, a log and a SQL comment without quoting.
func ValidName(name string) bool {
	if name == "" || len(name) > 63 || !alnum(name[0]) {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r > 127 || !alnum(byte(r)) && !strings.ContainsRune("._-", r) })
}

// ValidInterface says whether a name can be that of an interface: the kernel's limit is 15 bytes, and the name is written into
// keepalived's file, where nothing can be quoted. An alias (eth0:1) is a label of an address and no interface.
func ValidInterface(name string) bool { return len(name) <= 15 && ValidName(name) }

func alnum(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// unusable says why an address cannot be that of a host; empty: it can.
func unusable(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "no address"
	case a.Zone() != "":
		return fmt.Sprintf("%s has a zone, which means something else on every host", a)
	case a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("%s is the address of no single host", a)
	}
	return ""
}

func sitePath(i int, key string) string { return fmt.Sprintf("sites[%d].%s", i, key) }

func nodePath(n NodeName) string { return "nodes." + string(n) }

func instancePath(i int, in Instance) string { return sitePath(i, "shards."+string(in.Shard)) }

func firstRepeated(sorted []ShardName) ShardName {
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return sorted[i]
		}
	}
	return ""
}

func list[T any](items []T) string {
	var b strings.Builder
	for i, it := range items {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, it)
	}
	return b.String()
}
