package switcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

var (
	profile = cluster.Fast()
	terms   = lease.Terms{D: profile.Lease, Margin: profile.Margin}
	span    = terms.Span() + cluster.GateEBPF.Slack() // how long a lease is waited out
	bank    = cluster.Cluster{
		Name: "bank", Shards: []cluster.ShardName{"s1", "s2"}, VIP: cluster.VIP{Addr: netip.MustParseAddr("10.0.0.100"), Port: 8066},
		Nodes: []cluster.Node{{Name: "mc-a"}, {Name: "mc-b"}, {Name: "witness"}},
		Sites: []cluster.Site{site("a"), site("b")},
	}
)

func site(name cluster.SiteName) cluster.Site {
	s := cluster.Site{Name: name, Node: cluster.NodeName("mc-" + name)}
	for i, shard := range []cluster.ShardName{"s1", "s2"} {
		host := netip.AddrFrom4([4]byte{10, 0, name[0], byte(i + 1)})
		s.Instances = append(s.Instances, cluster.Instance{Shard: shard, Addr: netip.AddrPortFrom(host, 3306)})
	}
	return s
}

// fakeGuard is one site's guard: it renews and binds while it serves, and answers a fence.
type fakeGuard struct {
	acks, binds, renews bool
	until               time.Time // its gate is open until then
}

// world is everything but the controllers: etcd, the guards, the executors, the observers and the instances.
type world struct {
	t    *testing.T
	ctx  context.Context
	end  context.CancelFunc
	mem  *dcs.Mem
	ops  *dcs.Store
	keys dcs.Keys

	mu      sync.Mutex // guards all below
	guards  map[cluster.SiteName]*fakeGuard
	seen    map[cluster.SiteName]health.State // what every observer sees
	mute    map[cluster.NodeName]bool         // observers that report nothing any more
	calm    bool                              // a looks well again after the fence, so that an undone switch is not followed by another
	lagging bool                              // observers report, and do not answer the recheck
	deaf    bool                              // executors do not answer
	took    time.Duration                     // of an executor's request
	fail    func(plan.Request, plan.StepName) error
	facts   func(plan.Request, plan.StepName) map[string]string
	look    func(*Readiness)
	verify  func(cluster.NodeName) error // what that observer sees through the VIP
	asked   []plan.Request
	newest  map[cluster.NodeName]int64 // revision of each executor's newest request
	changes []change
	wrong   []string // what must never happen
}

// change is one version of the assignment.
type change struct {
	cluster.Assignment
	at  time.Time
	mod int64
}

func newWorld(t *testing.T) *world {
	mem := dcs.NewMem()
	w := &world{
		t: t, mem: mem, ops: dcs.NewStore(mem.Client("operator"), "bank"), keys: dcs.KeysOf("bank"), took: 3 * time.Millisecond,
		guards: map[cluster.SiteName]*fakeGuard{}, seen: map[cluster.SiteName]health.State{}, mute: map[cluster.NodeName]bool{},
		newest: map[cluster.NodeName]int64{},
	}
	for _, s := range bank.Sites {
		w.guards[s.Name], w.seen[s.Name] = &fakeGuard{acks: true, binds: true, renews: true}, health.Up
	}
	w.ctx, w.end = context.WithCancel(t.Context())
	go w.record()
	go w.live()
	return w
}

// within runs a test in a bubble and ends its world; whatever must never happen fails it.
func within(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() {
			w.end()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, wrong := range w.wrong {
				t.Error(wrong)
			}
		}()
		fn(w)
	})
}

// set changes the world.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// record keeps every version of the assignment and checks what must hold of each.
func (w *world) record() {
	_ = w.mem.Client("recorder").Watch(w.ctx, w.keys.Assignment(), 0, 0, func(b dcs.Batch) {
		for _, it := range b.Items {
			st := dcs.NewDecoder(w.keys).Decode(it.Mod, time.Now(), []dcs.Source{{Item: it}})
			w.mu.Lock()
			w.changed(change{st.Assignment.Value, time.Now(), it.Mod})
			w.mu.Unlock()
		}
	})
}

func (w *world) changed(c change) {
	if n := len(w.changes); n > 0 && c.Epoch != w.changes[n-1].Epoch+1 {
		w.wrong = append(w.wrong, fmt.Sprintf("epoch %d follows %d", c.Epoch, w.changes[n-1].Epoch))
	}
	w.changes = append(w.changes, c)
	if w.calm && c.Phase == cluster.Switching {
		w.seen["a"] = health.Up
	}
	if c.Phase != cluster.Serving {
		return
	}
	if c.Site != "" && (c.Release == nil || c.Release.Epoch != c.Epoch) {
		w.wrong = append(w.wrong, fmt.Sprintf("epoch %d serves without evidence of the release: %+v", c.Epoch, c.Release))
	}
	for name, g := range w.guards {
		if name != c.Site && c.at.Before(g.until) {
			w.wrong = append(w.wrong, fmt.Sprintf("epoch %d lets %s serve while %s answers for another %s", c.Epoch, c.Site, name, g.until.Sub(c.at)))
		}
	}
}

