package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const stopBudget = 2 * time.Second // a microsecond, unless a thread sits in the kernel

// Process is one program on one host, which can be killed, frozen, thawed and started again. Its methods are not safe for
// concurrent use, except Alive and Dead.
type Process struct {
	Name string // of its log file, under the host's log directory
	Host *Host
	Args []string // the program and its arguments

	cmd  *exec.Cmd
	dead chan struct{}
}

// LogPath is the file that takes the program's output, over all its lives.
func (p *Process) LogPath() string { return filepath.Join(p.Host.Dir, "log", p.Name+".log") }

// Start starts the program. A second start before the end of the first is an error.
func (p *Process) Start() error {
	if p.Alive() {
		return fmt.Errorf("start %s on %s: it runs already", p.Name, p.Host.Name)
	}
	log, err := os.OpenFile(p.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s on %s: %w", p.Name, p.Host.Name, err)
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's interrupt is for the laboratory, not for its hosts
	if err := p.Host.Start(cmd); err != nil {
		return err
	}
	dead := make(chan struct{})
	p.cmd, p.dead = cmd, dead
	go func() {
		_ = cmd.Wait() // killed on purpose, most of the time
		close(dead)
	}()
	return nil
}

// Dead is closed when the program has ended. It is nil before the first start.
func (p *Process) Dead() <-chan struct{} { return p.dead }

// Alive says whether the program runs; a frozen one does.
func (p *Process) Alive() bool {
	if p.dead == nil {
		return false
	}
	select {
	case <-p.dead:
		return false
	default:
		return true
	}
}

// Signal sends a signal. After SIGKILL it waits for the end, and after SIGSTOP until the program stands: a signal is only a request,
// and one that is sent next could overtake it.
func (p *Process) Signal(sig unix.Signal) error {
	if !p.Alive() {
		return fmt.Errorf("signal %s on %s: it does not run; its log is %s", p.Name, p.Host.Name, p.LogPath())
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s on %s: %w", p.Name, p.Host.Name, err)
	}
	switch sig {
	case unix.SIGKILL:
		<-p.dead
	case unix.SIGSTOP:
		return p.stands()
	}
	return nil
}

// stands waits until the kernel reports the program as stopped.
func (p *Process) stands() error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(stopBudget)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			return fmt.Errorf("read state of %s on %s: %w", p.Name, p.Host.Name, err)
		}
		// The state follows the command's name, which stands in parentheses and may hold any character.
		if i := bytes.LastIndexByte(stat, ')'); i+2 < len(stat) && stat[i+2] == 'T' {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("freeze %s on %s: it did not stop within %v", p.Name, p.Host.Name, stopBudget)
		}
	}
}

// Stop asks the program to end (SIGTERM) and waits; when ctx ends first, it is killed and that is an error.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.dead:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s on %s: it did not end: %w", p.Name, p.Host.Name, context.Cause(ctx)), p.Signal(unix.SIGKILL))
	}
}

// Pid is the program's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }
