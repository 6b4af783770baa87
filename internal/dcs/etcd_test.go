package dcs_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// attempt is short, so that a test of a silent endpoint is, and longer than a stall of a busy machine with the election that follows.
const attempt = 2 * time.Second

func TestNoEndpoints(t *testing.T) {
	if _, err := dcs.NewEtcd(dcs.Config{}); err == nil {
		t.Error("a client without endpoints was made")
	}
}

// TestMemberStops: the preferred member goes; the next write goes elsewhere by itself, and stays there.
func TestMemberStops(t *testing.T) {
	c := startCluster(t, 3)
	kv := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt})
	run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)
	equal(t, "endpoint", kv.Endpoint(), c.nodes[0].cfg.ClientAddr)

	c.nodes[0].stop(t)
	eventually(t, "a write succeeds elsewhere", func() bool {
		_, err := kv.Txn(within(t, generous), nil, []dcs.Op{put("/a", "2")}, nil)
		if err != nil && !errors.Is(err, dcs.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		return err == nil
	})
	moved := kv.Endpoint()
	if moved == c.nodes[0].cfg.ClientAddr {
		t.Errorf("still prefers %s, which is down", moved)
	}
	receive(t, c.nodes[0].start(t), "the member is back")
	run(t, kv, nil, []dcs.Op{put("/a", "3")}, nil)
	equal(t, "success sticks", kv.Endpoint(), moved)
}

// TestRefused: what certainly was not sent is tried elsewhere within the same call, a write too.
func TestRefused(t *testing.T) {
	c := startCluster(t, 1)
	closed := freePorts(t, 1)[0]
	kv := connect(t, dcs.Config{Endpoints: []string{closed, c.endpoints()[0]}, AttemptTimeout: attempt})
	run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)

	alone := connect(t, dcs.Config{Endpoints: []string{closed}, AttemptTimeout: attempt})
	_, err := alone.Txn(within(t, 300*time.Millisecond), nil, []dcs.Op{put("/a", "2")}, nil)
	for _, want := range []error{dcs.ErrUnavailable, syscall.ECONNREFUSED, errTestOver} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want it to say: %v", err, want)
		}
	}
}

// TestNeverConnects: a listener that accepts and says nothing, as a frozen process does: nothing was sent, so a write moves on.
func TestNeverConnects(t *testing.T) {
	c := startCluster(t, 1)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	kv := connect(t, dcs.Config{Endpoints: []string{dead.Addr().String(), c.endpoints()[0]}, AttemptTimeout: attempt})
	run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)
	equal(t, "endpoint", kv.Endpoint(), c.endpoints()[0])
}

// TestStall: an endpoint falls silent with the connection open. A write is not sent again, a read is.
func TestStall(t *testing.T) {
	c := startCluster(t, 1)
	p := startProxy(t, c.endpoints()[0])
	direct := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt})
	for name, tc := range map[string]struct {
		stall   func(bool)
		applied bool
	}{
		"request is lost": {p.stall, false},
		"answer is lost":  {p.down.shut, true},
	} {
		t.Run(name, func(t *testing.T) {
			kv := connect(t, dcs.Config{Endpoints: []string{p.addr(), c.endpoints()[0]}, AttemptTimeout: attempt})
			run(t, kv, nil, []dcs.Op{{Kind: dcs.Delete, Key: "/stall"}}, nil)
			tc.stall(true)
			t.Cleanup(func() {
				p.cut() // what is held back must not arrive in the next case
				tc.stall(false)
			})
			_, err := kv.Txn(within(t, generous), nil, []dcs.Op{put("/stall", "1")}, nil)
			if !errors.Is(err, dcs.ErrUnknownOutcome) {
				t.Fatalf("write: got %v, want ErrUnknownOutcome", err)
			}
			got := run(t, direct, nil, []dcs.Op{get("/stall")}, nil).Reads[0]
			equal(t, "applied", len(got) == 1, tc.applied)
			equal(t, "moved on", kv.Endpoint(), c.endpoints()[0])
			run(t, kv, nil, []dcs.Op{put("/stall", "2")}, nil)
		})
	}
	t.Run("read moves on", func(t *testing.T) {
		kv := connect(t, dcs.Config{Endpoints: []string{p.addr(), c.endpoints()[0]}, AttemptTimeout: attempt})
		run(t, kv, nil, []dcs.Op{get("/stall")}, nil)
		p.stall(true)
		defer p.stall(false)
		run(t, kv, nil, []dcs.Op{get("/stall")}, []dcs.Op{getPrefix("/")})
		equal(t, "moved on", kv.Endpoint(), c.endpoints()[0])
	})
}

