package standin

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pool is Mycat's pool of one writeHost (PhysicalDatasource): one counter for all databases, heartbeats included. What hangs in a
// connect or in a statement keeps its place, so a frozen backend exhausts it.
type pool struct {
	host WriteHost
	max  int
	life context.Context // the stand-in's; ends connects
	ids  *atomic.Int64

	executed atomic.Int64

	mu    sync.Mutex // guards the fields below
	total int        // connections, and connects under way
	all   map[*backend]struct{}
	free  []*backend // the last one in is the first out
	ended bool
}

func newPool(life context.Context, host WriteHost, limit int, ids *atomic.Int64) *pool {
	return &pool{host: host, max: limit, life: life, ids: ids, all: map[*backend]struct{}{}}
}

// errExhausted is Mycat's text (sic).
func errExhausted() *sqlError {
	return mycatError(erNewAbort, "the max activeConnnections size can not be max than maxconnections")
}

// borrow takes a free connection, of this database if there is one, or connects. It may wait for ever. The error is an *sqlError with
// Mycat's 1184, or a *lostError when the connection broke in the login.
func (p *pool) borrow(database string) (*backend, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		i := n - 1
		for j, b := range slices.Backward(p.free) {
			if b.database == database {
				i = j
				break
			}
		}
		b := p.free[i]
		p.free = slices.Delete(p.free, i, i+1)
		b.idle = false
		p.mu.Unlock()
		if b.stale() { // nothing was sent on it yet, but Mycat learns of it in this way only
			p.release(b, true)
			return nil, &lostError{textReset}
		}
		return b, nil
	}
	if p.total >= p.max {
		p.mu.Unlock()
		return nil, errExhausted()
	}
	p.total++
	p.mu.Unlock()
	b, err := connect(p.life, p, database)
	if err != nil {
		p.mu.Lock()
		p.total--
		p.mu.Unlock()
	}
	return b, err
}

// release gives a connection back; a broken one is closed and its place is free again. After a loss the free ones are looked at, too:
// their server is probably gone.
func (p *pool) release(b *backend, broken bool) {
	p.mu.Lock()
	if !broken && !p.ended && b.reason.Load() == nil {
		b.idle = true
		p.free = append(p.free, b)
		p.mu.Unlock()
		return
	}
	delete(p.all, b)
	p.total--
	p.mu.Unlock()
	_ = b.Close()
	if broken {
		p.sweep()
	}
}

// sweep closes the free connections that the server has closed.
func (p *pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = slices.DeleteFunc(p.free, func(b *backend) bool {
		if !b.stale() {
			return false
		}
		delete(p.all, b)
		p.total--
		_ = b.Close()
		return true
	})
}

// adopt makes a fresh connection known, so that closeAll reaches it also while it logs in.
func (p *pool) adopt(b *backend) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	b.id = p.ids.Add(1)
	p.all[b] = struct{}{}
	return true
}

func (p *pool) forget(b *backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, b)
}

// closeAll closes every connection under whoever uses it: Mycat's own switch does that, and the end of the stand-in.
func (p *pool) closeAll(reason string, forever bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = p.ended || forever
	for _, b := range p.free {
		delete(p.all, b)
		p.total--
		_ = b.Close()
	}
	p.free = nil
	for b := range p.all {
		b.kill(reason)
	}
}

// reap ends statements that run for longer than sqlExecuteTimeout, the only limit that Mycat has.
func (p *pool) reap(before int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.all {
		if since := b.busySince.Load(); since != 0 && since < before {
			b.kill("sql timeout")
		}
	}
}

// counts is what show @@datasource prints for one database.
func (p *pool) counts(database string) (active, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for b := range p.all {
		switch {
		case b.idle && b.database == database:
			idle++
		case !b.idle:
			active++
		}
	}
	return active, idle
}

// backendInfo is one row of show @@backend. Database and vars are those of the connect while the connection is in use.
type backendInfo struct {
	id       int64
	threadID uint32
	database string
	born     time.Time
	borrowed bool
	local    net.Addr
	vars     vars
}

// list copies the connections for show @@backend.
func (p *pool) list() []backendInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]backendInfo, 0, len(p.all))
	for b := range p.all {
		info := backendInfo{
			id: b.id, threadID: b.threadID.Load(), database: b.home, born: b.born, borrowed: !b.idle,
			local: b.LocalAddr(), vars: vars{charset: backendCharsetName, autocommit: true},
		}
		if b.idle {
			info.database, info.vars = b.database, b.vars
		}
		out = append(out, info)
	}
	return out
}
