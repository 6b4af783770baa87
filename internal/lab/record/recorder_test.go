package record

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/netns"
)

func TestMain(m *testing.M) { box.Main(m) }

// TestTwoHolders binds the VIP on two hosts at once: the recorder must see both, and only what comes from the VIP.
func TestTwoHolders(t *testing.T) {
	n, err := netns.New(t.TempDir(), []netns.Spec{
		{Name: "a", Addr: netip.MustParsePrefix("10.77.0.11/24")},
		{Name: "b", Addr: netip.MustParsePrefix("10.77.0.12/24")},
		{Name: "app", Addr: netip.MustParsePrefix("10.77.0.21/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	r, err := New(n, vip)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	run := func(host string, words ...string) {
		t.Helper()
		h, err := n.Host(host)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Output(exec.Command(words[0], words[1:]...)); err != nil {
			t.Fatal(err)
		}
	}
	run("a", "ip", "addr", "add", vip.String()+"/32", "dev", "eth0")
	run("app", "ping", "-c", "1", "-W", "2", vip.String())
	run("app", "ping", "-c", "1", "-W", "2", other.String()) // answers from another address do not count
	if holds := waitHolds(t, r, func(h []Hold) bool { return len(h) == 1 && h[0].Answers > h[0].ARP }); holds[0].Host != "a" || holds[0].ARP == 0 || holds[0].ARP == holds[0].Answers {
		t.Fatalf("holds = %+v, want a with ARP and IP", holds)
	}
	run("b", "ip", "addr", "add", vip.String()+"/32", "dev", "eth0")
	waitHolds(t, r, func(h []Hold) bool {
		for _, mac := range []string{"02:4d:0a:4d:00:0c", "02:4d:0a:4d:00:0b"} { // again and again: on a busy machine a round takes longer than a hold lasts
			run("app", "ip", "neigh", "replace", vip.String(), "lladdr", mac, "dev", "eth0")
			run("app", "ping", "-c", "1", "-W", "2", vip.String())
		}
		return Double(h) > 0
	})
	if got := r.Since(time.Now().Add(-time.Minute)); len(got) != 2 {
		t.Fatalf("hosts that answered = %v, want a and b", got)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func waitHolds(t *testing.T, r *Recorder, ok func([]Hold) bool) []Hold {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		holds := r.Holds()
		if ok(holds) {
			return holds
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("holds = %+v: not what was waited for", holds)
		}
	}
}
