package gate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests work on a real kernel, in namespaces of their own: the test binary runs itself again inside a box. The box's network namespace plays the host with the gate;
// peers are further namespaces behind a veth pair.
const (
	boxEnv  = "BATON_GATE_BOX"  // the inode of the network namespace outside
	roleEnv = "BATON_GATE_ROLE" // what a child process of a test does instead of testing
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(playRole(role))
	}
	outside := os.Getenv(boxEnv)
	if outside == "" {
		os.Exit(enterBox())
	}
	if err := furnishBox(outside); err != nil {
		fmt.Fprintln(os.Stderr, "box:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enterBox runs this binary again in a box and returns its exit code.
func enterBox() int {
	cmd := exec.Command("unshare", append([]string{"-n", "-m", "-p", "-u", "-i", "-f", "--kill-child", "--mount-proc", os.Args[0]}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), boxEnv+"="+strconv.FormatUint(netNamespace(), 10))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		fmt.Fprintln(os.Stderr, "the tests of the gate need root, for namespaces and BPF:", err)
		return 1
	}
}

// furnishBox makes sure that this is not the machine's own network namespace, and sets what new namespaces inherit from it otherwise.
func furnishBox(outside string) error {
	if strconv.FormatUint(netNamespace(), 10) == outside {
		return errors.New("still in the machine's own network namespace: refusing to touch it")
	}
	return setSysctls()
}

// setSysctls: no forwarding, which would hide losses; ARP answered for any sender, and one address not preferred to another.
func setSysctls() error {
	for path, v := range map[string]string{
		"ip_forward": "0", "conf/all/rp_filter": "0", "conf/default/rp_filter": "0", "conf/all/arp_ignore": "0", "conf/default/arp_ignore": "0",
	} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+path, []byte(v), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func netNamespace() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0
	}
	return st.Ino
}

// newNamespace returns a file descriptor of a fresh network namespace.
func newNamespace(t testing.TB) int {
	t.Helper()
	fd := -1
	onThread(t, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := setSysctls(); err != nil {
			return err
		}
		var err error
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// inside runs f in a network namespace: sockets that it opens stay there.
func inside(t testing.TB, ns int, f func() error) {
	t.Helper()
	onThread(t, func() error {
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it.
func onThread(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is spoilt
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// child is this binary in a role, in the box's namespaces, started through another program if one is given.
func child(role string, env []string, through ...string) *exec.Cmd {
	args := append(slices.Clone(through), os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), roleEnv+"="+role), env...)
	cmd.Stderr = os.Stderr
	return cmd
}
