package probe

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lab/standin"
)

// proxy is a stand-in for Mycat before two real servers.
type proxy struct {
	t          *testing.T
	backends   [2]*server
	sql, admin netip.AddrPort
	control    string
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{t: t, control: filepath.Join(t.TempDir(), "control")}
	cfg := standin.Config{
		Bind: "127.0.0.1", ServerPort: -1, ManagerPort: -1, Control: p.control, Executors: 64,
		Users:   []standin.User{{Name: "baton", Password: "secret"}},
		Schemas: []standin.Schema{{Name: "bank", DataNode: "dn1"}},
	}
	for i := range p.backends {
		p.backends[i] = newServer(t)
		host, node := fmt.Sprintf("dh%d", i+1), fmt.Sprintf("dn%d", i+1)
		cfg.DataHosts = append(cfg.DataHosts, standin.DataHost{Name: host, SwitchType: -1, WriteHosts: []standin.WriteHost{
			{Name: "hostM" + node, Addr: p.backends[i].addr.String(), User: "mycat", Password: "mycat"},
		}})
		cfg.DataNodes = append(cfg.DataNodes, standin.DataNode{Name: node, Host: host, Database: "bank"})
	}
	srv, err := standin.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-srv.Ready():
	case <-done:
		t.Fatal("the stand-in ended")
	}
	p.sql, p.admin = srv.Addrs()
	return p
}

// cluster is one site behind the stand-in; its VIP is the stand-in's own address.
func (p *proxy) cluster() cluster.Cluster {
	site := cluster.Site{
		Name: "a", Node: "mc-a",
		Mycat:     cluster.Mycat{SQL: p.sql, Admin: p.admin, Schema: "bank", DataNodes: map[cluster.ShardName]string{"s1": "dn1", "s2": "dn2"}},
		Instances: []cluster.Instance{{Shard: "s1", Addr: p.backends[0].addr}, {Shard: "s2", Addr: p.backends[1].addr}},
	}
	return cluster.Cluster{Name: "bank", VIP: cluster.VIP{Addr: p.sql.Addr(), Port: p.sql.Port()}, Sites: []cluster.Site{site}, Shards: []cluster.ShardName{"s1", "s2"}}
}

func (p *proxy) probes(node cluster.NodeName) map[string]*Probe {
	p.t.Helper()
	ps, wires, err := All(Config{
		Cluster: p.cluster(), Node: node, MySQL: Account{"baton_probe", "probe"}, Mycat: Account{"baton", "secret"}, Timeout: time.Second, Stale: time.Minute,
	})
	if err != nil || len(wires) != 3 {
		p.t.Fatalf("%d tripwires: %v", len(wires), err)
	}
	out := map[string]*Probe{}
	for _, pr := range ps {
		out[pr.Targets[0].String()+" "+string(pr.Factor)] = pr
		if pr.Close != nil {
			p.t.Cleanup(pr.Close)
		}
	}
	return out
}

func (p *proxy) fault(command string) {
	p.t.Helper()
	if err := standin.Fault(p.t.Context(), p.control, command); err != nil {
		p.t.Fatal(err)
	}
}

// see looks once and compares the causes of the samples, "s1 ok, s2 timeout".
func see(t *testing.T, p *Probe, m Mode, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lifeOf(want))
	defer cancel()
	var got, details []string
	for _, s := range p.Do(ctx, m) {
		got = append(got, strings.TrimSpace(string(s.Target.Shard)+" "+s.Cause.String()))
		details = append(details, s.Detail)
	}
	if g := strings.Join(got, ", "); g != want {
		t.Errorf("%s %s: %q, want %q: %q", p.Targets[0], p.Factor, g, want, details)
	}
}

func TestMycat(t *testing.T) {
	p := newProxy(t)
	ps := p.probes("witness")
	port, admin, path := ps["mycat a port"], ps["mycat a heartbeat"], ps["site a/s1 vip"]
	s1, s2 := ps["mycat a/s1 sql"], ps["mycat a/s2 sql"]

	if _, own := p.probes("mc-a")["site a/s1 vip"]; own {
		t.Error("the VIP's own host probes it")
	}
	see(t, port, writing, "ok")
	see(t, admin, writing, "ok")
	see(t, s1, Mode{}, "s1 ok")
	see(t, s2, Mode{Anew: true, Write: writing.Write}, "s2 ok")
	see(t, path, writing, "s2 ok")
	see(t, path, writing, "s1 ok")
	see(t, path, Mode{Anew: true, Write: writing.Write}, "s2 ok, s1 ok")
	for i, b := range p.backends {
		if n := b.must("SELECT count(*) FROM baton.heartbeat WHERE observer='witness@mycat'"); n != "1" {
			t.Errorf("backend %d has %s rows of the probe", i, n)
		}
	}

	p.backends[0].must("SET GLOBAL read_only=1")
	see(t, s1, Mode{Anew: true, Write: writing.Write}, "s1 role")
	see(t, s1, Mode{}, "s1 ok")
	p.backends[0].must("SET GLOBAL read_only=0")

	// One backend hangs: that shard hangs. After the back-off began it is left alone, unless it is a recheck.
	p.backends[1].signal(syscall.SIGSTOP)
	for range hungFree {
		see(t, s2, Mode{}, "s2 timeout")
	}
	see(t, s2, Mode{}, "s2 pending")
	see(t, s1, Mode{}, "s1 ok")
	see(t, s2, Mode{Anew: true}, "s2 timeout")
	p.backends[1].signal(syscall.SIGCONT)
	p.backends[1].eventually("the shard is back", func() bool { return s2.Do(t.Context(), Mode{Anew: true})[0].Cause == health.OK })

	p.backends[1].kill()
	p.backends[1].eventually("the backend is down", func() bool { return s2.Do(t.Context(), Mode{})[0].Cause == health.BackendDown })
	p.fault("pool-exhausted dn1 on")
	see(t, s1, Mode{}, "s1 pool-exhausted")
	p.fault("clear")

	p.fault("accept-only on")
	see(t, port, writing, "no-greeting")
	see(t, path, writing, "s1 no-greeting, s2 no-greeting")
	p.fault("clear")
	p.fault("starve on")
	see(t, port, writing, "ok") // what a port probe, and COM_PING, call well
	see(t, s1, Mode{}, "s1 timeout")
	p.fault("clear")
}

func TestMycatOurSideIsWrong(t *testing.T) {
	p := newProxy(t)
	c := p.cluster()
	c.Sites[0].Mycat.DataNodes["s2"] = "dn9"
	ps, _, err := All(Config{Cluster: c, Node: "w", Mycat: Account{"baton", "secret"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, pr := range ps {
		if pr.Targets[0].Kind == health.Mycat && pr.Targets[0].Shard == "s2" {
			see(t, pr, Mode{}, "s2 config")
		}
	}
	if _, _, err := All(Config{Cluster: c}); err == nil {
		t.Error("an account without a name is accepted")
	}
}
