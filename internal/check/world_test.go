package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/dcs/member"
	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/standin"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/mysqltest"
)

// boxed runs the tests in namespaces of their own, with the interface that carries the VIP of the tests.
type boxed struct{ *testing.M }

func (b boxed) Run() int {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "eth0", "type", "veth", "peer", "name", "peer0"},
		{"link", "set", "peer0", "up"},
		{"link", "set", "eth0", "up"},
		{"addr", "add", "10.77.0.11/24", "dev", "eth0"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "ip %v: %v: %s\n", args, err, out)
			return 1
		}
	}
	return b.M.Run()
}

func TestMain(m *testing.M) { box.Main(boxed{m}) }

// world is the outside of two MariaDB servers in replication, with a stand-in for Mycat on one side.
type world struct {
	cfg  config.Config
	a, b *mysqltest.Instance
}

// statements give the servers Baton's accounts and Mycat's, and nothing that passes read_only.
func statements() []string {
	admin, probe := mysql.Account{User: "baton_admin", Password: "admin"}, mysql.Account{User: "baton_probe", Password: "probe"}
	return append(mysql.Grants(mysql.MariaDB, "127.0.0.1", admin, probe),
		"CREATE USER mycat@'127.0.0.1' IDENTIFIED BY 'mycat'", "GRANT ALL ON bank.* TO mycat@'127.0.0.1'", "CREATE DATABASE bank",
		"GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1' IDENTIFIED BY 'repl'", "DROP USER IF EXISTS root@'127.0.0.1', root@'::1'",
		"CREATE DATABASE baton", "CREATE TABLE baton.heartbeat (observer VARCHAR(64) PRIMARY KEY, at_us BIGINT, seq BIGINT)",
		"CREATE TABLE baton.epoch (id TINYINT PRIMARY KEY, epoch BIGINT, switch VARCHAR(64), site VARCHAR(64))")
}

// root runs a statement past every account.
func root(t *testing.T, in *mysqltest.Instance, sql string) {
	t.Helper()
	if out, err := exec.Command("mariadb", "--no-defaults", "-uroot", "-S", filepath.Join(in.Dir, "sock"), "-e", sql).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", sql, err, out)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	over := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("never: %s", what)
		}
	}
}

func newWorld(t *testing.T) world {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "check")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the servers did not start"))
	t.Cleanup(cancel)
	seed, err := mysqltest.Bake(ctx, dir, statements()...)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string, id int, extra ...string) *mysqltest.Instance {
		in, err := seed.Start(ctx, filepath.Join(dir, name), id, extra...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Kill() })
		return in
	}
	w := world{a: start("a", 11, "--rpl-semi-sync-master-enabled=ON"), b: start("b", 21, "--rpl-semi-sync-slave-enabled=ON")}
	root(t, w.b, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='repl', MASTER_PASSWORD='repl', MASTER_USE_GTID=slave_pos; START SLAVE", w.a.Addr.Port()))
	root(t, w.a, "SET GLOBAL read_only = OFF")
	w.cfg = parse(t, bank)
	w.cfg.MySQL = config.MySQL{
		Admin: config.Account{User: "baton_admin", Password: config.NewSecret("admin")},
		Probe: config.Account{User: "baton_probe", Password: config.NewSecret("probe")},
	}
	w.cfg.Etcd.TLS = config.TLS{}
	w.cfg.Cluster.Shards = []cluster.ShardName{"s1"}
	for i, in := range []*mysqltest.Instance{w.a, w.b} {
		w.cfg.Cluster.Sites[i].Instances = []cluster.Instance{{Shard: "s1", Addr: in.Addr}}
	}
	eventually(t, "the standby acknowledges", func() bool { return w.instance(t, w.a).Vars["rpl_semi_sync_master_clients"] == "1" })
	return w
}

func (w world) instance(t *testing.T, in *mysqltest.Instance) Instance {
	t.Helper()
	x := Outside(w.cfg, slog.New(slog.DiscardHandler)).Instance(t.Context(), cluster.Instance{Shard: "s1", Addr: in.Addr})
	x.Addr, x.Shard, x.Site = in.Addr, "s1", "a"
	if in == w.b {
		x.Site = "b"
	}
	return x
}

// found judges the two servers alone.
func (w world) found(t *testing.T) []string {
	t.Helper()
	in := input{cfg: w.cfg, facts: Facts{Instances: []Instance{w.instance(t, w.a), w.instance(t, w.b)}, Etcd: Etcd{Assignment: &cluster.Assignment{Site: "a"}}}}
	var fs []Finding
	for _, check := range slices.Concat(mysqlChecks, syncChecks, accountChecks, replicationChecks) {
		fs = append(fs, check(in)...)
	}
	return codes(slices.DeleteFunc(fs, func(f Finding) bool { return f.Code == unseen || f.Code == mysqlSlow.code })) // a busy machine is slow
}

// cutOnce passes connections on to the server, and cuts the first that speaks on after its login, as a step's KILL does.
func cutOnce(t *testing.T, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := 0; ; n++ {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to.String())
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() {
				if n == 0 {
					_, _ = io.CopyN(client, server, 1000) // greeting, login and the first answers
				} else {
					_, _ = io.Copy(client, server)
				}
				_ = client.Close()
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// A session that is killed while it looks is begun anew: a switch that runs beside the check is no finding.
func TestKilledSessionIsNoFinding(t *testing.T) {
	w := newWorld(t)
	at := cluster.Instance{Shard: "s1", Addr: cutOnce(t, w.a.Addr)}
	if x := Outside(w.cfg, slog.New(slog.DiscardHandler)).Instance(t.Context(), at); x.Err != nil || len(x.Gaps) > 0 || x.Vars["server_id"] != "11" {
		t.Errorf("%v, gaps %v", x.Err, x.Gaps)
	}
}

// TestRealServers breaks one thing after the other on real servers, and mends it again.
func TestRealServers(t *testing.T) {
	w := newWorld(t)
	if got := w.found(t); len(got) > 0 {
		t.Fatalf("two servers as they should be: %q", got)
	}
	for _, tc := range []struct {
		code       string
		at         *mysqltest.Instance
		harm, mend string
	}{
		{"MYSQL_NOT_DURABLE", w.a, "SET GLOBAL sync_binlog = 0", "SET GLOBAL sync_binlog = 1"},
		{"MYSQL_SEMISYNC_AFTER_COMMIT", w.a, "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT", "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC"},
		{"MYSQL_SEMISYNC_TIMEOUT", w.b, "SET GLOBAL rpl_semi_sync_master_timeout = 10000", "SET GLOBAL rpl_semi_sync_master_timeout = 4294967295"},
		{"MYSQL_SEMISYNC_NO_REPLICA", w.a, "SET GLOBAL rpl_semi_sync_master_wait_no_slave = OFF", "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON"},
		{"MYSQL_SEMISYNC_OFF", w.b, "SET GLOBAL rpl_semi_sync_slave_enabled = OFF", "SET GLOBAL rpl_semi_sync_slave_enabled = ON"},
		{"MYSQL_SEMISYNC_STANDBY_SOURCE", w.b, "SET GLOBAL rpl_semi_sync_master_enabled = ON", "SET GLOBAL rpl_semi_sync_master_enabled = OFF"},
		{"MYSQL_GTID_STRICT", w.b, "SET GLOBAL gtid_strict_mode = OFF", "SET GLOBAL gtid_strict_mode = ON"},
		{"MYSQL_STANDBY_WRITABLE", w.b, "SET GLOBAL read_only = OFF", "SET GLOBAL read_only = ON"},
		{"MYSQL_ACTIVE_READ_ONLY", w.a, "SET GLOBAL read_only = ON", "SET GLOBAL read_only = OFF"},
		{"MYSQL_ACCOUNT_PASSES_READ_ONLY", w.a, "GRANT READ ONLY ADMIN ON *.* TO mycat@'127.0.0.2' IDENTIFIED BY 'x'", "DROP USER mycat@'127.0.0.2'"},
		{"MYSQL_PROBE_TOO_STRONG", w.a, "GRANT READ ONLY ADMIN ON *.* TO baton_probe@'127.0.0.1'", "REVOKE READ ONLY ADMIN ON *.* FROM baton_probe@'127.0.0.1'"},
		{"MYSQL_ADMIN_GRANTS", w.a, "REVOKE PROCESS ON *.* FROM baton_admin@'127.0.0.1'", "GRANT PROCESS ON *.* TO baton_admin@'127.0.0.1'"},
		{"MYSQL_LOGIN", w.a, "ALTER USER baton_probe@'127.0.0.1' IDENTIFIED BY 'other'", "ALTER USER baton_probe@'127.0.0.1' IDENTIFIED BY 'probe'"},
		{"MYSQL_LOGIN", w.a, "ALTER USER baton_admin@'127.0.0.1' IDENTIFIED BY 'other'", "ALTER USER baton_admin@'127.0.0.1' IDENTIFIED BY 'admin'"},
		{"MYSQL_EVENT_PASSES_READ_ONLY", w.a, "CREATE DEFINER = root@localhost EVENT bank.nightly ON SCHEDULE EVERY 1 DAY DO SET @x = 1", "DROP EVENT bank.nightly"},
		{"MYSQL_BATON_SCHEMA", w.a, "RENAME TABLE baton.heartbeat TO baton.other", "RENAME TABLE baton.other TO baton.heartbeat"},
		{"MYSQL_REPLICATION_FILTER", w.b, "STOP SLAVE; SET GLOBAL replicate_do_db = 'bank'; START SLAVE", "STOP SLAVE; SET GLOBAL replicate_do_db = ''; START SLAVE"},
		{"MYSQL_REPLICATION_DELAY", w.b, "STOP SLAVE; CHANGE MASTER TO MASTER_DELAY = 3600; START SLAVE", "STOP SLAVE; CHANGE MASTER TO MASTER_DELAY = 0; START SLAVE"},
		{"MYSQL_REPLICATION_BROKEN", w.b, "STOP SLAVE SQL_THREAD", "START SLAVE"},
		{"MYSQL_GTID", w.b, "STOP SLAVE; CHANGE MASTER TO MASTER_USE_GTID = no; START SLAVE", "STOP SLAVE; CHANGE MASTER TO MASTER_USE_GTID = slave_pos; START SLAVE"},
	} {
		root(t, tc.at, "SET SESSION sql_log_bin = 0; "+tc.harm)
		if got := w.found(t); !slices.Contains(got, tc.code) {
			t.Errorf("%s: found %q, want %s", tc.harm, got, tc.code)
		}
		root(t, tc.at, "SET SESSION sql_log_bin = 0; "+tc.mend)
		eventually(t, "all is well again after "+tc.mend, func() bool { return len(w.found(t)) == 0 })
	}
}

// TestReadOnlyOrigin: what the server itself says of its my.cnf.
func TestReadOnlyOrigin(t *testing.T) {
	w := newWorld(t)
	if got := w.instance(t, w.b).Origin["read_only"]; got != OriginFile {
		t.Errorf("read_only of the standby comes from %q, want %q: its command line has it", got, OriginFile)
	}
	if got := w.instance(t, w.a).Origin["read_only"]; got != OriginRuntime {
		t.Errorf("read_only of the active comes from %q, want %q", got, OriginRuntime)
	}
	if err := w.b.Stop(); err != nil {
		t.Fatal(err)
	}
	if got := w.found(t); !slices.Contains(got, "MYSQL_UNREACHABLE") {
		t.Errorf("a stopped server: %q", got)
	}
}

// TestRealMycat looks through the stand-in: once it leads where it should, once to the other site's server.
func TestRealMycat(t *testing.T) {
	w := newWorld(t)
	logger := slog.New(slog.DiscardHandler)
	serve := func(behind *mysqltest.Instance) cluster.Mycat {
		srv, err := standin.New(standin.Config{
			Bind: "127.0.0.1", ServerPort: -1, ManagerPort: -1, Executors: 4,
			Users: []standin.User{{Name: "baton", Password: "pw"}}, Schemas: []standin.Schema{{Name: "bank", DataNode: "dn1"}},
			DataHosts: []standin.DataHost{{Name: "dh1", WriteHosts: []standin.WriteHost{
				{Name: "hostM1", Addr: behind.Addr.String(), User: "mycat", Password: "mycat"},
				{Name: "hostM2", Addr: w.b.Addr.String(), User: "mycat", Password: "mycat"},
			}}},
			DataNodes: []standin.DataNode{{Name: "dn1", Host: "dh1", Database: "bank"}},
		}, logger)
		if err != nil {
			t.Fatal(err)
		}
		run(t, srv.Run)
		<-srv.Ready()
		sql, admin := srv.Addrs()
		return cluster.Mycat{SQL: sql, Admin: admin, Schema: "bank", DataNodes: map[cluster.ShardName]string{"s1": "dn1"}}
	}
	w.cfg.Mycat.Account = config.Account{User: "baton", Password: config.NewSecret("pw")}
	look := func(m cluster.Mycat) []string {
		site := w.cfg.Cluster.Sites[0]
		site.Mycat = m
		seen := Outside(w.cfg, logger).Mycat(t.Context(), site)
		seen.Site = "a"
		in := input{cfg: w.cfg, facts: Facts{Mycats: []Mycat{seen}, Instances: []Instance{w.instance(t, w.a)}}}
		var fs []Finding
		for _, check := range slices.Concat(mycatChecks, accountChecks) {
			fs = append(fs, check(in)...)
		}
		return codes(fs)
	}
	right, wrong := serve(w.a), serve(w.b)
	if got := look(right); !slices.Contains(got, "MYCAT_WRITE_HOSTS") || slices.Contains(got, "MYCAT_DATANODE_WRONG") || slices.Contains(got, "MYCAT_DATANODE_FAILS") {
		t.Errorf("a Mycat with two writeHosts: %q", got)
	}
	if got := look(wrong); !slices.Contains(got, "MYCAT_DATANODE_WRONG") {
		t.Errorf("a Mycat that leads to the other server: %q", got)
	}
	root(t, w.a, "GRANT READ ONLY ADMIN ON *.* TO mycat@'127.0.0.1'")
	if got := look(right); !slices.Contains(got, "MYSQL_BACKEND_PASSES_READ_ONLY") {
		t.Errorf("Mycat's account passes read_only: %q", got)
	}
	w.cfg.Mycat.Password = config.NewSecret("wrong")
	if got := look(right); !slices.Contains(got, "MYCAT_LOGIN") || !slices.Contains(got, "MYCAT_ADMIN_LOGIN") {
		t.Errorf("a wrong password: %q", got)
	}
}

// run starts something that blocks, and ends it with the test.
func run(t *testing.T, what func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var ended sync.WaitGroup
	ended.Go(func() { _ = what(ctx) }) // the test's own checks say what was wrong
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// TestRealEtcd looks at an etcd that does not run, that runs, and that a daemon publishes in.
func TestRealEtcd(t *testing.T) {
	client, peer := freeAddr(t), freeAddr(t)
	cfg := parse(t, bank)
	cfg.Etcd.TLS, cfg.Etcd.Endpoints, cfg.Profile = config.TLS{}, []string{"http://" + client}, cluster.Fast()
	cfg.Etcd.Election = 300 * time.Millisecond
	logger := slog.New(slog.DiscardHandler)
	look := func() []string {
		in := input{cfg: cfg, facts: Facts{Etcd: Outside(cfg, logger).Etcd(t.Context())}}
		var fs []Finding
		for _, check := range slices.Concat(etcdChecks, networkChecks) {
			fs = append(fs, check(in)...)
		}
		return codes(slices.DeleteFunc(fs, func(f Finding) bool { return f.Code == etcdSlow.code })) // a busy machine
	}
	if got := look(); !slices.Equal(got, []string{"ETCD_NOT_STARTED"}) {
		t.Errorf("no etcd runs: %q", got)
	}
	m := member.New(member.Config{Name: "mc-a", Dir: t.TempDir(), ClientAddr: client, PeerAddr: peer, Cluster: map[string]string{"mc-a": peer}, TickMS: 30, ElectionMS: 300})
	ready := make(chan struct{})
	run(t, func(ctx context.Context) error { return m.Run(ctx, func() { close(ready) }) })
	<-ready
	if got := look(); !slices.Equal(got, []string{"ETCD_NO_ASSIGNMENT"}) {
		t.Errorf("an empty etcd: %q", got)
	}
	kv, err := dcs.NewEtcd(dcs.Config{Endpoints: cfg.Etcd.Endpoints, AttemptTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kv.Close() })
	keys := dcs.KeysOf("bank")
	put := func(key, value string) {
		if _, err := kv.Txn(context.WithoutCancel(t.Context()), nil, []dcs.Op{{Kind: dcs.Put, Key: key, Value: []byte(value)}}, nil); err != nil {
			t.Error(err)
		}
	}
	put(keys.Assignment(), `{"epoch":1,"site":"a","phase":"serving"}`)
	put(keys.Holder(), "no document")
	put(keys.Observer("mc-b"), `{"node":"mc-b","seq":1}`)
	run(t, func(ctx context.Context) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				put(keys.Observer("mc-a"), fmt.Sprintf(`{"node":"mc-a","seq":%d}`, n))
			}
		}
	})
	eventually(t, "the two silent nodes are found", func() bool {
		return slices.Equal(look(), []string{"ETCD_BAD_DOCUMENT", "NODE_SILENT", "NODE_SILENT"})
	})
}

