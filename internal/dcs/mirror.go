package dcs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	defaultProve = time.Second
	// First and longest pause between attempts to read again; the first is one round over the endpoints.
	retryFirst, retryMost = 10 * time.Millisecond, 200 * time.Millisecond
)

// MirrorConfig says what a Mirror follows.
type MirrorConfig struct {
	KV      KV
	Prefix  string        // "/baton/prod/"
	Silence time.Duration // a watch that is silent for longer is opened elsewhere; one renewal of a guard (D/10). 0: no limit
	Prove   time.Duration // between two linearizable reads of the whole prefix when all is well; 0: 1 s
	Timeout time.Duration // of one such read; 0: Prove
	Log     *slog.Logger  // nil: silent
}

// Mirror keeps a copy of all keys under a prefix. It reads them linearizably, follows them by watch, reads again after every loss of
// the watch, and every Prove in any case: events alone are never trusted. It decides nothing.
type Mirror struct {
	cfg MirrorConfig

	mu   sync.Mutex // guards the fields below
	view View
	subs map[chan struct{}]struct{}
}

// NewMirror returns a Mirror that knows nothing until Run or Refresh.
func NewMirror(cfg MirrorConfig) *Mirror {
	if cfg.Prove <= 0 {
		cfg.Prove = defaultProve
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = cfg.Prove
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Mirror{cfg: cfg, subs: map[chan struct{}]struct{}{}}
}

// View returns what is known now.
func (m *Mirror) View() View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view
}

// Subscribe returns a channel that holds a token whenever any key has changed since the last receive; many changes leave one token.
// The first complete read counts as a change. Call cancel when done; it may be called again.
func (m *Mirror) Subscribe() (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subs[ch] = struct{}{}
	return ch, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.subs, ch)
	}
}

// Run follows the prefix until ctx ends, and returns its cause.
func (m *Mirror) Run(ctx context.Context) error {
	var proving sync.WaitGroup
	proving.Go(func() { m.prove(ctx) })
	m.follow(ctx)
	proving.Wait()
	return context.Cause(ctx)
}

// Refresh reads all keys linearizably now. The view that it returns has everything that was committed before the call.
func (m *Mirror) Refresh(ctx context.Context) (View, error) {
	before := m.View().Revision
	sent := time.Now()
	res, err := m.cfg.KV.Txn(ctx, nil, []Op{{Kind: GetPrefix, Key: m.cfg.Prefix}}, nil)
	if err != nil {
		return m.View(), fmt.Errorf("read keys under %s: %w", m.cfg.Prefix, err)
	}
	return m.replace(res, before, sent, time.Now()), nil
}

// replace takes a complete read over, unless the watch is ahead of it by now. A read behind what was known when it was sent means that
// the store itself went back (restored from a backup): it is the truth, and what to do about it is decided above.
func (m *Mirror) replace(res Result, before int64, sent, received time.Time) View {
	m.mu.Lock()
	defer m.mu.Unlock()
	rewound := res.Revision < before
	if rewound {
		m.cfg.Log.Error("etcd went back in time: it was restored or replaced",
			slog.String("prefix", m.cfg.Prefix), slog.Int64("known", before), slog.Int64("revision", res.Revision))
	}
	changed := false
	if first := m.view.Revision == 0; rewound || first || res.Revision >= m.view.Revision {
		m.view, changed = m.view.replaced(res.Reads[0], res.Revision, received)
		changed = changed || first
	}
	if sent.After(m.view.ReadAt) {
		m.view.ReadAt = sent
	}
	m.fresh(sent)
	if changed {
		m.announce()
	}
	return m.view
}

// take applies one message of the watch.
func (m *Mirror) take(b Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	view, changed := m.view.changed(b.Items, b.Received)
	m.view = view
	m.fresh(b.Received)
	if changed {
		m.announce()
	}
}

// fresh and announce are called with mu held.
func (m *Mirror) fresh(at time.Time) {
	if at.After(m.view.FreshAt) {
		m.view.FreshAt = at
	}
}

func (m *Mirror) announce() {
	for ch := range m.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// follow reads, watches, and does both again when the watch is lost. It hurries unless it fails to get anything at all.
func (m *Mirror) follow(ctx context.Context) {
	retry := retryFirst
	for ctx.Err() == nil {
		err := m.readAndWatch(ctx, func() { retry = retryFirst })
		if ctx.Err() != nil {
			return
		}
		m.cfg.Log.Debug("mirror reads again", slog.String("prefix", m.cfg.Prefix), slog.Any("err", err))
		pause(ctx, retry)
		retry = min(2*retry, retryMost)
	}
}

func (m *Mirror) readAndWatch(ctx context.Context, well func()) error {
	view, err := m.refreshInTime(ctx)
	if err != nil {
		return err
	}
	return m.cfg.KV.Watch(ctx, m.cfg.Prefix, view.Revision, m.cfg.Silence, func(b Batch) {
		well()
		m.take(b)
	})
}

func (m *Mirror) refreshInTime(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Timeout, fmt.Errorf("no answer within %v", m.cfg.Timeout))
	defer cancel()
	return m.Refresh(ctx)
}

// prove reads everything again whenever the last complete read is older than Prove.
func (m *Mirror) prove(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.Prove)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := m.refreshInTime(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Log.Debug("mirror could not prove its view", slog.String("prefix", m.cfg.Prefix), slog.Any("err", err))
		}
	}
}
