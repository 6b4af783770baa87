package dcs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

// ErrCompare means: a compare of the transaction did not hold, so nothing was changed. Whoever gets it acts on something old and must
// stop, or read again and follow (PROTOCOL 2.1, 4).
var ErrCompare = errors.New("dcs: a compare did not hold")

// Keys are the names under /baton/<cluster>/ (PROTOCOL 1).
type Keys struct{ prefix string }

// KeysOf returns the keys of a cluster.
func KeysOf(cluster string) Keys { return Keys{"/baton/" + cluster + "/"} }

// Prefix is what a mirror follows.
func (k Keys) Prefix() string { return k.prefix }

// Term is the key of who may act: the lock.
func (k Keys) Term() string { return k.prefix + "term" }

// Beat is the key of the pulse of the lock.
func (k Keys) Beat() string { return k.prefix + "beat" }

// Assignment is the key of who may serve.
func (k Keys) Assignment() string { return k.prefix + "assignment" }

// Holder is the key of the lease: the guard's renewals.
func (k Keys) Holder() string { return k.prefix + "holder" }

// Maintenance is the key of the operator's word that nothing is to be switched automatically.
func (k Keys) Maintenance() string { return k.prefix + "maintenance" }

// Nonce is the key of the recheck that observers answer.
func (k Keys) Nonce() string { return k.prefix + "nonce" }

// Command is the key of an operator's word for the controller.
func (k Keys) Command() string { return k.prefix + "command" }

// Reply is the key of the controller's answer to it.
func (k Keys) Reply() string { return k.prefix + "reply" }

// Readiness is the key of what would happen if the active site died now.
func (k Keys) Readiness() string { return k.prefix + "readiness" }

// Observer is where that node's observer reports.
func (k Keys) Observer(n cluster.NodeName) string { return k.prefix + "observer/" + string(n) }

// Sync is the semi-sync state of a shard.
func (k Keys) Sync(s cluster.ShardName) string { return k.prefix + "sync/" + string(s) }

// Clients is the list of client connections that a site's guard published, for the tickle.
func (k Keys) Clients(s cluster.SiteName) string { return k.prefix + "clients/" + string(s) }

// Switch is one document of a switch: plan, journal, released, bound, summary, request/<node>, answer/<node>, look/<node>.
func (k Keys) Switch(id, doc string) string { return k.prefix + "switch/" + id + "/" + doc }

// Versioned is a document as etcd holds it.
type Versioned[T any] struct {
	Value    T
	Mod      int64     // 0: absent
	Received time.Time // when its event came here; zero when it was only read (PROTOCOL 3: not to be counted from)
}

// SwitchDocs are the documents of one switch.
type SwitchDocs struct {
	Plan     Versioned[plan.Plan]
	Journal  Versioned[[]plan.Entry]
	Released Versioned[plan.Released]
	Bound    Versioned[plan.Bound]
	Summary  Versioned[plan.Summary]
	Requests map[cluster.NodeName]Versioned[plan.Request]
	Answers  map[cluster.NodeName]Versioned[plan.Answer]
	Looks    map[cluster.NodeName]Versioned[plan.Look]
}

// State is everything under the prefix, decoded.
type State struct {
	Revision    int64
	FreshAt     time.Time // the last proof that this view is connected
	Term        Versioned[cluster.Term]
	Beat        Versioned[cluster.Beat]
	Assignment  Versioned[cluster.Assignment]
	Holder      Versioned[cluster.Holder]
	Maintenance Versioned[cluster.Maintenance]
	Nonce       Versioned[string]
	Command     Versioned[plan.Command]
	Reply       Versioned[plan.Reply]
	Readiness   Versioned[json.RawMessage]
	Reports     map[cluster.NodeName]Versioned[health.Report]
	Sync        map[cluster.ShardName]Versioned[cluster.SyncState]
	Clients     map[cluster.SiteName]Versioned[[]string]
	Switches    map[string]SwitchDocs
	Bad         []string // documents that are not what they should be: an alarm, and no action that rests on them

	cache map[string]decoded
}

// Current says whether a request of that term, made under that revision of the assignment, is still current.
func (s State) Current(term, assignmentMod int64) error {
	switch {
	case s.Term.Value.N != term:
		return fmt.Errorf("term is %d and no longer %d: %w", s.Term.Value.N, term, ErrCompare)
	case s.Assignment.Mod != assignmentMod:
		return fmt.Errorf("assignment changed at revision %d (expected %d): %w", s.Assignment.Mod, assignmentMod, ErrCompare)
	}
	return nil
}

// Source is one key of a view: what a mirror or a read knows of it.
type Source struct {
	Item
	Received time.Time
}

// Decoder decodes views of the same prefix again and again. It keeps what it decoded, by revision: two hundred switches of history
// would otherwise be decoded at every renewal. It is not safe for use by several goroutines.
type Decoder struct {
	keys  Keys
	cache map[string]decoded
}