// live plays the guards, the executors and the observers.
func (w *world) live() {
	kv := w.mem.Client("field")
	store := dcs.NewStore(kv, "bank")
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: w.keys.Prefix()})
	go func() { _ = mirror.Run(w.ctx) }()
	changed, stop := mirror.Subscribe()
	defer stop()
	renew, report := time.NewTicker(terms.RenewEvery()), time.NewTicker(profile.Interval)
	defer renew.Stop()
	defer report.Stop()
	dec, done, looked, nonce := dcs.NewDecoder(w.keys), map[string]bool{}, map[string]bool{}, ""
	for seq := int64(1); ; seq++ {
		due, beat := false, false
		select {
		case <-w.ctx.Done():
			return
		case <-changed:
		case <-renew.C:
			due = true
		case <-report.C:
			beat = true
		}
		st := dec.DecodeView(mirror.View())
		w.mu.Lock()
		if due {
			w.renew(store, st, seq)
		}
		if beat || st.Nonce.Value != nonce {
			nonce = st.Nonce.Value
			w.report(store, st, seq)
		}
		w.guard(store, st)
		w.onlook(store, st, looked)
		w.execute(store, st, done)
		w.mu.Unlock()
	}
}

func (w *world) renew(store *dcs.Store, st dcs.State, seq int64) {
	a := st.Assignment.Value
	g := w.guards[a.Site]
	if g == nil || !g.renews || !a.Serves(a.Site) {
		return
	}
	h := cluster.Holder{Site: a.Site, Incarnation: "guard of " + string(a.Site), Seq: seq, Gate: cluster.GateEBPF}
	if r, err := store.Renew(w.ctx, st.Assignment.Mod, -1, h); err == nil && r.OK {
		g.until = time.Now().Add(terms.D - terms.Margin)
	}
}

func (w *world) guard(store *dcs.Store, st dcs.State) {
	a, docs := st.Assignment, st.Switches[st.Assignment.Value.Switch]
	g := w.guards[a.Value.Site]
	if g == nil {
		return
	}
	cmps := []dcs.Cmp{{Key: w.keys.Assignment(), Mod: a.Mod}}
	switch {
	case a.Value.Phase == cluster.Switching && g.acks && docs.Released.Value.Fence != a.Mod:
		g.until = time.Time{}
		_, _ = store.Do(w.ctx, "release", cmps, dcs.Doc(w.keys.Switch(a.Value.Switch, "released"), plan.Released{
			Incarnation: "guard of " + string(a.Value.Site), Fence: a.Mod, Facts: map[string]string{"reset": "1"},
		}))
	case a.Value.Phase == cluster.Serving && g.binds && docs.Summary.Mod == 0 && docs.Plan.Mod != 0 && docs.Bound.Value.Epoch != a.Value.Epoch:
		_, _ = store.Do(w.ctx, "bound", cmps, dcs.Doc(w.keys.Switch(a.Value.Switch, "bound"), plan.Bound{Epoch: a.Value.Epoch, MAC: "02:00"}))
	}
}

// onlook answers the verify step for every observer that reports; looked are the questions that were answered.
func (w *world) onlook(store *dcs.Store, st dcs.State, looked map[string]bool) {
	a := st.Assignment
	docs := st.Switches[a.Value.Switch]
	i := lastOf(docs.Journal.Value, plan.Verify)
	if a.Value.Phase != cluster.Serving || i < 0 || docs.Journal.Value[i].Phase != plan.Started {
		return
	}
	for _, n := range bank.Nodes {
		question := fmt.Sprint(n.Name, a.Value.Switch, docs.Journal.Value[i].Seq)
		if w.mute[n.Name] || looked[question] {
			continue
		}
		looked[question] = true
		l := plan.Look{Question: docs.Journal.Value[i].Seq, At: time.Now(), Facts: map[string]string{"site": string(a.Value.Site)}}
		if w.verify != nil {
			if err := w.verify(n.Name); err != nil {
				l.Err, l.Facts = err.Error(), nil
			}
		}
		_, _ = store.Do(w.ctx, "look", []dcs.Cmp{{Key: w.keys.Assignment(), Mod: a.Mod}}, dcs.Doc(w.keys.Switch(a.Value.Switch, "look/"+string(n.Name)), l))
	}
}

