package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/baton-ha/baton/internal/cluster"
)

// etcd reads either embedded or endpoints.
func (r *read) etcd(n *yaml.Node, path string) {
	e := &r.c.Etcd
	r.object(n, path,
		field{"embedded", r.embedded, ""},
		field{"endpoints", r.endpoints, ""},
		field{"tls", r.tls, ""},
	)
	switch {
	case n.Kind != yaml.MappingNode || r.wrong(path):
	case e.Embedded == nil && len(e.Endpoints) == 0:
		r.fail(n, path, "etcd is empty: write embedded: {dir: /var/lib/baton/etcd}, or endpoints: [https://10.0.0.1:2379, ...]")
	case e.Embedded != nil && len(e.Endpoints) > 0:
		r.fail(n, path, "etcd has both embedded and endpoints: Baton either runs members or uses an existing cluster; keep one")
	}
}

func (r *read) embedded(n *yaml.Node, path string) {
	e := &Embedded{ClientPort: clientPort, PeerPort: peerPort}
	r.c.Etcd.Embedded = e
	r.object(n, path,
		field{"dir", scalar(r.decoder, &e.Dir, absolute), "write a directory on a disk that stays, like /var/lib/baton/etcd"},
		field{"client_port", scalar(r.decoder, &e.ClientPort, port), ""},
		field{"peer_port", scalar(r.decoder, &e.PeerPort, port), ""},
		field{"members", func(n *yaml.Node, path string) {
			r.items(n, path, func(item *yaml.Node, sub string) {
				var m cluster.NodeName
				scalar(r.decoder, &m, text[cluster.NodeName])(item, sub)
				e.Members = append(e.Members, m)
			})
		}, ""},
	)
	if e.ClientPort == e.PeerPort {
		r.fail(n, path+".peer_port", "client_port and peer_port are both %d: clients and members talk on ports of their own", e.PeerPort)
	}
}

func (r *read) endpoints(n *yaml.Node, path string) {
	r.items(n, path, func(item *yaml.Node, sub string) {
		var u string
		scalar(r.decoder, &u, endpoint)(item, sub)
		if u != "" && slices.Contains(r.c.Etcd.Endpoints, u) {
			r.fail(item, sub, "%s is there twice: name each member once", u)
		}
		r.c.Etcd.Endpoints = append(r.c.Etcd.Endpoints, u)
	})
}

// endpoint reads the URL of a member.
func endpoint(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no endpoint: write https://ADDRESS:2379", s)
	}
	ap, err := netip.ParseAddrPort(u.Host)
	if err != nil || ap.Port() == 0 {
		return "", fmt.Errorf("%q has no IP address and port: write https://ADDRESS:2379; a name would need DNS at the moment of a failure (the certificate's name goes into tls: {server_name: ...})", s)
	}
	return u.Scheme + "://" + ap.String(), nil
}

func (r *read) tls(n *yaml.Node, path string) {
	t := &r.c.Etcd.TLS
	r.object(n, path,
		field{"ca", scalar(r.decoder, &t.CA, r.readable(false)), "write the file of the authority that signed etcd's certificates"},
		field{"cert", scalar(r.decoder, &t.Cert, r.readable(false)), ""},
		field{"key", scalar(r.decoder, &t.Key, r.readable(true)), ""},
		field{"server_name", scalar(r.decoder, &t.ServerName, word), ""},
	)
	if hasKey(n, "cert") != hasKey(n, "key") {
		r.fail(n, path, "%s has one of cert and key: a client certificate needs both", path)
	}
}

// finishEtcd fills in what follows from the nodes: the members, and where each listens.
func (r *read) finishEtcd() {
	e := r.c.Etcd.Embedded
	if e == nil {
		return
	}
	if len(e.Members) == 0 {
		for _, n := range r.c.Cluster.Nodes {
			e.Members = append(e.Members, n.Name)
		}
	}
	scheme := "http"
	if r.c.Etcd.TLS != (TLS{}) {
		scheme = "https"
	}
	var own, others []string
	for _, n := range r.c.Cluster.Nodes {
		u := scheme + "://" + netip.AddrPortFrom(n.Addr, e.ClientPort).String()
		switch {
		case !slices.Contains(e.Members, n.Name):
		case n.Name == r.c.Node:
			own = append(own, u)
		default:
			others = append(others, u)
		}
	}
	r.c.Etcd.Endpoints = slices.Concat(own, others)
}