// TestRealHost looks at the box that the test runs in: root, with one interface, and nobody who has the VIP.
func TestRealHost(t *testing.T) {
	cfg := parse(t, bank)
	cfg.StateDir = t.TempDir()
	h := Outside(cfg, slog.New(slog.DiscardHandler)).Host(t.Context(), "eth0")
	t.Logf("%+v", h)
	if len(h.Missing) > 0 || h.TimeOffset != "" || len(h.Errs) > 0 || h.GateErr != nil || h.Keepalived.Err != nil || h.VIP.Err != nil {
		t.Errorf("a root's box: %+v", h)
	}
	if !h.Interface.Up || !h.Interface.Ethernet || !slices.Contains(h.Interface.Prefixes, netip.MustParsePrefix("10.77.0.11/24")) {
		t.Errorf("eth0: %+v", h.Interface)
	}
	if h.VIP.Here || h.VIP.MAC != "" || len(h.Sysctl) != 3 {
		t.Errorf("nobody has the VIP: %+v, %v", h.VIP, h.Sysctl)
	}
	if out, err := exec.Command("ip", "addr", "add", "10.77.0.100/32", "dev", "eth0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if h := Outside(cfg, slog.New(slog.DiscardHandler)).Host(t.Context(), "eth0"); !h.VIP.Here || !h.VIP.Forever {
		t.Errorf("a static VIP: %+v", h.VIP)
	}
	if h := Outside(cfg, slog.New(slog.DiscardHandler)).Host(t.Context(), "eth9"); h.Interface.Err == nil {
		t.Error("eth9 is there")
	}
}

