package mysql

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// promoteAlone is the failover path: the old source is not asked.
func promoteAlone(t *testing.T, cb *Conn, epoch int64) Promoted {
	t.Helper()
	cut, err := cb.Cut(long(t), current)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cb.CatchUp(long(t), current, gtid.Set{}); err != nil {
		t.Fatal(err)
	}
	p, err := promote(long(t), cb, current, Epoch{epoch, "failover", "b"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("cut %v, promote %v", cut.Took, p.Took)
	return p
}

// The source dies under writers: every acknowledged row is on the new one. The old one comes back read-only; what it had committed
// without an acknowledgement is named, or else it rejoins.
func TestFailoverKilled(t *testing.T) {
	a, b := pair(t)
	w := write(t, a, 4, 0)
	eventually(t, "writes are acknowledged", func() bool { return w.count() > 50 })
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	w.stop()
	cb := b.connect(t)
	promoteAlone(t, cb, 2)
	if lost := w.lost(t, cb); len(lost) > 0 {
		t.Fatalf("lost %v", lost)
	}
	if err := a.Run(long(t)); err != nil {
		t.Fatal(err)
	}
	ca := a.connect(t)
	st := status(t, cb)
	_, err := ca.Rejoin(long(t), current, b.replication(), st.BinlogState)
	errant := gtid.Errant(status(t, ca).BinlogState, st.BinlogState)
	if errors.Is(err, ErrErrant) == errant.Empty() || err != nil && errant.Empty() {
		t.Errorf("errant %s, rejoin: %v", errant, err)
	}
	if !status(t, ca).ReadOnly {
		t.Error("the old source came back writable")
	}
}

// The source freezes under writers: it is cut off without its help and without waiting for it. Thawed, it can acknowledge nothing.
func TestFailoverFrozen(t *testing.T) {
	a, b := pair(t)
	w := write(t, a, 4, 0)
	eventually(t, "writes are acknowledged", func() bool { return w.count() > 50 })
	cb := b.connect(t)
	if err := a.Freeze(long(t)); err != nil {
		t.Fatal(err)
	}
	promoteAlone(t, cb, 2)
	acked := w.count()
	if err := a.Thaw(); err != nil {
		t.Fatal(err)
	}
	ca := a.connect(t)
	eventually(t, "the thawed source has commits that wait", func() bool { return status(t, ca).SemiSync.Waiting > 0 })
	if _, err := ca.FenceWrites(long(t), current); err != nil {
		t.Fatal(err)
	}
	w.stop()
	if n := w.count(); n > acked+4 { // an answer that was on its way when the source froze was acknowledged before
		t.Errorf("the deposed source acknowledged %d rows", n-acked)
	}
	if lost := w.lost(t, cb); len(lost) > 0 {
		t.Fatalf("lost %v", lost)
	}
	_, err := ca.Rejoin(long(t), current, b.replication(), status(t, cb).BinlogState)
	if e, ok := errors.AsType[*ErrantError](err); !ok || e.GTIDs.Empty() || !strings.HasPrefix(e.GTIDs.String(), "0-1-") {
		t.Errorf("rejoin of a source with transactions of its own: %v", err)
	}
}

// The cut alone is the fence: from it on the living, unfenced source acknowledges nothing, and all that it did is here.
func TestCutIsTheFence(t *testing.T) {
	a, b := pair(t)
	cb := b.connect(t)
	for round := range 5 {
		w := write(t, a, 4, int64(round)*1_000_000)
		eventually(t, "writes are acknowledged", func() bool { return w.count() > 30 })
		if _, err := cb.Cut(long(t), current); err != nil {
			t.Fatal(err)
		}
		if _, err := cb.CatchUp(long(t), current, gtid.Set{}); err != nil {
			t.Fatal(err)
		}
		ca := a.connect(t)
		acked := allHang(t, ca, w, 4)
		if lost := w.lost(t, cb); len(lost) > 0 {
			t.Fatalf("round %d: acknowledged and not received: %v", round, lost)
		}
		if n := w.count(); n != acked {
			t.Errorf("round %d: %d rows were acknowledged after the cut", round, n-acked)
		}
		if err := cb.RestartIO(long(t), current); err != nil {
			t.Fatal(err)
		}
		w.stop()
	}
}

// Errant transactions are refused by name, exactly, and nothing is changed.
func TestErrant(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	promoteAlone(t, cb, 2) // unreachable old source, as it seemed
	client, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	must(t, ca, "SET GLOBAL rpl_semi_sync_master_enabled=0") // an operator's mistake; Baton never does it
	before := status(t, ca).BinlogState
	for _, id := range []string{"1", "2", "3"} {
		if err := exec(long(t), client, "INSERT INTO app.t VALUES ("+id+", 1)"); err != nil {
			t.Fatal(err)
		}
	}
	want := status(t, ca).BinlogState.Subtract(before)
	_, err = ca.Rejoin(long(t), current, b.replication(), status(t, cb).BinlogState)
	e, ok := errors.AsType[*ErrantError](err)
	if !ok || !errors.Is(err, ErrErrant) || !e.GTIDs.Equal(want) || !strings.Contains(err.Error(), want.String()) {
		t.Fatalf("rejoin: %v; want it refused with %s", err, want)
	}
	st := status(t, ca)
	if !st.ReadOnly || st.Replica != nil {
		t.Errorf("after the refusal: %+v", st)
	}
}

// On MariaDB, starting an applier while both threads stand deletes the relay log: acknowledged rows would be gone with a dead source.
func TestRelayLogIsKept(t *testing.T) {
	a, b := pair(t)
	cb := b.connect(t)
	must(t, cb, "STOP SLAVE SQL_THREAD")
	w := write(t, a, 2, 0)
	eventually(t, "writes are acknowledged", func() bool { return w.count() > 10 })
	must(t, cb, "STOP SLAVE IO_THREAD")
	received := status(t, cb).Received
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	w.stop()
	if _, err := cb.CatchUp(long(t), current, gtid.Set{}); !errors.Is(err, ErrBehind) {
		t.Errorf("catch up with both threads standing: %v", err)
	}
	if _, err := promote(long(t), cb, current, Epoch{2, "x", "b"}, nil); !errors.Is(err, ErrBehind) {
		t.Errorf("promote with a relay log that is not applied: %v", err)
	}
	if err := cb.RestartIO(long(t), current); !errors.Is(err, ErrReplica) {
		t.Errorf("restart with a relay log that is not applied: %v", err)
	}
	if got := status(t, cb).Received; !got.Equal(received) {
		t.Errorf("received %s, was %s: the relay log was deleted", got, received)
	}
}

// An applier that merely stands is started by the cut, while the IO thread still runs; then nothing is lost.
func TestCutStartsTheApplier(t *testing.T) {
	a, b := pair(t)
	cb := b.connect(t)
	must(t, cb, "STOP SLAVE SQL_THREAD")
	w := write(t, a, 2, 0)
	eventually(t, "writes are acknowledged", func() bool { return w.count() > 10 })
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	w.stop()
	promoteAlone(t, cb, 2)
	if lost := w.lost(t, cb); len(lost) > 0 {
		t.Fatalf("lost %v", lost)
	}
}

// An applier that stopped with an error is never restarted blindly: behind, with the server's words.
func TestApplierError(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	must(t, cb, "SET sql_log_bin=0; INSERT INTO baton.heartbeat VALUES ('x', 1, 1); SET sql_log_bin=1")
	must(t, ca, "INSERT INTO baton.heartbeat VALUES ('x', 2, 2)")
	eventually(t, "the applier stops", func() bool { return status(t, cb).Replica.SQLError != "" })
	if _, err := cb.CatchUp(long(t), current, status(t, ca).Executed); !errors.Is(err, ErrBehind) || !strings.Contains(err.Error(), "1062") {
		t.Errorf("catch up: %v", err)
	}
}

// A replica that lags catches up within its time, or says what is missing.
func TestCatchUpDeadline(t *testing.T) {
	a, b := pair(t)
	ca, cb, locker := a.connect(t), b.connect(t), b.connect(t)
	must(t, locker, "BEGIN; SELECT * FROM baton.epoch FOR UPDATE")
	must(t, ca, "UPDATE baton.epoch SET epoch = epoch + 1")
	upTo := status(t, ca).Executed
	ctx, cancel := context.WithTimeout(t.Context(), killGrace*20)
	defer cancel()
	if _, err := cb.CatchUp(ctx, current, upTo); err == nil {
		t.Fatal("caught up behind a lock")
	}
	must(t, locker, "ROLLBACK")
	cb = b.connect(t)
	got, err := cb.CatchUp(long(t), current, upTo)
	if err != nil || !got.Equal(upTo) {
		t.Errorf("caught up to %s, %v; want %s", got, err, upTo)
	}
}

// Two replicas acknowledge; the new one's IO thread stands when the source dies, and only the other has what was acknowledged last. The new
// one fetches it from there, also when the step is done twice, and nothing is lost.
func TestUnionOfTwoAckers(t *testing.T) {
	a, b := pair(t)
	c := startNode(t, 3)
	ca, cb, cc := a.connect(t), b.connect(t), c.connect(t)
	join(t, cc, ca, a)
	w := write(t, a, 4, 0)
	eventually(t, "writes are acknowledged", func() bool { return w.count() > 30 })
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	before := w.count()
	eventually(t, "the other one acknowledges", func() bool { return w.count() > before+30 })
	if err := a.Kill(); err != nil {
		t.Fatal(err)
	}
	w.stop()
	if _, err := cc.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	has, err := cc.CatchUp(long(t), current, gtid.Set{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cb.CatchUp(long(t), current, gtid.Set{}); err != nil {
		t.Fatal(err)
	}
	if lost := w.lost(t, cb); len(lost) == 0 {
		t.Fatal("the new one lacks nothing: the test shows nothing")
	}
	for range 2 {
		got, err := cb.Obtain(long(t), current, c.replication(), has)
		if err != nil || !got.Contains(has) {
			t.Fatalf("obtained %s of %s: %v", got, has, err)
		}
	}
	if lost := w.lost(t, cb); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
	promoteAlone(t, cb, 2)
	if _, err := cc.Rejoin(long(t), current, b.replication(), status(t, cb).BinlogState); err != nil {
		t.Errorf("the other one does not follow the new source: %v", err)
	}
}