// execute answers the requests; done are the ids of those that were taken.
func (w *world) execute(store *dcs.Store, st dcs.State, done map[string]bool) {
	for id, docs := range st.Switches {
		for node, req := range docs.Requests {
			if done[req.Value.ID] {
				continue
			}
			done[req.Value.ID] = true
			w.asked = append(w.asked, req.Value)
			if w.deaf {
				continue
			}
			answer := plan.Answer{Request: req.Value.ID, Node: node}
			failed := false
			for _, s := range req.Value.Steps {
				e := plan.Entry{Step: s, Phase: plan.Done, Node: node, At: time.Now()}
				if err := w.outcome(req.Value, s); failed || err != nil {
					e.Phase, e.Err = plan.Failed, plan.NotRun
					if !failed {
						e.Err = err.Error()
					}
					failed = true
				}
				if s == plan.RejoinStep && !failed {
					e.Facts = map[string]string{"s1.semi_sync": "on", "s2.semi_sync": "on"}
				}
				if w.facts != nil {
					e.Facts = w.facts(req.Value, s)
				}
				answer.Entries = append(answer.Entries, e)
			}
			cmps := []dcs.Cmp{{Key: w.keys.Term(), Mod: st.Term.Mod}}
			w.newest[node] = max(w.newest[node], req.Mod)
			op := dcs.Doc(w.keys.Switch(id, "answer/"+string(node)), answer)
			w.write(w.took, func() bool { return w.newest[node] == req.Mod }, store, cmps, op)
		}
	}
}

// write writes an answer after a while, and again until etcd takes or refuses it. An executor is serial: what a newer request has taken the
// place of is not answered after that one.
func (w *world) write(after time.Duration, current func() bool, store *dcs.Store, cmps []dcs.Cmp, op dcs.Op) {
	time.AfterFunc(after, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !current() {
			return
		}
		if _, err := store.Do(w.ctx, "answer", cmps, op); errors.Is(err, dcs.ErrUnavailable) && w.ctx.Err() == nil {
			w.write(50*time.Millisecond, current, store, cmps, op)
		}
	})
}

func (w *world) outcome(req plan.Request, s plan.StepName) error {
	if w.fail == nil {
		return nil
	}
	return w.fail(req, s)
}

func (w *world) report(store *dcs.Store, st dcs.State, seq int64) {
	var ops []dcs.Op
	for _, n := range bank.Nodes {
		if w.mute[n.Name] {
			continue
		}
		r := health.Report{Node: n.Name, Seq: seq, Epoch: st.Assignment.Value.Epoch, Verdicts: map[cluster.SiteName]health.Verdict{}}
		if !w.lagging {
			r.Nonce = st.Nonce.Value
		}
		for name, state := range w.seen {
			v := health.Verdict{Site: name, State: state, Reason: "seen"}
			if state == health.Down {
				v.LastGood, v.FirstBad = time.Now().Add(-200*time.Millisecond), time.Now().Add(-100*time.Millisecond)
				v.Targets = []health.TargetState{{Target: health.Target{Site: name, Kind: health.MySQL, Shard: "s2"}, State: health.Down}}
			}
			r.Verdicts[name] = v
		}
		ops = append(ops, dcs.Doc(w.keys.Observer(n.Name), r))
	}
	if len(ops) > 0 {
		_, _ = store.Do(w.ctx, "report", nil, ops...)
	}
}

// Look implements Looker: every site could take over and a standby is rejoined when semi-sync is not armed, unless the test changes that.
func (w *world) Look(_ context.Context, a cluster.Assignment, sync map[cluster.ShardName]cluster.SyncState) Readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := Readiness{At: time.Now(), Epoch: a.Epoch, Active: a.Site, Sites: map[cluster.SiteName]SiteReady{"a": {}, "b": {}}}
	for _, s := range bank.Others(a.Site) {
		if w.seen[a.Site] == health.Up && w.seen[s.Name] == health.Up && sync["s1"].State != cluster.SyncArmed {
			r.Sites[s.Name] = SiteReady{Rejoin: []string{"semi-sync of s1 is not armed"}}
		}
	}
	if w.look != nil {
		w.look(&r)
	}
	return r
}

// Rest implements Looker.
func (w *world) Rest() {}

// controller is one node's Switcher with a mirror of its own, as in the daemon.
type controller struct {
	*Switcher
	kv   *dcs.MemClient
	kill context.CancelFunc
	done chan struct{}
}

var limits = policy.Limits{Observers: 3, Fresh: profile.Lease, Cooldown: 20 * time.Second, Zero: true}

func (w *world) start(node cluster.NodeName, change ...func(*Config)) *controller {
	kv := w.mem.Client(string(node))
	cfg := Config{
		Cluster: bank, Profile: profile, Node: node, Mode: policy.Automatic, Limits: limits, Terms: terms, Keys: w.keys,
		Store: dcs.NewStore(kv, "bank"), Looker: w, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&cfg)
	}
	c := &controller{Switcher: New(cfg), kv: kv, done: make(chan struct{})}
	ctx, kill := context.WithCancel(w.ctx)
	c.kill = kill
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: w.keys.Prefix(), Silence: profile.LockPulse, Prove: time.Minute})
	changed, stop := mirror.Subscribe()
	go func() { _ = mirror.Run(ctx) }()
	go func() {
		defer stop()
		dec := dcs.NewDecoder(w.keys)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				c.Observe(dec.DecodeView(mirror.View()))
			}
		}
	}()
	go func() {
		defer close(c.done)
		_ = c.Run(ctx)
	}()
	return c
}