// writer gives a directory, and a function that writes files into it.
func writer(t *testing.T) (dir string, write func(name, text string) string) {
	t.Helper()
	dir = t.TempDir()
	return dir, func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

// TestKernelFiles reads what /proc would say.
func TestKernelFiles(t *testing.T) {
	dir, write := writer(t)
	for status, want := range map[string]string{
		"CapEff:\t000001ffffffffff\n": "", "CapEff:\t0000000000003000\n": "CAP_KILL CAP_BPF", "CapEff:\t0000000000203020\n": "", "CapEff:\t0\n": "CAP_KILL CAP_NET_ADMIN CAP_NET_RAW CAP_BPF",
	} {
		got, err := missingCapabilities(write("status", "Name:\tbaton\n"+status+"CapBnd:\t0\n"))
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %v, want %q", status, got, err, want)
		}
	}
	if _, err := missingCapabilities(write("status", "Name:\tbaton\n")); err == nil {
		t.Error("no CapEff is no error")
	}
	if got, err := timeOffset(write("timens", "monotonic           0         0\nboottime         1000         0\n")); err != nil || got != "boottime is shifted by 1000 s 0 ns" {
		t.Errorf("time namespace: %q, %v", got, err)
	}
	if got, err := timeOffset(filepath.Join(dir, "absent")); err != nil || got != "" {
		t.Errorf("no time namespaces: %q, %v", got, err)
	}
	write("proc/7/comm", "chronyd\n")
	write("proc/7/cmdline", "/usr/sbin/chronyd\x00")
	for text, silent := range map[string]bool{"pool example\n": false, "maxslewrate 10000\n": true, "MaxSlewRate 500\n": true, "maxslewrate 20000\n": false} {
		if got := clockRate(filepath.Join(dir, "proc"), filepath.Join(dir, "absent"), write("chrony.conf", text)); (got == "") != silent {
			t.Errorf("chrony with %q: %q", text, got)
		}
	}
	if got := clockRate(filepath.Join(dir, "absent")); got != "" {
		t.Errorf("no chronyd: %q", got)
	}
}

// TestOtherBinders reads configurations that name the VIP, or another address that begins like it.
func TestOtherBinders(t *testing.T) {
	dir, write := writer(t)
	address := netip.MustParseAddr("10.77.0.10")
	other := write("k/other.conf", "virtual_ipaddress {\n  10.77.0.10/24 dev eth0\n}\n")
	ours := write("state/keepalived.conf", "10.77.0.10/32\n")
	write("proc/8/comm", "keepalived\n")
	write("proc/8/cmdline", "keepalived\x00-f\x00"+other+"\x00")
	write("proc/9/comm", "keepalived\n")
	write("proc/9/cmdline", "keepalived\x00--use-file="+ours+"\x00")
	if got := otherBinders(filepath.Join(dir, "proc"), address, filepath.Join(dir, "state")); !slices.Equal(got, []string{other}) {
		t.Errorf("other keepalived: %q", got)
	}
	for text, want := range map[string]bool{
		"10.77.0.100/24": false, "110.77.0.10": false, "# 10.77.0.10": false, "! 10.77.0.10": false, "address 10.77.0.10\n": true, "- 10.77.0.10/32": true,
	} {
		if got := names(write("n", text), address); got != want {
			t.Errorf("%q names %s: %v", text, address, got)
		}
	}
	if got := naming([]string{filepath.Join(dir, "k", "*")}, address); !slices.Equal(got, []string{other}) {
		t.Errorf("network files: %q", got)
	}
}

