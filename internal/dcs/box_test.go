package dcs_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// boxEnv holds the network namespace outside the box.
const boxEnv = "BATON_DCS_BOX"

// boxed runs the calling test again, alone, in namespaces of its own, and reports whether this is the inside. It needs root.
func boxed(t *testing.T) bool {
	t.Helper()
	here, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if outside, inside := os.LookupEnv(boxEnv); inside {
		if outside == here {
			t.Fatalf("still in the machine's own network namespace %s: refusing to touch it", here)
		}
		return true
	}
	cmd := exec.Command("unshare", "-n", "-m", "-p", "-u", "-i", "-f", "--kill-child", "--mount-proc",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), boxEnv+"="+here)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in the box: %v", err)
	}
	t.Logf("%s", out)
	return false
}

// sh runs a command of the box.
func sh(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// TestDeadHost: the host of the only member vanishes: packets are dropped and nothing is refused. A connection with data under way would
// be retransmitted for a quarter of an hour (tcp(7), tcp_retries2), an idle one would live for ever: both must end by themselves,
// without any limit of the watch's own, and the host is used again as soon as it is back.
func TestDeadHost(t *testing.T) {
	if !boxed(t) {
		return
	}
	for _, line := range []string{
		"mount -t tmpfs tmpfs /run", "sysctl -qw net.ipv4.ip_forward=0", "ip link set lo up", "ip netns add far",
		"ip netns exec far sysctl -qw net.ipv4.ip_forward=0", "ip link add near type veth peer name eth0 netns far",
		"ip addr add 10.9.0.1/24 dev near", "ip link set near up",
		"ip -n far addr add 10.9.0.2/24 dev eth0", "ip -n far link set eth0 up", "ip -n far link set lo up",
	} {
		sh(t, line)
	}
	c := prepare(t, 1)
	n := c.nodes[0]
	n.cfg.ClientAddr, n.cfg.PeerAddr = "10.9.0.2:2379", "10.9.0.2:2380"
	n.cfg.Cluster = map[string]string{n.cfg.Name: n.cfg.PeerAddr}
	n.spawn(t, "ip", "netns", "exec", "far")
	for name, busy := range map[string]bool{"idle": false, "data under way": true} {
		t.Run(name, func(t *testing.T) { outlive(t, c, busy) })
	}
}

func outlive(t *testing.T, c *etcdCluster, busy bool) {
	kv := connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt})
	awaitQuorum(t, kv)
	base := run(t, kv, nil, []dcs.Op{put("/w", "0")}, nil).Revision
	items, ended := watchTo(t, kv, "/w", base, 0)
	run(t, kv, nil, []dcs.Op{put("/w", "1")}, nil)
	receive(t, items, "the watch works")

	sh(t, "ip netns exec far nft add table inet cut")
	sh(t, "ip netns exec far nft add chain inet cut drops { type filter hook input priority 0 ; policy drop ; }")
	cut := time.Now()
	if busy {
		_, err := kv.Txn(within(t, generous), nil, []dcs.Op{put("/w", "2")}, nil)
		if !errors.Is(err, dcs.ErrUnknownOutcome) {
			t.Errorf("write: got %v, want ErrUnknownOutcome", err)
		}
	}
	if err := receive(t, ended, "the kernel ends the connection"); !errors.Is(err, dcs.ErrWatchLost) {
		t.Errorf("watch: got %v, want ErrWatchLost", err)
	}
	t.Logf("the connection ended %v after the cut", time.Since(cut).Round(10*time.Millisecond))
	sh(t, "ip netns exec far nft delete table inet cut")
	back := time.Now()
	awaitQuorum(t, kv)
	t.Logf("written again %v after the host was back", time.Since(back).Round(10*time.Millisecond))
}