// watchTo runs a watch in the background.
func watchTo(t *testing.T, kv dcs.KV, prefix string, after int64, silence time.Duration) (<-chan dcs.Item, <-chan error) {
	items, ended := make(chan dcs.Item, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- kv.Watch(ctx, prefix, after, silence, func(b dcs.Batch) {
			for _, i := range b.Items {
				items <- i
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		receive(t, done, "the watch ends")
	})
	return items, ended
}

// TestWatchLost: a watch that falls silent, or whose connection breaks, ends; the next one is opened elsewhere and misses nothing.
func TestWatchLost(t *testing.T) {
	c := startCluster(t, 1)
	for name, tc := range map[string]struct {
		silence time.Duration
		hurt    func(*proxy)
	}{
		"silent": {attempt, func(p *proxy) { p.stall(true) }},
		"broken": {0, func(p *proxy) { p.cut() }},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, c.endpoints()[0])
			kv := connect(t, dcs.Config{Endpoints: []string{p.addr(), c.endpoints()[0]}, AttemptTimeout: attempt})
			direct := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt})
			base := run(t, kv, nil, []dcs.Op{put("/w/a", "0")}, nil).Revision
			items, ended := watchTo(t, kv, "/w/", base, tc.silence)
			run(t, direct, nil, []dcs.Op{put("/w/a", "1")}, nil)
			receive(t, items, "the first change")

			tc.hurt(p)
			run(t, direct, nil, []dcs.Op{put("/w/a", "2")}, nil)
			if err := receive(t, ended, "the watch is lost"); !errors.Is(err, dcs.ErrWatchLost) {
				t.Fatalf("got %v, want ErrWatchLost", err)
			}
			equal(t, "moved on", kv.Endpoint(), c.endpoints()[0])
			items, _ = watchTo(t, kv, "/w/", base+1, tc.silence)
			equal(t, "what was missed", string(receive(t, items, "the missed change").Value), "2")
		})
	}
}

// TestFrozenMember freezes the process of the preferred member (SIGSTOP) and lets it go on.
func TestFrozenMember(t *testing.T) {
	c := prepare(t, 3)
	for _, n := range c.nodes {
		n.spawn(t)
	}
	kv := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt})
	awaitQuorum(t, connect(t, dcs.Config{Endpoints: c.endpoints()[:1], AttemptTimeout: attempt}))
	run(t, kv, nil, []dcs.Op{put("/a", "0")}, nil)
	frozen := kv.Endpoint()
	for _, n := range c.nodes {
		if n.cfg.ClientAddr == frozen {
			n.signal(t, syscall.SIGSTOP)
			defer n.signal(t, syscall.SIGCONT)
		}
	}
	if _, err := kv.Txn(within(t, generous), nil, []dcs.Op{put("/a", "1")}, nil); !errors.Is(err, dcs.ErrUnknownOutcome) {
		t.Fatalf("got %v, want ErrUnknownOutcome", err)
	}
	eventually(t, "writes go on elsewhere", func() bool {
		_, err := kv.Txn(within(t, generous), nil, []dcs.Op{put("/a", "2")}, nil)
		return err == nil
	})
	if kv.Endpoint() == frozen {
		t.Errorf("still prefers %s, which is frozen", frozen)
	}
	members, err := kv.Health(within(t, generous))
	if err != nil {
		t.Error(err)
	}
	for _, m := range members {
		equal(t, "frozen member answers", m.Err == nil, m.Endpoint != frozen)
	}
}