type decoded struct {
	mod   int64
	raw   []byte // a store that was restored gives its revisions out a second time
	value any
}

// NewDecoder returns a decoder of the cluster's documents.
func NewDecoder(k Keys) *Decoder { return &Decoder{k, map[string]decoded{}} }

// DecodeView reads every document of a mirror's view.
func (d *Decoder) DecodeView(v View) State {
	items := make([]Source, 0, v.Len())
	for e := range v.Prefix(d.keys.Prefix()) {
		items = append(items, Source(e))
	}
	return d.Decode(v.Revision, v.FreshAt, items)
}

// Decode reads every document. It never fails: what cannot be read stands in Bad and counts as absent.
func (d *Decoder) Decode(revision int64, freshAt time.Time, items []Source) State {
	k := d.keys
	s := State{
		Revision: revision, FreshAt: freshAt, cache: d.cache,
		Reports: map[cluster.NodeName]Versioned[health.Report]{}, Sync: map[cluster.ShardName]Versioned[cluster.SyncState]{},
		Clients: map[cluster.SiteName]Versioned[[]string]{}, Switches: map[string]SwitchDocs{},
	}
	for _, it := range items {
		name, ok := strings.CutPrefix(it.Key, k.prefix)
		if !ok {
			continue
		}
		if err := s.decode(name, it); err != nil {
			s.Bad = append(s.Bad, fmt.Sprintf("%s: %v", it.Key, err))
		}
	}
	d.forget(items)
	return s
}

// forget drops what is no longer there, so that the cache stays as large as the prefix.
func (d *Decoder) forget(items []Source) {
	if len(d.cache) <= len(items) {
		return
	}
	there := make(map[string]bool, len(items))
	for _, it := range items {
		there[it.Key] = true
	}
	maps.DeleteFunc(d.cache, func(key string, _ decoded) bool { return !there[key] })
}

func (s *State) decode(name string, it Source) error {
	dir, rest, _ := strings.Cut(name, "/")
	switch dir {
	case "term":
		return into(s.cache, &s.Term, it)
	case "beat":
		return into(s.cache, &s.Beat, it)
	case "assignment":
		return into(s.cache, &s.Assignment, it)
	case "holder":
		return into(s.cache, &s.Holder, it)
	case "maintenance":
		return into(s.cache, &s.Maintenance, it)
	case "nonce":
		return into(s.cache, &s.Nonce, it)
	case "command":
		return into(s.cache, &s.Command, it)
	case "reply":
		return into(s.cache, &s.Reply, it)
	case "readiness":
		return into(s.cache, &s.Readiness, it)
	case "observer":
		return intoMap(s.cache, s.Reports, cluster.NodeName(rest), it)
	case "sync":
		return intoMap(s.cache, s.Sync, cluster.ShardName(rest), it)
	case "clients":
		return intoMap(s.cache, s.Clients, cluster.SiteName(rest), it)
	case "switch":
		return s.decodeSwitch(rest, it)
	}
	return nil // a newer version's key
}

func (s *State) decodeSwitch(rest string, it Source) error {
	id, doc, _ := strings.Cut(rest, "/")
	d, ok := s.Switches[id]
	if !ok {
		d.Requests = map[cluster.NodeName]Versioned[plan.Request]{}
		d.Answers = map[cluster.NodeName]Versioned[plan.Answer]{}
		d.Looks = map[cluster.NodeName]Versioned[plan.Look]{}
	}
	var err error
	name, node, _ := strings.Cut(doc, "/")
	switch name {
	case "plan":
		err = into(s.cache, &d.Plan, it)
	case "journal":
		err = into(s.cache, &d.Journal, it)
	case "released":
		err = into(s.cache, &d.Released, it)
	case "bound":
		err = into(s.cache, &d.Bound, it)
	case "summary":
		err = into(s.cache, &d.Summary, it)
	case "request":
		err = intoMap(s.cache, d.Requests, cluster.NodeName(node), it)
	case "answer":
		err = intoMap(s.cache, d.Answers, cluster.NodeName(node), it)
	case "look":
		err = intoMap(s.cache, d.Looks, cluster.NodeName(node), it)
	}
	s.Switches[id] = d
	return err
}

func into[T any](cache map[string]decoded, dst *Versioned[T], it Source) error {
	known := cache[it.Key]
	v, ok := known.value.(T)
	if !ok || known.mod != it.Mod || !bytes.Equal(known.raw, it.Value) {
		v = *new(T)
		if err := json.Unmarshal(it.Value, &v); err != nil {
			return fmt.Errorf("read document: %w", err)
		}
		if cache != nil {
			cache[it.Key] = decoded{it.Mod, it.Value, v}
		}
	}
	*dst = Versioned[T]{v, it.Mod, it.Received}
	return nil
}

