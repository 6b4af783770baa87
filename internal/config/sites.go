package config

import (
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/baton-ha/baton/internal/cluster"
)

// rawSite is a site as the file has it, before defaults that stand elsewhere in the file are known.
type rawSite struct {
	site      cluster.Site
	address   netip.Addr
	port      uint16
	adminPort uint16
}

func (r *read) sites(n *yaml.Node, path string) {
	r.items(n, path, func(item *yaml.Node, sub string) {
		raw := rawSite{adminPort: defaultAdminPort}
		raw.site.Mycat.DataNodes = map[cluster.ShardName]string{}
		r.object(item, sub,
			field{"name", scalar(r.decoder, &raw.site.Name, text[cluster.SiteName]), "write a short name, like a"},
			field{"node", scalar(r.decoder, &raw.site.Node, text[cluster.NodeName]), "write which of nodes runs this site's Mycat"},
			field{"shards", r.shards(&raw), "write shards: {s1: ADDRESS, ...}, one MySQL instance a shard"},
			field{"interface", scalar(r.decoder, &raw.site.Interface, interfaceName), ""},
			field{"mycat", r.siteMycat(&raw), ""},
			field{"data_nodes", r.dataNodes(&raw), ""},
		)
		r.raw = append(r.raw, raw)
	})
}

func (r *read) shards(raw *rawSite) reader {
	return func(n *yaml.Node, path string) {
		r.pairs(n, path, func(key, value *yaml.Node, sub string) {
			in := cluster.Instance{Shard: cluster.ShardName(key.Value)}
			scalar(r.decoder, &in.Addr, addressPort(defaultMySQLPort))(value, sub)
			raw.site.Instances = append(raw.site.Instances, in)
		})
	}
}

func (r *read) siteMycat(raw *rawSite) reader {
	return func(n *yaml.Node, path string) {
		r.object(n, path,
			field{"address", scalar(r.decoder, &raw.address, address), ""},
			field{"port", scalar(r.decoder, &raw.port, port), ""},
			field{"admin_port", scalar(r.decoder, &raw.adminPort, port), ""},
		)
	}
}

func (r *read) dataNodes(raw *rawSite) reader {
	return func(n *yaml.Node, path string) {
		r.pairs(n, path, func(key, value *yaml.Node, sub string) {
			var dn string
			scalar(r.decoder, &dn, word)(value, sub)
			raw.site.Mycat.DataNodes[cluster.ShardName(key.Value)] = dn
		})
	}
}

// finishSites fills in what a site takes from the rest of the file: its Mycat stands on its node, listens on the VIP's port,
// and a shard's dataNode has the shard's name.
func (r *read) finishSites() {
	for i, raw := range r.raw {
		s := raw.site
		if s.Interface == "" {
			s.Interface = r.iface
		}
		if path := fmt.Sprintf("sites[%d].interface", i); s.Interface == "" && !r.wrong("vip") && !r.wrong(path) {
			r.fail(r.place(path), path, "site %s has no interface: write vip: {interface: eth0} for all sites, or interface: in the site", s.Name)
		}
		at := raw.address
		for _, n := range r.c.Cluster.Nodes {
			if !at.IsValid() && n.Name == s.Node {
				at = n.Addr
			}
		}
		sql := raw.port
		if sql == 0 {
			sql = r.port
		}
		s.Mycat.SQL, s.Mycat.Admin = netip.AddrPortFrom(at, sql), netip.AddrPortFrom(at, raw.adminPort)
		s.Mycat.Schema = r.schema
		for _, in := range s.Instances {
			if _, ok := s.Mycat.DataNodes[in.Shard]; !ok {
				s.Mycat.DataNodes[in.Shard] = string(in.Shard)
			}
		}
		r.c.Cluster.Sites = append(r.c.Cluster.Sites, s)
	}
	// The order of promotion is that of the first site.
	if len(r.c.Cluster.Sites) > 0 {
		for _, in := range r.c.Cluster.Sites[0].Instances {
			r.c.Cluster.Shards = append(r.c.Cluster.Shards, in.Shard)
		}
	}
}
