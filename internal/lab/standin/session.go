package standin

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// session is one client of either port.
type session struct {
	framed // writes; reads until the reader takes over
	srv    *Server
	id     uint32
	admin  bool
	conn   *counted
	born   time.Time

	in   chan request
	gone chan struct{} // closed by the reader: the client is away
	done chan struct{} // closed by run: nobody reads `in` any more

	mu     sync.Mutex // guards the fields below, which the management port shows
	user   *User
	schema string
	active string // the statement under way
	since  time.Time

	charset    string
	autocommit bool
	isolation  string
	inTx       bool
	poisoned   string // why the transaction must be rolled back
	pinned     map[*dataNode]*backend

	lastRead atomic.Int64
}

// request is one packet of a client, with its sequence number.
type request struct {
	seq byte
	p   []byte
}

// counted counts a client's bytes for show @@connection.
type counted struct {
	net.Conn
	in, out atomic.Int64
}

// Read counts.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

// Write counts.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(int64(n))
	return n, err
}

func (srv *Server) newSession(c net.Conn, admin bool) *session {
	conn := &counted{Conn: c}
	return &session{
		framed: newFramed(conn), srv: srv, id: srv.nextID.Add(1), admin: admin, conn: conn, born: time.Now(),
		in: make(chan request), gone: make(chan struct{}), done: make(chan struct{}),
		autocommit: true, pinned: map[*dataNode]*backend{},
	}
}

// run serves the client until it leaves. A statement in flight at a backend is waited for also when the client is away: its connection
// then goes back to the pool, and an open transaction is rolled back.
func (s *session) run() {
	defer s.end()
	defer context.AfterFunc(s.srv.life, func() { _ = s.conn.Close() })()
	life := s.srv.life.Done()
	for _, g := range []*gate{&s.srv.faults.acceptOnly, &s.srv.faults.reactor, &s.srv.faults.pause} {
		if !g.wait(life) {
			return
		}
	}
	_ = s.conn.SetDeadline(time.Now().Add(time.Duration(s.srv.cfg.Periods.Auth)))
	if s.authenticate(newSeed()) != nil {
		return
	}
	_ = s.conn.SetDeadline(time.Time{})
	s.lastRead.Store(time.Now().UnixNano())
	s.srv.wg.Go(s.read)
	for {
		select {
		case r := <-s.in:
			s.seq = r.seq
			if !s.dispatch(r.p) || s.w.Flush() != nil {
				return
			}
		case <-s.gone:
			return
		case <-life:
			return
		}
	}
}

// read plays Mycat's reactor: it takes packets from the client, and notices when it leaves.
func (s *session) read() {
	defer s.srv.remove(s)
	defer close(s.gone)
	in := framed{Conn: s.conn, r: s.r}
	for {
		p, err := in.readPacket()
		if err != nil || len(p) == 0 {
			_ = s.conn.Close()
			return
		}
		s.lastRead.Store(time.Now().UnixNano())
		select {
		case s.in <- request{in.seq, p}:
		case <-s.done:
			return
		}
	}
}

func (s *session) end() {
	close(s.done)
	_ = s.conn.Close()
	s.srv.remove(s)
	if len(s.pinned) > 0 {
		_ = s.finish("ROLLBACK") // nobody is left to be told
	}
}

// reply buffers a packet. A client that is away is noticed by the reader, so the error says nothing new.
func (s *session) reply(p []byte) { _ = s.writePacket(p) }

func (s *session) status() uint16 {
	if s.inTx {
		return statusAutocommit | 1 // SERVER_STATUS_IN_TRANS
	}
	return uint16(b2i(s.autocommit)) * statusAutocommit
}

func (s *session) ok() { s.reply(okPacket(0, s.status(), "")) }

func (s *session) refuse(e *sqlError) { s.reply(e.packet()) }

// dispatch runs one command; false ends the session.
func (s *session) dispatch(p []byte) bool {
	life := s.srv.life.Done()
	if !s.srv.faults.reactor.wait(s.gone, life) || !s.srv.faults.pause.wait(s.gone, life) {
		return false
	}
	arg := string(p[1:])
	switch p[0] {
	case comQuit, comProcessKill: // Mycat's COM_PROCESS_KILL closes the client's own connection
		return false
	case comPing, comHeartbeat: // answered by the reactor: they prove nothing about SQL
		s.ping()
	case comInitDB:
		s.use(arg)
	case comQuery:
		return s.query(arg)
	case comFieldList:
		s.reply(eofPacket(s.status()))
	case comSetOption:
		s.reply(eofPacket(s.status()))
	case comResetConnection:
		s.ok()
	case comStmtPrepare, comStmtExecute, comStmtReset:
		s.refuse(mycatError(erUnknownCom, "Prepare unsupported!"))
	case comStmtLongData, comStmtClose: // these two have no answer
	default:
		s.refuse(mycatError(erUnknownCom, "Unknown command"))
	}
	return true
}

func (s *session) ping() {
	if s.srv.offline.Load() && !s.admin {
		s.refuse(mycatError(erServerShutdown, "The server has been shutdown"))
		return
	}
	s.ok()
}

func (s *session) use(schema string) {
	if e := s.srv.checkSchema(s.user, schema); e != nil {
		s.refuse(e)
		return
	}
	s.mu.Lock()
	s.schema = schema
	s.mu.Unlock()
	s.ok()
}

// query runs COM_QUERY: it waits for one of the server's executors like every SQL of both ports, so that starvation hangs both.
func (s *session) query(sql string) bool {
	s.note(sql)
	defer s.note("")
	if d := time.Duration(s.srv.faults.slow.Load()); d > 0 && !s.wait(d) {
		return false
	}
	release, ok := s.srv.exec.acquire(s.srv.faults, s.gone, s.srv.life.Done())
	if !ok {
		return false // Mycat, too, drops what a closed client had queued
	}
	defer release()
	if s.admin {
		s.manage(sql)
	} else {
		s.statement(sql, release)
	}
	return true
}

func (s *session) note(sql string) {
	s.mu.Lock()
	s.active, s.since = sql, time.Now()
	s.mu.Unlock()
}

func (s *session) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.gone:
	case <-s.srv.life.Done():
	}
	return false
}

// executor is Mycat's BusinessExecutor: a few threads that all SQL of both ports goes through.
type executor struct {
	slots     chan struct{}
	queued    atomic.Int64
	completed atomic.Int64
}

// acquire waits for a thread. The function gives it back, once, however often it is called.
func (e *executor) acquire(f *faults, gone, life <-chan struct{}) (release func(), ok bool) {
	e.queued.Add(1)
	defer e.queued.Add(-1)
	if !f.starve.wait(gone, life) {
		return nil, false
	}
	select {
	case e.slots <- struct{}{}:
	case <-gone:
		return nil, false
	case <-life:
		return nil, false
	}
	return sync.OnceFunc(func() {
		<-e.slots
		e.completed.Add(1)
	}), true
}
