package dcs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mem is a linearizable store in memory with etcd's semantics, for tests and simulations. It has no goroutine of its own and no clock but
// the callers' (it runs inside a testing/synctest bubble). Every client of it can be made to suffer alone: see MemClient.
type Mem struct {
	mu         sync.Mutex // guards all below, and the fields of the clients
	revision   int64
	compacted  int64
	leaderless bool
	items      map[string]Item
	history    []change // since the last compaction, oldest first
	clients    map[string]*MemClient
	late       []func() // transactions on their way: applied by DeliverLate
	watches    map[chan struct{}]struct{}
}

// change is what one revision did.
type change struct {
	revision int64
	at       time.Time
	items    []Item
}

// NewMem returns an empty store at revision 1, as a new etcd has.
func NewMem() *Mem {
	return &Mem{revision: 1, items: map[string]Item{}, clients: map[string]*MemClient{}, watches: map[chan struct{}]struct{}{}}
}

// Client returns the handle of that name, and always the same one.
func (m *Mem) Client(name string) *MemClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.clients[name]
	if !ok {
		c = &MemClient{mem: m, name: name}
		m.clients[name] = c
	}
	return c
}

// Revision returns the revision of the last write.
func (m *Mem) Revision() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

// Compact forgets what happened before the revision; watches that still need it end in ErrCompacted.
func (m *Mem) Compact(revision int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = max(m.compacted, min(revision, m.revision))
	m.history = slices.DeleteFunc(m.history, func(c change) bool { return c.revision < m.compacted })
	m.wake()
}

// SetLeader with false takes the leader away: every transaction fails with ErrNoQuorum, and watches fall silent, until SetLeader(true).
func (m *Mem) SetLeader(present bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaderless = !present
	m.wake()
}

// DeliverLate applies, in their order, the transactions that were held back by the fault Late. Their compares are evaluated now.
func (m *Mem) DeliverLate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	late := m.late
	m.late = nil
	for _, apply := range late {
		apply()
	}
}

