package config

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

var update = flag.Bool("update", false, "write the golden files")

// fakeHost has the files and the environment that the test data names, and one file of each wrong kind.
func fakeHost() Host {
	files := fstest.MapFS{"etc/baton/open.pw": {Data: []byte("x"), Mode: 0o644}, "etc/baton/empty.pw": {Mode: 0o600}, "etc/baton/two.pw": {Data: []byte("a\nb\n"), Mode: 0o600}}
	for _, name := range []string{"probe.pw", "admin.pw", "repl.pw", "mycat.pw", "ca.pem", "baton.pem", "baton.key"} {
		files["etc/baton/"+name] = &fstest.MapFile{Data: []byte("secret of " + name + "\n"), Mode: 0o600}
	}
	env := map[string]string{"PROBE_PW": "from the environment"}
	inside := func(path string) string { return strings.TrimPrefix(path, "/") }
	return Host{
		Hostname:  func() (string, error) { return "mc-b", nil },
		LookupEnv: func(key string) (string, bool) { v, ok := env[key]; return v, ok },
		Stat:      func(path string) (fs.FileInfo, error) { return files.Stat(inside(path)) },
		ReadFile:  func(path string) ([]byte, error) { return files.ReadFile(inside(path)) },
	}
}

func good(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func mustParse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse("baton.yaml", []byte(text), fakeHost())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSmallestFile(t *testing.T) {
	text := good(t, "bank.yaml")
	if n := strings.Count(text, "\n"); n > 30 {
		t.Errorf("the smallest file has %d lines, more than 30", n)
	}
	c := mustParse(t, text)
	if err := c.Cluster.Validate(); err != nil {
		t.Error(err)
	}
	a := c.Cluster.Sites[0]
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"profile", c.Profile, cluster.Steady()},
		{"bind", c.Bind, BindKeepalived},
		{"replication", c.Replication, OneWay},
		{"state_dir", c.StateDir, "/var/lib/baton/state"},
		{"rpo", c.Policy.RPO, RPO{Zero: true}},
		{"detection", c.Detection, Detection{accumulator.Steady(), ScopeTarget, 1}},
		{"mycat of a", a.Mycat.SQL, netip.MustParseAddrPort("10.77.0.11:8066")},
		{"management of a", a.Mycat.Admin, netip.MustParseAddrPort("10.77.0.11:9066")},
		{"schema", a.Mycat.Schema, "bank"},
		{"dataNode", a.Mycat.DataNodes["s2"], "s2"},
		{"interface of b", c.Cluster.Sites[1].Interface, "eth0"},
		{"instance", c.Cluster.Sites[1].Instances[1], cluster.Instance{Shard: "s2", Addr: netip.MustParseAddrPort("10.77.0.42:3306")}},
		{"own endpoint first", fmt.Sprint(c.Etcd.Endpoints), "[http://10.77.0.11:2379 http://10.77.0.12:2379 http://10.77.0.13:2379]"},
		{"password", c.MySQL.Probe.Password.Reveal(), "secret of probe.pw"},
		{"self", c.Self().Addr, netip.MustParseAddr("10.77.0.11")},
		{"router ids differ", c.RouterIDOf("b") - c.RouterIDOf("a"), uint8(1)},
		{"member", c.IsMember(), true},
	} {
		if check.got != check.want {
			t.Errorf("%s: got %v, want %v", check.what, check.got, check.want)
		}
	}
}

func TestHostnameIsTheDefaultNode(t *testing.T) {
	c := mustParse(t, strings.Replace(good(t, "bank.yaml"), "node: mc-a\n", "", 1))
	if site, ok := c.Site(); !ok || site.Name != "b" {
		t.Errorf("on host mc-b the site is %q, want b", site.Name)
	}
}

func TestEveryRuleIsOneThatTheAccumulatorTakes(t *testing.T) {
	for _, detection := range []string{"{}", "{rule: bucket}", "{rule: consecutive, failures: 3}", "{rule: consecutive, scope: site, window: 9s}", "{failures: 1000, window: 1h}"} {
		c := mustParse(t, good(t, "bank.yaml")+"detection: "+detection+"\n")
		if _, err := accumulator.New(c.Detection.Rule); err != nil {
			t.Errorf("%s: %v", detection, err)
		}
	}
}

func TestFullFile(t *testing.T) {
	c := mustParse(t, good(t, "full.yaml"))
	want := cluster.Fast()
	want.Interval, want.ConfirmEvery, want.ProbeTimeout, want.Grace = 200*time.Millisecond, 20*time.Millisecond, 300*time.Millisecond, time.Second
	b := c.Cluster.Sites[1]
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"profile", c.Profile, want},
		{"detection", c.Detection, Detection{accumulator.Config{Rule: accumulator.Cumulative, Failures: 4, Window: 2 * time.Second, Clear: 20}, ScopeSite, 2}},
		{"policy", c.Policy, Policy{RPO{false, 100, 5 * time.Second}, 5 * time.Minute, 2}},
		{"mycat of b", b.Mycat.SQL, netip.MustParseAddrPort("10.77.1.12:8067")},
		{"VIP's port", c.Cluster.VIP.Port, uint16(8067)},
		{"interfaces", c.Cluster.Sites[0].Interface + b.Interface, "bond0eth0"},
		{"instance", c.Cluster.Sites[0].Instances[0].Addr, netip.MustParseAddrPort("10.77.0.31:3307")},
		{"dataNode", c.Cluster.Sites[0].Mycat.DataNodes["s1"] + b.Mycat.DataNodes["s1"], "dn1s1"},
		{"log", c.Log, Log{true, slog.LevelDebug}},
		{"business", c.Business[0], Business{"s1", "select count(*) > 0 from account", "1"}},
		{"password", c.MySQL.Probe.Password.Reveal(), "from the environment"},
		{"server name", c.Etcd.TLS.ServerName, "etcd.bank"},
		{"election", c.Etcd.Election, 300 * time.Millisecond},
		{"warnings", len(c.Warnings), 0},
		{"limits", c.Limits(), policy.Limits{Observers: 3, Fresh: 1500 * time.Millisecond, Cooldown: 5 * time.Minute, Budget: 2, BudgetSpan: 24 * time.Hour}},
		{"member", c.IsMember(), false},
	} {
		if check.got != check.want {
			t.Errorf("%s: got %v, want %v", check.what, check.got, check.want)
		}
	}
	if _, ok := c.Site(); ok {
		t.Error("the witness has a site")
	}
}

