package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/baton-ha/baton/switcher/policy"
)

// bad is one mistake each: what is changed in bank.yaml, old and new in turn. The messages are in testdata/bad.golden.
var bad = []struct {
	name string
	edit []string
}{
	{"empty file", []string{"*", ""}},
	{"no YAML", []string{"*", "cluster: bank\n  mode: [advise\n"}},
	{"a list", []string{"*", "- cluster\n"}},
	{"two documents", []string{"mode: advise", "mode: advise\n---"}},
	{"nothing but a name", []string{"*", "cluster: bank\n"}},
	{"misspelt key", []string{"cluster: bank", "clutser: bank"}},
	{"misspelt key inside", []string{"interface: eth0", "interfaec: eth0"}},
	{"unknown key", []string{"mode: advise", "mode: advise\nheartbeat_script: /bin/true"}},
	{"key of the lease", []string{"mode: advise", "mode: advise\nlease: 3s"}},
	{"key twice", []string{"mode: advise", "mode: advise\nmode: observe"}},
	{"alias", []string{"shards: {s1: 10.77.0.31", "shards: &a {s1: 10.77.0.31", "shards: {s1: 10.77.0.41, s2: 10.77.0.42}", "shards: *a"}},
	{"merge", []string{"mysql:\n", "mysql:\n  <<: {probe: x}\n"}},
	{"no mode", []string{"mode: advise\n", ""}},
	{"misspelt mode", []string{"mode: advise", "mode: advice"}},
	{"other mode", []string{"mode: advise", "mode: manual"}},
	{"mode is a list", []string{"mode: advise", "mode: [advise]"}},
	{"other profile", []string{"mode: advise", "mode: advise\nprofile: lan"}},
	{"node is not among nodes", []string{"node: mc-a\n", "node: mc-c\n"}},
	{"hostname is not among nodes", []string{"node: mc-a\n", "", "mc-b: 10.77.0.12", "mc-x: 10.77.0.12", "node: mc-b", "node: mc-x"}},
	{"name instead of an address", []string{"s1: 10.77.0.31", "s1: db-1.bank.example"}},
	{"name with a port", []string{"s1: 10.77.0.31", `s1: "db-1.bank.example:3306"`}},
	{"no address", []string{"mc-a: 10.77.0.11", "mc-a: 10.77.0.256"}},
	{"unspecified address", []string{"mc-a: 10.77.0.11", "mc-a: 0.0.0.0"}},
	{"VIP with a prefix", []string{"address: 10.77.0.100", "address: 10.77.0.100/24"}},
	{"VIP on loopback", []string{"address: 10.77.0.100", "address: 127.0.0.9"}},
	{"VIP of IPv6", []string{"address: 10.77.0.100", `address: "2001:db8::100"`}},
	{"VIP is a host's address", []string{"address: 10.77.0.100", "address: 10.77.0.12"}},
	{"VIP is a database's address", []string{"address: 10.77.0.100", "address: 10.77.0.42"}},
	{"VIP's port is not Mycat's", []string{"shards: {s1: 10.77.0.41", "mycat: {port: 8067}, shards: {s1: 10.77.0.41"}},
	{"port out of range", []string{"gateway: 10.77.0.1", "port: 80660"}},
	{"gateway is the VIP", []string{"gateway: 10.77.0.1", "gateway: 10.77.0.100"}},
	{"no interface", []string{", interface: eth0", ""}},
	{"alias interface", []string{"interface: eth0", `interface: "eth0:1"`}},
	{"one site", []string{"  - {name: b, node: mc-b, shards: {s1: 10.77.0.41, s2: 10.77.0.42}}\n", ""}},
	{"site twice", []string{"name: b", "name: a"}},
	{"node serves two sites", []string{"node: mc-b", "node: mc-a"}},
	{"site's node is unknown", []string{"name: b, node: mc-b", "name: b, node: mc-c"}},
	{"shard is missing on a site", []string{", s2: 10.77.0.42", ""}},
	{"shard has another name", []string{"s2: 10.77.0.42", "s3: 10.77.0.42"}},
	{"site without shards", []string{"shards: {s1: 10.77.0.41, s2: 10.77.0.42}", "shards: {}"}},
	{"instance twice", []string{"s2: 10.77.0.42", "s2: 10.77.0.41"}},
	{"instance on two sites", []string{"s1: 10.77.0.41", "s1: 10.77.0.31"}},
	{"host in two sites", []string{"s1: 10.77.0.41", `s1: "10.77.0.31:3307"`}},
	{"database on the other site's Mycat host", []string{"s1: 10.77.0.41", "s1: 10.77.0.11"}},
	{"two nodes, one address", []string{"witness: 10.77.0.13", "witness: 10.77.0.12"}},
	{"automatic with two nodes", []string{"mode: advise", "mode: automatic", ", witness: 10.77.0.13", ""}},
	{"two members for automatic", []string{"mode: advise", "mode: automatic", "dir: /var/lib/baton/etcd", "dir: /var/lib/baton/etcd, members: [mc-a, mc-b]"}},
	{"name with a slash", []string{"cluster: bank", "cluster: bank/eu"}},
	{"schema that is no name", []string{"schema: bank", `schema: "bank*/"`}},
	{"dataNode of no shard, and an unusable one", []string{"name: a,", "name: a, data_nodes: {s1: \"dn 1\", s9: dn9},"}},
	{"one dataNode for two shards", []string{"name: a,", "name: a, data_nodes: {s1: dn1, s2: dn1},"}},
	{"literal password", []string{"user: baton_probe, password_file: /etc/baton/probe.pw", "user: baton_probe, password: hunter2"}},
	{"no password", []string{"user: repl, password_file: /etc/baton/repl.pw", "user: repl"}},
	{"password from two places", []string{"user: repl,", "user: repl, password_env: PROBE_PW,"}},
	{"password file is open", []string{"/etc/baton/mycat.pw", "/etc/baton/open.pw"}},
	{"password file is missing", []string{"/etc/baton/mycat.pw", "/etc/baton/none.pw"}},
	{"password file is empty", []string{"/etc/baton/mycat.pw", "/etc/baton/empty.pw"}},
	{"password file has two lines", []string{"/etc/baton/mycat.pw", "/etc/baton/two.pw"}},
	{"password file is relative", []string{"/etc/baton/mycat.pw", "mycat.pw"}},
	{"environment has no password", []string{"password_file: /etc/baton/mycat.pw", "password_env: MYCAT_PW"}},
	{"no etcd in etcd", []string{"{embedded: {dir: /var/lib/baton/etcd}}", "{}"}},
	{"both kinds of etcd", []string{"etcd}}", `etcd}, endpoints: ["http://10.77.0.21:2379"]}`}},
	{"endpoint with a name", []string{"{embedded: {dir: /var/lib/baton/etcd}}", `{endpoints: ["https://etcd-1:2379"]}`}},
	{"endpoint without scheme", []string{"{embedded: {dir: /var/lib/baton/etcd}}", `{endpoints: ["10.77.0.21:2379"]}`}},
	{"https without an authority", []string{"{embedded: {dir: /var/lib/baton/etcd}}", `{endpoints: ["https://10.77.0.21:2379"]}`}},
	{"certificate without key", []string{"{embedded: {dir: /var/lib/baton/etcd}}", `{endpoints: ["https://10.77.0.21:2379"], tls: {ca: /etc/baton/ca.pem, cert: /etc/baton/baton.pem}}`}},
	{"member is no node", []string{"dir: /var/lib/baton/etcd", "dir: /var/lib/baton/etcd, members: [mc-a, mc-a, mc-z]"}},
	{"rule that never trips", []string{"mode: advise", "mode: advise\ndetection: {failures: 20, window: 6s}"}},
	{"one failure is enough", []string{"mode: advise", "mode: advise\ndetection: {failures: 1}"}},
	{"number without unit", []string{"mode: advise", "mode: advise\ndetection: {window: 6}"}},
	{"window of a rule without one", []string{"mode: advise", "mode: advise\ndetection: {rule: consecutive, window: 6s}"}},
	{"failures of the bucket", []string{"mode: advise", "mode: advise\ndetection: {rule: bucket, failures: 6}"}},
	{"more failures than shards", []string{"mode: advise", "mode: advise\ndetection: {mysql_failures: 3}"}},
	{"confirming slower than the beat", []string{"mode: advise", "mode: advise\ndetection: {confirm_every: 2s}"}},
	{"half an RPO", []string{"mode: advise", "mode: advise\npolicy: {rpo: {transactions: 10}}"}},
	{"RPO of nothing, as limits", []string{"mode: advise", "mode: advise\npolicy: {rpo: {transactions: 0, seconds: 0}}"}},
	{"window that the failures just do not fit into", []string{"mode: advise", "mode: advise\ndetection: {interval: 200ms, failures: 6, window: 1s}"}},
	{"RPO one", []string{"mode: advise", "mode: advise\npolicy: {rpo: one}"}},
	{"business of no shard", []string{"mode: advise", "mode: advise\nbusiness: [{shard: s7, sql: select 1}]"}},
	{"business without statement", []string{"mode: advise", "mode: advise\nbusiness: [{shard: s1}]"}},
	{"anchor is the VIP", []string{"mode: advise", "mode: advise\nanchors: [10.77.0.100]"}},
	{"router id out of range", []string{"gateway: 10.77.0.1", "router_id: 255"}},
	{"relative state directory", []string{"mode: advise", "mode: advise\nstate_dir: run"}},
	{"everything at once", []string{"cluster: bank", "clutser: bank", "mode: advise", "mode: auto", "10.77.0.100", "vip.bank", "s2: 10.77.0.42", "s2: 10.77.0.41", "/etc/baton/mycat.pw", "/etc/baton/open.pw"}},
}

