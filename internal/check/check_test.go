package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
)

var update = flag.Bool("update", false, "write the golden files")

// bank is the cluster of the tests: everything right, so that each test breaks one thing.
const bank = `
cluster: bank
node: mc-a
mode: automatic
vip: {address: 10.77.0.100, interface: eth0, gateway: 10.77.0.1}
nodes: {mc-a: 10.77.0.11, mc-b: 10.77.0.12, witness: 10.77.0.13}
etcd: {embedded: {dir: /var/lib/baton/etcd}, tls: {ca: /f, cert: /f, key: /f}}
mysql:
  probe: {user: baton_probe, password_file: /f}
  admin: {user: baton_admin, password_file: /f}
  replication: {user: repl, password_file: /f}
mycat: {user: baton, password_file: /f, schema: bank}
business: [{shard: s1, sql: select 1}]
sites:
  - {name: a, node: mc-a, shards: {s1: 10.77.0.31, s2: 10.77.0.32}}
  - {name: b, node: mc-b, shards: {s1: 10.77.0.41, s2: 10.77.0.42}}
`

func parse(t testing.TB, text string) config.Config {
	t.Helper()
	files := fstest.MapFS{"f": {Data: []byte("x"), Mode: 0o600}}
	inside := func(path string) string { return strings.TrimPrefix(path, "/") }
	cfg, err := config.Parse("baton.yaml", []byte(text), config.Host{
		Stat:     func(path string) (fs.FileInfo, error) { return files.Stat(inside(path)) },
		ReadFile: func(path string) ([]byte, error) { return files.ReadFile(inside(path)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, text := range texts {
		ps = append(ps, netip.MustParsePrefix(text))
	}
	return ps
}

// wellInstance is a MariaDB as PROTOCOL 6 wants it; site a is the active one.
func wellInstance(site cluster.SiteName, in cluster.Instance, id string) Instance {
	x := Instance{
		Site: site, Shard: in.Shard, Addr: in.Addr, Took: 2 * time.Millisecond,
		Version: Version{Text: "10.11.19-MariaDB-log", MariaDB: true, Major: 10, Minor: 11},
		Probe:   Account{Name: "'baton_probe'@'10.77.0.%'"},
		Admin:   Account{Name: "'baton_admin'@'10.77.0.%'"},
		Passes:  []string{"'root'@'localhost'", "'baton_admin'@'10.77.0.%'"},
		Vars: map[string]string{
			"read_only": "OFF", "log_bin": "ON", "log_slave_updates": "ON", "gtid_strict_mode": "ON", "skip_name_resolve": "ON",
			"server_id": id, "hostname": "db" + id, "port": "3306", "sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1",
			"rpl_semi_sync_master_enabled": "ON", "rpl_semi_sync_slave_enabled": "ON", "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
			"rpl_semi_sync_master_timeout": "4294967295", "rpl_semi_sync_master_wait_no_slave": "ON", "rpl_semi_sync_master_status": "ON",
			"rpl_semi_sync_master_clients": "1",
			"auto_increment_increment":     "2", "auto_increment_offset": "1",
		},
		Origin: map[string]Origin{"read_only": OriginFile},
	}
	if site != "a" {
		x.Vars["read_only"], x.Vars["rpl_semi_sync_master_status"], x.Vars["auto_increment_offset"] = "ON", "OFF", "2"
		x.Vars["rpl_semi_sync_master_enabled"], x.Vars["rpl_semi_sync_master_clients"] = "OFF", "0"
		x.Sources = []Channel{{Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, 0, in.Addr.Addr().As4()[3] - 10}), 3306), IO: true, SQL: true, GTID: true, LagKnown: true}}
	} else {
		x.Origin["read_only"] = OriginUnknown
		x.Acks = []uint32{map[string]uint32{"1": 3, "2": 4}[id]}
	}
	return x
}

func well(cfg config.Config) Facts {
	f := Facts{
		Etcd: Etcd{
			Members: []Member{{Endpoint: "http://10.77.0.11:2379", Version: "3.7.3", Leader: true, Took: time.Millisecond}},
			Reports: []cluster.NodeName{"mc-a", "mc-b", "witness"}, Known: true, Assignment: &cluster.Assignment{Site: "a", Phase: cluster.Serving},
			Holder: &cluster.Holder{Site: "a", Node: "mc-a", MAC: "02:00:00:00:00:0a"},
		},
		Host: Host{
			Interface:  Interface{Name: "eth0", Up: true, Ethernet: true, Prefixes: prefixes("10.77.0.11/24")},
			Keepalived: Keepalived{Version: "2.2.7"}, GateMethod: "tcx", VIP: VIP{Here: true},
			Sysctl: map[string]string{"net/ipv4/ip_forward": "0", "net/ipv4/conf/all/arp_ignore": "0", "net/ipv4/conf/all/arp_announce": "0"},
		},
	}
	id := 0
	for _, s := range cfg.Cluster.Sites {
		m := Mycat{Site: s.Name, Version: "5.6.29-mycat-1.6.7.5-release-20200428154739", Params: map[string]string{"bindip": "0.0.0.0", "processorexecutor": "64"}}
		for _, in := range s.Instances {
			id++
			text := fmt.Sprint(id)
			f.Instances = append(f.Instances, wellInstance(s.Name, in, text))
			m.Shards = append(m.Shards, Routed{Shard: in.Shard, DataNode: string(in.Shard), ServerID: uint32(id), Hostname: "db" + text, Port: 3306, User: "mycat@10.77.0.%"})
			m.Sources = append(m.Sources, DataSource{DataNode: string(in.Shard), WriteHosts: []string{"hostM1"}})
		}
		f.Mycats = append(f.Mycats, m)
	}
	for _, n := range cfg.Cluster.Nodes {
		f.Nodes = append(f.Nodes, NodeFact{Node: n, At: netip.AddrPortFrom(n.Addr, 8066)})
	}
	return f
}

// judge runs every check on the facts.
func judge(cfg config.Config, f Facts) []Finding {
	var fs []Finding
	for _, check := range checks {
		fs = append(fs, check(input{cfg, f})...)
	}
	sortFindings(fs)
	return fs
}

func codes(fs []Finding) []string {
	var cs []string
	for _, f := range fs {
		cs = append(cs, f.Code)
	}
	return cs
}

// unseen is what a clean active site always has: its read_only was changed at run time.
const unseen = "MYSQL_READ_ONLY_AT_BOOT_UNSEEN"

func TestNothingIsFoundWhereAllIsWell(t *testing.T) {
	cfg := parse(t, bank)
	for _, f := range judge(cfg, well(cfg)) {
		if f.Code != unseen {
			t.Errorf("%s at %s: %s", f.Code, f.Place, f.Seen)
		}
	}
}

// TestEachFinding breaks one thing at a time. The findings are in the golden file; each kind has a case.
func TestEachFinding(t *testing.T) {
	seen := map[string]bool{configInvalid.code: true} // has its own test
	var out bytes.Buffer
	for _, tc := range cases {
		cfg := parse(t, bank)
		f := well(cfg)
		tc.edit(&cfg, &f)
		found := slices.DeleteFunc(judge(cfg, f), func(f Finding) bool { return f.Code == unseen && tc.code != unseen })
		if !slices.Contains(codes(found), tc.code) {
			t.Errorf("%s: found %q, want %s", tc.name, codes(found), tc.code)
		}
		for _, f := range found {
			seen[f.Code] = true
		}
		fmt.Fprintf(&out, "== %s\n", tc.name)
		if err := Render(found, &out); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range kinds {
		if !seen[k.code] {
			t.Errorf("no case finds %s", k.code)
		}
	}
	golden(t, "findings.golden", out.String())
}

// TestSilentCases are things that look wrong and are right.
func TestSilentCases(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*config.Config, *Facts)
	}{
		{"a witness has no VIP, no gate, no keepalived", func(c *config.Config, f *Facts) {
			c.Node = "witness"
			f.Host = Host{Missing: []string{"CAP_BPF"}, GateErr: errAny, Keepalived: Keepalived{Err: errAny}, Sysctl: map[string]string{"net/ipv4/ip_forward": "1"}}
		}},
		{"bind: netlink needs no keepalived", func(c *config.Config, f *Facts) {
			c.Bind, f.Host.Keepalived = config.BindNetlink, Keepalived{Err: errAny}
		}},
		{"the holder answers for the VIP", func(c *config.Config, f *Facts) {
			c.Node, f.Host.VIP = "mc-b", VIP{MAC: "02:00:00:00:00:0A"}
		}},
		{"a MySQL as it should be", func(_ *config.Config, f *Facts) {
			x := &f.Instances[2]
			asMySQL(x)
		}},
		{"a standby that is a source to another replica", func(_ *config.Config, f *Facts) {
			x := &f.Instances[2]
			x.Vars["rpl_semi_sync_master_enabled"], x.Vars["rpl_semi_sync_master_clients"] = "ON", "1"
		}},
		{"strangers cannot be told while an instance is off", func(_ *config.Config, f *Facts) {
			f.Instances[0].Acks = []uint32{3, 99}
			f.Instances[2] = Instance{Site: "b", Shard: "s1", Addr: f.Instances[2].Addr, Err: errAny}
		}},
		{"dual-master replicates both ways", func(c *config.Config, f *Facts) {
			c.Replication = config.DualMaster
			f.Instances[0].Sources = []Channel{{Source: f.Instances[2].Addr, IO: true, SQL: true, GTID: true}}
		}},
		{"the source is known by its server_id when its address is another", func(_ *config.Config, f *Facts) {
			f.Instances[2].Sources[0].Source, f.Instances[2].Sources[0].SourceServer = netip.AddrPort{}, 1
		}},
		{"arp_ignore with one interface", func(_ *config.Config, f *Facts) {
			f.Host.Others = []Interface{{Name: "eth1", Up: true, Ethernet: true, Prefixes: prefixes("192.0.2.1/24")}}
		}},
	} {
		cfg := parse(t, bank)
		f := well(cfg)
		tc.edit(&cfg, &f)
		for _, f := range judge(cfg, f) {
			if f.Severity != Info && f.Code != mysqlUnreachable.code && f.Code != mysqlVersionsDiffer.code {
				t.Errorf("%s: %s at %s: %s", tc.name, f.Code, f.Place, f.Seen)
			}
		}
	}
}

