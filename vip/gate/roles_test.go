package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What a child process of a test plays, and with which exit code it tells the outcome.
const (
	roleRenew   = "renew"   // installs open and renews for ever, saying each deadline before it writes it
	roleInstall = "install" // installs with a preloaded deadline and leaves without a word
	roleProbe   = "probe"

	exitOK = iota
	exitOther
	exitNotPermitted
	exitClock
	exitUnsupported
)

const rolePlanEnv = "BATON_GATE_PLAN"

// rolePlan is what a child is told.
type rolePlan struct {
	Config   Config
	Method   Method
	Unmapped bool
	Preload  Word
	TTL      time.Duration
	Every    time.Duration
}

func playRole(role string) int {
	var plan rolePlan
	if err := json.Unmarshal([]byte(os.Getenv(rolePlanEnv)), &plan); err != nil && role != roleProbe {
		fmt.Fprintln(os.Stderr, err)
		return exitOther
	}
	plan.Config.method, plan.Config.unmapped, plan.Config.lasting = plan.Method, plan.Unmapped, func(string) bool { return true }
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a child whose test died must not stay
	defer cancel()
	var err error
	switch role {
	case roleProbe:
		_, err = Probe(ctx)
	case roleInstall:
		err = installOnce(ctx, plan)
	case roleRenew:
		err = renewForEver(ctx, plan)
	}
	if err != nil {
		fmt.Println("error", err)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, ErrNotPermitted):
		return exitNotPermitted
	case errors.Is(err, ErrClock):
		return exitClock
	case errors.Is(err, ErrUnsupported):
		return exitUnsupported
	}
	return exitOther
}

func installOnce(ctx context.Context, plan rolePlan) error {
	g, err := New(plan.Config)
	if err != nil {
		return err
	}
	return g.Install(ctx, plan.Preload)
}

// renewForEver is a daemon without a conscience: it renews without asking anybody.
func renewForEver(ctx context.Context, plan rolePlan) error {
	g, err := New(plan.Config)
	if err != nil {
		return err
	}
	if err := g.Install(ctx, 0); err != nil {
		return err
	}
	tick := time.NewTicker(plan.Every)
	defer tick.Stop()
	for {
		old, next := g.Word(), Now().Add(plan.TTL)
		fmt.Println("until", uint64(next))
		fmt.Println("outcome", g.Swap(old, next))
		if err := g.Verify(ctx); err != nil {
			fmt.Println("verify", errors.Is(err, ErrNotOurs), err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// daemon is a child whose lines are read as they come.
type daemon struct {
	cmd *exec.Cmd

	mu    sync.Mutex
	lines []string
}

func startDaemon(t testing.TB, role string, plan rolePlan) *daemon {
	t.Helper()
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{cmd: child(role, []string{rolePlanEnv + "=" + string(text)})}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		d.read(stdout)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-read
		_ = d.cmd.Wait()
	})
	return d
}

func (d *daemon) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		d.mu.Lock()
		d.lines = append(d.lines, s.Text())
		d.mu.Unlock()
	}
}

// said lists what followed a word at the beginning of a line.
func (d *daemon) said(word string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, l := range d.lines {
		if rest, ok := strings.CutPrefix(l, word+" "); ok {
			all = append(all, rest)
		}
	}
	return all
}

// lastDeadline is the latest that the daemon may have written; it says each before it writes it.
func (d *daemon) lastDeadline(t testing.TB) Word {
	t.Helper()
	all := d.said("until")
	if len(all) == 0 {
		t.Fatalf("the daemon has written no deadline: %v", d.said("error"))
	}
	n, err := strconv.ParseUint(all[len(all)-1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return Word(n)
}

// signal sends the signal and, unless it is one to go on, waits until the process stands still or is gone, and until its last words were read.
func (d *daemon) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGCONT {
		return
	}
	eventually(t, "the daemon to stand still", func() bool {
		state := processState(d.cmd.Process.Pid)
		return state == "T" || state == "Z" || state == ""
	})
	// What it wrote to the pipe before it stood still has been read when nothing new comes for a while.
	before, same := -1, 0
	eventually(t, "the daemon's last words", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		same++
		if len(d.lines) != before {
			before, same = len(d.lines), 0
		}
		return same > 20
	})
}

// processState is the letter of a process's state in /proc, "" when there is none.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}
