package mysql

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// caughtUp is a replica that is ready for promotion, its old source fenced.
func caughtUp(t *testing.T) (a, b *node, ca, cb *Conn) {
	t.Helper()
	a, b = pair(t)
	ca, cb = a.connect(t), b.connect(t)
	f, err := ca.FenceWrites(long(t), current)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cb.CatchUp(long(t), current, f.State); err != nil {
		t.Fatal(err)
	}
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	return a, b, ca, cb
}

func TestPromoteRefuses(t *testing.T) {
	_, _, _, cb := caughtUp(t)
	tests := []struct {
		name   string
		epoch  Epoch
		verify []Verification
		want   error
	}{
		{"an older epoch", Epoch{0, "old", "b"}, nil, ErrEpoch},
		{"the same epoch of another switch", Epoch{1, "other", "b"}, nil, ErrEpoch},
		{"a wrong answer", Epoch{2, "sw", "b"}, []Verification{{"SELECT 1", "1"}, {"SELECT COUNT(*) FROM app.t", "7"}}, ErrVerify},
		{"no row", Epoch{2, "sw", "b"}, []Verification{{"SELECT id FROM app.t", ""}}, ErrVerify},
		{"a verification that writes", Epoch{2, "sw", "b"}, []Verification{{"INSERT INTO baton.heartbeat VALUES ('x', 1, 1)", ""}}, ErrVerify},
	}
	for _, tt := range tests {
		if _, err := promote(long(t), cb, current, tt.epoch, tt.verify); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if st := status(t, cb); !st.ReadOnly || st.Epoch.Epoch != 1 {
			t.Fatalf("%s: read-only %v, epoch %+v", tt.name, st.ReadOnly, st.Epoch)
		}
	}
}

