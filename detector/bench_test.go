package detector

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
)

// serversEnv makes this test binary the servers of BenchmarkObserver, so that their processor time is not the observer's.
const serversEnv = "BATON_BENCH_SERVERS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(serversEnv)); err == nil {
		serve(n)
		return
	}
	os.Exit(m.Run())
}

// serve is n servers on loopback; their ports are printed, a line each. It ends with its standard input.
func serve(n int) {
	p := newPipes()
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			fmt.Println(err)
			return
		}
		addr, _ := netip.ParseAddrPort(l.Addr().String()) //nolint:errcheck // the listener's own address
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go p.serve(c, addr)
			}
		}()
		fmt.Println(addr)
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// BenchmarkObserver is one observer of 1,000 MySQL at a beat of 200 ms: 500 shards of two sites, each by its port, its heartbeat and its
// business SQL, and each data node through Mycat. An iteration is a beat; DESIGN 8 wants it under one core. What it prints: cores, and
// the processor time for a MySQL and beat with all that belongs to it. Run it with -benchtime 100x.
func BenchmarkObserver(b *testing.B) {
	for _, shards := range []int{50, 250, 500} {
		b.Run(fmt.Sprintf("%d targets", 2*shards), func(b *testing.B) { observe(b, shards) })
	}
}

func observe(b *testing.B, shards int) {
	addrs := startServers(b, 2*shards+2)
	c := cluster.Cluster{Name: "bank", Nodes: []cluster.Node{{Name: "w"}}, VIP: cluster.VIP{Addr: addrs[0].Addr(), Port: addrs[0].Port()}}
	sit := Situation{Assignment: cluster.Assignment{Epoch: 1, Site: "a", Phase: cluster.Serving, Shards: map[cluster.ShardName]cluster.SiteName{}}, Holder: cluster.Holder{Site: "a"}}
	for i := range shards {
		name := cluster.ShardName(fmt.Sprintf("s%d", i))
		c.Shards, sit.Assignment.Shards[name] = append(c.Shards, name), "a"
	}
	for i, name := range []cluster.SiteName{"a", "b"} {
		s := cluster.Site{Name: name, Node: cluster.NodeName("mc-" + name), Mycat: cluster.Mycat{SQL: addrs[i], Admin: addrs[i], Schema: "bank", DataNodes: map[cluster.ShardName]string{}}}
		for j, shard := range c.Shards {
			s.Mycat.DataNodes[shard] = fmt.Sprintf("dn%d", j)
			s.Instances = append(s.Instances, cluster.Instance{Shard: shard, Addr: addrs[2+i*shards+j]})
		}
		c.Sites = append(c.Sites, s)
	}
	p := cluster.Fast()
	p.Interval = 200 * time.Millisecond
	d, err := New(Config{
		Cluster: c, Profile: p, Node: "w", Rule: accumulator.Fast(), Scope: health.ScopeTarget, MySQLFailures: 1, Stall: health.StallFast,
		Situation: func() Situation {
			s := sit
			s.ReadAt, s.Renewed = time.Now(), time.Now()
			return s
		},
		Publish: func(context.Context, health.Report) error { return nil },
		Log:     slog.New(slog.DiscardHandler), Probe: probe.Config{MySQL: probe.Account{User: "p"}, Mycat: probe.Account{User: "m"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	<-time.After(10 * p.Interval) // connections are made and everything has been looked at
	began, cpu := time.Now(), processor(b)
	for b.Loop() {
		<-time.After(p.Interval)
	}
	spent, took := processor(b)-cpu, time.Since(began)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(spent.Seconds()/took.Seconds(), "cores")
	b.ReportMetric(float64(spent.Microseconds())/(took.Seconds()/p.Interval.Seconds())/float64(2*shards), "cpu-us/target")
	b.ReportMetric(float64(m.HeapInuse)/(1<<20), "heap-MB")
	var fresh, all int
	for _, v := range d.View().Sites {
		for _, t := range v.Targets {
			if t.Factor == health.VIP { // one shard in turn: of hundreds most are unknown at any moment, by design
				continue
			}
			all++
			if t.State == health.Up {
				fresh++
			}
		}
	}
	b.ReportMetric(100*float64(fresh)/float64(all), "%up") // less than 100: this machine did not keep up, and the rest is to be read with that
}

// startServers runs n servers in a process of their own.
func startServers(b *testing.B, n int) []netip.AddrPort {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), self)
	cmd.Env = append(os.Environ(), serversEnv+"="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	addrs := make([]netip.AddrPort, 0, n)
	for s := bufio.NewScanner(out); len(addrs) < n && s.Scan(); {
		a, err := netip.ParseAddrPort(s.Text())
		if err != nil {
			b.Fatalf("servers: %s", s.Text())
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// processor is the time that this process has used of the processors.
func processor(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
