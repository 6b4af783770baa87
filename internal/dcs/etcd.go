package dcs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	defaultAttempt = 500 * time.Millisecond
	// between two rounds over all endpoints: a tenth of the shortest election (300 ms), so that the end of one is not overslept.
	roundPause = 20 * time.Millisecond
)

// Config says how to reach etcd.
type Config struct {
	Endpoints          []string    // "10.0.0.1:2379" or "https://etcd-1:2379"; the own embedded member first
	TLS                *tls.Config // nil: plain TCP
	Username, Password string      // empty: no user, or the certificate's common name

	AttemptTimeout time.Duration // of one attempt at one endpoint, from its send; a guard's is D/8. 0: 500 ms
	DialTimeout    time.Duration // of TCP and TLS together; 0: AttemptTimeout
	Log            *slog.Logger  // nil: silent
}

// unacked is the longest that sent data may stay unacknowledged: two attempts, but never under the 200 ms after which
// Linux first retransmits, or one lost packet would end the connection.
func (c *Config) unacked() time.Duration { return max(2*c.AttemptTimeout, 400*time.Millisecond) }

// Etcd is a KV on an etcd cluster. It keeps one client per endpoint and moves on after one miss; it uses no etcd lease and no session.
type Etcd struct {
	cfg       Config
	endpoints []*endpoint

	mu      sync.Mutex // guards current
	current int
}

// NewEtcd connects to nothing: the first call does.
func NewEtcd(cfg Config) (*Etcd, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("dcs: no etcd endpoint is configured")
	}
	if cfg.AttemptTimeout <= 0 {
		cfg.AttemptTimeout = defaultAttempt
	}
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = cfg.AttemptTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Etcd{cfg: cfg}
	for _, url := range cfg.Endpoints {
		e.endpoints = append(e.endpoints, &endpoint{url: url, cfg: &e.cfg})
	}
	return e, nil
}

// Close ends all connections. A transaction in flight may return ErrUnknownOutcome.
func (e *Etcd) Close() error {
	var errs []error
	for _, p := range e.endpoints {
		if err := p.close(); err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, fmt.Errorf("close client of %s: %w", p.url, err))
		}
	}
	return errors.Join(errs...)
}

// Endpoint returns the endpoint that the next call tries first.
func (e *Etcd) Endpoint() string {
	_, p := e.preferred()
	return p.url
}

func (e *Etcd) preferred() (int, *endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current, e.endpoints[e.current]
}

// missed moves on from endpoint i, unless another call has done so already.
func (e *Etcd) missed(i int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != i || len(e.endpoints) == 1 {
		return
	}
	e.current = (i + 1) % len(e.endpoints)
	e.cfg.Log.Debug("etcd endpoint missed", slog.String("addr", e.endpoints[i].url),
		slog.String("next", e.endpoints[e.current].url), slog.Any("err", err))
}

// txn is a transaction as one value, to be tried at several endpoints.
type txn struct {
	cmps      []Cmp
	then, els []Op
}

func (t txn) readOnly() bool {
	for _, branch := range [][]Op{t.then, t.els} {
		for _, op := range branch {
			if op.Kind != Get && op.Kind != GetPrefix {
				return false
			}
		}
	}
	return true
}

// Txn implements KV. Until ctx ends it goes from endpoint to endpoint while an attempt certainly had no effect, or when nothing but
// reads is asked for. A write that was sent and not answered within AttemptTimeout ends at once in ErrUnknownOutcome.
func (e *Etcd) Txn(ctx context.Context, cmps []Cmp, then, els []Op) (Result, error) {
	t := txn{cmps, then, els}
	for attempt := 1; ; attempt++ {
		i, p := e.preferred()
		res, sent, err := p.attempt(ctx, t)
		if err == nil {
			return res, nil
		}
		f, sentinel := judge(err, sent)
		if f == unknown && t.readOnly() {
			f, sentinel = notApplied, ErrUnavailable
		}
		err = sayWhere(ctx, p, sentinel, err)
		if f == refused {
			return Result{}, err
		}
		if !errors.Is(ctx.Err(), context.Canceled) { // a caller who left early says nothing about the endpoint
			e.missed(i, err)
		}
		if f == unknown || ctx.Err() != nil || errors.Is(err, errClosed) {
			return Result{}, err
		}
		if attempt%len(e.endpoints) == 0 && !pause(ctx, roundPause) {
			return Result{}, err
		}
	}
}

