package lab

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/lab/box"
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
	t.Cleanup(func() {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%+v\n%s", result, l.time)
		}
		for _, p := range l.mycat {
			_ = p.Signal(9)
		}
		for _, in := range l.mysql {
			_ = in.Signal(9)
		}
		_ = os.RemoveAll(dbDir)
	})
	return result, l
}

// TestQuiet: without faults and without Baton, the laboratory's own checks find nothing.
func TestQuiet(t *testing.T) {
	result, _ := runBare(t, "baseline 1s\npause 300ms\nexpect no switch\nexpect refused 0")
	if !result.OK || result.Acknowledged < 100 || len(result.Holders) != 1 || result.Holders[0] != "mc-a" {
		t.Errorf("a quiet run: %+v", result)
	}
}

// TestChecksFind: what the laboratory is there to find, done by hand, must be found.
func TestChecksFind(t *testing.T) {
	t.Run("a dead server", func(t *testing.T) {
		result, _ := runBare(t, "baseline 500ms\nkill mysql a s2\nexpect no interruption\n")
		wantReason(t, result, "expect no interruption", "does not work at the end")
		if result.OutageMS < result.BaselineMS {
			t.Errorf("outage %v ms, baseline %v ms", result.OutageMS, result.BaselineMS)
		}
	})
}

func wantReason(t *testing.T, result Result, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if result.OK || !strings.Contains(result.Reason, part) {
			t.Errorf("ok = %v, reason %q: want %q", result.OK, result.Reason, part)
		}
	}
}
