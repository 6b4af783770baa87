package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/mysql"
)

// warmFor is how long a connection that was opened ahead waits for the request that it was opened for: a recheck takes a beat or two.
const warmFor = 3 * time.Second

// warm are step connections that were opened while the observers rechecked: a login costs a busy server some milliseconds, and eight
// of them would be added to the outage. One that was killed meanwhile, by whoever came later, is found dead and is not used.
type warm struct {
	mu    sync.Mutex // guards the map
	conns map[netip.AddrPort]*warming
}

// warming is a login under way, or done.
type warming struct {
	done chan struct{} // closed when conn and err are there
	conn *mysql.Conn
	err  error
}

// open logs in to an instance ahead, unless that is under way.
func (w *warm) open(ctx context.Context, s mysql.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[s.Addr] != nil {
		return
	}
	l := &warming{done: make(chan struct{})}
	w.conns[s.Addr] = l
	go func() {
		ctx, cancel := context.WithTimeoutCause(ctx, warmFor, errors.New("nobody waited for it"))
		defer cancel()
		l.conn, l.err = s.Connect(ctx)
		close(l.done)
	}()
	time.AfterFunc(warmFor, func() {
		if w.take(s.Addr, l) && l.conn != nil {
			l.conn.Close()
		}
	})
}

// take removes that login, and says whether it was still there; a nil one stands for any.
func (w *warm) take(addr netip.AddrPort, l *warming) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns[addr] == nil || l != nil && w.conns[addr] != l {
		return false
	}
	delete(w.conns, addr)
	if l != nil {
		<-l.done // its own deadline has passed
	}
	return true
}

// get returns a connection that was opened ahead and is alive; nil when there is none. A login under way is waited for: a second one
// would not be faster.
func (w *warm) get(ctx context.Context, addr netip.AddrPort) *mysql.Conn {
	w.mu.Lock()
	l := w.conns[addr]
	delete(w.conns, addr)
	w.mu.Unlock()
	if l == nil {
		return nil
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		go func() { // it ends by its own deadline
			<-l.done
			if l.conn != nil {
				l.conn.Close()
			}
		}()
		return nil
	}
	if l.conn == nil {
		return nil
	}
	if err := l.conn.Alive(ctx); err != nil {
		l.conn.Close()
		return nil
	}
	return l.conn
}

// ahead opens the connections of a switch when its recheck is asked for, on nodes that could be asked to carry it out: those of sites
// that do not serve.
func (n *node) ahead(ctx context.Context) func(dcs.State) {
	var asked int64
	site, ok := n.cfg.Site()
	return func(s dcs.State) {
		first := asked == 0
		if s.Nonce.Mod == asked || !ok {
			return
		}
		asked = max(s.Nonce.Mod, 1)
		if first || s.Assignment.Value.Serves(site.Name) {
			return // an old recheck, or one about this site: another will be asked
		}
		for _, other := range n.cfg.Cluster.Sites {
			n.data.warmUp(ctx, other)
		}
	}
}

func (d *databases) warmUp(ctx context.Context, site cluster.Site) {
	for _, in := range site.Instances {
		d.warm.open(ctx, d.server(in.Addr))
	}
}
