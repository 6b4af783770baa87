package dcs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/baton-ha/baton/internal/dcs"
)

const (
	silence = 150 * time.Millisecond
	proof   = time.Second
)

// mirrored runs a mirror of everything in a bubble until the test ends.
func mirrored(t *testing.T, kv dcs.KV) *dcs.Mirror {
	t.Helper()
	return mirroredLog(t, kv, nil)
}

func mirroredLog(t *testing.T, kv dcs.KV, log *slog.Logger) *dcs.Mirror {
	m := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: "/", Silence: silence, Prove: proof, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("mirror ended: %v", err)
		}
	})
	synctest.Wait()
	return m
}

// pass lets time go by in a bubble.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

func age(t *testing.T, m *dcs.Mirror, key string) time.Duration {
	t.Helper()
	e, ok := m.View().Get(key)
	if !ok {
		t.Fatalf("the mirror lacks %s", key)
	}
	return time.Since(e.Received)
}

func signalled(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestReceived: the time of a version is that of its first arrival; neither a proof, a lost watch nor another key's change moves it.
func TestReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c := mem.Client("m")
		run(t, c, nil, []dcs.Op{put("/a", "1")}, nil)
		m := mirrored(t, c)
		pass(3*proof + silence)
		equal(t, "unchanged", age(t, m, "/a"), 3*proof+silence)

		run(t, c, nil, []dcs.Op{put("/b", "1")}, nil)
		synctest.Wait()
		c.BreakWatches()
		pass(time.Second)
		equal(t, "unchanged by others", age(t, m, "/a"), 3*proof+silence+time.Second)
		equal(t, "new key", age(t, m, "/b"), time.Second)

		run(t, c, nil, []dcs.Op{put("/a", "2")}, nil)
		pass(time.Millisecond)
		equal(t, "new version", age(t, m, "/a"), time.Millisecond)
	})
}

// TestReceivedLate: a delayed watch gives a later time, never the time of the change. (Later means that a lease is waited out for longer.)
func TestReceivedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c := mem.Client("m")
		c.DelayWatch(40 * time.Millisecond)
		m := mirrored(t, c)
		run(t, c, nil, []dcs.Op{put("/a", "1")}, nil)
		pass(50 * time.Millisecond)
		equal(t, "received when it arrived", age(t, m, "/a"), 10*time.Millisecond)
	})
}

// TestPartition: cut off, the view stays and its freshness ends; back, it converges, and says so.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c, other := mem.Client("m"), mem.Client("o")
		run(t, other, nil, []dcs.Op{put("/a", "1")}, nil)
		m := mirrored(t, c)
		changed, stop := m.Subscribe()
		defer stop()
		pass(10 * time.Second)
		if stale := time.Since(m.View().FreshAt); stale > silence {
			t.Errorf("a connected mirror was fresh %v ago", stale)
		}
		if stale := time.Since(m.View().ReadAt); stale > proof {
			t.Errorf("a connected mirror was read %v ago", stale)
		}
		equal(t, "signals without a change", signalled(changed), false)

		c.Partition(true)
		run(t, other, nil, []dcs.Op{put("/a", "2"), put("/b", "1")}, nil)
		pass(10 * time.Second)
		equal(t, "what was known", showView(m.View(), "/"), "a=1@2")
		if fresh := time.Since(m.View().FreshAt); fresh < 10*time.Second-silence {
			t.Errorf("a mirror cut off for 10s claims to be fresh %v ago", fresh)
		}
		if _, err := m.Refresh(t.Context()); !errors.Is(err, dcs.ErrUnavailable) {
			t.Errorf("refresh: got %v, want ErrUnavailable", err)
		}

		c.Partition(false)
		pass(time.Second)
		equal(t, "what is", showView(m.View(), "/"), "a=2@3 b=1@3")
		equal(t, "signalled", signalled(changed), true)
		equal(t, "once", signalled(changed), false)
	})
}

// TestNoLeader: a member without a leader answers, but proves nothing.
func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		m := mirrored(t, mem.Client("m"))
		mem.SetLeader(false)
		pass(5 * time.Second)
		if fresh := time.Since(m.View().FreshAt); fresh < 5*time.Second-silence {
			t.Errorf("without a leader for 5s, and fresh %v ago", fresh)
		}
		mem.SetLeader(true)
		pass(time.Second)
		if fresh := time.Since(m.View().FreshAt); fresh > silence {
			t.Errorf("with a leader again, and fresh %v ago", fresh)
		}
	})
}

