// Package dcs is Baton's only channel between hosts: etcd. It classifies etcd's errors once, and keeps a mirror of the cluster's keys.
package dcs

import (
	"context"
	"errors"
	"time"
)

// ErrUnknownOutcome means: the transaction was sent and its answer did not come; it may or may not have taken effect, now or later.
// Nobody may assume either: raise the term, then read (PROTOCOL 1).
var ErrUnknownOutcome = errors.New("dcs: outcome of the transaction is unknown")

// ErrUnavailable means: no endpoint answered; nothing was sent, or only reads were.
var ErrUnavailable = errors.New("dcs: no endpoint answers")

// ErrCompacted means: the watch asked for a revision that is gone; read the state again.
var ErrCompacted = errors.New("dcs: watched revision is compacted")

// ErrWatchLost means: the watch was cancelled, broken or silent for too long; read the state again and watch elsewhere.
var ErrWatchLost = errors.New("dcs: watch is lost")

// Cmp compares the mod revision of a key; 0 means that the key is absent.
type Cmp struct {
	Key string
	Mod int64
}

// OpKind is what an Op does.
type OpKind uint8

// The kinds of Op.
const (
	Put OpKind = iota
	Get
	GetPrefix
	Delete
	DeletePrefix
)

// Op is one operation of a transaction.
type Op struct {
	Kind  OpKind
	Key   string
	Value []byte
}

// Item is a key as etcd holds it.
type Item struct {
	Key     string
	Value   []byte
	Mod     int64 // revision of its last change
	Deleted bool  // in watch events only
}

// Result is the answer of a transaction.
type Result struct {
	OK       bool     // the compares held, and the then-branch ran
	Revision int64    // of the answer's header: the store's revision at the time
	Reads    [][]Item // one slice for each Get or GetPrefix of the branch that ran, in order
}

// Batch is one message of a watch. One without items tells that nothing changed: the member that serves the watch
// answered a linearizable read after the last message, and everything up to Revision has been delivered.
type Batch struct {
	Revision int64 // of the message's header; it may run ahead of the items, which are complete up to their own Mod only
	Items    []Item
	Received time.Time // with monotonic reading: when this process received it
}

// KV is a linearizable store: etcd, or the simulation's.
type KV interface {
	// Txn runs then if every compare holds, else els, atomically and linearizably. Keys are absolute.
	// Any error but ErrUnknownOutcome says that the transaction has not taken effect and never will.
	Txn(ctx context.Context, cmps []Cmp, then, els []Op) (Result, error)
	// Watch calls fn for every change under prefix after the revision, in order, until ctx ends or the watch is lost
	// (ErrWatchLost, ErrCompacted). No message for longer than silence counts as lost; 0 means no limit. It blocks.
	// When ctx ends it returns the context's cause. The items of one revision are never split over two batches.
	Watch(ctx context.Context, prefix string, after int64, silence time.Duration, fn func(Batch)) error
}
