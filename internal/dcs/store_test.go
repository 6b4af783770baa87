package dcs_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// newStore is a store on an empty Mem, with a client of its own.
func newStore() (*dcs.Store, *dcs.MemClient) {
	kv := dcs.NewMem().Client("c")
	return dcs.NewStore(kv, "bank"), kv
}

func do(t *testing.T, s *dcs.Store, ops ...dcs.Op) int64 {
	t.Helper()
	r, err := s.Do(t.Context(), "do", nil, ops...)
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

func read(t *testing.T, s *dcs.Store) dcs.State {
	t.Helper()
	st, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Every document that is written is read back under its own name, with its revision, and without a moment to count from.
func TestReadEveryDocument(t *testing.T) {
	s, _ := newStore()
	k := s.Keys
	at := do(t, s, dcs.Doc(k.Term(), cluster.Term{N: 3, Node: "w"}), dcs.Doc(k.Beat(), cluster.Beat{Seq: 4}), dcs.Doc(k.Assignment(), cluster.Assignment{Epoch: 5}),
		dcs.Doc(k.Holder(), cluster.Holder{Seq: 6}), dcs.Doc(k.Maintenance(), cluster.Maintenance{Who: "op"}), dcs.Doc(k.Nonce(), "n"),
		dcs.Doc(k.Command(), plan.Command{ID: "c"}), dcs.Doc(k.Reply(), plan.Reply{Command: "c"}), dcs.Doc(k.Readiness(), map[string]int{"x": 1}),
		dcs.Doc(k.Observer("w"), health.Report{Seq: 7}), dcs.Doc(k.Sync("s1"), cluster.SyncState{State: "armed"}), dcs.Doc(k.Clients("a"), []string{"10.0.0.1:2"}),
		dcs.Doc(k.Switch("s1", "plan"), plan.Plan{ID: "s1"}), dcs.Doc(k.Switch("s1", "journal"), []plan.Entry{{Seq: 8}}),
		dcs.Doc(k.Switch("s1", "released"), plan.Released{Fence: 9}), dcs.Doc(k.Switch("s1", "bound"), plan.Bound{Epoch: 10}),
		dcs.Doc(k.Switch("s1", "summary"), plan.Summary{Why: "x"}), dcs.Doc(k.Switch("s1", "request/mc-a"), plan.Request{ID: "r"}),
		dcs.Doc(k.Switch("s1", "answer/mc-a"), plan.Answer{Request: "r"}), dcs.Doc(k.Switch("s1", "look/mc-a"), plan.Look{Question: 11}),
		dcs.Doc(k.Prefix()+"of a newer version", 1))
	st := read(t, s)
	d := st.Switches["s1"]
	got := fmt.Sprint(st.Term.Value.N, st.Beat.Value.Seq, st.Assignment.Value.Epoch, st.Holder.Value.Seq, st.Maintenance.Value.Who, st.Nonce.Value,
		st.Command.Value.ID, st.Reply.Value.Command, string(st.Readiness.Value), st.Reports["w"].Value.Seq, st.Sync["s1"].Value.State, st.Clients["a"].Value,
		d.Plan.Value.ID, d.Journal.Value[0].Seq, d.Released.Value.Fence, d.Bound.Value.Epoch, d.Summary.Value.Why, d.Requests["mc-a"].Value.ID, d.Answers["mc-a"].Value.Request, d.Looks["mc-a"].Value.Question)
	equal(t, "documents", got, fmt.Sprint(3, 4, 5, 6, "op", "n", "c", "c", `{"x":1}`, 7, "armed", []string{"10.0.0.1:2"}, "s1", 8, 9, 10, "x", "r", "r", 11))
	for i, mod := range []int64{st.Term.Mod, st.Holder.Mod, st.Reports["w"].Mod, d.Summary.Mod, d.Requests["mc-a"].Mod, st.Revision} {
		equal(t, fmt.Sprint("revision ", i), mod, at)
	}
	if !st.Holder.Received.IsZero() || st.FreshAt.IsZero() || len(st.Bad) > 0 {
		t.Errorf("received %v, fresh at %v, bad %q", st.Holder.Received, st.FreshAt, st.Bad)
	}
}

// A document that cannot be read is absent and named; those beside it are read.
func TestBrokenDocuments(t *testing.T) {
	s, _ := newStore()
	k := s.Keys
	keys := []string{
		k.Term(), k.Beat(), k.Assignment(), k.Holder(), k.Maintenance(), k.Nonce(), k.Command(), k.Reply(), k.Readiness(), k.Observer("w"), k.Sync("s1"),
		k.Clients("a"), k.Switch("s1", "plan"), k.Switch("s1", "journal"), k.Switch("s1", "released"), k.Switch("s1", "bound"), k.Switch("s1", "summary"),
		k.Switch("s1", "request/mc-a"), k.Switch("s1", "answer/mc-a"), k.Switch("s1", "look/mc-a"),
	}
	for _, broken := range keys {
		ops := []dcs.Op{{Kind: dcs.Put, Key: broken, Value: []byte("{broken")}}
		other := k.Term()
		if broken == other {
			other = k.Assignment()
		}
		ops = append(ops, dcs.Doc(other, map[string]int{"n": 3, "epoch": 3}))
		do(t, s, append(ops, dcs.Op{Kind: dcs.Delete, Key: "x"})...)
		st := read(t, s)
		if len(st.Bad) != 1 || !strings.HasPrefix(st.Bad[0], broken+": ") {
			t.Errorf("%s: bad are %q", broken, st.Bad)
		}
		d := st.Switches["s1"]
		mods := st.Beat.Mod + st.Holder.Mod + st.Maintenance.Mod + st.Nonce.Mod + st.Command.Mod + st.Reply.Mod + st.Readiness.Mod + d.Plan.Mod + d.Journal.Mod +
			d.Released.Mod + d.Bound.Mod + d.Summary.Mod
		if mods != 0 || len(st.Reports)+len(st.Sync)+len(st.Clients)+len(d.Requests)+len(d.Answers)+len(d.Looks) != 0 || st.Term.Value.N+st.Assignment.Value.Epoch != 3 {
			t.Errorf("%s counts although it is broken: %+v", broken, st)
		}
		do(t, s, dcs.Op{Kind: dcs.DeletePrefix, Key: k.Prefix()})
	}
}

// What was decoded is kept by revision: the same revision is never decoded again, another one always is, and what has gone is forgotten.
func TestDecoderKeepsByRevision(t *testing.T) {
	k := dcs.KeysOf("bank")
	d := dcs.NewDecoder(k)
	at := func(mod int64, value string) []dcs.Source {
		return []dcs.Source{
			{Item: dcs.Item{Key: k.Switch("s1", "journal"), Value: []byte(value), Mod: mod}, Received: time.Unix(mod, 0)},
			{Item: dcs.Item{Key: k.Observer("w"), Value: []byte(`{"seq":1}`), Mod: 1}},
		}
	}
	seq := func(st dcs.State) int { return st.Switches["s1"].Journal.Value[0].Seq }
	first := d.Decode(5, time.Unix(5, 0), at(5, `[{"seq":1}]`))
	again := d.Decode(6, time.Unix(6, 0), at(5, `[{"seq":1}]`))
	if &first.Switches["s1"].Journal.Value[0] != &again.Switches["s1"].Journal.Value[0] {
		t.Error("decoded again although it is the same revision")
	}
	restored := d.Decode(6, time.Unix(6, 0), at(5, `[{"seq":2}]`)) // a restored store gives its revisions out a second time
	equal(t, "restored", seq(restored), 2)
	later := d.Decode(7, time.Unix(7, 0), at(7, `[{"seq":3}]`))
	equal(t, "newer", seq(later), 3)
	equal(t, "received", later.Switches["s1"].Journal.Received, time.Unix(7, 0))
	equal(t, "older view", seq(first), 1)
	broken := d.Decode(8, time.Unix(8, 0), at(8, `broken`))
	if broken.Switches["s1"].Journal.Mod != 0 || len(broken.Bad) != 1 {
		t.Errorf("broken: %+v", broken.Switches["s1"].Journal)
	}
	gone := d.Decode(9, time.Unix(9, 0), at(9, "")[1:])
	if _, there := gone.Switches["s1"]; there {
		t.Error("a switch that has gone is still there")
	}
	back := d.Decode(10, time.Unix(10, 0), at(7, `[{"seq":3}]`))
	if &back.Switches["s1"].Journal.Value[0] == &later.Switches["s1"].Journal.Value[0] {
		t.Error("kept although it had gone: the cache would grow for ever")
	}
}

func TestStateCurrent(t *testing.T) {
	st := dcs.State{Term: dcs.Versioned[cluster.Term]{Value: cluster.Term{N: 3}}, Assignment: dcs.Versioned[cluster.Assignment]{Mod: 50}}
	for _, tc := range []struct {
		term, mod int64
		ok        bool
	}{{3, 50, true}, {2, 50, false}, {4, 50, false}, {3, 49, false}, {3, 51, false}, {3, 0, false}} {
		if err := st.Current(tc.term, tc.mod); (err == nil) != tc.ok || !tc.ok && !errors.Is(err, dcs.ErrCompare) {
			t.Errorf("term %d, assignment at %d: %v", tc.term, tc.mod, err)
		}
	}
}

// A renewal is refused when either document has changed, and then says what both are; nothing is written.
func TestRenew(t *testing.T) {
	s, kv := newStore()
	a := do(t, s, dcs.Doc(s.Keys.Assignment(), cluster.Assignment{Epoch: 5, Site: "a", Phase: cluster.Serving}))
	h := do(t, s, dcs.Doc(s.Keys.Holder(), cluster.Holder{Incarnation: "mine", Seq: 1}))
	other := do(t, s, dcs.Doc("other", 1))
	for _, tc := range []struct {
		name  string
		a, h  int64
		takes bool
	}{
		{"the assignment has changed", a - 1, h, false},
		{"the assignment is not there yet", 0, h, false},
		{"another incarnation holds", a, h - 1, false},
		{"nobody holds", a, 0, false},
		{"all is as it was", a, h, true},
		{"taken over, whoever holds", a, -1, true},
	} {
		r, err := s.Renew(t.Context(), tc.a, tc.h, cluster.Holder{Incarnation: "new", Seq: 2})
		if err != nil || r.OK != tc.takes {
			t.Fatalf("%s: %+v %v", tc.name, r, err)
		}
		st := read(t, s)
		if !tc.takes {
			if r.Assignment.Value.Epoch != 5 || r.Assignment.Mod != a || r.Holder.Value.Incarnation != "mine" || r.Holder.Mod != h || st.Revision != other {
				t.Errorf("%s: answer %+v, store at %d", tc.name, r, st.Revision)
			}
			continue
		}
		if r.Revision != st.Holder.Mod || st.Holder.Value.Incarnation != "new" {
			t.Errorf("%s: answer %+v, holder %+v", tc.name, r, st.Holder)
		}
		h = do(t, s, dcs.Doc(s.Keys.Holder(), cluster.Holder{Incarnation: "mine", Seq: 1}))
		other = h
	}
	do(t, s, dcs.Op{Kind: dcs.Put, Key: s.Keys.Assignment(), Value: []byte("broken")})
	if r, err := s.Renew(t.Context(), a, h, cluster.Holder{}); err == nil {
		t.Errorf("a broken assignment is answered as %+v", r)
	}
	kv.FailNext(dcs.LoseAnswer)
	if _, err := s.Renew(t.Context(), a, h, cluster.Holder{}); !errors.Is(err, dcs.ErrUnknownOutcome) {
		t.Errorf("lost answer: %v", err)
	}
}

// Of all that read the same term one takes it, whatever they saw; its pulse begins in the same transaction.
func TestTakeTermRace(t *testing.T) {
	mem := dcs.NewMem()
	store := func(n int) *dcs.Store { return dcs.NewStore(mem.Client(fmt.Sprint(n)), "bank") }
	for round := int64(1); round <= 3; round++ {
		seen := read(t, store(0)).Term
		var mu sync.Mutex
		var won []dcs.Versioned[cluster.Term]
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				got, err := store(n).TakeTerm(t.Context(), seen, cluster.NodeName(fmt.Sprint(n)))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, got)
				} else if !errors.Is(err, dcs.ErrCompare) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		st := read(t, store(0))
		if len(won) != 1 || won[0].Value != st.Term.Value || won[0].Mod != st.Term.Mod || st.Term.Value.N != round || st.Beat.Mod != st.Term.Mod {
			t.Fatalf("round %d: won %+v, stands %+v, beat at %d", round, won, st.Term, st.Beat.Mod)
		}
	}
}

func TestDoComparesAllOrNothing(t *testing.T) {
	s, _ := newStore()
	a := do(t, s, dcs.Doc("a", 1))
	_, err := s.Do(t.Context(), "two compares", []dcs.Cmp{{Key: "a", Mod: a}, {Key: "b", Mod: 1}}, dcs.Doc("a", 2), dcs.Doc("c", 2))
	if !errors.Is(err, dcs.ErrCompare) || !strings.HasPrefix(err.Error(), "two compares: ") {
		t.Errorf("refused with %v", err)
	}
	r, err := s.Do(t.Context(), "read", []dcs.Cmp{{Key: "a", Mod: a}, {Key: "b"}}, dcs.Op{Kind: dcs.Get, Key: "a"}, dcs.Op{Kind: dcs.Get, Key: "c"})
	if err != nil || len(r.Reads) != 2 || !slices.Equal(r.Reads[0][0].Value, []byte("1")) || len(r.Reads[1]) != 0 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestHolderOf(t *testing.T) {
	if h := dcs.HolderOf(dcs.Item{Value: []byte(`{"incarnation":"x"}`), Mod: 9}); h.Mod != 9 || h.Value.Incarnation != "x" {
		t.Errorf("%+v", h)
	}
	if h := dcs.HolderOf(dcs.Item{Value: []byte(`broken`), Mod: 9}); h.Mod != 9 || h.Value.Incarnation != "" {
		t.Errorf("broken: %+v", h)
	}
}
