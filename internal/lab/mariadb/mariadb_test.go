package mariadb

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/netns"
)

func TestMain(m *testing.M) { box.Main(m) }

// TestPair bakes a seed, starts a source and a replica from it, and sees a row travel, a server die by SIGKILL and come back
// read-only with the row.
func TestPair(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	seed := bakeTwice(ctx, t)
	n, err := netns.New(t.TempDir(), []netns.Spec{
		{Name: "db-a1", Addr: netip.MustParsePrefix("10.77.0.31/24")},
		{Name: "db-b1", Addr: netip.MustParsePrefix("10.77.0.41/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	start := func(host string, id uint32, source bool) *Instance {
		t.Helper()
		h, err := n.Host(host)
		if err != nil {
			t.Fatal(err)
		}
		in, err := NewInstance(ctx, seed, h, filepath.Join("/dev/shm", host), id, source)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Start(ctx); err != nil {
			t.Fatal(err)
		}
		return in
	}
	a, b := start("db-a1", 11, true), start("db-b1", 21, false)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(b.Replicate(ctx, a))
	must(a.Exec(ctx, "SET GLOBAL read_only=OFF"))
	must(a.Exec(ctx, "INSERT INTO bank.ledger (id) VALUES (4)"))
	// Lossless semi-sync: what was acknowledged has reached the replica; applying it may take a moment longer.
	waitFor(ctx, t, func() bool { return rows(ctx, t, b, "SELECT id, server_id FROM bank.ledger") == "4 11" })
	if got := rows(ctx, t, a, "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"); got != "Rpl_semi_sync_master_clients 1" {
		t.Errorf("semi-sync: %s", got)
	}
	must(a.Signal(unix.SIGKILL))
	must(a.Start(ctx))
	if got := rows(ctx, t, a, "SELECT @@read_only, (SELECT COUNT(*) FROM bank.ledger)"); got != "1 1" {
		t.Errorf("after a crash: %s, want read-only with its row", got)
	}
}

// bakeTwice bakes a seed, and sees that the second time it is only found.
func bakeTwice(ctx context.Context, t *testing.T) Seed {
	t.Helper()
	cache := filepath.Join("/dev/shm", t.Name())
	seed, err := Bake(ctx, cache)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(seed.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Bake(ctx, cache); err != nil || again != seed {
		t.Fatalf("second bake = %+v, %v, want %+v", again, err, seed)
	}
	if after, err := os.Stat(seed.Dir); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Fatalf("the seed was baked twice: %v", err)
	}
	return seed
}

func rows(ctx context.Context, t *testing.T, in *Instance, q string) string {
	t.Helper()
	all, err := in.Query(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, line := range all {
		for _, cell := range line {
			text += cell + " "
		}
	}
	return text[:max(0, len(text)-1)]
}

func waitFor(ctx context.Context, t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("it never came")
		case <-tick.C:
		}
	}
}
