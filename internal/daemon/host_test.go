package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/gtid"
	"github.com/baton-ha/baton/vip/gate"
)

// fakeFilter stands on the interfaces that it covers; those that are gone, or hidden by another program, it finds missing.
type fakeFilter struct {
	word      gate.Word
	installed bool
	on        []string
	there     []string
	shadowed  bool
	foreign   bool
}

func (f *fakeFilter) Install(_ context.Context, preload gate.Word) error {
	if f.installed {
		return gate.ErrInstalled
	}
	f.installed, f.word = true, max(preload, 1)
	return f.Verify(context.Background())
}

func (f *fakeFilter) Word() gate.Word { return f.word }

func (f *fakeFilter) Swap(old, next gate.Word) gate.Outcome {
	if f.word != old {
		return gate.Overtaken
	}
	f.word = next
	return gate.Swapped
}

func (f *fakeFilter) Close() (gate.Word, error) {
	f.word = 2
	return f.word, nil
}

func (f *fakeFilter) Verify(context.Context) error {
	for _, name := range f.on {
		if !slices.Contains(f.there, name) {
			return fmt.Errorf("%s: %w", name, gate.ErrNoInterface)
		}
	}
	switch {
	case f.foreign:
		return gate.ErrNotOurs
	case f.shadowed:
		return gate.ErrShadowed
	}
	return nil
}

func (f *fakeFilter) Cover(ctx context.Context, names []string) error {
	if f.foreign {
		return gate.ErrNotOurs
	}
	f.on, f.shadowed = slices.Clone(names), false
	return f.Verify(ctx)
}

func newGate(names ...string) (*kernelGate, *fakeFilter) {
	f := &fakeFilter{on: names, there: names}
	return newKernelGate(f, func() ([]string, error) { return f.there, nil }, names), f
}

// open is a deadline far ahead.
func open() lease.Boot { return lease.Boot(gate.Now()) + lease.Boot(1e12) }

func TestGateFollowsTheInterfaces(t *testing.T) {
	k, f := newGate("eth0", "veth1")
	if err := k.Install(t.Context(), open()); err != nil {
		t.Fatal(err)
	}
	f.there = []string{"eth0", "eth1", "veth1"}
	if err := k.Verify(t.Context()); err != nil || !slices.Contains(f.on, "eth1") {
		t.Errorf("an interface that came up is not gated: %v, on %v", err, f.on)
	}
	f.there = []string{"eth0", "eth1"}
	if err := k.Verify(t.Context()); err != nil || slices.Contains(f.on, "veth1") {
		t.Errorf("an interface that is gone ends the service: %v, on %v", err, f.on)
	}
}

func TestGateIsRepairedWhenItIsShut(t *testing.T) {
	k, f := newGate("eth0")
	if err := k.Install(t.Context(), open()); err != nil {
		t.Fatal(err)
	}
	f.shadowed = true
	if err := k.Verify(t.Context()); !errors.Is(err, gate.ErrShadowed) {
		t.Fatalf("an open gate behind another program is called well: %v", err)
	}
	if err := k.Shut(t.Context()); err != nil || f.shadowed {
		t.Errorf("a gate behind another program is not repaired by the shutting, or called shut without: %v", err)
	}
	if err := k.Verify(t.Context()); err != nil {
		t.Errorf("not repaired: %v", err)
	}
	f.foreign = true
	if err := k.Shut(t.Context()); !errors.Is(err, gate.ErrNotOurs) {
		t.Errorf("another process's gate is called shut: %v", err)
	}
	if err := k.Verify(t.Context()); !errors.Is(err, gate.ErrNotOurs) {
		t.Errorf("another process's gate is taken for ours: %v", err)
	}
}

// The fence is answered although somebody's container went away in this moment.
func TestGateIsShutWhereAnInterfaceHasGone(t *testing.T) {
	k, f := newGate("eth0", "veth1")
	if err := k.Install(t.Context(), open()); err != nil {
		t.Fatal(err)
	}
	f.there = []string{"eth0"}
	if err := k.Shut(t.Context()); err != nil || f.word.Open(gate.Now()) {
		t.Errorf("not shut: %v", err)
	}
}

// The first try attached the gate behind another program. The second one is no dead end.
func TestGateIsInstalledInTheSecondTry(t *testing.T) {
	for _, preload := range []lease.Boot{0, open()} {
		k, f := newGate("eth0")
		f.shadowed = true
		if err := k.Install(t.Context(), preload); !errors.Is(err, gate.ErrShadowed) {
			t.Fatal(err)
		}
		if err := k.Install(t.Context(), preload); err != nil {
			t.Errorf("never installed: %v", err)
		}
		if got := f.word.Open(gate.Now()); got != (preload != 0) {
			t.Errorf("open is %t with %d preloaded", got, preload)
		}
	}
}

// An undo goes on when the replica lacks nothing but its source, and not when a thread stands.
func TestReplicaThatOnlyLacksItsSource(t *testing.T) {
	for _, tc := range []struct {
		io, sql  string
		readOnly bool
		want     bool
	}{
		{"Connecting", "Yes", true, true},
		{"Preparing", "Yes", true, true},
		{"Yes", "Yes", true, true},
		{"No", "Yes", true, false},
		{"Connecting", "No", true, false},
		{"Connecting", "Yes", false, false},
	} {
		st := mysql.Status{ReadOnly: tc.readOnly, Replica: &mysql.Replica{IORunning: tc.io, SQLRunning: tc.sql}}
		if got := runsAlone(st); got != tc.want {
			t.Errorf("IO %s, applier %s, read-only %t: %t", tc.io, tc.sql, tc.readOnly, got)
		}
	}
	if runsAlone(mysql.Status{ReadOnly: true}) {
		t.Error("an instance without a replica")
	}
}

// A source that came back from a crash lacks what its replica has received: it must not be made writable.
func TestSourceThatLostWhatItsReplicaHas(t *testing.T) {
	addr := netip.MustParseAddrPort("10.0.0.1:3306")
	set := func(text string) gtid.Set {
		s, err := gtid.Parse(gtid.MariaDBPos, text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	source := mysql.Status{Executed: set("0-1-100")}
	for name, tc := range map[string]struct {
		replica mysql.Status
		lost    bool
	}{
		"level":           {mysql.Status{Received: set("0-1-100"), Replica: &mysql.Replica{Source: addr}}, false},
		"behind":          {mysql.Status{Received: set("0-1-90"), Replica: &mysql.Replica{Source: addr}}, false},
		"ahead":           {mysql.Status{Received: set("0-1-101"), Replica: &mysql.Replica{Source: addr}}, true},
		"another source":  {mysql.Status{Received: set("0-1-101"), Replica: &mysql.Replica{}}, false},
		"does not follow": {mysql.Status{Received: set("0-1-101")}, false},
		"nothing yet":     {mysql.Status{Replica: &mysql.Replica{Source: addr}}, false},
	} {
		if left := lost(source, tc.replica, addr); left.Empty() == tc.lost {
			t.Errorf("%s: lost %q", name, left)
		}
	}
	c := cluster.Cluster{Sites: []cluster.Site{
		{Name: "a", Instances: []cluster.Instance{{Shard: "s1", Addr: addr}, {Shard: "s2"}}},
		{Name: "b", Instances: []cluster.Instance{{Shard: "s2"}, {Shard: "s1", Addr: netip.MustParseAddrPort("10.0.1.1:3306")}}},
	}}
	if got := peers(c, addr); len(got) != 1 || got[0].Addr.String() != "10.0.1.1:3306" {
		t.Errorf("peers are %v", got)
	}
}
