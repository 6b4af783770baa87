package standin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server is one stand-in.
type Server struct {
	cfg    Config
	log    *slog.Logger
	faults *faults
	exec   *executor

	commands  []command // of the management port
	hosts     map[string]*dataHost
	hostOrder []*dataHost
	nodes     map[string]*dataNode
	nodeOrder []*dataNode
	tables    map[string]*Table // by lower-case name

	nextID     atomic.Uint32
	backendIDs atomic.Int64
	offline    atomic.Bool // the management port's `offline`
	reloaded   atomic.Int64

	life    context.Context // of Run
	wg      sync.WaitGroup
	started time.Time
	ready   chan struct{}
	addrs   [2]netip.AddrPort // SQL, management; set when ready is closed

	mu       sync.Mutex // guards sessions
	sessions map[uint32]*session
}

// New checks the configuration. Nothing starts before Run.
func New(cfg Config, log *slog.Logger) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("check stand-in configuration: %w", err)
	}
	if len(cfg.DataNodes) == 0 {
		return nil, errors.New("check stand-in configuration: no data node")
	}
	srv := &Server{
		cfg: cfg, log: log, faults: newFaults(), exec: &executor{slots: make(chan struct{}, cfg.Executors)},
		hosts: map[string]*dataHost{}, nodes: map[string]*dataNode{}, tables: map[string]*Table{},
		commands: commands(), ready: make(chan struct{}), sessions: map[uint32]*session{},
	}
	for i := range cfg.Tables {
		srv.tables[strings.ToLower(cfg.Tables[i].Name)] = &cfg.Tables[i]
	}
	return srv, nil
}

// RunFile runs a stand-in from a configuration file in JSON until ctx ends.
func RunFile(ctx context.Context, path string, log *slog.Logger) error {
	cfg, err := Load(path)
	if err != nil {
		return err
	}
	srv, err := New(cfg, log)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}

// Ready is closed when both ports listen.
func (srv *Server) Ready() <-chan struct{} { return srv.ready }

// Addrs are the addresses of the SQL and of the management port. They are valid once Ready is closed.
func (srv *Server) Addrs() (sql, admin netip.AddrPort) { return srv.addrs[0], srv.addrs[1] }

// build makes the data hosts and data nodes, whose connections live as long as ctx.
func (srv *Server) build(ctx context.Context) error {
	srv.life, srv.started = ctx, time.Now()
	p := srv.cfg.Periods
	for _, cfg := range srv.cfg.DataHosts {
		h := &dataHost{cfg: cfg, spawn: srv.wg.Go}
		for _, w := range cfg.WriteHosts {
			pl := newPool(ctx, w, cfg.MaxCon, &srv.backendIDs)
			h.pools = append(h.pools, pl)
			state := newBeats(time.Duration(p.HeartbeatTimeout), time.Duration(p.Heartbeat), p.MaxRetry)
			h.hearts = append(h.hearts, &heart{pool: pl, state: state, last: srv.started})
		}
		srv.hosts[cfg.Name] = h
		srv.hostOrder = append(srv.hostOrder, h)
	}
	for _, cfg := range srv.cfg.DataNodes {
		n := &dataNode{cfg: cfg, host: srv.hosts[cfg.Host]}
		srv.nodes[cfg.Name] = n
		srv.nodeOrder = append(srv.nodeOrder, n)
	}
	if err := loadIndexes(srv.cfg.DNIndex, srv.hostOrder); err != nil {
		return err
	}
	return saveIndexes(srv.cfg.DNIndex, srv.hostOrder) // a refused index is forgotten at once
}

// Run serves until ctx ends, and then returns nil when every connection is closed. It can run once.
func (srv *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer srv.wg.Wait()
	defer cancel()
	if err := srv.build(ctx); err != nil {
		return err
	}
	listeners, err := srv.listen(ctx)
	if err != nil {
		return err
	}
	for i, l := range listeners {
		srv.wg.Go(func() { srv.accept(l, i) })
	}
	for _, h := range srv.hostOrder {
		srv.wg.Go(func() {
			if err := h.initialise(h.index(), srv.databaseOf(h), srv.initLimit()); err != nil {
				srv.log.Warn("data host is not up, its first statement will try again", slog.String("target", h.cfg.Name), slog.Any("err", err))
			}
		})
	}
	srv.wg.Go(func() { srv.faults.runPauses(ctx) })
	srv.wg.Go(func() { srv.beat(ctx) })
	srv.wg.Go(func() { srv.check(ctx) })
	close(srv.ready)
	srv.log.Info("mycat stand-in serves", slog.String("addr", srv.addrs[0].String()), slog.String("admin", srv.addrs[1].String()))
	<-ctx.Done()
	for _, l := range listeners {
		_ = l.Close()
	}
	srv.closePools()
	return nil
}

