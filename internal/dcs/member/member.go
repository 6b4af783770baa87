// Package member runs one embedded etcd member inside the daemon, for installations and laboratories that have no etcd.
//
// It only runs the server. What is read and written there goes through package dcs, as with any other etcd; it never touches a key.
package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"
)

// ErrNotRunning means: the member is not started, or has stopped.
var ErrNotRunning = errors.New("member: embedded etcd is not running")

// ErrBroken means: etcd gave up, for example because its disk is full or failed. The daemon goes on with the other members.
var ErrBroken = errors.New("member: embedded etcd has given up")

const (
	// Baton's live keys are under 10 MB; the rest is room for the revisions of one compaction period.
	quotaBytes = 64 << 20
	// Three observers, a holder and a controller pulse about 50 times a second: 15,000 revisions, some 5 MB, are kept.
	compactAfter = "5m"
	// A snapshot every two minutes at that rate, so that a restart replays little and old log segments go.
	snapshotEvery = 5000
	keptFiles     = 3
	// etcd preallocates two segments; its 64 MB each would be more than everything else that Baton stores.
	segmentBytes = 8 << 20
	// How long a stop may take before it is abandoned: transfer of leadership (one election) and closing of streams.
	stopLimit = 5 * time.Second
	// At its very first start a member asks the others whether it was in the cluster before. One that listens but does not serve yet
	// keeps it waiting for a whole second, so members that start together go one after the other, by name. Serving takes 20-50 ms.
	firstStartGap = 75 * time.Millisecond
)

// smallSegments sets a variable of the whole process, which every member of it shares.
var smallSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// TLS names PEM files. With them both sides of every connection must show a certificate of CA.
type TLS struct {
	Cert, Key, CA string // paths
}

// info reads the files once, to find a mistake before etcd starts: it would notice after it has reported readiness.
func (t TLS) info() (transport.TLSInfo, error) {
	if t == (TLS{}) {
		return transport.TLSInfo{}, nil
	}
	info := transport.TLSInfo{CertFile: t.Cert, KeyFile: t.Key, TrustedCAFile: t.CA, ClientCertAuth: true}
	_, err := info.ServerConfig()
	return info, err
}

func (t TLS) url(addr string) string {
	if t == (TLS{}) {
		return "http://" + addr
	}
	return "https://" + addr
}

// Config describes a member.
type Config struct {
	Name       string            // in InitialCluster
	Dir        string            // of its data, made if missing. A directory with data decides over all of InitialCluster
	ClientAddr string            // "10.0.0.1:2379": where it serves clients
	PeerAddr   string            // "10.0.0.1:2380": where it serves members
	Cluster    map[string]string // PeerAddr of each member by its name, the own one too; the same on all at the first start
	Token      string            // of the cluster; keeps members of two clusters apart. Empty: "baton"

	TickMS, ElectionMS uint // of raft, milliseconds: fast 30 and 300, steady 100 and 1000. 0: steady

	ClientTLS, PeerTLS TLS          // zero: plain TCP
	Log                *slog.Logger // nil: silent
}

// Member is an embedded etcd.
type Member struct {
	cfg    Config
	server atomic.Pointer[etcdserver.EtcdServer]

	mu   sync.Mutex // guards the field below
	rpcs []*grpc.Server
}

// New touches nothing.
func New(cfg Config) *Member {
	if cfg.Token == "" {
		cfg.Token = "baton"
	}
	if cfg.TickMS == 0 {
		cfg.TickMS = 100
	}
	if cfg.ElectionMS == 0 {
		cfg.ElectionMS = 10 * cfg.TickMS
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Member{cfg: cfg}
}

// Run serves until ctx ends, and then hands leadership over and stops. ready, if not nil, is called once: when the member takes part
// in a cluster that has a leader. An error is the reason why it did not start, or gave up (ErrBroken); a member whose directory
// was lost is refused by the others, and must be removed from the cluster and added anew.
func (m *Member) Run(ctx context.Context, ready func()) error {
	smallSegments()
	broken := make(chan error, 1)
	cfg, err := m.config(broken)
	if err != nil {
		return fmt.Errorf("configure embedded etcd %s: %w", m.cfg.Name, err)
	}
	if !m.waitTurn(ctx) {
		return nil
	}
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start embedded etcd %s: %w", m.cfg.Name, err)
	}
	m.server.Store(etcd.Server)
	err = m.serve(ctx, etcd, broken, ready)
	if stopped := m.stop(etcd); stopped != nil {
		err = errors.Join(err, stopped)
	}
	return err
}

// waitTurn spaces first starts; it reports whether ctx still lasts.
func (m *Member) waitTurn(ctx context.Context) bool {
	if wal.Exist(filepath.Join(m.cfg.Dir, "member", "wal")) {
		return ctx.Err() == nil
	}
	place := slices.Index(slices.Sorted(maps.Keys(m.cfg.Cluster)), m.cfg.Name)
	turn := time.NewTimer(time.Duration(max(place, 0)) * firstStartGap)
	defer turn.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-turn.C:
		return true
	}
}

