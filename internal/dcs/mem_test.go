package dcs_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// TestFaults: what each fault tells the caller, and what it does to the store, for a write and for a read.
func TestFaults(t *testing.T) {
	for name, tc := range map[string]struct {
		fault         dcs.Fault
		write, read   error // nil: success
		now, inTheEnd bool  // the write is there at once; after DeliverLate
	}{
		"none":         {dcs.None, nil, nil, true, true},
		"before send":  {dcs.BeforeSend, dcs.ErrUnavailable, dcs.ErrUnavailable, false, false},
		"no leader":    {dcs.NoLeader, dcs.ErrNoQuorum, dcs.ErrNoQuorum, false, false},
		"lost request": {dcs.LoseRequest, dcs.ErrUnknownOutcome, dcs.ErrUnavailable, false, false},
		"lost answer":  {dcs.LoseAnswer, dcs.ErrUnknownOutcome, dcs.ErrUnavailable, true, true},
		"late":         {dcs.Late, dcs.ErrUnknownOutcome, dcs.ErrUnavailable, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			mem := dcs.NewMem()
			c, other := mem.Client("c"), mem.Client("o")
			c.FailNext(tc.fault, tc.fault)
			_, err := c.Txn(t.Context(), nil, []dcs.Op{get("/a")}, nil)
			is(t, "read", err, tc.read)
			_, err = c.Txn(t.Context(), []dcs.Cmp{{Key: "/a"}}, []dcs.Op{put("/a", "1")}, nil)
			is(t, "write", err, tc.write)
			there := func() bool { return len(run(t, other, nil, []dcs.Op{get("/a")}, nil).Reads[0]) == 1 }
			equal(t, "applied", there(), tc.now)
			mem.DeliverLate()
			equal(t, "applied in the end", there(), tc.inTheEnd)
		})
	}
}

func is(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
	if err != nil && !errors.Is(want, dcs.ErrUnknownOutcome) && errors.Is(err, dcs.ErrUnknownOutcome) {
		t.Errorf("%s: %v says that the outcome is unknown", what, err)
	}
}

// TestLateCompares: a late transaction compares when it arrives: whoever raised the term meanwhile has killed it.
func TestLateCompares(t *testing.T) {
	mem := dcs.NewMem()
	old, next := mem.Client("old"), mem.Client("new")
	term := run(t, old, nil, []dcs.Op{put("/term", "1")}, nil).Revision
	old.FailNext(dcs.Late)
	_, err := old.Txn(t.Context(), []dcs.Cmp{{Key: "/term", Mod: term}}, []dcs.Op{put("/x", "old")}, nil)
	is(t, "write", err, dcs.ErrUnknownOutcome)
	run(t, next, nil, []dcs.Op{put("/term", "2")}, nil)
	mem.DeliverLate()
	equal(t, "killed", len(run(t, next, nil, []dcs.Op{get("/x")}, nil).Reads[0]), 0)
}

// TestHook: the hook runs before the transaction and may use the store, so a test can act between a controller's read and its write.
func TestHook(t *testing.T) {
	mem := dcs.NewMem()
	c, other := mem.Client("c"), mem.Client("o")
	mod := run(t, c, nil, []dcs.Op{put("/a", "1")}, nil).Revision
	c.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
		if then[0].Kind == dcs.Put {
			run(t, other, nil, []dcs.Op{put("/a", "stolen")}, nil)
		}
		return dcs.None
	})
	equal(t, "swap", run(t, c, []dcs.Cmp{{Key: "/a", Mod: mod}}, []dcs.Op{put("/a", "2")}, nil).OK, false)
	c.OnTxn(func([]dcs.Cmp, []dcs.Op, []dcs.Op) dcs.Fault { return dcs.LoseRequest })
	_, err := c.Txn(t.Context(), nil, []dcs.Op{put("/a", "3")}, nil)
	is(t, "write", err, dcs.ErrUnknownOutcome)
	c.OnTxn(nil)
	equal(t, "value", string(run(t, c, nil, []dcs.Op{get("/a")}, nil).Reads[0][0].Value), "stolen")
}

// TestLatency: a transaction takes its time; one that is abandoned on the way there is lost, on the way back it has happened.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c, other := mem.Client("c"), mem.Client("o")
		c.SetLatency(100 * time.Millisecond)
		begin := time.Now()
		run(t, c, nil, []dcs.Op{put("/a", "1")}, nil)
		equal(t, "took", time.Since(begin), 100*time.Millisecond)
		for limit, applied := range map[time.Duration]bool{30 * time.Millisecond: false, 70 * time.Millisecond: true} {
			key := "/" + limit.String()
			_, err := c.Txn(within(t, limit), nil, []dcs.Op{put(key, "1")}, nil)
			is(t, "abandoned", err, dcs.ErrUnknownOutcome)
			equal(t, "applied", len(run(t, other, nil, []dcs.Op{get(key)}, nil).Reads[0]) == 1, applied)
		}
	})
}

// TestMemWatchSilence: the limits of a watch are kept to the moment, so that simulations may rely on them.
func TestMemWatchSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		c := mem.Client("c")
		begin := time.Now()
		var heard []time.Duration
		pass := time.AfterFunc(400*time.Millisecond, func() { c.Partition(true) })
		defer pass.Stop()
		err := c.Watch(t.Context(), "/", 1, 200*time.Millisecond, func(b dcs.Batch) {
			heard = append(heard, b.Received.Sub(begin))
		})
		is(t, "watch", err, dcs.ErrWatchLost)
		equal(t, "messages at half of the silence", len(heard) >= 3, true)
		last := heard[len(heard)-1]
		equal(t, "lost after the silence", time.Since(begin), last+200*time.Millisecond)
	})
}
