package dcs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/dcs/member"
)

// memberEnv makes this test binary run one etcd member instead of the tests, so that it can be stopped and killed as a process.
const memberEnv = "BATON_TEST_MEMBER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(memberEnv); spec != "" {
		os.Exit(runMember(spec))
	}
	os.Exit(m.Run())
}

func runMember(spec string) int {
	var cfg member.Config
	if err := json.Unmarshal([]byte(spec), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := member.New(cfg).Run(ctx, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// node is one member of a test cluster: in this process, or as a child.
type node struct {
	cfg    member.Config
	member *member.Member
	cancel context.CancelFunc
	done   chan error
	child  *exec.Cmd
}

type etcdCluster struct {
	t     testing.TB
	nodes []*node
}

func (c *etcdCluster) endpoints() []string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.cfg.ClientAddr)
	}
	return out
}

// prepare lays out a cluster of n members on free ports of 127.0.0.1, with data in memory, at Baton's fast ticks.
func prepare(t testing.TB, n int) *etcdCluster {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "baton-dcs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &etcdCluster{t: t}
	peers := map[string]string{}
	ports := freePorts(t, 2*n)
	for i := range n {
		name := string(rune('a' + i))
		peers[name] = ports[2*i]
		c.nodes = append(c.nodes, &node{cfg: member.Config{
			Name: name, Dir: filepath.Join(dir, name), ClientAddr: ports[2*i+1], PeerAddr: ports[2*i],
			Cluster: peers, Token: t.Name(), TickMS: 30, ElectionMS: 300,
		}})
	}
	return c
}

// startCluster runs n members in this process and waits until all are ready.
func startCluster(t testing.TB, n int) *etcdCluster {
	t.Helper()
	c := prepare(t, n)
	c.start()
	return c
}

func (c *etcdCluster) start() {
	c.t.Helper()
	var ready []<-chan struct{}
	for _, node := range c.nodes {
		ready = append(ready, node.start(c.t))
	}
	c.t.Cleanup(func() { // all at once: each takes a second to close its peers' connections
		for _, node := range c.nodes {
			if node.cancel != nil {
				node.cancel()
			}
		}
	})
	for _, r := range ready {
		receive(c.t, r, "a member is ready")
	}
}

// start runs the member in this process; the channel closes when it is ready.
func (n *node) start(t testing.TB) <-chan struct{} {
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	n.member, n.cancel, n.done = member.New(n.cfg), cancel, make(chan error, 1)
	go func() { n.done <- n.member.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() { n.stop(t) })
	return ready
}

func (n *node) stop(t testing.TB) {
	if n.cancel == nil {
		return
	}
	n.cancel()
	n.cancel = nil
	if err := receive(t, n.done, "the member stops"); err != nil {
		t.Errorf("member %s: %v", n.cfg.Name, err)
	}
}

// spawn runs the member as a child process, which dies with this one; behind a command that ends in exec, if one is given.
func (n *node) spawn(t testing.TB, behind ...string) {
	t.Helper()
	spec, err := json.Marshal(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	command := append(slices.Clone(behind), os.Args[0])
	n.child = exec.Command(command[0], command[1:]...)
	n.child.Env = append(os.Environ(), memberEnv+"="+string(spec))
	n.child.Stderr = os.Stderr
	n.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.child.Start(); err != nil {
		t.Fatal(err)
	}
	child := n.child
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
}

func (n *node) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := n.child.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// connect returns a client of the endpoints, closed at the end of the test.
func connect(t testing.TB, cfg dcs.Config) *dcs.Etcd {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e, err := dcs.NewEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// awaitQuorum waits until a write succeeds.
func awaitQuorum(t testing.TB, kv dcs.KV) {
	t.Helper()
	eventually(t, "etcd accepts writes", func() bool {
		_, err := kv.Txn(within(t, time.Second), nil, []dcs.Op{put("/await", "x")}, nil)
		return err == nil
	})
}

func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

const generous = 30 * time.Second

var errTestOver = errors.New("the test's deadline is over")

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), d, errTestOver)
	t.Cleanup(cancel)
	return ctx
}

func receive[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	timer := time.NewTimer(generous)
	defer timer.Stop()
	select {
	case v = <-ch:
	case <-timer.C:
		t.Fatalf("waited for %v: %s", generous, what)
	}
	return v
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	over := within(t, generous)
	for !ok() {
		select {
		case <-over.Done():
			t.Fatalf("waited for %v: %s", generous, what)
		case <-ticker.C:
		}
	}
}

func put(key, value string) dcs.Op {
	return dcs.Op{Kind: dcs.Put, Key: key, Value: []byte(value)}
}

func get(key string) dcs.Op { return dcs.Op{Kind: dcs.Get, Key: key} }

func getPrefix(key string) dcs.Op { return dcs.Op{Kind: dcs.GetPrefix, Key: key} }
