package mysql

import (
	"testing"
)

// TestPlanned switches over under concurrent writers, both directions, twice: nothing acknowledged is lost, and nothing is acknowledged
// by a fenced instance.
func TestPlanned(t *testing.T) {
	a, b := pair(t)
	from, to := a, b
	var all []*writers
	for round := range 4 {
		w := write(t, from, 4, int64(round)*1_000_000)
		all = append(all, w)
		eventually(t, "writes are acknowledged", func() bool { return w.count() > 20 })
		cf, ct := from.connect(t), to.connect(t)

		f, err := cf.FenceWrites(long(t), current)
		if err != nil {
			t.Fatal(err)
		}
		w.fenced(t)
		acked := w.count()
		if _, err := ct.CatchUp(long(t), current, f.Executed); err != nil {
			t.Fatal(err)
		}
		cut, err := ct.Cut(long(t), current)
		if err != nil {
			t.Fatal(err)
		}
		executed, err := ct.CatchUp(long(t), current, f.Executed)
		if err != nil {
			t.Fatal(err)
		}
		if !executed.Equal(f.Executed) {
			t.Fatalf("round %d: executed %s, the old one's %s", round, executed, f.Executed)
		}
		epoch := Epoch{int64(round + 2), "sw", "b"}
		p, err := promote(long(t), ct, current, epoch, []Verification{{"SELECT COUNT(*) >= 0 FROM app.t", "1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: fence %v (killed %d), cut %v, promote %v", round, f.Took, f.Killed, cut.Took, p.Took)
		w.stop()
		if n := w.count(); n > acked {
			t.Errorf("round %d: %d rows were acknowledged by the fenced instance", round, n-acked)
		}
		for _, w := range all {
			if lost := w.lost(t, ct); len(lost) > 0 {
				t.Fatalf("round %d: lost %v", round, lost)
			}
		}
		r := join(t, cf, ct, to)
		if !r.Changed {
			t.Errorf("round %d: the source was not changed", round)
		}
		st := status(t, ct)
		if !st.SemiSync.Lossless() || st.ReadOnly || st.Epoch == nil || *st.Epoch != EpochRow(epoch) {
			t.Errorf("round %d: new source %+v, epoch %+v", round, st.SemiSync, st.Epoch)
		}
		eventually(t, "the epoch travels by replication", func() bool {
			old := status(t, cf)
			return old.ReadOnly && old.Epoch != nil && *old.Epoch == EpochRow(epoch)
		})
		from, to = to, from
	}
}
