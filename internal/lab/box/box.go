// Package box runs this program again inside namespaces of its own: network, mounts, processes, names and IPC.
//
// Whatever happens in a box is invisible outside, has no route out, and is gone when its parent is gone: names, addresses and pid
// files never collide, so that boxes run side by side. It never touches the machine's own namespaces.
package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotBoxed means: the caller would have changed the machine's own namespaces.
var ErrNotBoxed = errors.New("box: not inside a box")

const (
	stageVar   = "BATONLAB_BOX"           // "init" for the box's first process, "in" for the program it runs
	machineVar = "BATONLAB_MACHINE_NETNS" // inode of the network namespace that the box was started from
	stageInit  = "init"
	stageIn    = "in"
	exitSetup  = 125 // the box itself could not be set up; the program's own codes are small
	shmOptions = "size=6g,nr_inodes=100k"
)

// Command is one run of this program in a box.
type Command struct {
	Args           []string // without the program's name
	Env            []string // added to this process's environment
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Files          []*os.File // inherited, from descriptor 3 on
	Started        func(pid int)
}

// Run starts the command in a new box and waits for its end. Everything in the box is killed when the program in it ends, when ctx
// ends, and when this process dies. An exit code other than 0 is an *exec.ExitError.
func Run(ctx context.Context, c Command) error {
	// The kernel sends the parent-death signal when the *thread* that started the child ends, so it must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	inode, err := NetInode("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", c.Args...)
	cmd.Env = append(append(os.Environ(), c.Env...), stageVar+"="+stageInit, machineVar+"="+strconv.FormatUint(inode, 10))
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.Stdin, c.Stdout, c.Stderr, c.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a box (root is needed): %w", err)
	}
	if c.Started != nil {
		c.Started(cmd.Process.Pid)
	}
	return cmd.Wait()
}

// Inside says whether this process runs in a box.
func Inside() bool { return os.Getenv(stageVar) == stageIn }

// Init is the first call of main. In the box's first process it sets the box up, runs the program in it, reaps what is orphaned,
// and exits; everywhere else it returns at once.
func Init() {
	if os.Getenv(stageVar) != stageInit {
		return
	}
	code, err := initMain()
	if err != nil {
		fmt.Fprintln(os.Stderr, "box:", err)
	}
	os.Exit(code)
}

func initMain() (int, error) {
	if os.Getpid() != 1 {
		return exitSetup, errors.New("the first process of a box must have pid 1")
	}
	if err := mounts(); err != nil {
		return exitSetup, err
	}
	// A terminal's interrupt reaches every process of the group; the first one must outlive the program to report its code.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	// Servers name their temporary tables by process id, which is the same in every box, and /tmp is the machine's.
	for name, value := range map[string]string{stageVar: stageIn, "TMPDIR": "/dev/shm"} {
		if err := os.Setenv(name, value); err != nil {
			return exitSetup, err
		}
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for fd := 3; inherited(fd); fd++ {
		files = append(files, os.NewFile(uintptr(fd), "inherited"))
	}
	proc, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: files})
	if err != nil {
		return exitSetup, fmt.Errorf("start the program: %w", err)
	}
	return reap(proc.Pid), nil
}

func inherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// reap waits for every child, ours and the orphans', until the program ends: a zombie would look like a live process to whoever
// checks a pid file.
func reap(program int) int {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return exitSetup
		case pid == program && status.Signaled():
			return 128 + int(status.Signal())
		case pid == program:
			return status.ExitStatus()
		}
	}
}

func mounts() error {
	steps := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""}, // or our mounts would appear on the machine
		{"proc", "/proc", "proc", 0, ""},
		{"box", "/run", "tmpfs", 0, "mode=755"},
		{"box", "/dev/shm", "tmpfs", 0, shmOptions},
	}
	for _, s := range steps {
		if err := unix.Mount(s.source, s.target, s.kind, s.flags, s.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", s.kind, s.target, err)
		}
	}
	return nil
}

// NetInode reads the inode that identifies a network namespace.
func NetInode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("read namespace %s: %w", path, err)
	}
	return st.Ino, nil
}

// CheckNet refuses (ErrNotBoxed) a network namespace that is the machine's own, or any at all outside a box.
func CheckNet(inode uint64) error {
	if !Inside() {
		return fmt.Errorf("%w: run through batonlab, which boxes itself", ErrNotBoxed)
	}
	machine, err := strconv.ParseUint(os.Getenv(machineVar), 10, 64)
	if err != nil || machine == inode {
		return fmt.Errorf("%w: namespace %d is the machine's own", ErrNotBoxed, inode)
	}
	return nil
}