// TestProof: a watch that delivers nothing, without being silent, does not keep a change from the mirror: the periodic read finds it.
func TestProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c := mem.Client("m")
		m := dcs.NewMirror(dcs.MirrorConfig{KV: deaf{c}, Prefix: "/", Prove: proof})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = m.Run(ctx) }()
		synctest.Wait()
		run(t, c, nil, []dcs.Op{put("/a", "1")}, nil)
		pass(proof)
		equal(t, "view", showView(m.View(), "/"), "a=1@2")
		cancel()
		synctest.Wait()
	})
}

// deaf has a watch that hears nothing.
type deaf struct{ dcs.KV }

func (deaf) Watch(ctx context.Context, _ string, _ int64, _ time.Duration, _ func(dcs.Batch)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestCompacted: a mirror that was away for longer than the history is kept reads everything again.
func TestCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c, other := mem.Client("m"), mem.Client("o")
		run(t, other, nil, []dcs.Op{put("/a", "1"), put("/b", "1")}, nil)
		m := mirrored(t, c)
		c.DelayWatch(time.Hour)
		for i := range 5 {
			run(t, other, nil, []dcs.Op{put("/a", fmt.Sprint(i)), {Kind: dcs.Delete, Key: "/b"}}, nil)
		}
		mem.Compact(mem.Revision())
		pass(time.Second)
		equal(t, "view", showView(m.View(), "/"), "a=4@7")
	})
}

// TestRewound: a store that was restored from a backup is followed, loudly; nothing of the later state survives.
func TestRewound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, after := dcs.NewMem(), dcs.NewMem()
		run(t, after.Client("x"), nil, []dcs.Op{put("/a", "1")}, nil)
		for range 5 {
			run(t, before.Client("x"), nil, []dcs.Op{put("/a", "9"), put("/b", "9")}, nil)
		}
		var log bytes.Buffer
		kv := &replaced{KV: before.Client("m")}
		m := mirroredLog(t, kv, slog.New(slog.NewTextHandler(&log, nil)))
		equal(t, "before", showView(m.View(), "/"), "a=9@6 b=9@6")
		kv.KV = after.Client("m")
		before.Client("m").BreakWatches()
		pass(time.Second)
		equal(t, "after", showView(m.View(), "/"), "a=1@2")
		if !strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("nothing was said: %q", log.String())
		}
	})
}

type replaced struct{ dcs.KV }

// TestCountsFromTheSend: what a read proves, it proves for the moment of its send.
func TestCountsFromTheSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dcs.NewMem().Client("m")
		c.SetLatency(100 * time.Millisecond)
		m := dcs.NewMirror(dcs.MirrorConfig{KV: c, Prefix: "/"})
		view, err := m.Refresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "read at", time.Since(view.ReadAt), 100*time.Millisecond)
		equal(t, "fresh at", time.Since(view.FreshAt), 100*time.Millisecond)
	})
}

// TestLateRead: a read whose answer comes after the watch has gone further takes nothing back.
func TestLateRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c, other := mem.Client("m"), mem.Client("o")
		m := mirrored(t, c)
		c.SetLatency(200 * time.Millisecond)
		read := make(chan dcs.View, 1)
		go func() {
			view, err := m.Refresh(t.Context())
			if err != nil {
				t.Error(err)
			}
			read <- view
		}()
		pass(150 * time.Millisecond) // the read has been applied, its answer is on the way
		run(t, other, nil, []dcs.Op{put("/a", "1")}, nil)
		view := <-read
		equal(t, "what the read returns", showView(view, "/"), "a=1@2")
		equal(t, "and proves", time.Since(view.ReadAt), 200*time.Millisecond)
	})
}

// TestKnownEvents: a message that begins before the view and ends after it changes only what comes after it. A key that was put
// and removed before the read must not come back.
func TestKnownEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := &scripted{revision: 5, items: []dcs.Item{{Key: "/b", Value: []byte("4"), Mod: 4}}, batch: dcs.Batch{Revision: 6, Items: []dcs.Item{
			{Key: "/a", Value: []byte("3"), Mod: 3},
			{Key: "/b", Value: []byte("2"), Mod: 2},
			{Key: "/c", Value: []byte("6"), Mod: 6},
		}}}
		m := mirrored(t, kv)
		equal(t, "view", showView(m.View(), "/"), "b=4@4 c=6@6")
		equal(t, "revision", m.View().Revision, 6)
	})
}