// TestSeverityFollowsThePolicy: what S4 rests on is critical only where it is promised.
func TestSeverityFollowsThePolicy(t *testing.T) {
	for _, tc := range []struct {
		rpo  config.RPO
		want Severity
	}{{config.RPO{Zero: true}, Critical}, {config.RPO{Transactions: 10, Lag: time.Second}, Warning}} {
		cfg := parse(t, bank)
		cfg.Policy.RPO = tc.rpo
		f := well(cfg)
		f.Instances[0].Vars["sync_binlog"] = "0"
		for _, f := range judge(cfg, f) {
			if f.Code == "MYSQL_NOT_DURABLE" && f.Severity != tc.want {
				t.Errorf("rpo %+v: %s, want %s", tc.rpo, f.Severity, tc.want)
			}
		}
	}
}

func TestFaultyEtcd(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.37": true, "3.4.38": false, "3.5.22": true, "3.5.23": false, "3.6.4": true, "3.6.5": false, "3.7.0": false,
		"3.6.0-rc.1": true, "2.3.8": true, "4.0.0": false, "": false, "3.x": false,
	} {
		if got := faultyEtcd(version); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}

func TestExitCode(t *testing.T) {
	for _, tc := range []struct {
		severities []Severity
		want       int
	}{{nil, 0}, {[]Severity{Info}, 0}, {[]Severity{Info, Warning}, 1}, {[]Severity{Warning, Critical, Info}, 2}} {
		var r Report
		for _, s := range tc.severities {
			r.Findings = append(r.Findings, Finding{Severity: s})
		}
		if got := r.ExitCode(); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.severities, got, tc.want)
		}
	}
}

