package cluster

import (
	"errors"
	"net/netip"
	"testing"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func port(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func bank() Cluster {
	site := func(name SiteName, node NodeName, mycat, s1, s2 string) Site {
		return Site{
			Name: name, Node: node, Interface: "eth0",
			Mycat:     Mycat{SQL: netip.AddrPortFrom(addr(mycat), 8066), Admin: netip.AddrPortFrom(addr(mycat), 9066), Schema: "bank", DataNodes: map[ShardName]string{"s1": "dn1", "s2": "dn2"}},
			Instances: []Instance{{"s1", port(s1)}, {"s2", port(s2)}},
		}
	}
	return Cluster{
		Name: "bank", VIP: VIP{Addr: addr("10.77.0.100"), Port: 8066, Gateway: addr("10.77.0.1")},
		Nodes:  []Node{{"mc-a", addr("10.77.0.11")}, {"mc-b", addr("10.77.0.12")}, {"witness", addr("10.77.0.13")}},
		Sites:  []Site{site("a", "mc-a", "10.77.0.11", "10.77.0.31:3306", "10.77.0.32:3306"), site("b", "mc-b", "10.77.0.12", "10.77.0.41:3306", "10.77.0.42:3306")},
		Shards: []ShardName{"s1", "s2"},
	}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Cluster)
		path string // "" when there is no mistake
		err  error
	}{
		{"good", func(*Cluster) {}, "", nil},
		{"two shards on one host, two ports", func(c *Cluster) { c.Sites[0].Instances[1].Addr = port("10.77.0.31:3307") }, "", nil},
		{"MySQL on its own site's Mycat host", func(c *Cluster) { c.Sites[0].Instances[0].Addr = port("10.77.0.11:3306") }, "", nil},
		{"witness on a MySQL host", func(c *Cluster) { c.Nodes[2].Addr = addr("10.77.0.41") }, "", nil},
		{"Mycat on another address of its host", func(c *Cluster) { c.Sites[0].Mycat.SQL = port("10.77.9.11:8066") }, "", nil},
		{"shards in another order", func(c *Cluster) { i := c.Sites[1].Instances; i[0], i[1] = i[1], i[0] }, "", nil},
		{"no gateway", func(c *Cluster) { c.VIP.Gateway = netip.Addr{} }, "", nil},
		{"no name", func(c *Cluster) { c.Name = "" }, "cluster", ErrName},
		{"slash in a name", func(c *Cluster) { c.Name = "a/b" }, "cluster", ErrName},
		{"letter beyond ASCII", func(c *Cluster) { c.Name = "bänk" }, "cluster", ErrName},
		{"dot in front", func(c *Cluster) { c.Name = ".bank" }, "cluster", ErrName},
		{"site name", func(c *Cluster) { c.Sites[1].Name = "b b" }, "sites[1].name", ErrName},
		{"site twice", func(c *Cluster) { c.Sites[1].Name = "a" }, "sites[1].name", ErrTwice},
		{"schema", func(c *Cluster) { c.Sites[0].Mycat.Schema, c.Sites[1].Mycat.Schema = "x*/", "x*/" }, "mycat.schema", ErrName},
		{"no VIP", func(c *Cluster) { c.VIP.Addr = netip.Addr{} }, "vip.address", ErrAddress},
		{"broadcast VIP", func(c *Cluster) { c.VIP.Addr = addr("255.255.255.255") }, "vip.address", ErrAddress},
		{"multicast VIP", func(c *Cluster) { c.VIP.Addr = addr("224.0.0.18") }, "vip.address", ErrAddress},
		{"link-local VIP", func(c *Cluster) { c.VIP.Addr = addr("169.254.1.1") }, "vip.address", ErrVIP},
		{"IPv6 VIP", func(c *Cluster) { c.VIP.Addr = addr("2001:db8::1") }, "vip.address", ErrVIP},
		{"VIP port 0", func(c *Cluster) { c.VIP.Port = 0 }, "vip.port", ErrPort},
		{"gateway is the VIP", func(c *Cluster) { c.VIP.Gateway = c.VIP.Addr }, "vip.gateway", ErrVIP},
		{"VIP is the witness", func(c *Cluster) { c.Nodes[2].Addr = c.VIP.Addr }, "nodes.witness", ErrVIP},
		{"VIP is a database", func(c *Cluster) { c.Sites[1].Instances[1].Addr = port("10.77.0.100:3306") }, "sites[1].shards.s2", ErrVIP},
		{"another port than the VIP's", func(c *Cluster) { c.Sites[1].Mycat.SQL = port("10.77.0.12:8067") }, "sites[1].mycat.port", ErrVIP},
		{"node name", func(c *Cluster) { c.Nodes[2].Name = "" }, "nodes.", ErrName},
		{"node twice", func(c *Cluster) { c.Nodes[2].Name = "mc-b" }, "nodes.mc-b", ErrTwice},
		{"two nodes, one address", func(c *Cluster) { c.Nodes[2].Addr = addr("10.77.0.12") }, "nodes.witness", ErrTwice},
		{"node with a zone", func(c *Cluster) { c.Nodes[2].Addr = addr("fe80::1%eth0") }, "nodes.witness", ErrAddress},
		{"one site", func(c *Cluster) { c.Sites = c.Sites[:1] }, "sites", ErrTooFew},
		{"unknown node", func(c *Cluster) { c.Sites[1].Node = "mc-c" }, "sites[1].node", ErrNode},
		{"node of two sites", func(c *Cluster) { c.Sites[1].Node, c.Sites[1].Mycat = "mc-a", c.Sites[0].Mycat }, "sites[1].node", ErrNode},
		{"no interface", func(c *Cluster) { c.Sites[0].Interface = "" }, "sites[0].interface", ErrInterface},
		{"alias", func(c *Cluster) { c.Sites[0].Interface = "eth0:1" }, "sites[0].interface", ErrInterface},
		{"long interface", func(c *Cluster) { c.Sites[0].Interface = "a234567890123456" }, "sites[0].interface", ErrInterface},
		{"management port is the SQL port", func(c *Cluster) { c.Sites[0].Mycat.Admin = port("10.77.0.11:8066") }, "sites[0].mycat.admin_port", ErrPort},
		{"dataNode name", func(c *Cluster) { c.Sites[0].Mycat.DataNodes["s1"] = "dn1*/" }, "sites[0].data_nodes.s1", ErrName},
		{"dataNode of no shard", func(c *Cluster) { c.Sites[0].Mycat.DataNodes["s3"] = "dn3" }, "sites[0].data_nodes.s3", ErrShards},
		{"dataNode twice", func(c *Cluster) { c.Sites[0].Mycat.DataNodes["s2"] = "dn1" }, "sites[0].data_nodes.s2", ErrTwice},
		{"site lacks a shard", func(c *Cluster) {
			c.Sites[1].Instances = c.Sites[1].Instances[:1]
			delete(c.Sites[1].Mycat.DataNodes, "s2")
		}, "sites[1].shards", ErrShards},
		{"site without instances", func(c *Cluster) { c.Sites[1].Instances, c.Sites[1].Mycat.DataNodes = nil, nil }, "sites[1].shards", ErrTooFew},
		{"shard twice on a site", func(c *Cluster) { c.Sites[1].Instances[1].Shard = "s1"; delete(c.Sites[1].Mycat.DataNodes, "s2") }, "sites[1].shards.s1", ErrTwice},
		{"instance twice on a site", func(c *Cluster) { c.Sites[0].Instances[1].Addr = port("10.77.0.31:3306") }, "sites[0].shards.s2", ErrTwice},
		{"instance on both sites", func(c *Cluster) { c.Sites[1].Instances[0].Addr = port("10.77.0.31:3306") }, "sites[1].shards.s1", ErrTwice},
		{"instance port 0", func(c *Cluster) { c.Sites[1].Instances[0].Addr = port("10.77.0.41:0") }, "sites[1].shards.s1", ErrPort},
		{"one host, two sites", func(c *Cluster) { c.Sites[1].Instances[0].Addr = port("10.77.0.31:3307") }, "sites[1].shards.s1", ErrHost},
		{"database on the other site's Mycat host", func(c *Cluster) { c.Sites[1].Instances[0].Addr = port("10.77.0.11:3306") }, "sites[1].shards.s1", ErrHost},
		{"Mycat on the other site's host", func(c *Cluster) { c.Sites[1].Mycat.SQL = port("10.77.0.31:8066") }, "sites[1].mycat.address", ErrHost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := bank()
			tc.edit(&c)
			problems := c.Problems()
			if tc.path == "" {
				if err := c.Validate(); err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if len(problems) != 1 || problems[0].Path != tc.path || !errors.Is(problems[0].Err, tc.err) {
				t.Fatalf("got %v, want one mistake at %s", c.Validate(), tc.path)
			}
			if !errors.Is(c.Validate(), tc.err) {
				t.Errorf("%v is no %v", c.Validate(), tc.err)
			}
		})
	}
}

