package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// hang starts one commit on the source that waits for an acknowledgement nobody gives, and returns its error's channel.
func hang(t *testing.T, a *node, ca *Conn, id string) chan error {
	t.Helper()
	c, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	done := make(chan error, 1)
	go func() { done <- exec(context.WithoutCancel(t.Context()), c, "INSERT INTO app.t VALUES ("+id+", 0)") }()
	eventually(t, "the commit waits for its acknowledgement", func() bool { return status(t, ca).SemiSync.Waiting > 0 })
	return done
}

// onlyOne checks that of the admin's connections the server has this one alone, and no client's.
func onlyOne(t *testing.T, c *Conn) {
	t.Helper()
	eventually(t, "no connection is left behind", func() bool {
		list, err := c.sessions(long(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(ids(list, func(s session) bool { return s.user == c.user || c.isClient(s) })) == 1
	})
}

// A commit that waits for a replica that was cut off holds read_only up. The fence kills it: read-only, in time, the client was told
// nothing, and its transaction is named in the evidence (it is errant later).
func TestFenceHangingCommit(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	before := status(t, ca)
	done := hang(t, a, ca, "1")

	f, err := ca.FenceWrites(long(t), current)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the client was told that its transaction is committed, and no replica has it")
	}
	st := status(t, ca)
	if !st.ReadOnly || f.Killed == 0 || !st.SemiSync.SourceEnabled {
		t.Errorf("fenced %+v, status %+v", f, st)
	}
	if got := f.State.Subtract(before.BinlogState); got.Empty() {
		t.Error("the killed transaction is not in the evidence")
	}
	onlyOne(t, ca)
	if _, err := ca.FenceWrites(long(t), current); err != nil {
		t.Errorf("fence again: %v", err)
	}
}

// The fence kills an idle session in the middle of a transaction, and spares one that has begun none.
func TestFenceIdleSessions(t *testing.T) {
	a, _ := pair(t)
	ca := a.connect(t)
	inside, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close() //nolint:errcheck // it is killed
	outside, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close() //nolint:errcheck // nothing of it is needed any more
	for _, sql := range []string{"BEGIN", "INSERT INTO app.t VALUES (1, 1)"} {
		if err := exec(long(t), inside, sql); err != nil {
			t.Fatal(err)
		}
	}
	f, err := ca.FenceWrites(long(t), current)
	if err != nil || f.Killed < 1 { // a connection of the set-up that is still on its way out may be counted, too
		t.Fatalf("fenced %+v: %v", f, err)
	}
	if err := exec(long(t), inside, "COMMIT"); err == nil {
		t.Error("committed after the fence")
	}
	if err := exec(long(t), outside, "INSERT INTO app.t VALUES (2, 2)"); serverNumber(err) != 1290 {
		t.Errorf("the spared session writes: %v, want 1290", err)
	}
	if st := status(t, ca); !st.Executed.Equal(f.Executed) {
		t.Errorf("executed %s after the fence, %s at it", st.Executed, f.Executed)
	}
	if rows := must(t, ca, "SELECT id FROM app.t")[0]; len(rows) > 0 {
		t.Errorf("%d rows are there", len(rows))
	}
}

// What an idle session of the old source has locked does not hold up its replication from the new one.
func TestRejoinFreesTheRows(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	c, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // it is killed
	for _, sql := range []string{"BEGIN", "SELECT GET_LOCK('x', 0)", "LOCK TABLES app.t READ"} {
		if err := exec(long(t), c, sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ca.FenceWrites(long(t), current); err != nil {
		t.Fatal(err)
	}
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	if _, err := promote(long(t), cb, current, Epoch{2, "sw", "b"}, nil); err != nil {
		t.Fatal(err)
	}
	join(t, ca, cb, b)
	other, err := b.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // nothing of it is needed any more
	if err := exec(long(t), other, "INSERT INTO app.t VALUES (1, 2)"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the row is applied", func() bool { return status(t, ca).Executed.Contains(status(t, cb).Executed) })
}

// allHang waits until n commits hang, and returns how many were acknowledged: those whose acknowledgement came before the cut may still be on
// their way out, so ten looks in a row must agree.
func allHang(t *testing.T, c *Conn, w *writers, n int) int {
	t.Helper()
	acked, same := -1, 0
	eventually(t, "all commits hang", func() bool {
		list, err := c.sessions(long(t))
		if now := w.count(); err != nil || now != acked || len(ids(list, session.commits)) != n {
			acked, same = now, 0
		}
		same++
		return same > 10
	})
	return acked
}

// Commits wait in groups, one session for all of its group: killing that one first would tell the others "committed". The fence tells
// nobody so.
func TestFenceGroup(t *testing.T) {
	a, b := pair(t)
	cb := b.connect(t)
	for round := range 5 {
		w := write(t, a, 8, int64(round)*1_000_000)
		eventually(t, "writes are acknowledged", func() bool { return w.count() > 50 })
		if _, err := cb.Cut(long(t), current); err != nil {
			t.Fatal(err)
		}
		ca := a.connect(t)
		acked := allHang(t, ca, w, 8)
		if _, err := ca.FenceWrites(long(t), current); err != nil {
			t.Fatal(err)
		}
		w.stop()
		if n := w.count(); n != acked {
			t.Fatalf("round %d: %d clients were told that their transactions are committed, and no replica has them", round, n-acked)
		}
		if _, err := cb.CatchUp(long(t), current, gtid.Set{}); err != nil {
			t.Fatal(err)
		}
		if lost := w.lost(t, cb); len(lost) > 0 {
			t.Fatalf("round %d: lost %v", round, lost)
		}
		if err := cb.RestartIO(long(t), current); err != nil {
			t.Fatal(err)
		}
		if err := ca.Unfence(long(t), current); err != nil {
			t.Fatal(err)
		}
	}
}

// storm lets n clients come again and again, each before its last connection is closed, until the test's end.
func storm(t *testing.T, at Server, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var came atomic.Int64
	for range n {
		wait.Go(func() {
			var last *Conn
			for ctx.Err() == nil {
				c, err := at.Connect(ctx)
				if err != nil {
					continue
				}
				if came.Add(1); last != nil {
					last.Close()
				}
				last = c
			}
			if last != nil {
				last.Close()
			}
		})
	}
	t.Cleanup(func() { cancel(); wait.Wait() })
	eventually(t, "the clients come", func() bool { return came.Load() > int64(10*n) })
}

// An application comes again as soon as it is killed, faster than the fence looks. The fence ends all the same: newcomers cannot write, and
// it does not wait for them.
func TestFenceReconnecting(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	done := hang(t, a, ca, "1")
	client := a.Server
	client.Account = app
	storm(t, client, 8)
	if _, err := ca.FenceWrites(long(t), current); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the client was told that its transaction is committed, and no replica has it")
	}
}

// A guard of an older term connects again and again. Its later connections are refused by their check; those that were there are proven
// gone, and the proof ends.
func TestKillStepsReconnecting(t *testing.T) {
	a := startNode(t, 1)
	c := a.connect(t)
	storm(t, a.Server, 8)
	if n, err := c.KillSteps(long(t), current); err != nil || n == 0 {
		t.Fatalf("killed %d: %v", n, err)
	}
}

// busy lets other run a statement, and returns when c sees it run. The test's end waits for its end.
func busy(t *testing.T, c, other *Conn, sql string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = other.query(context.WithoutCancel(t.Context()), sql) // it is killed
	}()
	t.Cleanup(func() { <-done })
	eventually(t, "the statement sleeps, its locks taken", func() bool {
		list, err := c.sessions(long(t))
		return err == nil && len(ids(list, func(s session) bool { return s.id == other.id && s.state == "User sleep" })) == 1
	})
}

// What the fence may not kill keeps it from being read-only: it ends with its time, says why, and leaves nothing in the server.
func TestFenceDeadline(t *testing.T) {
	a, _ := pair(t)
	ca, other := a.connect(t), a.connect(t)
	busy(t, ca, other, "INSERT INTO baton.heartbeat SELECT 'x', SLEEP(1000), 1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := ca.FenceWrites(ctx, current); !errors.Is(err, ErrStillWritable) {
		t.Fatalf("fence under a long write: %v", err)
	}
	cn := a.connect(t)
	if n, err := cn.KillSteps(long(t), current); err != nil || n == 0 {
		t.Fatalf("kill steps: %d, %v", n, err)
	}
	if status(t, cn).ReadOnly {
		t.Error("a statement that the fence had given up came through")
	}
	onlyOne(t, cn)
}

// A frozen source answers nothing: the fence ends with its time, and says that it has proven nothing. Thawed, the source has no
// connection of it.
func TestFenceFrozen(t *testing.T) {
	a, _ := pair(t)
	ca := a.connect(t)
	if err := a.Freeze(long(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := ca.FenceWrites(ctx, current)
	if cerr := a.Thaw(); cerr != nil {
		t.Fatal(cerr)
	}
	if !errors.Is(err, ErrStillWritable) || !errors.Is(err, ErrUnproven) {
		t.Fatalf("fence of a frozen source: %v", err)
	}
	cn := a.connect(t)
	if _, err := cn.KillSteps(long(t), current); err != nil {
		t.Fatal(err)
	}
	onlyOne(t, cn)
}

// A new term kills every step connection, idle or busy, and no client.
func TestKillSteps(t *testing.T) {
	a, _ := pair(t)
	var old []*Conn
	for range 3 {
		old = append(old, a.connect(t))
	}
	client, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := a.connect(t)
	busy(t, c, old[0], "SELECT SLEEP(1000)")
	if _, err := c.KillSteps(long(t), current); err != nil {
		t.Fatal(err)
	}
	for _, o := range old[1:] {
		if err := o.Unfence(long(t), current); err == nil {
			t.Error("a step of an older term went on")
		}
	}
	if err := client.(driver.Pinger).Ping(long(t)); err != nil {
		t.Errorf("a client was killed: %v", err)
	}
}

// A step connection that waits for an acknowledgement is not killed, it could stand for clients; the term is told that it is there.
func TestKillStepsSparesCommits(t *testing.T) {
	a, b := pair(t)
	c, old := a.connect(t), a.connect(t)
	if _, err := b.connect(t).Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := old.query(context.WithoutCancel(t.Context()), "INSERT INTO baton.heartbeat VALUES ('x', 1, 1)")
		done <- err
	}()
	eventually(t, "the commit waits", func() bool { return status(t, c).SemiSync.Waiting > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.KillSteps(ctx, current); !errors.Is(err, ErrUnproven) {
		t.Errorf("kill steps with a commit that waits: %v", err)
	}
	if err := b.connect(t).RestartIO(long(t), current); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the commit: %v", err)
	}
}

// A check that refuses stops every step before its first statement.
func TestStaleCheck(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	st := status(t, ca)
	stale := func() error { return errStale }
	steps := map[string]func() error{
		"fence":   func() error { _, err := ca.FenceWrites(long(t), stale); return err },
		"cut":     func() error { _, err := cb.Cut(long(t), stale); return err },
		"promote": func() error { _, err := promote(long(t), ca, stale, Epoch{9, "x", "x"}, nil); return err },
		"rejoin":  func() error { _, err := cb.Rejoin(long(t), stale, a.replication(), st.BinlogState); return err },
		"arm":     func() error { return ca.ArmSemiSync(long(t), stale, 1) },
		"unfence": func() error { return cb.Unfence(long(t), stale) },
		"kill": func() error {
			a.connect(t)
			_, err := ca.KillSteps(long(t), stale)
			return err
		},
	}
	for name, step := range steps {
		if err := step(); !errors.Is(err, ErrStaleStep) || !errors.Is(err, errStale) {
			t.Errorf("%s with a refused check: %v", name, err)
		}
	}
	sa, sb := status(t, ca), status(t, cb)
	if sa.ReadOnly || !sb.ReadOnly || sb.Replica.IORunning != "Yes" || !sa.SemiSync.Lossless() || sa.Epoch.Epoch != 1 {
		t.Errorf("a refused step changed something: %+v, %+v", sa, sb)
	}
}

// Undo: after fence and cut, replication and semi-sync come back and the old source serves again.
func TestUndo(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := ca.FenceWrites(long(t), current); err != nil {
		t.Fatal(err)
	}
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	if err := cb.RestartIO(long(t), current); err != nil {
		t.Fatal(err)
	}
	if err := ca.WaitSemiSyncOn(long(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := ca.Unfence(long(t), current); err != nil {
		t.Fatal(err)
	}
	w := write(t, a, 1, 0)
	eventually(t, "writes are acknowledged again", func() bool { return w.count() > 3 })
}

// The second phase of an XA transaction passes read_only: an idle session in the middle of one is killed, and what it wrote is gone.
func TestFenceXA(t *testing.T) {
	a, _ := pair(t)
	ca := a.connect(t)
	c, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // it is killed
	for _, sql := range []string{"XA START 'x'", "INSERT INTO app.t VALUES (1, 1)", "XA END 'x'"} {
		if err := exec(long(t), c, sql); err != nil {
			t.Fatal(err)
		}
	}
	f, err := ca.FenceWrites(long(t), current)
	if err != nil || f.Killed < 1 { // a connection of the set-up that is still on its way out may be counted, too
		t.Fatalf("fenced %+v: %v", f, err)
	}
	_ = exec(long(t), c, "XA PREPARE 'x'")
	_ = exec(long(t), c, "XA COMMIT 'x'")
	if st := status(t, ca); !st.Executed.Equal(f.Executed) {
		t.Errorf("executed %s after the fence, %s at it", st.Executed, f.Executed)
	}
	if rows := must(t, ca, "SELECT id FROM app.t")[0]; len(rows) > 0 {
		t.Errorf("%d rows are there", len(rows))
	}
}

// A connection that is logging in when the older steps are killed may be one of theirs: it is killed too.
func TestKillStepsLoggingIn(t *testing.T) {
	a := startNode(t, 1)
	c := a.connect(t)
	loggingIn := func() int {
		list, err := c.sessions(long(t))
		if err != nil {
			t.Fatal(err)
		}
		return len(ids(list, func(s session) bool { return s.user == "unauthenticated user" }))
	}
	eventually(t, "the last connection of the set-up is gone", func() bool { return loggingIn() == 0 })
	login, err := net.Dial("tcp", a.Server.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer login.Close() //nolint:errcheck // the server has closed it
	eventually(t, "the server waits for the login", func() bool { return loggingIn() == 1 })
	if n, err := c.KillSteps(long(t), current); err != nil || n != 1 {
		t.Fatalf("killed %d: %v", n, err)
	}
	if err := login.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, login); err != nil {
		t.Errorf("the login is still open: %v", err)
	}
}