func intoMap[K comparable, T any](cache map[string]decoded, m map[K]Versioned[T], key K, it Source) error {
	var v Versioned[T]
	if err := into(cache, &v, it); err != nil {
		return err
	}
	m[key] = v
	return nil
}

// Store is the cluster's documents on a KV. Every method is one transaction.
type Store struct {
	kv   KV
	Keys Keys

	mu  sync.Mutex // guards dec
	dec *Decoder
}

// NewStore returns the documents of the cluster on kv.
func NewStore(kv KV, cluster string) *Store {
	k := KeysOf(cluster)
	return &Store{kv: kv, Keys: k, dec: NewDecoder(k)}
}

// Doc is a Put of a document as JSON. Documents are plain structs, so that encoding cannot fail.
func Doc(key string, v any) Op {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("dcs: document %s: %v", key, err))
	}
	return Op{Kind: Put, Key: key, Value: b}
}

// Read reads everything under the prefix, linearizably. Received is zero everywhere: a read is no event.
func (s *Store) Read(ctx context.Context) (State, error) {
	r, err := s.kv.Txn(ctx, nil, []Op{{Kind: GetPrefix, Key: s.Keys.prefix}}, nil)
	if err != nil {
		return State{}, fmt.Errorf("read %s: %w", s.Keys.prefix, err)
	}
	items := make([]Source, len(r.Reads[0]))
	for i, it := range r.Reads[0] {
		items[i].Item = it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dec.Decode(r.Revision, time.Now(), items), nil
}

// Do runs ops if every compare holds; ErrCompare if one does not.
func (s *Store) Do(ctx context.Context, what string, cmps []Cmp, ops ...Op) (Result, error) {
	r, err := s.kv.Txn(ctx, cmps, ops, nil)
	if err != nil {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	if !r.OK {
		return r, fmt.Errorf("%s: %w", what, ErrCompare)
	}
	return r, nil
}

// TakeTerm raises the term if it is still the one that was read. Its revision is what every transaction of this controller compares.
func (s *Store) TakeTerm(ctx context.Context, read Versioned[cluster.Term], node cluster.NodeName) (Versioned[cluster.Term], error) {
	next := cluster.Term{N: read.Value.N + 1, Node: node}
	r, err := s.Do(ctx, "take the lock", []Cmp{{s.Keys.Term(), read.Mod}},
		Doc(s.Keys.Term(), next), Doc(s.Keys.Beat(), cluster.Beat{Node: node, Seq: next.N << 32}))
	if err != nil {
		return Versioned[cluster.Term]{}, err
	}
	return Versioned[cluster.Term]{Value: next, Mod: r.Revision}, nil
}

// Renewed is the answer to a renewal: the assignment and the holder as that transaction saw them.
type Renewed struct {
	OK         bool
	Revision   int64 // of the written holder, when OK
	Assignment Versioned[cluster.Assignment]
	Holder     Versioned[cluster.Holder]
}

// Renew puts h if the assignment is the one followed and the holder is the one that this incarnation wrote last; holderMod < 0
// takes the holder over whatever it is. Otherwise nothing is written and both documents are returned (PROTOCOL 2.1).
func (s *Store) Renew(ctx context.Context, assignmentMod, holderMod int64, h cluster.Holder) (Renewed, error) {
	cmps := []Cmp{{s.Keys.Assignment(), assignmentMod}}
	if holderMod >= 0 {
		cmps = append(cmps, Cmp{s.Keys.Holder(), holderMod})
	}
	gets := []Op{{Kind: Get, Key: s.Keys.Assignment()}, {Kind: Get, Key: s.Keys.Holder()}}
	r, err := s.kv.Txn(ctx, cmps, []Op{Doc(s.Keys.Holder(), h)}, gets)
	if err != nil {
		return Renewed{}, fmt.Errorf("renew lease: %w", err)
	}
	if r.OK {
		return Renewed{OK: true, Revision: r.Revision}, nil
	}
	var st State
	for _, items := range r.Reads {
		for _, it := range items {
			name := strings.TrimPrefix(it.Key, s.Keys.prefix)
			if err := st.decode(name, Source{Item: it}); err != nil {
				return Renewed{}, fmt.Errorf("renew lease: %s: %w", it.Key, err)
			}
		}
	}
	return Renewed{Revision: r.Revision, Assignment: st.Assignment, Holder: st.Holder}, nil
}

// HolderOf decodes the holder that a transaction read; one that cannot be read counts as absent, as in a view.
func HolderOf(it Item) Versioned[cluster.Holder] {
	var v Versioned[cluster.Holder]
	if err := into(nil, &v, Source{Item: it}); err != nil {
		return Versioned[cluster.Holder]{Mod: it.Mod}
	}
	return v
}