func TestRenderWraps(t *testing.T) {
	var b bytes.Buffer
	long := strings.Repeat("word ", 60) + strings.Repeat("x", 150)
	if err := Render([]Finding{{Code: "X", Severity: Critical, Place: "here", Seen: long, Means: "m"}}, &b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if len(line) > width && !strings.Contains(line, "xxx") {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
	if got := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(got, strings.Join(strings.Fields(long), " ")) {
		t.Errorf("words are lost: %q", got)
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := (Report{Cluster: "bank"}).JSON(&b); err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if list, ok := back["findings"].([]any); !ok || len(list) != 0 {
		t.Errorf("findings of a clean run: %v", back["findings"])
	}
}

func TestInvalidConfig(t *testing.T) {
	_, err := config.Parse("baton.yaml", []byte("cluster: bank\nmode: auto\n"), config.ThisHost())
	r := InvalidConfig(err)
	if r.ExitCode() != 2 || r.Findings[0].Code != "CONFIG_INVALID" || len(r.Findings) < 5 {
		t.Errorf("%+v", r)
	}
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Place == "baton.yaml:2:7" }) {
		t.Error("no finding has the place of the mistake")
	}
	if one := InvalidConfig(fs.ErrNotExist); len(one.Findings) != 1 {
		t.Errorf("one error gives %d findings", len(one.Findings))
	}
}

// TestDocumentation compares the codes, those of Mycat's files included, with the headings of docs/check.md, and the severities with
// what stands under them.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	lint, err := os.ReadFile("../../mycat/lint.go")
	if err != nil {
		t.Fatal(err)
	}
	severity := map[string]Severity{}
	for _, k := range kinds {
		severity[k.code] = k.severity
	}
	for _, m := range regexp.MustCompile(`"(MYCAT_[A-Z_]+)"`).FindAllStringSubmatch(string(lint), -1) {
		if _, own := severity[m[1]]; !own {
			severity[m[1]] = "" // the file's own remark: it depends
		}
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^### ([A-Z0-9_]+)\n\nSeverity: (.*)$`).FindAllStringSubmatch(string(text), -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("docs/check.md explains %s twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	for code, s := range severity {
		if got, ok := documented[code]; !ok || s != "" && got != string(s) {
			t.Errorf("docs/check.md has %s as %q, want %q", code, got, s)
		}
		delete(documented, code)
	}
	for code := range documented {
		t.Errorf("docs/check.md explains %s, which no check finds", code)
	}
}