// TestMisspeltKeysAreRefused walks every key of the full file, misspells it, and wants the file refused: no key is read leniently,
// and each key of full.yaml is one that the schema knows.
func TestMisspeltKeysAreRefused(t *testing.T) {
	text := good(t, "full.yaml")
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	free := map[string]bool{"nodes": true, "shards": true, "data_nodes": true} // their keys are the user's own names
	var walk func(n *yaml.Node, parent string)
	walk = func(n *yaml.Node, parent string) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if !free[parent] {
				old := key.Value
				key.Value = old + "x"
				bad, err := yaml.Marshal(&doc)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := Parse("f", bad, fakeHost()); err == nil || !strings.Contains(err.Error(), "unknown key") {
					t.Errorf("%s misspelt: %v", old, err)
				}
				key.Value = old
			}
			walk(n.Content[i+1], key.Value)
		}
		for i := 0; n.Kind != yaml.MappingNode && i < len(n.Content); i++ {
			walk(n.Content[i], parent)
		}
	}
	walk(&doc, "")
}

// TestDocumentation: docs/configuration.md has the smallest file as it is, and names every key of the full one.
func TestDocumentation(t *testing.T) {
	text := good(t, "../../../docs/configuration.md")
	if !strings.Contains(text, good(t, "bank.yaml")) {
		t.Error("docs/configuration.md has another smallest file than testdata/bank.yaml")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(good(t, "full.yaml")), &doc); err != nil {
		t.Fatal(err)
	}
	free := map[string]bool{"nodes": true, "shards": true, "data_nodes": true}
	var walk func(n *yaml.Node, parent string)
	walk = func(n *yaml.Node, parent string) {
		for i, child := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				if !free[parent] && !regexp.MustCompile(`\b`+child.Value+`\b`).MatchString(text) {
					t.Errorf("docs/configuration.md does not name %s", child.Value)
				}
				continue
			}
			name := parent
			if n.Kind == yaml.MappingNode {
				name = n.Content[i-1].Value
			}
			walk(child, name)
		}
	}
	walk(&doc, "")
}

func TestWarnings(t *testing.T) {
	text := strings.NewReplacer("witness: 10.77.0.13}", "w1: 10.77.0.13, w2: 10.77.0.14}", ", gateway: 10.77.0.1", "", "s1: 10.77.0.31", "s1: 127.0.0.1").Replace(good(t, "bank.yaml"))
	var got []string
	for _, w := range mustParse(t, text).Warnings {
		got = append(got, w.Place+": "+w.Text)
	}
	golden(t, "warnings.golden", strings.Join(got, "\n")+"\n")
}

func TestErrorsHaveTheirCause(t *testing.T) {
	text := strings.Replace(good(t, "bank.yaml"), "s1: 10.77.0.41", "s1: 10.77.0.31", 1)
	_, err := Parse("baton.yaml", []byte(text), fakeHost())
	if !errors.Is(err, cluster.ErrTwice) {
		t.Errorf("one instance twice: %v is no ErrTwice", err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Line != 14 || e.Path != "sites[1].shards.s1" {
		t.Errorf("place of the mistake: %+v", e)
	}
	_, err = Load("testdata/no-such-file.yaml")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestSecretNeverPrintsItself(t *testing.T) {
	const text = "hunter2"
	s := NewSecret(text)
	inner := struct {
		Open   Secret
		closed Secret
	}{s, s}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("account", slog.Any("password", s), slog.Any("all", inner))
	asJSON, err := json.Marshal(map[string]any{"a": s, "b": inner, "c": &s})
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(Account{User: "u", Password: s})
	if err != nil {
		t.Fatal(err)
	}
	outputs := []string{logged.String(), string(asJSON), string(asYAML), errors.Join(fmt.Errorf("login with %v: %w", s, fs.ErrInvalid)).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		outputs = append(outputs, fmt.Sprintf(verb, s), fmt.Sprintf(verb, inner), fmt.Sprintf(verb, &inner), fmt.Sprintf(verb, Config{MySQL: MySQL{Probe: Account{"u", s}}}))
	}
	for _, out := range outputs {
		if strings.Contains(out, text) || strings.Contains(out, fmt.Sprintf("%x", text)) {
			t.Errorf("the secret is in %q", out)
		}
	}
	if s.Reveal() != text || (Secret{}).Reveal() != "" {
		t.Error("Reveal gives another text")
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
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