// sayWhere wraps the sentinel, what was seen, and the caller's reason when it was the caller's context that ended.
func sayWhere(ctx context.Context, p *endpoint, sentinel, err error) error {
	if errors.Is(sentinel, ErrNoQuorum) {
		sentinel = fmt.Errorf("%w: %w", ErrUnavailable, ErrNoQuorum)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("run transaction at %s: %w: %w", p.url, sentinel, err)
}

// pause waits for d and reports whether ctx still lasts.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// attempt runs the transaction once at this endpoint. sent tells whether it may have left this process.
func (p *endpoint) attempt(ctx context.Context, t txn) (res Result, sent bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.AttemptTimeout, fmt.Errorf("no answer within %v", p.cfg.AttemptTimeout))
	defer cancel()
	var left atomic.Bool
	client, err := p.conn(ctx)
	if err != nil {
		return Result{}, false, p.explain(err, false)
	}
	// Asking for a leader makes a member without one refuse at once, before it looks at the request.
	marked := clientv3.WithRequireLeader(context.WithValue(ctx, sentKey{}, &left))
	resp, err := t.commit(client.Txn(marked))
	if err != nil {
		return Result{}, left.Load(), p.explain(err, left.Load())
	}
	return result(resp), true, nil
}

// commit runs the transaction. etcd answers one that holds no operation at all from the asked member's own state, which may be
// behind (etcdserver/txn, IsTxnSerializable): a key count makes it a linearizable read like any other, and adds nothing to Reads.
func (t txn) commit(c clientv3.Txn) (*clientv3.TxnResponse, error) {
	then, els := operations(t.then), operations(t.els)
	if len(then)+len(els) > 0 || len(t.cmps) == 0 {
		return c.If(compares(t.cmps)...).Then(then...).Else(els...).Commit()
	}
	wait := clientv3.OpGet(t.cmps[0].Key, clientv3.WithCountOnly())
	resp, err := c.If(compares(t.cmps)...).Then(wait).Else(wait).Commit()
	if err == nil {
		resp.Responses = nil
	}
	return resp, err
}

func compares(cmps []Cmp) []clientv3.Cmp {
	out := make([]clientv3.Cmp, len(cmps))
	for i, c := range cmps {
		out[i] = clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Mod)
	}
	return out
}

func operations(ops []Op) []clientv3.Op {
	out := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		switch op.Kind {
		case Put:
			out[i] = clientv3.OpPut(op.Key, string(op.Value))
		case Get:
			out[i] = clientv3.OpGet(op.Key)
		case GetPrefix:
			out[i] = clientv3.OpGet(op.Key, clientv3.WithPrefix())
		case Delete:
			out[i] = clientv3.OpDelete(op.Key)
		case DeletePrefix:
			out[i] = clientv3.OpDelete(op.Key, clientv3.WithPrefix())
		}
	}
	return out
}

func result(resp *clientv3.TxnResponse) Result {
	res := Result{OK: resp.Succeeded, Revision: resp.Header.Revision}
	for _, r := range resp.Responses {
		read := r.GetResponseRange()
		if read == nil {
			continue
		}
		items := make([]Item, len(read.Kvs))
		for i, kv := range read.Kvs {
			items[i] = Item{Key: string(kv.Key), Value: kv.Value, Mod: kv.ModRevision}
		}
		res.Reads = append(res.Reads, items)
	}
	return res
}
