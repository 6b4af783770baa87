package dcs_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// ledger is what writers of one key were told.
type ledger struct {
	mu      sync.Mutex
	entries []outcome
}

type outcome struct {
	value    string
	from     int64 // the version that was compared
	revision int64 // of the acknowledgement
	err      error
}

func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, e := range l.entries {
		if e.err == nil {
			n++
		}
	}
	return n
}

func (l *ledger) await(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d writes are acknowledged", n), func() bool { return l.acknowledged() >= n })
}

// write swaps the key until stop, each time to a new value.
func (l *ledger) write(t *testing.T, kv dcs.KV, key string, writer int, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		read, err := kv.Txn(within(t, time.Second), nil, []dcs.Op{get(key)}, nil)
		if err != nil {
			continue
		}
		o := outcome{value: fmt.Sprintf("%d/%d", writer, i), from: read.Reads[0][0].Mod}
		res, err := kv.Txn(within(t, time.Second), []dcs.Cmp{{Key: key, Mod: o.from}}, []dcs.Op{put(key, o.value)}, nil)
		if err == nil && !res.OK {
			err = errors.New("compare failed")
		}
		o.revision, o.err = res.Revision, err
		l.mu.Lock()
		l.entries = append(l.entries, o)
		l.mu.Unlock()
	}
}

func (l *ledger) check(t *testing.T, history []dcs.Item) {
	t.Helper()
	at := map[string]int{}
	for i, item := range history {
		at[string(item.Value)] = i
	}
	unknown, applied := 0, 0
	for _, o := range l.entries {
		i, found := at[o.value]
		maybe := errors.Is(o.err, dcs.ErrUnknownOutcome)
		switch {
		case o.err == nil && (!found || history[i].Mod != o.revision):
			t.Errorf("acknowledged write %s of revision %d is not in the history", o.value, o.revision)
		case o.err != nil && !maybe && found:
			t.Errorf("write %s is in the history, but its writer was told: %v", o.value, o.err)
		case found && history[i-1].Mod != o.from:
			t.Errorf("write %s compared version %d and was applied on %d", o.value, o.from, history[i-1].Mod)
		}
		if maybe {
			unknown++
			if found {
				applied++
			}
		}
	}
	t.Logf("%d writes, %d of unknown outcome, of which %d took effect", len(l.entries), unknown, applied)
}
