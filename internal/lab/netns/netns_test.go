package netns

import (
	"context"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
)

func TestMain(m *testing.M) { box.Main(m) }

func pair(t *testing.T) *Network {
	t.Helper()
	n, err := New(t.TempDir(), []Spec{
		{Name: "x", Addr: netip.MustParsePrefix("10.77.0.1/24")},
		{Name: "y", Addr: netip.MustParsePrefix("10.77.0.2/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func host(t *testing.T, n *Network, name string) *Host {
	t.Helper()
	h, err := n.Host(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// reaches asks by TCP: a refusal is an answer of the other host, too.
func reaches(t *testing.T, from, to *Host) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 900*time.Millisecond) // the first lost packet of a connection is sent again after a second
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp4", netip.AddrPortFrom(to.Addr, 9).String())
	if err == nil {
		_ = conn.Close()
		return true
	}
	return strings.Contains(err.Error(), "refused")
}

func TestFaultsAtTheSwitch(t *testing.T) {
	n := pair(t)
	x, y := host(t, n, "x"), host(t, n, "y")
	ctx := context.Background()
	step := func(name string, err error, want bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := reaches(t, x, y); got != want {
			t.Fatalf("%s: x reaches y = %v, want %v", name, got, want)
		}
		left, err := n.Clean(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if clean := len(left) == 0; clean != want {
			t.Fatalf("%s: left over = %q", name, left)
		}
	}
	step("new", nil, true)
	step("cut", n.Cut("y"), false)
	step("mend", n.Mend("y"), true)
	step("block the answers", n.Block(ctx, "y", "x"), false)
	step("unblock", n.Unblock(ctx), true)
	if err := n.Cut("z"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("cut of an unknown host: %v", err)
	}
}

func TestHostIsItsOwnMachine(t *testing.T) {
	n := pair(t)
	x, y := host(t, n, "x"), host(t, n, "y")
	if x.Inode() == y.Inode() {
		t.Fatal("two hosts in one namespace")
	}
	out, err := x.Output(exec.Command("sh", "-c", "uname -n; cat /proc/sys/net/ipv4/ip_forward; ls /sys/class/net; touch /run/mine"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Fields(string(out)), "x 0 eth0 lo"; strings.Join(got, " ") != want {
		t.Fatalf("on x: %q, want %q", got, want)
	}
	out, err = y.Output(exec.Command("sh", "-c", "ls /run"))
	if err != nil || len(out) != 0 {
		t.Fatalf("y sees x's files: %q, %v", out, err)
	}
	if _, err := x.Output(exec.Command("sh", "-c", "echo broken >&2; exit 3")); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Fatalf("a failing command: %v", err)
	}
}

func TestNoWayOut(t *testing.T) {
	n := pair(t)
	x := host(t, n, "x")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := x.DialContext(ctx, "tcp4", "192.0.2.1:80"); err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Fatalf("a host reaches beyond the laboratory: %v", err)
	}
	machine := n.Switch.parent
	inode, err := box.NetInode("/proc/self/fd/" + strconv.Itoa(int(machine.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	if err := box.CheckNet(inode); err != nil {
		t.Fatalf("the box's own namespace counts as the machine's: %v", err)
	}
}

func TestProcess(t *testing.T) {
	n := pair(t)
	p := &Process{Name: "idle", Host: host(t, n, "x"), Args: []string{"sh", "-c", "echo life; exec tail -f /dev/null"}}
	if p.Alive() || p.Signal(unix.SIGSTOP) == nil {
		t.Fatal("it lives before it was born")
	}
	check := func(what string, err error, alive bool) {
		t.Helper()
		if err != nil || p.Alive() != alive {
			t.Fatalf("%s: alive = %v, want %v, error %v", what, p.Alive(), alive, err)
		}
	}
	check("start", p.Start(), true)
	if p.Start() == nil {
		t.Fatal("started twice")
	}
	check("freeze", p.Signal(unix.SIGSTOP), true)
	check("kill the frozen", p.Signal(unix.SIGKILL), false)
	check("start again", p.Start(), true)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check("stop", p.Stop(ctx), false)
	check("start a third time", p.Start(), true)
	check("freeze it", p.Signal(unix.SIGSTOP), true)
	short, cancelShort := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancelShort()
	if p.Stop(short) == nil || p.Alive() {
		t.Fatal("a frozen program ended by itself, or survived")
	}
}
