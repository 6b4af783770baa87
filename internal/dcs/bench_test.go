package dcs_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// quantiles reports p50, p99 and the maximum in milliseconds.
func quantiles(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	at := func(q float64) float64 {
		return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.50), what+"-p50-ms")
	b.ReportMetric(at(0.99), what+"-p99-ms")
	b.ReportMetric(at(1), what+"-max-ms")
}

// BenchmarkReady is three members in one process, from the start to the last one's readiness, and their stop one after the other.
func BenchmarkReady(b *testing.B) {
	var ready, stop []time.Duration
	for b.Loop() {
		begin := time.Now()
		c := startCluster(b, 3)
		ready = append(ready, time.Since(begin))
		for _, n := range c.nodes {
			begin = time.Now()
			n.stop(b)
			stop = append(stop, time.Since(begin))
		}
	}
	quantiles(b, "ready", ready)
	quantiles(b, "stop", stop)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTxn is one transaction after the other on three members in this process, data in memory.
func BenchmarkTxn(b *testing.B) {
	c := startCluster(b, 3)
	for name, ops := range map[string][]dcs.Op{"put": {put("/a", "0123456789abcdef")}, "get": {get("/a")}} {
		b.Run(name, func(b *testing.B) {
			kv := connect(b, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: time.Second})
			run(b, kv, nil, ops, nil)
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				run(b, kv, nil, ops, nil)
				took = append(took, time.Since(begin))
			}
			quantiles(b, "txn", took)
		})
	}
}

// BenchmarkWatch is from before a put to the receipt of its event at a client of another member.
func BenchmarkWatch(b *testing.B) {
	c := startCluster(b, 3)
	kv := connect(b, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: time.Second})
	other := connect(b, dcs.Config{Endpoints: c.endpoints()[1:], AttemptTimeout: time.Second})
	base := run(b, kv, nil, []dcs.Op{put("/a", "")}, nil).Revision
	received := make(chan time.Time)
	go func() {
		_ = other.Watch(within(b, time.Hour), "/a", base, 0, func(batch dcs.Batch) { received <- batch.Received })
	}()
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		run(b, kv, nil, []dcs.Op{put("/a", "0123456789abcdef")}, nil)
		took = append(took, receive(b, received, "the event").Sub(begin))
	}
	quantiles(b, "watch", took)
}

// BenchmarkLeaderGap is the time without an acknowledged write when the leader's process is killed (ticks 30/300 ms), for a client
// with a guard's deadlines at D = 1.5 s.
func BenchmarkLeaderGap(b *testing.B) {
	var gaps []time.Duration
	for b.Loop() {
		gaps = append(gaps, leaderGap(b))
	}
	quantiles(b, "gap", gaps)
	b.ReportMetric(0, "ns/op")
}

func leaderGap(b *testing.B) time.Duration {
	b.StopTimer()
	c := prepare(b, 3)
	for _, n := range c.nodes {
		n.spawn(b)
	}
	kv := connect(b, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: 1500 * time.Millisecond / 8})
	awaitQuorum(b, kv)
	var leader *node
	eventually(b, "all three answer and one leads", func() bool {
		members, err := kv.Health(within(b, time.Second))
		i := slices.IndexFunc(members, func(m dcs.MemberStatus) bool { return m.Leader })
		if err != nil || i < 0 || slices.ContainsFunc(members, func(m dcs.MemberStatus) bool { return m.Err != nil }) {
			return false
		}
		leader = c.nodes[i]
		return true
	})
	run(b, kv, nil, []dcs.Op{put("/gap", "")}, nil)
	b.StartTimer()
	begin := time.Now()
	leader.signal(b, syscall.SIGKILL)
	eventually(b, "a write succeeds", func() bool {
		_, err := kv.Txn(within(b, 1500*time.Millisecond/8), nil, []dcs.Op{put("/gap", "")}, nil)
		if err != nil && !errors.Is(err, dcs.ErrUnknownOutcome) && !errors.Is(err, dcs.ErrUnavailable) {
			b.Fatal(err)
		}
		return err == nil
	})
	return time.Since(begin)
}

// BenchmarkMirrorProve is one linearizable read of everything that a long-lived cluster keeps: 200 switches of 10 documents each.
func BenchmarkMirrorProve(b *testing.B) {
	c := startCluster(b, 3)
	kv := connect(b, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: 5 * time.Second})
	value := string(make([]byte, 500))
	for i := range 200 {
		var ops []dcs.Op
		for j := range 10 {
			ops = append(ops, put("/p/switch/"+string(rune('A'+i))+"/"+string(rune('a'+j)), value))
		}
		run(b, kv, nil, ops, nil)
	}
	m := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: "/p/"})
	for b.Loop() {
		if _, err := m.Refresh(within(b, generous)); err != nil {
			b.Fatal(err)
		}
	}
}