// wake lets all watches look again. Callers hold mu.
func (m *Mem) wake() {
	for w := range m.watches {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// apply runs a transaction as etcd does: all compares first, then the operations of one branch in order, each seeing those before it,
// all at one new revision if anything was written or removed. Callers hold mu.
func (m *Mem) apply(t txn) (Result, error) {
	for _, branch := range [][]Op{t.then, t.els} {
		if err := collides(branch); err != nil {
			return Result{}, err
		}
	}
	res := Result{OK: true}
	for _, c := range t.cmps {
		res.OK = res.OK && m.items[c.Key].Mod == c.Mod
	}
	branch := t.then
	if !res.OK {
		branch = t.els
	}
	next := change{revision: m.revision + 1, at: time.Now()}
	for _, op := range branch {
		switch op.Kind {
		case Get, GetPrefix:
			res.Reads = append(res.Reads, m.read(op))
		case Put:
			item := Item{Key: op.Key, Value: slices.Clone(op.Value), Mod: next.revision}
			m.items[op.Key] = item
			next.items = append(next.items, item)
		case Delete, DeletePrefix:
			for _, item := range m.read(Op{Kind: op.Kind - Delete + Get, Key: op.Key}) {
				delete(m.items, item.Key)
				next.items = append(next.items, Item{Key: item.Key, Mod: next.revision, Deleted: true})
			}
		}
	}
	if len(next.items) > 0 {
		m.revision = next.revision
		m.history = append(m.history, next)
		m.wake()
	}
	res.Revision = m.revision
	return res, nil
}

// read answers a Get or GetPrefix in the order of keys.
func (m *Mem) read(op Op) []Item {
	keys := []string{op.Key}
	if op.Kind == GetPrefix {
		keys = slices.Sorted(maps.Keys(m.items))
	}
	out := []Item{}
	for _, key := range keys {
		if item, ok := m.items[key]; ok && strings.HasPrefix(key, op.Key) {
			item.Value = slices.Clone(item.Value)
			out = append(out, item)
		}
	}
	return out
}

// collides refuses, as etcd does, a branch that writes a key twice or writes one that it removes, and an empty key.
func collides(branch []Op) error {
	for i, op := range branch {
		if op.Key == "" && op.Kind != GetPrefix && op.Kind != DeletePrefix {
			return fmt.Errorf("%w: key is not provided", ErrRefused)
		}
		for _, other := range branch[i+1:] {
			if clash(op, other) || clash(other, op) {
				return fmt.Errorf("%w: duplicate key %s given in transaction", ErrRefused, op.Key)
			}
		}
	}
	return nil
}

func clash(put, other Op) bool {
	if put.Kind != Put {
		return false
	}
	switch other.Kind {
	case Put, Delete:
		return put.Key == other.Key
	case DeletePrefix:
		return strings.HasPrefix(put.Key, other.Key)
	default:
		return false
	}
}

// Fault is what happens to one transaction on its way.
type Fault uint8

// The faults. All but None, BeforeSend and NoLeader end in ErrUnknownOutcome (in ErrUnavailable when only reads were asked for).
const (
	None        Fault = iota
	BeforeSend        // nothing was sent: ErrUnavailable
	NoLeader          // refused for want of a leader: ErrNoQuorum
	LoseRequest       // never applied
	LoseAnswer        // applied; the answer is lost
	Late              // applied when Mem.DeliverLate is called
)

// MemClient is one process's handle of a Mem. All its methods may be called at any time, also by the hook of OnTxn.
type MemClient struct {
	mem  *Mem
	name string

	cut     bool
	latency time.Duration
	lag     time.Duration
	broken  int // grows when watches are to end
	next    []Fault
	hook    func(cmps []Cmp, then, els []Op) Fault
}

// Partition cuts the client off: its transactions are lost requests, and its watches are silent.
func (c *MemClient) Partition(cut bool) {
	c.set(func() { c.cut = cut })
}

// FailNext gives the next transactions these faults, one each.
func (c *MemClient) FailNext(faults ...Fault) {
	c.set(func() { c.next = append(c.next, faults...) })
}

// OnTxn calls hook before each transaction and lets it choose the fault, when FailNext has left none. Nil removes it.
func (c *MemClient) OnTxn(hook func(cmps []Cmp, then, els []Op) Fault) {
	c.set(func() { c.hook = hook })
}

// SetLatency makes each transaction take d: half of it before it is applied, half after.
func (c *MemClient) SetLatency(d time.Duration) {
	c.set(func() { c.latency = d })
}

// DelayWatch delivers the watches' messages d after their change.
func (c *MemClient) DelayWatch(d time.Duration) {
	c.set(func() { c.lag = d })
}

// BreakWatches ends the client's watches with ErrWatchLost.
func (c *MemClient) BreakWatches() {
	c.set(func() { c.broken++ })
}

func (c *MemClient) set(change func()) {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	change()
	c.mem.wake()
}

// Txn implements KV.
func (c *MemClient) Txn(ctx context.Context, cmps []Cmp, then, els []Op) (Result, error) {
	t := txn{cmps, then, els}
	fault, half := c.nextFault(t)
	if ctx.Err() != nil && fault == None {
		fault = BeforeSend
	}
	if half > 0 && fault != BeforeSend && !pause(ctx, half) && fault == None {
		fault = LoseRequest
	}
	res, err := c.deliver(t, fault)
	if half > 0 && err == nil && !pause(ctx, half) {
		err = ErrUnknownOutcome
	}
	if err == nil {
		return res, nil
	}
	if errors.Is(err, ErrUnknownOutcome) && t.readOnly() {
		err = ErrUnavailable
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return Result{}, fmt.Errorf("run transaction of %s: %w", c.name, err)
}

// nextFault takes the next fault, and half of the latency.
func (c *MemClient) nextFault(t txn) (Fault, time.Duration) {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	if len(c.next) > 0 {
		fault := c.next[0]
		c.next = c.next[1:]
		return fault, c.latency / 2
	}
	fault, hook := None, c.hook
	if hook != nil {
		c.mem.mu.Unlock() // the hook may use the store
		fault = hook(t.cmps, t.then, t.els)
		c.mem.mu.Lock()
	}
	return fault, c.latency / 2
}

func (c *MemClient) deliver(t txn, fault Fault) (Result, error) {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	switch {
	case fault == BeforeSend:
		return Result{}, ErrUnavailable
	case fault == LoseRequest, c.cut:
		return Result{}, ErrUnknownOutcome
	case fault == NoLeader, c.mem.leaderless:
		return Result{}, fmt.Errorf("%w: %w", ErrUnavailable, ErrNoQuorum)
	case fault == Late:
		t.then, t.els, t.cmps = cloneOps(t.then), cloneOps(t.els), slices.Clone(t.cmps)
		c.mem.late = append(c.mem.late, func() { _, _ = c.mem.apply(t) }) // nobody waits for its answer
		return Result{}, ErrUnknownOutcome
	}
	res, err := c.mem.apply(t)
	if err == nil && fault == LoseAnswer {
		err = ErrUnknownOutcome
	}
	return res, err
}

func cloneOps(ops []Op) []Op {
	out := slices.Clone(ops)
	for i := range out {
		out[i].Value = slices.Clone(out[i].Value)
	}
	return out
}
