package lab

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/load"
	"github.com/baton-ha/baton/internal/lab/netns"
	"github.com/baton-ha/baton/internal/lab/script"
	"github.com/baton-ha/baton/internal/lab/standin"
)

// TestMain: the test binary is also the stand-in that the laboratory starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "standin" {
		if err := standin.RunFile(context.Background(), os.Args[3], slog.New(slog.DiscardHandler)); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	box.Main(m)
}

func parse(t *testing.T, text string) script.Scenario {
	t.Helper()
	s, err := script.Parse(t.Name(), []byte("title T\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func runBare(t *testing.T, text string) (Result, *Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	result, l := Run(ctx, Options{Cache: "/dev/shm/cache", Self: self, Time: NewTimeline(nil)}, parse(t, text), 1, 1)
	t.Cleanup(func() { end(t, l) })
	return result, l
}

// TestQuiet: without faults and without Baton, the laboratory's own checks find nothing.
func TestQuiet(t *testing.T) {
	result, _ := runBare(t, "baseline 1s\npause 300ms\nexpect no switch\nexpect refused 0")
	if !result.OK || result.Acknowledged < 100 || len(result.Holders) != 1 || result.Holders[0] != "mc-a" {
		t.Errorf("a quiet run: %+v", result)
	}
}

// TestDeadServer: a fault that nobody mends is seen by every check that should see it.
func TestDeadServer(t *testing.T) {
	result, _ := runBare(t, "baseline 500ms\nkill mysql a s2\npause 300ms\nexpect no interruption\n")
	wantReason(t, result, "expect no interruption", "s2 had no good write|writes were", "does not work at the end", "rows of db-a2 cannot be read")
	if result.OutageMS < result.BaselineMS {
		t.Errorf("outage %v ms, baseline %v ms", result.OutageMS, result.BaselineMS)
	}
}

// TestChecksFind does by hand what no scenario may ever show: each must be found.
func TestChecksFind(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := bareRun(ctx, t)
	l := r.lab
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.prepare(ctx))
	r.struck = time.Now()
	var ids []int64 // acknowledged ones of shard 1
	must(l.poll(ctx, "three acknowledged rows", func(context.Context) error {
		ids = ids[:0]
		for _, w := range l.writer.Writes() {
			if w.Shard == 0 && w.Outcome == load.Acknowledged {
				ids = append(ids, w.ID)
			}
		}
		if len(ids) < 3 {
			return fmt.Errorf("%d rows", len(ids))
		}
		return nil
	}))
	a1, a2 := l.mysql["db-a1"], l.mysql["db-a2"]
	must(a1.Exec(ctx, fmt.Sprintf("DELETE FROM bank.ledger WHERE id=%d", ids[0])))
	must(a1.Exec(ctx, fmt.Sprintf("UPDATE bank.ledger SET server_id=99 WHERE id=%d", ids[1])))
	must(a2.Exec(ctx, fmt.Sprintf("INSERT INTO bank.ledger (id) VALUES (%d)", ids[2])))
	must(l.mysql["db-b3"].Exec(ctx, "SET GLOBAL read_only=OFF"))
	other, err := l.net.Host("mc-b")
	must(err)
	_, err = other.Output(exec.CommandContext(ctx, "ip", "address", "add", vipText+"/32", "dev", netns.Interface))
	must(err)
	must(l.net.Block(ctx, "witness", "mc-a"))
	must(l.mycat["b"].Signal(unix.SIGKILL)) // past the injector: as if it had crashed
	must(r.finish(ctx))
	result := r.result
	result.Reason = strings.Join(r.reasons, "; ")
	wantReason(t, result, "at the end 2 hosts answer", "double_holder is", "ended by itself: mycat on mc-b")
	r.reasons = nil
	r.audit(ctx, "mc-a")
	r.judge()
	result = r.result
	result.Reason = strings.Join(r.reasons, "; ")
	wantReason(t, result, "lost is 1", "duplicated is 1", "rows were acknowledged by a server that did not serve", "read_only of db-b3 is 0")
	if err := l.undoAll(ctx); err == nil || !strings.Contains(err.Error(), "faults are left") {
		t.Errorf("a rule that nobody took back was not found: %v", err)
	}
	must(l.net.Unblock(ctx))
}

func bareRun(ctx context.Context, t *testing.T) *run {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := Up(ctx, Options{Cache: "/dev/shm/cache", Self: self, Time: NewTimeline(nil)})
	t.Cleanup(func() { end(t, l) })
	if err != nil {
		t.Fatal(err)
	}
	return &run{lab: l, began: time.Now(), result: Result{Steps: map[string]float64{}}}
}

// end closes the laboratory and kills what the box's end would have taken: the tests of this package share one box.
func end(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Log(l.time)
	}
	for _, p := range l.mycat {
		_ = p.Signal(unix.SIGKILL)
	}
	for _, in := range l.mysql {
		_ = in.Signal(unix.SIGKILL)
	}
	_ = os.RemoveAll(dbDir)
}

// wantReason looks for each part, or one of its alternatives, in the reason.
func wantReason(t *testing.T, result Result, parts ...string) {
	t.Helper()
	for _, part := range parts {
		found := false
		for _, alternative := range strings.Split(part, "|") {
			found = found || strings.Contains(result.Reason, alternative)
		}
		if result.OK || !found {
			t.Errorf("ok = %v, reason %q: want %q", result.OK, result.Reason, part)
		}
	}
}