// TestMinority: two of three members die. The third answers TCP, but must neither take a write for done nor keep a watch alive.
func TestMinority(t *testing.T) {
	c := prepare(t, 3)
	for _, n := range c.nodes {
		n.spawn(t)
	}
	kv := connect(t, dcs.Config{Endpoints: c.endpoints()[:1], AttemptTimeout: attempt})
	awaitQuorum(t, kv)
	base := run(t, kv, nil, []dcs.Op{put("/a", "0")}, nil).Revision
	_, ended := watchTo(t, kv, "/a", base, 2*attempt)
	c.nodes[1].signal(t, syscall.SIGKILL)
	c.nodes[2].signal(t, syscall.SIGKILL)

	if err := receive(t, ended, "the watch is lost"); !errors.Is(err, dcs.ErrWatchLost) {
		t.Errorf("watch ended with %v, want ErrWatchLost", err)
	}
	eventually(t, "the member says that it has no leader", func() bool {
		_, err := kv.Txn(within(t, 3*attempt), nil, []dcs.Op{put("/a", "1")}, nil)
		if err == nil {
			t.Fatal("a write without quorum succeeded")
		}
		return errors.Is(err, dcs.ErrNoQuorum) && errors.Is(err, dcs.ErrUnavailable)
	})
	members, err := kv.Health(within(t, generous))
	if !errors.Is(err, dcs.ErrNoQuorum) {
		t.Errorf("health: got %v, want ErrNoQuorum", err)
	}
	if members[0].Err != nil || len(members[0].Alarms) != 0 {
		t.Errorf("the member that is left: %+v", members[0])
	}
}

// TestLeaderMoves: by client and by member; writes go on, and the members agree on who leads.
func TestLeaderMoves(t *testing.T) {
	c := startCluster(t, 3)
	kv := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: 5 * time.Second})
	for i, n := range c.nodes {
		if err := kv.MoveLeader(within(t, generous), n.member.ID()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it leads", n.member.LeaderIs)
		run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)
		members, err := kv.Health(within(t, generous))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "leader", members[i].Leader, true)
		equal(t, "version", members[i].Version[:2], "3.")

		next := c.nodes[(i+2)%3]
		if err := n.member.MoveLeader(within(t, generous), next.cfg.Name); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it leads", next.member.LeaderIs)
	}
	if err := c.nodes[0].member.MoveLeader(within(t, generous), "nobody"); err == nil {
		t.Error("leadership moved to a member that does not exist")
	}
}

// TestHistory is linearizability under faults, by a rule that needs no checker: one key, every write is a compare-and-swap from the
// version read to a value never used before. Each acknowledged write must appear in the watch's history, on top of the very version
// that it compared; one of unknown outcome may; one that failed otherwise must not.
func TestHistory(t *testing.T) {
	c := startCluster(t, 3)
	p := startProxy(t, c.endpoints()[0])
	watcher := connect(t, dcs.Config{Endpoints: c.endpoints()[1:], AttemptTimeout: attempt})
	base := run(t, watcher, nil, []dcs.Op{put("/h", "start")}, nil).Revision
	outcomes := &ledger{}
	var writing sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		kv := connect(t, dcs.Config{Endpoints: []string{p.addr(), c.endpoints()[1+w%2]}, AttemptTimeout: 100 * time.Millisecond})
		writing.Go(func() { outcomes.write(t, kv, "/h", w, stop) })
	}
	for i := range 6 {
		outcomes.await(t, 20*(i+1))
		switch i % 3 {
		case 0:
			p.cut()
		case 1:
			p.down.shut(i == 1)
		case 2:
			c.nodes[1+i/3].stop(t)
			receive(t, c.nodes[1+i/3].start(t), "the member is back")
		}
	}
	close(stop)
	writing.Wait()
	p.stall(false)
	last := run(t, watcher, nil, []dcs.Op{get("/h")}, nil).Reads[0][0]
	var history []dcs.Item
	items, _ := watchTo(t, watcher, "/h", base-1, 0)
	for len(history) == 0 || history[len(history)-1].Mod < last.Mod {
		history = append(history, receive(t, items, "the whole history"))
	}
	outcomes.check(t, history)
}
