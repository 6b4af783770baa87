package dcs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/baton-ha/baton/internal/dcs"
)

// store is one implementation under the conformance tests.
type store struct {
	kv      dcs.KV
	other   dcs.KV // a second client, preferring another member
	compact func(t *testing.T, revision int64)
}

// TestConformance holds Mem and etcd against the same contract. Each case has a prefix of its own.
func TestConformance(t *testing.T) {
	mem := dcs.NewMem()
	stores := map[string]store{
		"mem": {mem.Client("a"), mem.Client("b"), func(_ *testing.T, rev int64) { mem.Compact(rev) }},
		"etcd": func() store {
			c := startCluster(t, 3)
			ends := c.endpoints()
			kv := connect(t, dcs.Config{Endpoints: ends, AttemptTimeout: 5 * time.Second})
			other := connect(t, dcs.Config{Endpoints: []string{ends[1], ends[2], ends[0]}, AttemptTimeout: 5 * time.Second})
			return store{kv, other, func(t *testing.T, rev int64) { compactEtcd(t, ends[0], rev) }}
		}(),
	}
	cases := map[string]func(t *testing.T, s store, prefix string){
		"txn":           checkTxn,
		"reads":         checkReads,
		"deletes":       checkDeletes,
		"refusals":      checkRefusals,
		"fresh":         checkFresh,
		"watch":         checkWatchOrder,
		"watch resumes": checkWatchResumes,
		"watch quiet":   checkWatchQuiet,
		"compaction":    checkCompaction,
		"counter":       checkCounter,
		"cancelled":     checkCancelled,
		"mirror":        checkMirror,
	}
	for kind, s := range stores {
		for name, check := range cases {
			t.Run(kind+"/"+name, func(t *testing.T) { check(t, s, "/"+strings.ReplaceAll(name, " ", "-")+"/") })
		}
	}
}

