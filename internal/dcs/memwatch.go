package dcs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// memWatch is one watch of a MemClient: it pulls from the store's history, so that the order never depends on the scheduler.
type memWatch struct {
	c       *MemClient
	prefix  string
	next    int64 // first revision that is not delivered
	silence time.Duration
	broken  int
	heard   time.Time
}

// Watch implements KV. As with Etcd, a quiet watch that is in touch with the store delivers an empty batch at half of silence.
func (c *MemClient) Watch(ctx context.Context, prefix string, after int64, silence time.Duration, fn func(Batch)) error {
	wake := make(chan struct{}, 1)
	w := c.open(wake, prefix, after, silence)
	defer c.close(wake)
	for {
		batch, wait, err := w.pull(time.Now())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("watch %s of %s: %w", prefix, c.name, err)
		}
		if batch != nil {
			fn(*batch)
			w.heard = time.Now()
			continue
		}
		if err := w.sleep(ctx, wake, wait); err != nil {
			return err
		}
	}
}

func (c *MemClient) open(wake chan struct{}, prefix string, after int64, silence time.Duration) *memWatch {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	c.mem.watches[wake] = struct{}{}
	return &memWatch{c: c, prefix: prefix, next: after + 1, silence: silence, broken: c.broken, heard: time.Now()}
}

func (c *MemClient) close(wake chan struct{}) {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	delete(c.mem.watches, wake)
}

// sleep waits for a change of anything, or for wait; 0 has no limit.
func (w *memWatch) sleep(ctx context.Context, wake <-chan struct{}, wait time.Duration) error {
	var due <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-wake:
	case <-due:
	}
	return nil
}

// pull returns the next batch, or how long there will be none if nothing changes.
func (w *memWatch) pull(now time.Time) (*Batch, time.Duration, error) {
	m := w.c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.broken != w.c.broken {
		return nil, 0, fmt.Errorf("%w: broken by the test", ErrWatchLost)
	}
	connected := !w.c.cut && !m.leaderless
	var wait time.Duration
	if connected {
		if max(w.next-1, 1) < m.compacted {
			return nil, 0, fmt.Errorf("%w: the oldest kept is %d", ErrCompacted, m.compacted)
		}
		batch, due := w.change(now)
		if batch != nil {
			return batch, 0, nil
		}
		wait = due
	}
	left, half := w.silence-now.Sub(w.heard), w.silence/2
	drained := connected && wait == 0
	switch {
	case w.silence == 0:
		return nil, wait, nil
	case drained && left <= half:
		return &Batch{Revision: m.revision, Received: now}, 0, nil
	case left <= 0:
		return nil, 0, fmt.Errorf("%w: nothing heard for %v", ErrWatchLost, w.silence)
	case drained:
		left -= half
	}
	if wait == 0 || left < wait {
		wait = left
	}
	return nil, wait, nil
}

// change returns the next change under the prefix, or the time until the next one is due. Callers hold mu.
func (w *memWatch) change(now time.Time) (*Batch, time.Duration) {
	history := w.c.mem.history
	first, _ := slices.BinarySearchFunc(history, w.next, func(ch change, revision int64) int { return cmp.Compare(ch.revision, revision) })
	for _, ch := range history[first:] {
		if due := ch.at.Add(w.c.lag).Sub(now); due > 0 {
			return nil, due
		}
		w.next = ch.revision + 1
		items := slices.DeleteFunc(slices.Clone(ch.items), func(i Item) bool { return !strings.HasPrefix(i.Key, w.prefix) })
		if len(items) > 0 {
			return &Batch{Revision: ch.revision, Items: items, Received: now}, 0
		}
	}
	w.next = max(w.next, w.c.mem.revision+1)
	return nil, 0
}