// fakeWorld answers from the facts; each method can be made to hang.
type fakeWorld struct {
	facts Facts
	hang  string
}

func (w fakeWorld) wait(ctx context.Context, what string) {
	if w.hang == what {
		<-ctx.Done()
	}
	if w.hang == what+" for ever" {
		select {}
	}
}

func (w fakeWorld) Dial(ctx context.Context, _ netip.AddrPort) error {
	w.wait(ctx, "dial")
	return nil
}

func (w fakeWorld) Instance(ctx context.Context, at cluster.Instance) Instance {
	w.wait(ctx, "mysql "+at.Addr.String())
	for _, x := range w.facts.Instances {
		if x.Addr == at.Addr {
			return x
		}
	}
	return Instance{Err: errAny}
}

func (w fakeWorld) Mycat(ctx context.Context, site cluster.Site) Mycat {
	w.wait(ctx, "mycat "+string(site.Name))
	for _, m := range w.facts.Mycats {
		if m.Site == site.Name {
			return m
		}
	}
	return Mycat{SQL: errAny}
}

func (w fakeWorld) Etcd(ctx context.Context) Etcd {
	w.wait(ctx, "etcd")
	return w.facts.Etcd
}

func (w fakeWorld) Host(ctx context.Context, _ string) Host {
	w.wait(ctx, "host")
	return w.facts.Host
}

func (w fakeWorld) Lint(ctx context.Context) []Finding {
	w.wait(ctx, "lint")
	return w.facts.Lint
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := parse(t, bank)
		r := Run(t.Context(), cfg, fakeWorld{facts: well(cfg)})
		if r.ExitCode() != 0 || r.Took != 0 || r.Clean != r.Checks-1 {
			t.Errorf("a clean cluster: %+v", r)
		}
	})
}

// TestOneHangHidesNothing: whatever hangs, everything else is judged, and the run ends.
func TestOneHangHidesNothing(t *testing.T) {
	for hang, want := range map[string]string{
		"dial": "", "host": "", "lint": "", "etcd": "", // these end by their deadline, as they must, with what they know
		"mysql 10.77.0.41:3306": "", "mycat b": "",
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := parse(t, bank)
			f := well(cfg)
			f.Instances[0].Vars["sync_binlog"] = "0"
			r := Run(t.Context(), cfg, fakeWorld{facts: f, hang: hang})
			if !slices.Contains(codes(r.Findings), "MYSQL_NOT_DURABLE") || r.Took > lookTimeout+patience {
				t.Errorf("%s: %q after %s%s", hang, codes(r.Findings), r.Took, want)
			}
		})
	}
}

// TestALookThatNeverEndsIsAFinding: a World that breaks its contract is left behind. (Outside of a synctest bubble, which
// would wait for it.)
func TestALookThatNeverEndsIsAFinding(t *testing.T) {
	cfg := parse(t, bank)
	for hang, want := range map[string]string{
		"mysql 10.77.0.41:3306 for ever": "MYSQL_UNREACHABLE", "mycat b for ever": "MYCAT_LOGIN", "etcd for ever": "ETCD_UNAVAILABLE",
		"host for ever": "HOST_UNSEEN", "lint for ever": "MYCAT_FILE", "dial for ever": "NODE_UNREACHABLE",
	} {
		t.Run(hang, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errAny)
			defer cancel()
			r := Run(ctx, cfg, fakeWorld{facts: well(cfg), hang: hang})
			if !slices.Contains(codes(r.Findings), want) {
				t.Errorf("%s: found %q, want %s", hang, codes(r.Findings), want)
			}
		})
	}
}

var errAny = errors.New("no answer within 5s")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}

// Without etcd's quorum the active site has fenced itself; its instances look like standbys that have stopped, and nobody calls them so.
func TestWithoutQuorumNoSiteIsAStandby(t *testing.T) {
	cfg := parse(t, bank)
	f := well(cfg)
	f.Etcd = Etcd{ReadErr: errAny}
	for i := range f.Instances {
		f.Instances[i].Vars["read_only"] = "ON"
	}
	f.Instances[0].Sources = []Channel{{Source: f.Instances[2].Addr}}
	if found := codes(judge(cfg, f)); slices.Contains(found, replicaBroken.code) {
		t.Errorf("found %q", found)
	}
	f.Etcd = Etcd{}
	if found := codes(judge(cfg, f)); !slices.Contains(found, replicaBroken.code) {
		t.Errorf("before the first start: found %q", found)
	}
}