// scripted is a store of one read and one message.
type scripted struct {
	revision int64
	items    []dcs.Item
	batch    dcs.Batch
}

func (s *scripted) Txn(context.Context, []dcs.Cmp, []dcs.Op, []dcs.Op) (dcs.Result, error) {
	return dcs.Result{OK: true, Revision: s.revision, Reads: [][]dcs.Item{s.items}}, nil
}

func (s *scripted) Watch(ctx context.Context, _ string, _ int64, _ time.Duration, fn func(dcs.Batch)) error {
	fn(s.batch)
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestViewsNeverChange: a view taken earlier stays what it was.
func TestViewsNeverChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c := mem.Client("m")
		run(t, c, nil, []dcs.Op{put("/a", "1"), put("/b", "1"), put("/c/1", "1")}, nil)
		m := mirrored(t, c)
		old := m.View()
		run(t, c, nil, []dcs.Op{put("/a", "2"), {Kind: dcs.Delete, Key: "/b"}, put("/aa", "1")}, nil)
		pass(time.Millisecond)
		equal(t, "old", showView(old, "/"), "a=1@2 b=1@2 1=1@2")
		equal(t, "new", showView(m.View(), "/"), "a=2@3 aa=1@3 1=1@2")
		equal(t, "of a prefix", showView(m.View(), "/c/"), "1=1@2")
		equal(t, "keys", m.View().Len(), 3)
		_, found := m.View().Get("/b")
		equal(t, "removed", found, false)
		for range m.View().Prefix("/") {
			break // a caller may stop early
		}
	})
}

// TestMirrorAgainstModel: whatever clients do, and however reads and watches are delayed, broken and cut, the mirror ends where a
// plain map ends, its revision never falls, and it never shows a version that the store did not have.
func TestMirrorAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 999), 1, 60).Draw(rt, "steps")
		var failure string
		synctest.Test(t, func(t *testing.T) { failure = modelRun(t, steps) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

func modelRun(t *testing.T, steps []int) string {
	mem := dcs.NewMem()
	c, other := mem.Client("m"), mem.Client("o")
	ctx, cancel := context.WithCancel(t.Context())
	m := dcs.NewMirror(dcs.MirrorConfig{KV: c, Prefix: "/", Silence: silence, Prove: 300 * time.Millisecond})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	model, existed, last := map[string]string{}, map[string]bool{}, int64(0)
	for i, step := range steps {
		key, value := fmt.Sprintf("/%d", step/10%5), fmt.Sprint(i)
		switch step % 10 {
		case 0, 1, 2, 3:
			run(t, other, nil, []dcs.Op{put(key, value)}, nil)
			model[key], existed[key+value] = value, true
		case 4, 5:
			run(t, other, nil, []dcs.Op{{Kind: dcs.Delete, Key: key}}, nil)
			delete(model, key)
		case 6:
			c.BreakWatches()
		case 7:
			c.Partition(step%20 == 7)
		case 8:
			c.DelayWatch(time.Duration(step/10) * time.Millisecond)
			c.SetLatency(time.Duration(step/20) * time.Millisecond)
		case 9:
			mem.Compact(mem.Revision())
		}
		pass(time.Duration(step) * time.Millisecond / 10)
		view := m.View()
		if view.Revision < last {
			return fmt.Sprintf("revision fell from %d to %d", last, view.Revision)
		}
		last = view.Revision
		for e := range view.Prefix("/") {
			if !existed[e.Key+string(e.Value)] {
				return fmt.Sprintf("shows %s=%s, which never was", e.Key, e.Value)
			}
		}
	}
	c.Partition(false)
	c.DelayWatch(0)
	pass(2 * time.Second)
	var got, want []string
	for e := range m.View().Prefix("/") {
		got = append(got, e.Key+"="+string(e.Value))
	}
	for k, v := range model {
		want = append(want, k+"="+v)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Sprintf("shows %v, want %v", got, want)
	}
	return ""
}
