package keepalived

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is one process by number and start time, which together are never used again.
type process struct {
	pid   int
	start uint64 // clock ticks from boot to its start, field 22 of /proc/PID/stat
}

// stat is what is needed of /proc/PID/stat (proc(5)).
type stat struct {
	state byte
	ppid  int
	start uint64
}

// readStat reads the process; false: there is none.
func readStat(pid int) (stat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	return parseStat(string(text))
}

// parseStat starts behind the last parenthesis: the name before it may hold anything.
func parseStat(text string) (stat, bool) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, false
	}
	ppid, err1 := strconv.Atoi(fields[1])
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	return stat{state: fields[0][0], ppid: ppid, start: start}, errors.Join(err1, err2) == nil
}

// alive says whether it still runs, or is stopped; a zombie does nothing any more.
func (p process) alive() bool {
	s, ok := readStat(p.pid)
	return ok && p.pid != 0 && s.start == p.start && s.state != 'Z' && s.state != 'X'
}

// signal sends to this very process, or to none when it is gone.
func (p process) signal(sig unix.Signal) error {
	if p.pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !p.alive() { // asked after the descriptor was opened: the number cannot be reused between
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send signal %d to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// started is the wall clock time of its start, to a second or so.
func (p process) started() time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return time.Time{}
	}
	const ticks = 100 // USER_HZ, the same on every Linux
	age := time.Duration(now.Nano()) - time.Duration(p.start)*time.Second/ticks
	return time.Now().Add(-age)
}

// instance is one keepalived: a parent and its VRRP child.
type instance struct {
	files
	parent, child process
}

// cause says why it is not whole; nil: both processes run.
func (i *instance) cause() error {
	switch parent, child := i.parent.alive(), i.child.alive(); {
	case parent && child:
		return nil
	case !parent && !child:
		return ErrNotRunning
	default:
		return ErrHalf
	}
}

// running finds every process of ours, by the path of a configuration in its command line, and groups them by generation. Pid files
// are not needed for it: one may be missing, because the daemon died right after the start, or be old, and a child that was started
// again has another number.
func (b *Binder) running() (map[int]*instance, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[int]*instance{}
	parents := map[int]int{} // pid of a process of ours, of its parent
	var all []member
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		gen, ours := b.belongs(pid)
		s, ok := readStat(pid)
		if !ours || !ok || s.state == 'Z' || s.state == 'X' {
			continue
		}
		parents[pid] = s.ppid
		all = append(all, member{gen, process{pid, s.start}})
	}
	for _, m := range all {
		i := found[m.gen]
		if i == nil {
			i = &instance{files: b.files(m.gen)}
			found[m.gen] = i
		}
		if _, isChild := parents[parents[m.p.pid]]; isChild {
			i.child = m.p
		} else if i.parent.pid == 0 {
			i.parent = m.p
		} else { // a child whose parent died: it is on its way out
			i.child = m.p
		}
	}
	return found, nil
}

type member struct {
	gen int
	p   process
}

// belongs reads the command line: our program is told "--vrrp" and "-f" and the path of one of our configurations, and runs as we do:
// what is not meant is an operator's `tail -f` of that path, or the process of somebody who would have his own killed in our stead, or
// taken for the binder. A process of another network namespace is another host's, whatever its paths: containers and laboratories
// share the process list.
func (b *Binder) belongs(pid int) (gen int, ok bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !bytes.Contains(line, []byte(b.cfg.StateDir)) {
		return 0, false
	}
	if !sameUser(pid) || !sameNetwork(pid) {
		return 0, false
	}
	args := strings.Split(string(line), "\x00")
	if i := slices.Index(args, "-f"); i >= 0 && i+1 < len(args) && slices.Contains(args[:i], "--vrrp") {
		return b.genOf(args[i+1])
	}
	return 0, false
}

// sameUser says whether the process runs as this one does: root.
func sameUser(pid int) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && int(st.Uid) == os.Geteuid()
}

// sameNetwork says whether the process lives in this one's network namespace.
func sameNetwork(pid int) bool {
	mine, err := os.Readlink("/proc/thread-self/ns/net")
	theirs, err2 := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err == nil && err2 == nil && mine == theirs
}

// kill ends both processes without giving them a chance to touch the address. The parent is stopped first, for it starts a dead child
// again; the child goes before the parent, for the parent's death is a SIGTERM to it, on which it would remove the VIP. A child that
// was on its way when the parent stopped is found by looking again until there is nothing to find.
func (b *Binder) kill(ctx context.Context, i *instance) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for now := i; now != nil; {
		err := errors.Join(now.parent.signal(unix.SIGSTOP), now.child.signal(unix.SIGKILL), now.parent.signal(unix.SIGKILL))
		if err != nil {
			return fmt.Errorf("kill the keepalived of %s: %w", i.conf, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("kill the keepalived of %s: %w: %w", i.conf, ErrAlive, context.Cause(ctx))
		}
		found, err := b.running()
		if err != nil {
			return fmt.Errorf("kill the keepalived of %s: %w", i.conf, err)
		}
		now = found[i.gen]
	}
	i.remove()
	b.reap()
	return nil
}

// childOf reads the child's pid file; the zero process when it is not there, or not a process of that instance.
func (b *Binder) childOf(f files) process {
	text, err := os.ReadFile(f.vrrpPID)
	if err != nil {
		return process{}
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return process{}
	}
	s, ok := readStat(pid)
	if gen, ours := b.belongs(pid); !ok || !ours || gen != f.gen {
		return process{}
	}
	return process{pid, s.start}
}

// reap collects the children of this process that ended, and forgets instances that did. It never waits: an instance lives for a
// second after its VIP is gone.
func (b *Binder) reap() {
	b.dying = slices.DeleteFunc(b.dying, func(i *instance) bool {
		gone := errors.Is(i.cause(), ErrNotRunning)
		if gone {
			i.remove()
		}
		return gone
	})
	b.children = slices.DeleteFunc(b.children, func(pid int) bool {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		return got == pid || errors.Is(err, unix.ECHILD)
	})
}