// TestMycatFiles reads schema.xml and server.xml where their paths are given.
func TestMycatFiles(t *testing.T) {
	dir := t.TempDir()
	cfg := parse(t, bank)
	cfg.Mycat.SchemaXML, cfg.Mycat.ServerXML = filepath.Join(dir, "schema.xml"), filepath.Join(dir, "server.xml")
	w := Outside(cfg, slog.New(slog.DiscardHandler))
	if got := codes(w.Lint(t.Context())); !slices.Equal(got, []string{"MYCAT_FILE", "MYCAT_FILE"}) {
		t.Errorf("files that are not there: %q", got)
	}
	for name, text := range map[string]string{
		"schema.xml": `<mycat:schema xmlns:mycat="http://io.mycat/"><dataHost name="dh1" switchType="1" notSwitch="1" writeType="0"><writeHost host="h1" url="10.77.0.31:3306" user="mycat"/></dataHost></mycat:schema>`,
		"server.xml": `<mycat:server xmlns:mycat="http://io.mycat/"><system><property name="processorExecutor">64</property></system></mycat:server>`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := codes(w.Lint(t.Context()))
	if !slices.Contains(got, "MYCAT_SWITCH_TYPE") || !slices.Contains(got, "MYCAT_USER") || slices.Contains(got, "MYCAT_FILE") {
		t.Errorf("files with two mistakes: %q", got)
	}
	cfg.Node = "witness"
	if got := Outside(cfg, slog.New(slog.DiscardHandler)).Lint(t.Context()); got != nil {
		t.Errorf("a witness has no Mycat: %+v", got)
	}
}

// TestDial: a refused connection is an answer, a silent host is none.
func TestDial(t *testing.T) {
	w := Outside(parse(t, bank), slog.New(slog.DiscardHandler))
	if err := w.Dial(t.Context(), netip.MustParseAddrPort(freeAddr(t))); err != nil {
		t.Errorf("refused: %v", err)
	}
	if err := w.Dial(t.Context(), netip.MustParseAddrPort("10.77.0.77:8066")); err == nil {
		t.Error("a host that is not there answers")
	}
}

// TestWholeRun is the real thing once, on a host where nothing runs: it ends, and says so.
func TestWholeRun(t *testing.T) {
	cfg := parse(t, bank)
	cfg.Etcd.TLS = config.TLS{}
	r := Run(t.Context(), cfg, Outside(cfg, slog.New(slog.DiscardHandler)))
	seen := map[string]bool{}
	for _, f := range r.Findings {
		seen[f.Code] = true
	}
	for _, want := range []string{"ETCD_UNAVAILABLE", "MYSQL_UNREACHABLE", "MYCAT_LOGIN", "NODE_UNREACHABLE"} {
		if !seen[want] {
			t.Errorf("nothing runs, and %s is not among %q", want, slices.Sorted(maps.Keys(seen)))
		}
	}
	if r.ExitCode() != 2 {
		t.Errorf("exit code %d", r.ExitCode())
	}
	if err := r.Render(io.Discard); err != nil {
		t.Error(err)
	}
}
