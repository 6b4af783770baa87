package dcs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
)

var errClosed = errors.New("client is closed")

// alertWait is how long a refusal may take that was sent before the connection broke: it is in the kernel's buffer already.
const alertWait = 20 * time.Millisecond

// endpoint is one member of etcd and the one client that talks to it alone: the choice of the member is ours, never grpc's.
type endpoint struct {
	url   string
	cfg   *Config
	fault atomic.Pointer[error] // why the last connection failed, as dialer or TLS saw it; grpc keeps only a text

	mu     sync.Mutex // guards the fields below; held while a client is made, for at most DialTimeout
	client *clientv3.Client
	closed bool
}

// conn returns the client, and makes it at the first call. With a user name that includes fetching a token.
func (p *endpoint) conn(ctx context.Context) (*clientv3.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errClosed
	case p.client != nil:
		return p.client, nil
	}
	wait := p.cfg.DialTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(min(wait, time.Until(deadline)), time.Millisecond) // 0 would mean no limit
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:       []string{p.url},
		TLS:             p.cfg.TLS,
		Username:        p.cfg.Username,
		Password:        p.cfg.Password,
		DialTimeout:     wait,
		MaxUnaryRetries: 1, // a second attempt is the caller's decision
		Logger:          zap.NewNop(),
		DialOptions:     p.dialOptions(),
	})
	if err != nil {
		return nil, err
	}
	p.client = client
	return client, nil
}

func (p *endpoint) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.client == nil {
		return nil
	}
	return p.client.Close()
}

func (p *endpoint) dialOptions() []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithContextDialer(p.dial),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			// grpc's own second pause of 1.6 s would outlast a whole lease after a member's restart.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: p.cfg.DialTimeout,
		}),
	}
	if p.cfg.TLS != nil {
		opts = append(opts, grpc.WithTransportCredentials(notingTLS{credentials.NewTLS(p.cfg.TLS), p}))
	}
	return opts
}

// dial connects with TCP_USER_TIMEOUT (tcp(7)): the kernel ends a connection whose data stay unacknowledged for that long.
// grpc's keep-alive cannot go under 10 s. Without traffic the kernel's probes, 1 s apart at their fastest, find a dead peer.
func (p *endpoint) dial(ctx context.Context, addr string) (net.Conn, error) {
	limit := int(p.cfg.unacked() / time.Millisecond)
	dialer := net.Dialer{
		Timeout:         p.cfg.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, limit)
			})
			return errors.Join(err, failed)
		},
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil || p.cfg.TLS == nil {
		p.note(err)
	}
	return conn, err
}

func (p *endpoint) note(err error) {
	if err == nil {
		p.fault.Store(nil)
		return
	}
	if deniedByTLS(err) {
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	}
	p.fault.Store(&err)
}

// explain adds to an error what dialer or TLS saw, when the request did not leave this process.
func (p *endpoint) explain(err error, sent bool) error {
	fault := p.fault.Load()
	if sent || fault == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, *fault)
}

// notingTLS keeps the reason of a failed handshake.
type notingTLS struct {
	credentials.TransportCredentials
	p *endpoint
}

func (c notingTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		c.p.note(err)
		return conn, info, err
	}
	return &notingConn{Conn: conn, p: c.p}, info, nil
}

func (c notingTLS) Clone() credentials.TransportCredentials {
	return notingTLS{c.TransportCredentials.Clone(), c.p}
}

// notingConn listens for the server's refusal of our certificate: with TLS 1.3 it arrives after the handshake, at the first read.
// Only a read that succeeds proves that we are let in.
type notingConn struct {
	net.Conn
	p     *endpoint
	letIn sync.Once
}

func (c *notingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	switch {
	case err == nil:
		c.letIn.Do(func() { c.p.note(nil) })
	case deniedByTLS(err):
		c.p.note(err)
	}
	return n, err
}

// Write looks for the refusal when it fails: grpc closes the connection at once then, and its reader may never see it.
func (c *notingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && c.SetReadDeadline(time.Now().Add(alertWait)) == nil {
		_, _ = c.Read(make([]byte, 1))
	}
	return n, err
}

type sentKey struct{}

// sentHandler marks the moment from which a request may reach the server: its header went to the transport.
// Only an error before it is certain not to have been sent; no status code can tell.
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}
