package detector

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/detector/probe"
	"github.com/baton-ha/baton/internal/cluster"
)

// pipes are servers that the real driver reaches through net.Pipe, so that the whole observer runs in virtual time.
type pipes struct {
	mu     sync.Mutex
	conns  map[netip.AddrPort][]net.Conn
	dead   map[netip.AddrPort]bool
	thawed map[netip.AddrPort]chan struct{} // frozen until it is closed
	counts map[netip.AddrPort]int           // committed heartbeats; under the zero address, dials
}

func newPipes() *pipes {
	return &pipes{conns: map[netip.AddrPort][]net.Conn{}, dead: map[netip.AddrPort]bool{}, thawed: map[netip.AddrPort]chan struct{}{}, counts: map[netip.AddrPort]int{}}
}

func (p *pipes) count(of netip.AddrPort) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[of]
}

func (p *pipes) dial(_ context.Context, addr netip.AddrPort) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[netip.AddrPort{}]++
	if p.dead[addr] {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	client, server := net.Pipe()
	p.conns[addr] = append(p.conns[addr], server)
	go p.serve(server, addr)
	return client, nil
}

// kill closes every connection of the server, as the kernel does when the process dies.
func (p *pipes) kill(addr netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead[addr] = true
	for _, c := range p.conns[addr] {
		_ = c.Close()
	}
	p.conns[addr] = nil
}

func (p *pipes) freeze(addr netip.AddrPort) (thaw func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{})
	p.thawed[addr] = c
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(c)
		p.thawed[addr] = nil
	}
}

// run waits while the server is frozen.
func (p *pipes) run(addr netip.AddrPort) {
	p.mu.Lock()
	c := p.thawed[addr]
	p.mu.Unlock()
	if c != nil {
		<-c
	}
}

// serve speaks as much of the protocol as a probe needs.
func (p *pipes) serve(c net.Conn, addr netip.AddrPort) {
	defer func() { _ = c.Close() }()
	send := func(seq byte, payload string) error {
		head := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
		head[3] = seq
		_, err := c.Write(append(head, payload...))
		return err
	}
	receive := func() (string, error) {
		var head [4]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return "", err
		}
		body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		_, err := io.ReadFull(c, body)
		return string(body), err
	}
	const ok = "\x00\x00\x00\x02\x00\x00\x00"
	p.run(addr)
	if send(0, "\x0a10.11.0-MariaDB\x00\x07\x00\x00\x00scramble\x00\xcf\xb7\x21\x02\x00\x0a\x00\x15"+strings.Repeat("\x00", 10)+"scramble1234\x00mysql_native_password\x00") != nil {
		return
	}
	if _, err := receive(); err != nil || send(2, ok) != nil {
		return
	}
	for {
		command, err := receive()
		if err != nil || command[0] != 3 {
			return
		}
		p.run(addr)
		answer := []string{ok}
		switch text := strings.ToLower(command[1:]); {
		case strings.Contains(text, "select"):
			const column = "\x03def\x00\x00\x00\x01n\x01n\x0c\x21\x00\x15\x00\x00\x00\xfd\x00\x00\x00\x00\x00"
			const end = "\xfe\x00\x00\x02\x00"
			value := "1"
			if strings.Contains(text, "at_us") {
				value = strconv.FormatInt(time.Now().UnixMicro(), 10) // the observer's row has just been replicated
			}
			answer = []string{"\x01", column, end, string(rune(len(value))) + value, end}
		case strings.Contains(text, "insert"):
			p.mu.Lock()
			p.counts[addr]++
			p.mu.Unlock()
		}
		for i, packet := range answer {
			if send(byte(i+1), packet) != nil {
				return
			}
		}
	}
}

