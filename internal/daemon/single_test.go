package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHelperProcess is no test but the other process of those below: it holds the lock in one way or another until its stdin ends.
func TestHelperProcess(t *testing.T) {
	role, dir, _ := strings.Cut(os.Getenv("BATON_TEST_HELPER"), " ")
	switch role {
	case "":
		return
	case "daemon":
		f, err := single(t.Context(), dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	case "locked": // a daemon between its lock and the writing of its number
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// other is a helper process.
type other struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Closer
	done chan struct{} // closed at its end
}

func startOther(t *testing.T, role, dir string) *other {
	t.Helper()
	o := &other{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcess$"), done: make(chan struct{})}
	o.cmd.Env = append(os.Environ(), "BATON_TEST_HELPER="+role+" "+dir)
	in, err := o.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.in = in
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("helper said %q: %v", line, err)
	}
	go func() {
		_ = o.cmd.Wait()
		close(o.done)
	}()
	t.Cleanup(func() {
		_ = o.cmd.Process.Kill()
		<-o.done
	})
	return o
}

// alive says whether it has not ended, a moment from now.
func (o *other) alive() bool {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-o.done:
		return false
	case <-timer.C:
		return true
	}
}

func (o *other) freeze() {
	o.t.Helper()
	if err := o.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		o.t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.cmd.Process.Pid))
		if _, after, ok := strings.Cut(string(b), ") "); err == nil && ok && after[0] == 'T' {
			return
		}
	}
	o.t.Fatal("the helper does not stop")
}

// take tries to be the only daemon for as long as that.
func take(t *testing.T, dir string, patience time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("patience has ended"))
	defer cancel()
	f, err := single(ctx, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = f.Close() })
	b, err := os.ReadFile(filepath.Join(dir, "lock"))
	if err != nil || string(b) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the lock file says %q: %v", b, err)
	}
	return nil
}

func TestPredecessorIsKilled(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen %t", frozen), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			o := startOther(t, "daemon", dir)
			if frozen {
				o.freeze()
			}
			if err := take(t, dir, 30*time.Second); err != nil {
				t.Fatal(err)
			}
			<-o.done
			if ws, ok := o.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
				t.Errorf("predecessor ended by %v", o.cmd.ProcessState)
			}
		})
	}
}

// The file still says a number of long ago, which another process has now; whoever holds the lock has not written his own yet. Nobody is
// killed for that, and the lock is waited for.
func TestRecycledNumberIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	innocent := startOther(t, "idle", dir)
	for name, content := range map[string]string{
		"another process": strconv.Itoa(innocent.cmd.Process.Pid) + "\n",
		"init":            "1\n",
		"a group":         "-1\n",
		"ourselves":       strconv.Itoa(os.Getpid()) + "\n",
		"nothing":         "",
		"nonsense":        "what?",
		"nobody":          "4194304\n", // above every pid_max
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			holder := startOther(t, "locked", dir)
			err := take(t, dir, 50*time.Millisecond)
			if err == nil || !strings.Contains(err.Error(), "patience has ended") {
				t.Fatalf("took a lock that is held: %v", err)
			}
			if !innocent.alive() || !holder.alive() {
				t.Fatalf("somebody was killed: innocent %v, holder %v", innocent.cmd.ProcessState, holder.cmd.ProcessState)
			}
			got := make(chan error, 1)
			go func() { got <- take(t, dir, 30*time.Second) }()
			if err := holder.in.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-got; err != nil {
				t.Errorf("the lock is free, and yet: %v", err)
			}
		})
	}
}

func TestStateDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := take(t, filepath.Join(file, "state"), time.Second); err == nil {
		t.Error("a lock below a file")
	}
}