func TestBadFiles(t *testing.T) {
	base := good(t, "bank.yaml")
	var out strings.Builder
	for _, tc := range bad {
		text := base
		for i := 0; i < len(tc.edit); i += 2 {
			old, repl := tc.edit[i], tc.edit[i+1]
			if old == "*" {
				text = repl
				continue
			}
			if !strings.Contains(text, old) {
				t.Fatalf("%s: bank.yaml has no %q", tc.name, old)
			}
			text = strings.Replace(text, old, repl, 1)
		}
		_, err := Parse("baton.yaml", []byte(text), fakeHost())
		if err == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "baton.yaml:") {
				t.Errorf("%s: %q does not begin with its place", tc.name, line)
			}
		}
		fmt.Fprintf(&out, "== %s\n%v\n\n", tc.name, err)
	}
	golden(t, "bad.golden", out.String())
}

func FuzzParse(f *testing.F) {
	f.Add(good(f, "bank.yaml"))
	f.Add(good(f, "full.yaml"))
	f.Add("cluster: bank\nmode: [")
	f.Add("? {a: b}\n: c\n")
	f.Add("a: &x [*x]\nsites: [{shards: *x}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f", []byte(text), fakeHost())
		if err != nil {
			return
		}
		if err := c.Cluster.Validate(); err != nil {
			t.Errorf("accepted a cluster that is not valid: %v", err)
		}
		if c.Mode == policy.Automatic && len(c.Cluster.Nodes) < 3 {
			t.Error("accepted automatic with fewer than three nodes")
		}
		if c.Self().Name != c.Node || len(c.Etcd.Endpoints) == 0 {
			t.Errorf("accepted a node %q without address or no endpoint %q", c.Node, c.Etcd.Endpoints)
		}
	})
}