// listen opens both ports and the control socket. Go's listeners set SO_REUSEADDR and take the backlog of net.core.somaxconn.
func (srv *Server) listen(ctx context.Context) ([]net.Listener, error) {
	var all []net.Listener
	var lc net.ListenConfig
	for i, port := range []int{srv.cfg.ServerPort, srv.cfg.ManagerPort} {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(srv.cfg.Bind, strconv.Itoa(max(port, 0))))
		if err != nil {
			return nil, closing(all, fmt.Errorf("listen for mycat clients: %w", err))
		}
		srv.addrs[i] = l.Addr().(*net.TCPAddr).AddrPort()
		all = append(all, l)
	}
	if srv.cfg.Control != "" {
		l, err := listenControl(srv.cfg.Control)
		if err != nil {
			return nil, closing(all, fmt.Errorf("listen for faults: %w", err))
		}
		all = append(all, l)
	}
	return all, nil
}

func closing(all []net.Listener, err error) error {
	for _, l := range all {
		_ = l.Close()
	}
	return err
}

// accept serves one listener: 0 is the SQL port, 1 the management port, 2 the control socket.
func (srv *Server) accept(l net.Listener, which int) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: Mycat, too, goes on
			srv.log.Warn("accept failed", slog.Any("err", err))
			timer := time.NewTimer(50 * time.Millisecond)
			select {
			case <-timer.C:
				continue
			case <-srv.life.Done():
				timer.Stop()
				return
			}
		}
		if which == 2 {
			srv.wg.Go(func() {
				defer context.AfterFunc(srv.life, func() { _ = conn.Close() })()
				defer func() { _ = conn.Close() }()
				srv.control(conn)
			})
			continue
		}
		s := srv.newSession(conn, which == 1)
		srv.mu.Lock()
		srv.sessions[s.id] = s
		srv.mu.Unlock()
		srv.wg.Go(s.run)
	}
}

func (srv *Server) remove(s *session) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	delete(srv.sessions, s.id)
}

func (srv *Server) allSessions() []*session {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	out := make([]*session, 0, len(srv.sessions))
	for _, s := range srv.sessions {
		out = append(out, s)
	}
	return out
}

func (srv *Server) clientsOf(user string) (n int) {
	for _, s := range srv.allSessions() {
		s.mu.Lock()
		n += b2i(s.user != nil && s.user.Name == user)
		s.mu.Unlock()
	}
	return n
}

func (srv *Server) closePools() {
	for _, h := range srv.hostOrder {
		for _, p := range h.pools {
			p.closeAll(textClosed, true)
		}
	}
}

func (srv *Server) initLimit() time.Duration { return time.Duration(srv.cfg.Periods.Init) }

// databaseOf is the database of the first data node at a data host: what Mycat's own connections select.
func (srv *Server) databaseOf(h *dataHost) string {
	for _, n := range srv.nodeOrder {
		if n.host == h {
			return n.cfg.Database
		}
	}
	return ""
}

// beat runs every heart once in a heartbeat period, and Mycat's own switch where it is allowed.
func (srv *Server) beat(ctx context.Context) {
	ticker := time.NewTicker(time.Duration(srv.cfg.Periods.Heartbeat))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, h := range srv.hostOrder {
				srv.beatHost(h, now)
			}
		}
	}
}

func (srv *Server) beatHost(h *dataHost, now time.Time) {
	database := srv.databaseOf(h)
	for _, heart := range h.hearts {
		heart.tick(now, database, srv.wg.Go)
	}
	if active := h.index(); h.switches() && h.hearts[active].code() != rsOK {
		if next := h.candidate(); next >= 0 {
			srv.switchHost(h, next)
		}
	}
}

// switchHost is Mycat's own switch: unfenced, not coordinated, and fatal to what is in flight.
func (srv *Server) switchHost(h *dataHost, index int) bool {
	if !h.switchTo(index) {
		return false
	}
	srv.log.Warn("mycat switched its data source", slog.String("target", h.cfg.Name), slog.Int("index", index))
	if err := saveIndexes(srv.cfg.DNIndex, srv.hostOrder); err != nil {
		srv.log.Error("data host index was not saved", slog.Any("err", err))
	}
	return true
}

// check looks at the limits once in a check period: sqlExecuteTimeout, idleTimeout, and free connections that the server has closed.
func (srv *Server) check(ctx context.Context) {
	ticker := time.NewTicker(time.Duration(srv.cfg.Periods.Check))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			srv.checkLimits(now)
		}
	}
}

func (srv *Server) checkLimits(now time.Time) {
	for _, h := range srv.hostOrder {
		for _, p := range h.pools {
			p.reap(now.Add(-time.Duration(srv.cfg.Periods.SQLExecute)).UnixNano())
			p.sweep()
		}
	}
	idle := now.Add(-time.Duration(srv.cfg.Periods.Idle)).UnixNano()
	for _, s := range srv.allSessions() {
		if last := s.lastRead.Load(); last != 0 && last < idle {
			_ = s.conn.Close()
		}
	}
}
