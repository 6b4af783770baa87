package dcs

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"
)

// Entry is a key as this process knows it.
type Entry struct {
	Item
	Received time.Time // with monotonic reading: when this process first received this version, by a read or a watch
}

// View is what a Mirror knows at one moment. It never changes: keep it as long as you like. Values must not be written to.
type View struct {
	Revision int64     // every change under the prefix up to it is in the view; 0: nothing has been read yet
	ReadAt   time.Time // the view has everything that was committed before this: the send of the last linearizable read that was answered
	FreshAt  time.Time // the last proof of a connection to a member that has a leader: ReadAt, or a later message of the watch

	entries []*Entry // by key; shared between views, so never written to
}

// Get returns the entry of a key; false if the key is absent.
func (v View) Get(key string) (Entry, bool) {
	if i, ok := v.find(key); ok {
		return *v.entries[i], true
	}
	return Entry{}, false
}

// Prefix goes over the keys with that prefix, in their order.
func (v View) Prefix(prefix string) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		first, _ := v.find(prefix)
		for _, e := range v.entries[first:] {
			if !strings.HasPrefix(e.Key, prefix) || !yield(*e) {
				return
			}
		}
	}
}

// Len returns the number of keys.
func (v View) Len() int { return len(v.entries) }

func (v View) find(key string) (int, bool) {
	return slices.BinarySearchFunc(v.entries, key, func(e *Entry, key string) int { return cmp.Compare(e.Key, key) })
}

// changed returns the view after the items, and whether anything in it was new. Items that it has already are left out.
func (v View) changed(items []Item, received time.Time) (View, bool) {
	known := v.Revision
	fresh := slices.ContainsFunc(items, func(i Item) bool { return i.Mod > known })
	if !fresh {
		return v, false
	}
	v.entries = slices.Clone(v.entries)
	for _, item := range items {
		if item.Mod <= known {
			continue
		}
		v.Revision = max(v.Revision, item.Mod)
		i, found := v.find(item.Key)
		switch {
		case item.Deleted && found:
			v.entries = slices.Delete(v.entries, i, i+1)
		case item.Deleted:
		case found:
			v.entries[i] = &Entry{item, received}
		default:
			v.entries = slices.Insert(v.entries, i, &Entry{item, received})
		}
	}
	return v, true
}

// replaced returns the view that a complete read at the revision gives, and whether it differs in any key.
// A version known before keeps the time at which it was first received. The value is compared too: a store that was restored gives its
// revisions out a second time.
func (v View) replaced(items []Item, revision int64, received time.Time) (View, bool) {
	entries := make([]*Entry, len(items)) // in key order already
	same := len(items) == len(v.entries)
	for n, item := range items {
		if i, ok := v.find(item.Key); ok && v.entries[i].Mod == item.Mod && bytes.Equal(v.entries[i].Value, item.Value) {
			entries[n] = v.entries[i]
			continue
		}
		entries[n], same = &Entry{item, received}, false
	}
	v.entries, v.Revision = entries, revision
	return v, !same
}