// TestFreshLoginsAreSpread: each SQL probe logs in anew every tenth time, and never many of them in the same beat.
func TestFreshLoginsAreSpread(t *testing.T) {
	p := newPipes()
	c := cluster.Cluster{Name: "bank", Nodes: []cluster.Node{{Name: "w"}}}
	const shards, sites = 20, 2
	for i := range sites {
		host := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		s := cluster.Site{Name: cluster.SiteName(rune('a' + i)), Mycat: cluster.Mycat{SQL: netip.AddrPortFrom(host, 8066), Schema: "bank", DataNodes: map[cluster.ShardName]string{}}}
		for j := range shards {
			name := cluster.ShardName("s" + strconv.Itoa(j))
			s.Mycat.DataNodes[name] = "dn" + strconv.Itoa(j)
			s.Instances = append(s.Instances, cluster.Instance{Shard: name, Addr: netip.AddrPortFrom(host, uint16(3306+j))})
		}
		c.Sites = append(c.Sites, s)
	}
	probes, _, err := probe.All(probe.Config{Cluster: c, Node: "w", Mycat: probe.Account{User: "m"}, Dial: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	probes = slices.DeleteFunc(probes, func(p *probe.Probe) bool { return p.Factor != health.SQL })
	const each = sites * 2 * shards / 10 // a probe for the instance and one through Mycat
	total := 0
	for beat := range 21 {
		before := p.count(netip.AddrPort{})
		for _, pr := range probes {
			if s := pr.Do(t.Context(), probe.Mode{}); len(s) != 1 || s[0].Cause != health.OK {
				t.Fatalf("%s: %+v", pr.Targets[0], s)
			}
		}
		dials := p.count(netip.AddrPort{}) - before
		if beat == 0 {
			continue // everything connects
		}
		if total += dials; dials > each {
			t.Errorf("beat %d: %d logins, want %d", beat, dials, each)
		}
	}
	if want := 2 * len(probes); total < want-each { // one that was due in beat 0 has connected there
		t.Errorf("%d logins in 20 beats, want %d", total, want)
	}
	for _, pr := range probes {
		pr.Close()
	}
}

func TestTheRealDriverInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		addr := netip.MustParseAddrPort
		c := cluster.Cluster{Name: "bank", Nodes: []cluster.Node{{Name: "w"}}, Shards: []cluster.ShardName{"s1"}, VIP: cluster.VIP{Addr: addr("10.0.0.100:8066").Addr(), Port: 8066}}
		for i, name := range []cluster.SiteName{"a", "b"} {
			host := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
			c.Sites = append(c.Sites, cluster.Site{
				Name: name, Node: cluster.NodeName("mc-" + name), Mycat: cluster.Mycat{SQL: netip.AddrPortFrom(host, 8066), Schema: "bank", DataNodes: map[cluster.ShardName]string{"s1": "dn1"}},
				Instances: []cluster.Instance{{Shard: "s1", Addr: netip.AddrPortFrom(host, 3306)}},
			})
		}
		l := &lab{t: t, sit: Situation{Assignment: cluster.Assignment{Epoch: 1, Site: "a", Phase: cluster.Serving, Shards: map[cluster.ShardName]cluster.SiteName{"s1": "a"}}, Holder: cluster.Holder{Site: "a"}}}
		d, err := New(Config{
			Cluster: c, Profile: cluster.Fast(), Node: "w", Rule: accumulator.Fast(), Scope: health.ScopeTarget, MySQLFailures: 1, Stall: health.StallFast,
			Situation: l.situation, Publish: l.publish, Log: slog.New(slog.NewTextHandler(l, nil)),
			Probe: probe.Config{MySQL: probe.Account{User: "p"}, Mycat: probe.Account{User: "m"}, Dial: p.dial},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.d = d
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = d.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		active := c.Sites[0].Instances[0].Addr

		l.pass(2 * time.Second)
		l.want("a", health.Up, "")
		l.want("b", health.Up, "")
		if on, off := p.count(active), p.count(c.Sites[1].Instances[0].Addr); on < 18 || off != 0 {
			t.Errorf("%d heartbeats committed on the active, %d on the standby", on, off)
		}

		thaw := p.freeze(active)
		if took := l.until("a", health.Down); took > 600*time.Millisecond {
			t.Errorf("a frozen MySQL took %v", took)
		}
		l.want("a", health.Down, "mysql a/s1")
		thaw()
		if took := l.until("a", health.Up); took > 3*time.Second {
			t.Errorf("the thawed MySQL took %v", took)
		}

		l.pass(9 * time.Second) // the tripwire is armed again
		p.kill(active)
		if took := l.until("a", health.Down); took > 60*time.Millisecond {
			t.Errorf("a killed MySQL took %v", took)
		}
		l.want("a", health.Down, "refused")

		before := p.count(netip.AddrPort{})
		l.pass(time.Second)
		if n := p.count(netip.AddrPort{}) - before; n > 90 {
			t.Errorf("%d dials in a second after the verdict: a storm", n)
		}
	})
}