func (m *Member) serve(ctx context.Context, etcd *embed.Etcd, broken <-chan error, ready func()) error {
	started := etcd.Server.ReadyNotify()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-started:
			started = nil
			if ready != nil {
				ready()
			}
		case err := <-broken:
			return fmt.Errorf("run embedded etcd %s: %w: %w", m.cfg.Name, ErrBroken, err)
		case err := <-etcd.Err():
			return fmt.Errorf("run embedded etcd %s: %w: %w", m.cfg.Name, ErrBroken, err)
		case <-etcd.Server.StopNotify():
			return fmt.Errorf("run embedded etcd %s: %w: it stopped by itself", m.cfg.Name, ErrBroken)
		}
	}
}

// stop hands over first, so that the cluster loses no time on an election, and then cuts the clients' connections itself:
// etcd's own stop would wait six seconds for watches to end. A server that was never ready must be stopped before Close, which waits for it.
func (m *Member) stop(etcd *embed.Etcd) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.handOver(etcd.Server)
		m.server.Store(nil)
		m.mu.Lock()
		rpcs := m.rpcs
		m.rpcs = nil
		m.mu.Unlock()
		for _, s := range rpcs {
			s.Stop()
		}
		etcd.Server.HardStop()
		etcd.Close()
	}()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
		return fmt.Errorf("stop embedded etcd %s: not done after %v", m.cfg.Name, stopLimit)
	}
}

// handOver gives leadership away if this member has it. When the others are gone as well, etcd would try for six seconds;
// two elections are enough for any that is there, and the stop that follows ends the attempt.
func (m *Member) handOver(s *etcdserver.EtcdServer) {
	done := make(chan error, 1)
	go func() { done <- s.TryTransferLeadershipOnShutdown() }()
	limit := time.NewTimer(2 * time.Duration(m.cfg.ElectionMS) * time.Millisecond)
	defer limit.Stop()
	var err error
	select {
	case err = <-done:
	case <-limit.C:
		err = errors.New("no other member took it")
	}
	if err != nil {
		m.cfg.Log.Debug("leadership not handed over", slog.String("node", m.cfg.Name), slog.Any("err", err))
	}
}

func (m *Member) config(broken chan<- error) (*embed.Config, error) {
	cfg := embed.NewConfig()
	var errs []error
	listen := func(t TLS, addr string) []url.URL {
		u, err := url.Parse(t.url(addr))
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		return []url.URL{*u}
	}
	cfg.Name, cfg.Dir = m.cfg.Name, m.cfg.Dir
	cfg.ListenClientUrls = listen(m.cfg.ClientTLS, m.cfg.ClientAddr)
	cfg.ListenPeerUrls = listen(m.cfg.PeerTLS, m.cfg.PeerAddr)
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	var clientErr, peerErr error
	cfg.ClientTLSInfo, clientErr = m.cfg.ClientTLS.info()
	cfg.PeerTLSInfo, peerErr = m.cfg.PeerTLS.info()
	errs = append(errs, clientErr, peerErr)
	cfg.InitialCluster, cfg.InitialClusterToken = m.initialCluster(), m.cfg.Token
	// "new" holds only without data; a member that lost its data is refused by the others that remember it.
	cfg.ClusterState = embed.ClusterStateFlagNew
	cfg.TickMs, cfg.ElectionMs = m.cfg.TickMS, m.cfg.ElectionMS
	cfg.PreVote, cfg.StrictReconfigCheck = true, true
	cfg.QuotaBackendBytes = quotaBytes
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEvery, snapshotEvery
	cfg.MaxWalFiles, cfg.MaxSnapFiles = keptFiles, keptFiles
	cfg.GRPCKeepAliveInterval, cfg.GRPCKeepAliveTimeout = 10*time.Second, 5*time.Second // a vanished client's watch is freed
	cfg.EnableGRPCGateway = false
	cfg.ServiceRegister = m.remember
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(m.cfg.Log, m.cfg.Name, broken))
	return cfg, errors.Join(errs...)
}

func (m *Member) remember(s *grpc.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rpcs = append(m.rpcs, s)
}

// initialCluster is "a=http://10.0.0.1:2380,b=...", in the order of names.
func (m *Member) initialCluster() string {
	var members []string
	for name, addr := range m.cfg.Cluster {
		members = append(members, name+"="+m.cfg.PeerTLS.url(addr))
	}
	slices.Sort(members)
	return strings.Join(members, ",")
}

// LeaderIs reports whether this member leads the cluster.
func (m *Member) LeaderIs() bool {
	s := m.server.Load()
	return s != nil && s.Leader() == s.MemberID()
}

// ID returns etcd's number of this member, as in dcs.MemberStatus; 0 when it does not run.
func (m *Member) ID() uint64 {
	if s := m.server.Load(); s != nil {
		return uint64(s.MemberID())
	}
	return 0
}

// MoveLeader hands leadership to the member of that name and returns when it leads. Any member may ask.
func (m *Member) MoveLeader(ctx context.Context, name string) error {
	s := m.server.Load()
	if s == nil {
		return fmt.Errorf("move leadership to %s: %w", name, ErrNotRunning)
	}
	for _, member := range s.Cluster().Members() {
		if member.Name != name {
			continue
		}
		if err := s.MoveLeader(ctx, s.Lead(), uint64(member.ID)); err != nil {
			return fmt.Errorf("move leadership to %s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("move leadership to %s: the cluster has no member of that name", name)
}
