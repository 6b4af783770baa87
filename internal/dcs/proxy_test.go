package dcs_test

import (
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP to a member and can stop doing so: either direction falls silent while the connections stay open, as
// with a frozen process or a firewall that drops; or all connections are cut.
type proxy struct {
	listener net.Listener
	target   string
	up, down gate // client to member, member to client

	mu    sync.Mutex // guards conns
	conns map[net.Conn]struct{}
}

func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]struct{}{}}
	var serving sync.WaitGroup
	serving.Go(func() { p.serve(&serving) })
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.stall(false)
		serving.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// stall stops both directions, or lets them flow again.
func (p *proxy) stall(on bool) {
	p.up.shut(on)
	p.down.shut(on)
}

// cut closes all connections; new ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *proxy) serve(serving *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		member, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[member] = struct{}{}, struct{}{}
		p.mu.Unlock()
		serving.Go(func() { p.up.copy(member, client) })
		serving.Go(func() { p.down.copy(client, member) })
	}
}

// gate lets bytes through while it is open.
type gate struct {
	mu   sync.Mutex
	wait chan struct{} // nil: open; else closed when it opens again
}

func (g *gate) shut(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case on && g.wait == nil:
		g.wait = make(chan struct{})
	case !on && g.wait != nil:
		close(g.wait)
		g.wait = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	wait := g.wait
	g.mu.Unlock()
	if wait != nil {
		<-wait
	}
}

func (g *gate) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		g.pass()
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
