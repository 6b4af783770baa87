package standin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// statement runs one statement of the SQL port. The executor is released before a backend is waited for: Mycat's backends are
// asynchronous, so one that hangs costs no thread. The initialisation of a data host is not, and does.
func (s *session) statement(sql string, release func()) {
	st := parseStatement(sql)
	if s.poisoned != "" && st.verb != "rollback" && st.verb != "commit" {
		s.refuse(mycatError(erYes, "Transaction error, need to rollback. %s", s.poisoned))
		return
	}
	if s.local(st) {
		return
	}
	if s.user.ReadOnly && !st.reads() {
		s.refuse(mycatError(erUserReadOnly, "User readonly"))
		return
	}
	if s.schema == "" {
		s.refuse(mycatError(erNoSchema, "No MyCAT Database selected"))
		return
	}
	targets, e := s.srv.route(st, s.schema)
	if e != nil {
		s.refuse(e)
		return
	}
	var failed []*gathered
	for i := range targets {
		p, err := s.srv.source(targets[i].node)
		if err != nil {
			targets[i].pool = targets[i].node.host.pools[targets[i].node.host.index()]
			failed = append(failed, &gathered{target: targets[i], err: err})
			continue
		}
		targets[i].pool = p
	}
	release()
	switch {
	case len(targets) == 1 && len(failed) == 1:
		s.broken(failed[0].err)
	case len(failed) > 0:
		s.fail(failure(failed))
	case len(targets) == 1:
		s.relay(targets[0])
	default:
		s.scatter(targets, st.sums())
	}
}

// source is the pool that serves a data node now; the error is an *sqlError.
func (srv *Server) source(n *dataNode) (*pool, error) {
	if srv.faults.has(srv.faults.exhausted, n.cfg.Name) {
		return nil, errExhausted()
	}
	if srv.faults.has(srv.faults.uninit, n.host.cfg.Name) {
		return nil, mycatError(erNewAbort, "Invalid DataSource:%d", n.host.index())
	}
	return n.host.source(n.cfg.Database, srv.initLimit())
}

// transacted says whether statements must stay on one connection per data node.
func (s *session) transacted() bool { return s.inTx || !s.autocommit }

// take is the data node's connection of the running transaction, or one of the pool, with the session's state brought over.
func (s *session) take(t target) (*backend, error) {
	b := s.pinned[t.node]
	if b == nil {
		var err error
		if b, err = t.pool.borrow(t.node.cfg.Database); err != nil {
			return nil, err
		}
	}
	if err := b.sync(t.node.cfg.Database, vars{s.charset, !s.transacted(), s.isolation}); err != nil {
		return b, err
	}
	t.pool.executed.Add(1)
	return b, nil
}

// settle keeps a connection for the transaction, or gives it back. After an error of the backend (not of the connection) it is whole.
func (s *session) settle(n *dataNode, b *backend, err error) {
	var lost *lostError
	broken := errors.As(err, &lost)
	switch {
	case b == nil:
	case s.transacted() && !broken:
		s.pinned[n] = b
	default:
		delete(s.pinned, n)
		b.pool.release(b, broken)
	}
}

// relay runs a statement on one data node: the packets of the answer go to the client as they come.
func (s *session) relay(t target) {
	b, err := s.take(t)
	var o outcome
	if err == nil {
		o, err = b.query(t.sql, func(_ part, p []byte) { _ = s.writeChunk(p) })
	}
	s.settle(t.node, b, err)
	switch {
	case err != nil:
		s.broken(err)
	case o.refusal != nil:
		s.poison(o.refusal) // the client has it already
	}
}

// scatter runs statements on several data nodes at once and merges their answers.
func (s *session) scatter(targets []target, sums bool) {
	all := make([]*gathered, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		g := &gathered{target: t}
		all[i] = g
		wg.Go(func() {
			if g.backend, g.err = s.take(t); g.err == nil {
				g.outcome, g.err = g.backend.query(t.sql, g.visit)
			}
		})
	}
	wg.Wait()
	for _, g := range all {
		s.settle(g.target.node, g.backend, g.err)
	}
	if e := failure(all); e != nil {
		s.fail(e)
		return
	}
	s.merge(all, sums)
}

// broken answers an error of take or query on one data node: Mycat's 1184, a backend's own refusal, or 1023 for a lost connection.
func (s *session) broken(err error) {
	var e *sqlError
	if !errors.As(err, &e) {
		e = mycatError(erErrorOnClose, "%s", err.Error())
		if strings.HasPrefix(e.text, "closed connection:") {
			e.number = erUnknown // Mycat's own switch closed it
		}
	}
	s.fail(e)
}

func (s *session) fail(e *sqlError) {
	s.poison(e)
	s.refuse(e)
}

// poison marks an open transaction: any error does, and then only ROLLBACK helps.
func (s *session) poison(e *sqlError) {
	if s.transacted() {
		s.poisoned = fmt.Sprintf("errno:%d %s", e.number, e.text)
	}
}

// finish ends the transaction on every data node that it touched, and gives the connections back. The error is the first one's.
func (s *session) finish(verb string) *sqlError {
	var first *sqlError
	nodes := make([]*dataNode, 0, len(s.pinned))
	for n := range s.pinned {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *dataNode) int { return strings.Compare(a.cfg.Name, b.cfg.Name) })
	for _, n := range nodes {
		b := s.pinned[n]
		err := b.run(verb)
		var lost *lostError
		broken := errors.As(err, &lost)
		b.pool.release(b, broken)
		if err == nil || first != nil {
			continue
		}
		if !errors.As(err, &first) {
			first = mycatError(erUnknown, "receive %s,but find backend con is closed or quit", strings.ToLower(verb))
		}
	}
	clear(s.pinned)
	s.inTx, s.poisoned = false, ""
	return first
}

// commit ends the transaction. A poisoned one is rolled back, and the client is told so.
func (s *session) commit() {
	if why := s.poisoned; why != "" {
		_ = s.finish("ROLLBACK") // the client is told of the poisoned transaction either way
		s.refuse(mycatError(erUnknown, "Transaction error, need to rollback. %s", why))
		return
	}
	s.endTransaction("COMMIT")
}

func (s *session) endTransaction(verb string) {
	if e := s.finish(verb); e != nil {
		s.refuse(e)
		return
	}
	s.ok()
}
