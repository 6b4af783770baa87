package vip

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/vip/gate"
	"github.com/baton-ha/baton/vip/internal/nettest"
)

// BenchmarkHandover is the actuation alone: from the decision to release until a client hears the new holder's first announcement. "by
// hand" is what an operator's script does (ip addr del; ip addr add; arping), "baton" what the guards do with bind netlink: shut the
// gate, take the address off; put it on, open the gate, announce. DESIGN 8 wants Baton within twice the time by hand.
func BenchmarkHandover(b *testing.B) {
	if _, err := exec.LookPath("arping"); err != nil {
		b.Skip("arping (iputils) is not installed")
	}
	b.Run("by hand", func(b *testing.B) {
		l := newLab(b)
		l.a.Do(func() { run(b, "ip", "addr", "add", testVIP.String()+"/32", "dev", "eth0") })
		handover(b, l, func(from, to *nettest.Host) {
			from.Do(func() { run(b, "ip", "addr", "del", testVIP.String()+"/32", "dev", "eth0") })
			to.Do(func() {
				run(b, "ip", "addr", "add", testVIP.String()+"/32", "dev", "eth0")
				run(b, "arping", "-q", "-U", "-c", "1", "-I", "eth0", testVIP.String())
			})
		})
	})
	b.Run("baton", func(b *testing.B) {
		l := newLab(b)
		holders := map[*nettest.Host]*holder{l.a: newHolder(b, l.a, l.addrA), l.b: newHolder(b, l.b, l.addrB)}
		holders[l.a].take(b, l)
		handover(b, l, func(from, to *nettest.Host) {
			holders[from].release(b)
			holders[to].take(b, l)
		})
	})
}

// handover moves the address to and fro and prints the times until the client heard of it.
func handover(b *testing.B, l *lab, move func(from, to *nettest.Host)) {
	wire := newCapture(b, l.client)
	from, to := l.a, l.b
	var took []time.Duration
	for b.Loop() {
		wire.forget()
		start := time.Now()
		move(from, to)
		took = append(took, wire.heard(b, testVIP.AsSlice(), to.MAC).Sub(start))
		from, to = to, from
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(0, "ns/op") // it would count the wait for the capture too
}

// holder is what a guard has of the package.
type holder struct {
	host *nettest.Host
	gate *gate.Gate
	bind *Netlink
	ann  *Announcer
	stop func() error
}

func newHolder(b *testing.B, host *nettest.Host, addr *Address) *holder {
	h := &holder{host: host, gate: installed(b, host), bind: NewNetlink(addr), ann: newAnnouncer(b, AnnouncerConfig{})}
	host.Do(func() { check(b, h.ann.Open(patience(b))) })
	return h
}

func (h *holder) release(b *testing.B) {
	h.host.Do(func() {
		_, err := h.gate.Close()
		check(b, err)
		check(b, h.bind.Unbind(patience(b)))
	})
	_ = h.stop()
}

func (h *holder) take(b *testing.B, l *lab) {
	h.host.Do(func() {
		check(b, h.bind.Bind(patience(b), time.Hour))
		if got := h.gate.Swap(h.gate.Word(), gate.Now().Add(time.Hour)); got != gate.Swapped {
			b.Error(fmt.Errorf("gate: %v", got))
		}
	})
	h.stop = running(b, h.host, func(ctx context.Context) error { return h.ann.Announce(ctx, l.owned) })
}

// forget drops what was collected.
func (c *capture) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames, c.at = nil, nil
}

// heard waits for a gratuitous packet of the address from the MAC and returns when it was received.
func (c *capture) heard(t testing.TB, ip, mac []byte) (at time.Time) {
	t.Helper()
	nettest.Until(t, "the announcement", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, f := range c.frames {
			if len(f) >= 42 && slices.Equal(f[22:28], mac) && slices.Equal(f[28:32], ip) && slices.Equal(f[38:42], ip) && f[12] == unix.ETH_P_ARP>>8 {
				at = c.at[i]
				return true
			}
		}
		return false
	})
	return at
}