func compactEtcd(t *testing.T, endpoint string, revision int64) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Compact(within(t, generous), revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// run is a transaction that must not fail.
func run(t testing.TB, kv dcs.KV, cmps []dcs.Cmp, then, els []dcs.Op) dcs.Result {
	t.Helper()
	res, err := kv.Txn(within(t, generous), cmps, then, els)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// show writes reads as "k=v@0 k=v@1": the revision counts from base, so that both stores show the same.
func show(items []dcs.Item, base int64) string {
	var out []string
	for _, i := range items {
		word := fmt.Sprintf("%s=%s@%d", i.Key[strings.LastIndex(i.Key, "/")+1:], i.Value, i.Mod-base)
		if i.Deleted {
			word = "-" + word
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func checkTxn(t *testing.T, s store, p string) {
	first := run(t, s.kv, []dcs.Cmp{{Key: p + "a"}}, []dcs.Op{put(p+"a", "1"), put(p+"b", "1")}, nil)
	base := first.Revision
	equal(t, "absent key", first.OK, true)

	again := run(t, s.other, []dcs.Cmp{{Key: p + "a"}}, []dcs.Op{put(p+"a", "2")}, []dcs.Op{get(p + "a"), get(p + "none")})
	equal(t, "present key", again.OK, false)
	equal(t, "else runs", show(again.Reads[0], base), "a=1@0")
	equal(t, "absent reads", len(again.Reads[1]), 0)
	equal(t, "a read makes no revision", again.Revision, base)

	both := []dcs.Cmp{{Key: p + "a", Mod: base}, {Key: p + "b", Mod: base}}
	swap := run(t, s.kv, both, []dcs.Op{put(p+"b", "2"), get(p + "b"), get(p + "a")}, nil)
	equal(t, "both compares hold", swap.OK, true)
	equal(t, "a write makes a revision", swap.Revision, base+1)
	equal(t, "reads see the writes before them", show(swap.Reads[0], base), "b=2@1")
	equal(t, "untouched key", show(swap.Reads[1], base), "a=1@0")

	stale := run(t, s.other, both, []dcs.Op{put(p+"a", "3")}, nil)
	equal(t, "one compare fails", stale.OK, false)
	equal(t, "empty else", len(stale.Reads), 0)
}

func checkReads(t *testing.T, s store, p string) {
	res := run(t, s.kv, nil, []dcs.Op{put(p+"b/2", "y"), put(p+"b/1", "x"), put(p+"bb", "z"), put(p+"a", ""), put(p+"c", "w")}, nil)
	base := res.Revision
	read := run(t, s.other, nil, []dcs.Op{getPrefix(p + "b/"), get(p + "c"), getPrefix(p + "zz"), getPrefix(p), get(p + "b")}, nil)
	equal(t, "slices, one a read", len(read.Reads), 5)
	equal(t, "prefix in order", show(read.Reads[0], base), "1=x@0 2=y@0")
	equal(t, "key", show(read.Reads[1], base), "c=w@0")
	equal(t, "empty prefix", len(read.Reads[2]), 0)
	equal(t, "all", show(read.Reads[3], base), "a=@0 1=x@0 2=y@0 bb=z@0 c=w@0")
	equal(t, "a key is no prefix", len(read.Reads[4]), 0)
}

func checkDeletes(t *testing.T, s store, p string) {
	base := run(t, s.kv, nil, []dcs.Op{put(p+"a", "1"), put(p+"d/1", "1"), put(p+"d/2", "1")}, nil).Revision
	del := run(t, s.kv, nil, []dcs.Op{{Kind: dcs.Delete, Key: p + "a"}, {Kind: dcs.DeletePrefix, Key: p + "d/"}, getPrefix(p)}, nil)
	equal(t, "one revision", del.Revision, base+1)
	equal(t, "gone", len(del.Reads[0]), 0)
	nothing := run(t, s.kv, nil, []dcs.Op{{Kind: dcs.Delete, Key: p + "a"}}, nil)
	equal(t, "removing nothing makes no revision", nothing.Revision, base+1)
	equal(t, "a removed key is absent", run(t, s.other, []dcs.Cmp{{Key: p + "a"}}, nil, nil).OK, true)
	got := collect(t, s.other, p, base-1, 6)
	equal(t, "events", show(got, base), "a=1@0 1=1@0 2=1@0 -a=@1 -1=@1 -2=@1")
}

func checkRefusals(t *testing.T, s store, p string) {
	for name, ops := range map[string][]dcs.Op{
		"duplicate":       {put(p+"a", "1"), put(p+"a", "2")},
		"put and removed": {put(p+"a", "1"), {Kind: dcs.DeletePrefix, Key: p}},
		"no key":          {put("", "1")},
	} {
		_, err := s.kv.Txn(within(t, generous), nil, ops, nil)
		if !errors.Is(err, dcs.ErrRefused) || errors.Is(err, dcs.ErrUnknownOutcome) {
			t.Errorf("%s: got %v, want ErrRefused alone", name, err)
		}
	}
	equal(t, "nothing was written", len(run(t, s.other, nil, []dcs.Op{getPrefix(p)}, nil).Reads[0]), 0)
}

// checkFresh: what one client was told is written, every other client sees at once, at whatever member, and also when all that it asks
// is whether a compare holds.
func checkFresh(t *testing.T, s store, p string) {
	for i := range 200 {
		rev := run(t, s.kv, nil, []dcs.Op{put(p+"a", strconv.Itoa(i))}, nil).Revision
		bare := run(t, s.other, []dcs.Cmp{{Key: p + "a", Mod: rev}}, nil, nil)
		if !bare.OK || bare.Revision < rev || len(bare.Reads) != 0 {
			t.Fatalf("write %d at revision %d: a compare elsewhere saw %+v", i, rev, bare)
		}
		rev = run(t, s.kv, nil, []dcs.Op{put(p+"a", "again")}, nil).Revision
		if got := run(t, s.other, nil, []dcs.Op{get(p + "a")}, nil).Reads[0]; len(got) != 1 || got[0].Mod != rev {
			t.Fatalf("write %d at revision %d: a read elsewhere saw %+v", i, rev, got)
		}
	}
}

// collect watches until n items have come. Items of one revision must come in one batch, revisions must grow.
func collect(t *testing.T, kv dcs.KV, prefix string, after int64, n int) []dcs.Item {
	t.Helper()
	ctx, cancel := context.WithCancelCause(within(t, generous))
	enough := errors.New("enough")
	var items []dcs.Item
	last := after
	err := kv.Watch(ctx, prefix, after, 0, func(b dcs.Batch) {
		if since := time.Since(b.Received); since < 0 || since > generous {
			t.Errorf("received %v ago", since)
		}
		if len(b.Items) > 0 && b.Items[0].Mod <= last {
			t.Errorf("batch begins at %d, after %d", b.Items[0].Mod, last)
		}
		for _, i := range b.Items {
			if i.Mod < last || i.Mod > b.Revision {
				t.Errorf("item of revision %d after %d in a batch of %d", i.Mod, last, b.Revision)
			}
			last = i.Mod
		}
		if items = append(items, b.Items...); len(items) >= n {
			cancel(enough)
		}
	})
	if !errors.Is(err, enough) {
		t.Fatalf("watch ended: %v; got %v", err, items)
	}
	return items
}

func checkWatchOrder(t *testing.T, s store, p string) {
	base := run(t, s.kv, nil, []dcs.Op{put(p+"start", "")}, nil).Revision
	const n = 50
	got := make(chan []dcs.Item, 1)
	go func() { got <- collect(t, s.other, p, base, 2*n) }()
	var want []string
	for i := range n {
		v := strconv.Itoa(i)
		rev := run(t, s.kv, nil, []dcs.Op{put(p+"x", v), put("/elsewhere", v), put(p+"y", v)}, nil).Revision
		want = append(want, fmt.Sprintf("x=%s@%d y=%s@%d", v, rev-base, v, rev-base))
	}
	equal(t, "events", show(receive(t, got, "all events"), base), strings.Join(want, " "))
}

func checkWatchResumes(t *testing.T, s store, p string) {
	base := run(t, s.kv, nil, []dcs.Op{put(p+"a", "0")}, nil).Revision
	for i := 1; i <= 5; i++ {
		run(t, s.kv, nil, []dcs.Op{put(p+"a", strconv.Itoa(i))}, nil)
	}
	equal(t, "from the start", show(collect(t, s.kv, p, base-1, 6), base), "a=0@0 a=1@1 a=2@2 a=3@3 a=4@4 a=5@5")
	equal(t, "after the third", show(collect(t, s.other, p, base+2, 3), base), "a=3@3 a=4@4 a=5@5")
}

// checkWatchQuiet: a watch under which nothing changes is not lost, and says that it is alive.
func checkWatchQuiet(t *testing.T, s store, p string) {
	base := run(t, s.kv, nil, []dcs.Op{put(p+"a", "0")}, nil).Revision
	ctx, cancel := context.WithCancelCause(within(t, generous))
	enough := errors.New("enough")
	alive := 0
	err := s.kv.Watch(ctx, p, base, 2*time.Second, func(b dcs.Batch) {
		if len(b.Items) != 0 || b.Revision < base {
			t.Errorf("batch %+v, want an empty one at %d or later", b, base)
		}
		if alive++; alive == 3 {
			cancel(enough)
		}
	})
	if !errors.Is(err, enough) {
		t.Errorf("watch ended: %v", err)
	}
}

func checkCompaction(t *testing.T, s store, p string) {
	base := run(t, s.kv, nil, []dcs.Op{put(p+"a", "0")}, nil).Revision
	for i := 1; i <= 3; i++ {
		run(t, s.kv, nil, []dcs.Op{put(p+"a", strconv.Itoa(i))}, nil)
	}
	s.compact(t, base+2)
	for _, kv := range []dcs.KV{s.kv, s.other} {
		err := kv.Watch(within(t, generous), p, base-1, 0, func(b dcs.Batch) { t.Errorf("got %+v of a compacted revision", b) })
		if !errors.Is(err, dcs.ErrCompacted) {
			t.Errorf("got %v, want ErrCompacted", err)
		}
	}
	equal(t, "what is kept", show(collect(t, s.kv, p, base+2, 1), base), "a=3@3")
}

// checkCounter is compare-and-swap under contention: no increment may be lost, and none may be seen twice.
func checkCounter(t *testing.T, s store, p string) {
	const workers, each = 4, 12
	var wg sync.WaitGroup
	won := make(chan int, workers*each)
	for w := range workers {
		kv := s.kv
		if w%2 == 1 {
			kv = s.other
		}
		wg.Go(func() {
			for range each {
				won <- increment(t, kv, p+"n")
			}
		})
	}
	wg.Wait()
	close(won)
	seen := map[int]bool{}
	for v := range won {
		if seen[v] {
			t.Errorf("two workers wrote %d", v)
		}
		seen[v] = true
	}
	last := run(t, s.other, nil, []dcs.Op{get(p + "n")}, nil).Reads[0][0]
	equal(t, "counter", string(last.Value), strconv.Itoa(workers*each))
}

// increment adds one and returns the value that it wrote.
func increment(t *testing.T, kv dcs.KV, key string) int {
	for {
		value, mod := 0, int64(0)
		read, err := kv.Txn(within(t, generous), nil, []dcs.Op{get(key)}, nil)
		if err != nil {
			t.Error(err)
			return -1
		}
		if items := read.Reads[0]; len(items) > 0 {
			value, _ = strconv.Atoi(string(items[0].Value))
			mod = items[0].Mod
		}
		res, err := kv.Txn(within(t, generous), []dcs.Cmp{{Key: key, Mod: mod}}, []dcs.Op{put(key, strconv.Itoa(value+1))}, nil)
		if err != nil {
			t.Error(err)
			return -1
		}
		if res.OK {
			return value + 1
		}
	}
}

// checkCancelled: an ended context is never a success, and a read never has an unknown outcome.
func checkCancelled(t *testing.T, s store, p string) {
	why := errors.New("went home")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := s.kv.Txn(ctx, nil, []dcs.Op{get(p + "a")}, nil)
	if !errors.Is(err, dcs.ErrUnavailable) || !errors.Is(err, why) {
		t.Errorf("read: got %v, want ErrUnavailable and the cause", err)
	}
	_, err = s.kv.Txn(ctx, nil, []dcs.Op{put(p+"a", "")}, nil)
	if !errors.Is(err, dcs.ErrUnavailable) {
		t.Errorf("write that was never sent: got %v, want ErrUnavailable", err)
	}
	if err := s.kv.Watch(ctx, p, 0, 0, func(dcs.Batch) {}); !errors.Is(err, why) {
		t.Errorf("watch: got %v, want the cause", err)
	}
	equal(t, "nothing was written", len(run(t, s.kv, nil, []dcs.Op{get(p + "a")}, nil).Reads[0]), 0)
}

// checkMirror: a mirror converges on what a linearizable read shows, while two writers put and remove.
func checkMirror(t *testing.T, s store, p string) {
	m := dcs.NewMirror(dcs.MirrorConfig{KV: s.other, Prefix: p, Silence: 2 * time.Second, Prove: 50 * time.Millisecond, Timeout: 5 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 100 {
				op := put(fmt.Sprintf("%s%d/%d", p, w, i%7), strconv.Itoa(i))
				if i%3 == 0 {
					op.Kind, op.Value = dcs.Delete, nil
				}
				run(t, s.kv, nil, []dcs.Op{op}, nil)
			}
		})
	}
	wg.Wait()
	want := show(run(t, s.kv, nil, []dcs.Op{getPrefix(p)}, nil).Reads[0], 0)
	eventually(t, "the mirror shows "+want, func() bool { return showView(m.View(), p) == want })
	cancel()
	if err := receive(t, done, "the mirror ends"); !errors.Is(err, context.Canceled) {
		t.Errorf("mirror ended: %v", err)
	}
}

func showView(v dcs.View, prefix string) string {
	var items []dcs.Item
	for e := range v.Prefix(prefix) {
		items = append(items, e.Item)
	}
	return show(items, 0)
}