func TestValidateJoinsEveryMistake(t *testing.T) {
	c := bank()
	c.Name, c.VIP.Port, c.Sites[0].Interface = "", 0, ""
	err := c.Validate()
	for _, want := range []error{ErrName, ErrPort, ErrInterface} {
		if !errors.Is(err, want) {
			t.Errorf("%v lacks %v", err, want)
		}
	}
}

func TestValidateOfNothing(t *testing.T) {
	if err := (Cluster{}).Validate(); !errors.Is(err, ErrTooFew) {
		t.Errorf("an empty cluster: %v", err)
	}
}

func TestSubnetProblem(t *testing.T) {
	for _, tc := range []struct {
		name string
		vip  string
		own  []string
		ok   bool
	}{
		{"inside", "10.77.0.100", []string{"10.77.0.11/24"}, true},
		{"in the second subnet", "10.77.0.100", []string{"192.0.2.1/24", "10.77.0.11/24"}, true},
		{"outside", "10.78.0.100", []string{"10.77.0.11/24"}, false},
		{"nothing but itself", "10.77.0.100", []string{"10.77.0.100/24"}, false},
		{"only host routes", "10.77.0.100", []string{"10.77.0.100/32"}, false},
		{"no address", "10.77.0.100", nil, false},
		{"other family", "10.77.0.100", []string{"2001:db8::1/64"}, false},
	} {
		var own []netip.Prefix
		for _, s := range tc.own {
			own = append(own, netip.MustParsePrefix(s))
		}
		err := SubnetProblem(addr(tc.vip), own)
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrSubnet) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