// Promotion: events off, source half off, epoch in, writable; done again it changes nothing; its replica configuration stays as the way
// back.
func TestPromote(t *testing.T) {
	_, _, ca, cb := caughtUp(t)
	must(t, cb, "SET GLOBAL event_scheduler=ON; SET GLOBAL rpl_semi_sync_master_enabled=1")
	epoch := Epoch{2, "it's", "b"}
	p, err := promote(long(t), cb, current, epoch, []Verification{{"SELECT epoch FROM baton.epoch", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	st := status(t, cb)
	if st.ReadOnly || st.SemiSync.SourceEnabled || st.EventScheduler != "OFF" || *st.Epoch != EpochRow(epoch) ||
		st.Replica == nil || st.Replica.IORunning != "No" || st.Replica.SQLRunning != "No" || !st.Executed.Equal(p.Executed) {
		t.Errorf("promoted %+v, status %+v, replica %+v", p, st, st.Replica)
	}
	again, err := promote(long(t), cb, current, epoch, nil)
	if err != nil || !again.Executed.Equal(p.Executed) {
		t.Errorf("promoted again: %+v, %v; was %+v", again, err, p)
	}
	if st := status(t, cb); st.Replica == nil {
		t.Error("the replica configuration is gone: it is the way back")
	}
	if _, err := ca.CatchUp(long(t), current, p.Executed); !errors.Is(err, ErrReplica) {
		t.Errorf("catch up of an instance that follows nobody: %v", err)
	}
}

// A promoted instance that follows its old source again after a restart applies what it received, and then follows nobody.
func TestStandAlone(t *testing.T) {
	a, _, ca, cb := caughtUp(t)
	must(t, ca, "SET GLOBAL read_only=0")
	must(t, cb, "START SLAVE")
	if err := ca.WaitSemiSyncOn(long(t), 1); err != nil {
		t.Fatal(err)
	}
	client, err := a.client(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := exec(long(t), client, "INSERT INTO app.t VALUES (4711, 0)"); err != nil {
		t.Fatal(err)
	}
	if err := cb.StandAlone(long(t), current); err != nil {
		t.Fatal(err)
	}
	st := status(t, cb)
	if st.Replica == nil || st.Replica.IORunning != "No" || st.Replica.SQLRunning != "No" || !st.Executed.Contains(status(t, ca).Executed) {
		t.Errorf("status %+v, replica %+v", st, st.Replica)
	}
	if err := cb.StandAlone(long(t), current); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := ca.StandAlone(long(t), current); err != nil {
		t.Errorf("one that never followed anybody: %v", err)
	}
}

// A replica that still receives must be cut first.
func TestPromoteUncut(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := cb.CatchUp(long(t), current, status(t, ca).Executed); err != nil {
		t.Fatal(err)
	}
	epoch := Epoch{2, "sw", "b"}
	if _, err := promote(long(t), cb, current, epoch, nil); !errors.Is(err, ErrReplica) {
		t.Errorf("promoted while the IO thread runs: %v", err)
	}
	if err := cb.Prepare(long(t), current, epoch, nil); !errors.Is(err, ErrReplica) {
		t.Errorf("prepared while it replicates: %v", err)
	}
	if st := status(t, cb); !st.ReadOnly || st.Epoch.Epoch != 1 {
		t.Errorf("a refused promotion changed something: %+v", st)
	}
	if _, err := cb.Open(long(t), current); !errors.Is(err, ErrReplica) {
		t.Errorf("opened while it replicates, and nobody was told: %v", err)
	}
}

// The source half of semi-sync is not touched while a session waits: its client would be told "committed".
func TestSemiSyncIsNotTouched(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := cb.Cut(long(t), current); err != nil {
		t.Fatal(err)
	}
	done := hang(t, a, ca, "1")
	if _, err := promote(long(t), ca, current, Epoch{2, "sw", "a"}, nil); !errors.Is(err, ErrSemiSync) {
		t.Errorf("promote with a waiting session: %v", err)
	}
	if st := status(t, ca); !st.SemiSync.SourceEnabled || st.SemiSync.Waiting != 1 {
		t.Errorf("semi-sync was touched: %+v", st.SemiSync)
	}
	if err := cb.RestartIO(long(t), current); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the waiting client: %v", err)
	}
}

func TestStatus(t *testing.T) {
	a, b := pair(t)
	ca, cb := a.connect(t), b.connect(t)
	if _, err := cb.CatchUp(long(t), current, status(t, ca).Executed); err != nil {
		t.Fatal(err)
	}
	sa, sb := status(t, ca), status(t, cb)
	if sa.Family != MariaDB || sa.ServerID != 1 || sb.ServerID != 2 || sa.UUID == "" || sa.UUID == sb.UUID || !strings.Contains(sa.Version, "MariaDB") {
		t.Errorf("identity: %+v, %+v", sa, sb)
	}
	if sa.ReadOnly || !sb.ReadOnly || !sa.LogReplicaUpdates || !sa.GTIDStrict || sa.SyncBinlog != 1 || sa.FlushLog != 1 || !sa.SkipNameResolve ||
		sa.EventScheduler != "OFF" || sa.AutoIncrement != (AutoIncrement{1, 1}) || sa.Channels != 0 || sa.Replica != nil || sb.Channels != 1 {
		t.Errorf("settings: %+v, %+v", sa, sb)
	}
	if !sa.SemiSync.Lossless() || sa.SemiSync.Clients != 1 || sa.SemiSync.WaitCount != 1 || !sb.SemiSync.ReplicaOn || sb.SemiSync.SourceEnabled {
		t.Errorf("semi-sync: %+v, %+v", sa.SemiSync, sb.SemiSync)
	}
	r := sb.Replica
	if r.Source != a.Server.Addr || r.IORunning != "Yes" || r.SQLRunning != "Yes" || !r.UsingGTID || r.Lag == nil || r.IOError+r.SQLError != "" {
		t.Errorf("replica: %+v", r)
	}
	if !sb.Executed.Equal(sa.Executed) || !sb.Received.Equal(sa.Executed) || sb.BinlogState.Kind() != gtid.MariaDBState || !slices.Equal(sa.ReplicaHosts, []uint32{2}) {
		t.Errorf("GTIDs: %s, %s received %s; ackers %v", sa.Executed, sb.Executed, sb.Received, sa.ReplicaHosts)
	}
	// The prober's account sees the state, too, but for the ackers.
	low := a.Server
	low.Account = probe
	cp, err := low.Connect(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	if sp := status(t, cp); sp.ReplicaHosts != nil || sp.Epoch == nil {
		t.Errorf("as prober: %+v", sp)
	}
}

func TestRights(t *testing.T) {
	a, _ := pair(t)
	ca := a.connect(t)
	r, err := ca.Rights(long(t))
	if err != nil || len(r.Lacks) > 0 {
		t.Errorf("the admin account of Grants lacks %v, %v", r.Lacks, err)
	}
	if slices.Contains(r.Passing, "'app'@'%'") {
		t.Errorf("passing %v", r.Passing)
	}
	root := a.Server
	root.Account = Account{User: "root"}
	cr, err := root.Connect(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cr.Close()
	must(t, cr, "GRANT READ_ONLY ADMIN ON *.* TO app@'%'")
	if r, err = ca.Rights(long(t)); err != nil || !slices.Contains(r.Passing, "'app'@'%'") {
		t.Errorf("passing %v, %v: app passes read_only", r.Passing, err)
	}
	f, err := ca.FenceWrites(long(t), current)
	if err != nil || !slices.Contains(f.Passing, "'app'@'%'") {
		t.Errorf("fenced %+v, %v: app passes read_only", f, err)
	}
	low := a.Server
	low.Account = probe
	cp, err := low.Connect(long(t))
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Close()
	if r, err = cp.Rights(long(t)); err != nil || len(r.Lacks) != len(adminPrivileges[MariaDB])-1 || len(r.Passing) != 1 || !strings.HasPrefix(r.Passing[0], "unknown") {
		t.Errorf("the prober lacks %v, sees %v, %v", r.Lacks, r.Passing, err)
	}
}

// Two channels: Baton cannot tell which is the pair's.
func TestChannels(t *testing.T) {
	_, b := pair(t)
	cb := b.connect(t)
	must(t, cb, "CHANGE MASTER 'other' TO MASTER_HOST='127.0.0.1', MASTER_USER='x', MASTER_USE_GTID=slave_pos")
	if _, err := cb.Cut(long(t), current); !errors.Is(err, ErrReplica) || !strings.Contains(err.Error(), "2 replication channels") {
		t.Errorf("cut of two channels: %v", err)
	}
}
