package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

var pair = cluster.Cluster{
	Name: "bank", Shards: []cluster.ShardName{"s1", "s2"},
	Sites: []cluster.Site{instances("a"), instances("b")},
}

func instances(name cluster.SiteName) cluster.Site {
	s := cluster.Site{Name: name, Node: cluster.NodeName("mc-" + name)}
	for i, shard := range []cluster.ShardName{"s1", "s2"} {
		host := netip.AddrFrom4([4]byte{10, 0, name[0], byte(i + 1)})
		s.Instances = append(s.Instances, cluster.Instance{Shard: shard, Addr: netip.AddrPortFrom(host, 3306)})
	}
	return s
}

// servers are the instances: what was done to them, in order, and what goes wrong.
type servers struct {
	mu   sync.Mutex
	log  []string                                           // "b/s1 promote"
	open int                                                // connections
	do   func(ctx context.Context, name, what string) error // before the check; nil: all is well
}

func (s *servers) Open(ctx context.Context, in cluster.Instance) (Database, error) {
	name := ""
	for _, site := range pair.Sites {
		for _, x := range site.Instances {
			if x.Addr == in.Addr {
				name = string(site.Name) + "/" + string(x.Shard)
			}
		}
	}
	if err := s.hook(ctx, name, "open"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return &server{s, name}, nil
}

func (s *servers) hook(ctx context.Context, name, what string) error {
	if s.do == nil {
		return nil
	}
	return s.do(ctx, name, what)
}

// happened is what was done so far.
func (s *servers) happened() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

type server struct {
	s    *servers
	name string
}

// did checks and notes one statement, as the real ones do: the check comes right before it.
func (d *server) did(ctx context.Context, check Check, what string) error {
	if err := d.s.hook(ctx, d.name, what); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.log = append(d.s.log, d.name+" "+what)
	return nil
}

func (d *server) KillOlder(ctx context.Context, check Check) error {
	return d.did(ctx, check, "kill")
}

func (d *server) FenceWrites(ctx context.Context, check Check) (string, error) {
	return "gtid of " + d.name, d.did(ctx, check, "fence-writes")
}

func (d *server) Cut(ctx context.Context, check Check) (string, error) {
	return "received by " + d.name, d.did(ctx, check, "cut")
}

func (d *server) CatchUp(ctx context.Context, check Check, upTo string) (string, error) {
	return "executed by " + d.name, d.did(ctx, check, strings.TrimSpace("catch-up "+upTo))
}

func (d *server) Quiesce(ctx context.Context, check Check) error { return d.did(ctx, check, "quiesce") }

func (d *server) Promote(ctx context.Context, check Check, e Epoch) (string, error) {
	return "promoted " + d.name, d.did(ctx, check, fmt.Sprintf("promote %d %s %s", e.Epoch, e.Switch, e.Site))
}

func (d *server) Demote(ctx context.Context, check Check) error { return d.did(ctx, check, "demote") }

func (d *server) Restore(ctx context.Context, check Check, e Epoch) error {
	return d.did(ctx, check, fmt.Sprintf("restore %d %s", e.Epoch, e.Site))
}

func (d *server) Rejoin(ctx context.Context, check Check, source cluster.Instance) (map[string]string, error) {
	return map[string]string{"gtid": "x"}, d.did(ctx, check, "rejoin "+source.Addr.String())
}

func (d *server) Arm(ctx context.Context, check Check) error { return d.did(ctx, check, "arm") }

func (d *server) Relax(ctx context.Context, check Check) error { return d.did(ctx, check, "relax") }

func (d *server) Close() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.open--
	return nil
}

// bench is an executor of mc-b in term 3, with the fence at the assignment's revision.
type bench struct {
	*world
	*servers
	exec  *Executor
	kv    *dcs.MemClient
	fence int64
	end   context.CancelFunc
	done  chan struct{}
}

const fresh = 10 * time.Second

func newBench(t *testing.T) *bench {
	b := &bench{world: newWorld(t), servers: &servers{}, done: make(chan struct{})}
	b.kv = b.mem.Client("mc-b")
	b.exec = NewExecutor(ExecutorConfig{
		Cluster: pair, Node: "mc-b", Keys: b.keys, Store: dcs.NewStore(b.kv, "bank"), Databases: b.servers, Fresh: fresh,
		Log: slog.New(slog.DiscardHandler),
	})
	b.raise(3)
	b.fence = b.assign(cluster.Assignment{Epoch: 8, Site: "a", Phase: cluster.Switching, Switch: "s7", To: "b"})
	var ctx context.Context
	ctx, b.end = context.WithCancel(t.Context())
	go func() {
		defer close(b.done)
		_ = b.exec.Run(ctx)
	}()
	b.show()
	return b
}

// benched runs a test with an executor in a bubble; at its end no connection may be left.
func benched(t *testing.T, fn func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		fn(b)
		b.end()
		<-b.done
		synctest.Wait()
		if b.open != 0 {
			t.Errorf("%d connections are left", b.open)
		}
	})
}

func (b *bench) put(key string, v any) int64 {
	b.t.Helper()
	r, err := b.ops.Do(b.t.Context(), "put", nil, dcs.Doc(key, v))
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Revision
}

func (b *bench) raise(term int64) { b.put(b.keys.Term(), cluster.Term{N: term, Node: "witness"}) }

// show hands the executor what etcd holds now.
func (b *bench) show() { b.exec.Observe(b.state()) }

// request asks for steps of a failover under the present fence, with changes, and shows it.
func (b *bench) request(id string, steps []plan.StepName, change ...func(*plan.Request)) {
	b.t.Helper()
	r := plan.Request{
		ID: id, Switch: "s7", Kind: plan.Failover, Term: 3, Fence: b.fence, Epoch: 8, From: "a", To: "b", Shards: pair.Shards,
		Steps: steps, Budget: 300 * time.Millisecond,
	}
	for _, f := range change {
		f(&r)
	}
	b.put(b.keys.Switch(r.Switch, "request/mc-b"), r)
	b.show()
}

func (b *bench) answer(id string) plan.Answer {
	b.t.Helper()
	b.wait("answer to "+id, func() bool { return b.state().Switches["s7"].Answers["mc-b"].Value.Request == id })
	return b.state().Switches["s7"].Answers["mc-b"].Value
}

var forward = []plan.StepName{plan.FenceWrites, plan.Cut, plan.CatchUp, plan.Promote}

func phasesOf(a plan.Answer) string {
	var out []string
	for _, e := range a.Entries {
		out = append(out, fmt.Sprintf("%s:%s", e.Step, e.Phase))
	}
	return strings.Join(out, " ")
}

// before says whether one thing was done before another; both must have been done.
func before(t *testing.T, log []string, first, then string) {
	t.Helper()
	i, j := slices.Index(log, first), slices.Index(log, then)
	if i < 0 || j < 0 || i > j {
		t.Errorf("want %q before %q in %q", first, then, log)
	}
}

// Both old instances answer: they are fenced, their replicas catch up with them and are cut only then, and promotion goes in order.
func TestForwardSteps(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", forward)
		a := b.answer("r1")
		if got := phasesOf(a); got != "fence-writes:done cut:done catch-up:done promote:done" || a.Refused != "" || a.Node != "mc-b" {
			t.Fatalf("answer %s %+v", got, a)
		}
		log := b.happened()
		for _, shard := range []string{"s1", "s2"} {
			before(t, log, "a/"+shard+" fence-writes", "b/"+shard+" catch-up gtid of a/"+shard)
			before(t, log, "b/"+shard+" catch-up gtid of a/"+shard, "b/"+shard+" cut")
			before(t, log, "b/"+shard+" cut", "b/"+shard+" catch-up")
			before(t, log, "b/"+shard+" catch-up", "b/s1 promote 8 s7 b")
		}
		before(t, log, "b/s1 promote 8 s7 b", "b/s2 promote 8 s7 b")
		facts := a.Entries[0].Facts
		if facts["s1.gtid"] != "gtid of a/s1" || a.Entries[1].Facts["s2.received"] != "received by b/s2" || a.Entries[3].Facts["s2.gtid"] != "promoted b/s2" {
			t.Errorf("facts of %+v", a.Entries)
		}
		if slices.ContainsFunc(log, func(s string) bool { return strings.HasSuffix(s, "kill") }) {
			t.Errorf("killed although nobody asked: %q", log)
		}
	})
}

// An old instance that does not answer is skipped in a failover, within its budget, and its replica is cut at once; in a switchover it
// fails the request, and every step of it is in the answer.
func TestOldInstanceIsSilent(t *testing.T) {
	hangs := func(what string) func(context.Context, string, string) error {
		return func(ctx context.Context, name, did string) error {
			if name == "a/s2" && did == what {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
	}
	for _, what := range []string{"open", "fence-writes"} {
		t.Run("failover, hangs in "+what, func(t *testing.T) {
			for suspect, budget := range map[cluster.ShardName]time.Duration{"s1": 300 * time.Millisecond, "s2": 100 * time.Millisecond} {
				benched(t, func(b *bench) {
					b.do = hangs(what)
					began := time.Now()
					b.request("r1", forward, func(r *plan.Request) { r.Suspects = []cluster.ShardName{suspect} })
					a := b.answer("r1")
					if got := phasesOf(a); got != "fence-writes:skipped cut:done catch-up:done promote:done" {
						t.Fatalf("answer %s %+v", got, a)
					}
					if took := time.Since(began); took < budget || took > budget+50*time.Millisecond {
						t.Errorf("took %s, want the budget of %s", took, budget)
					}
					log := b.happened()
					before(t, log, "b/s1 catch-up gtid of a/s1", "b/s1 cut")
					if slices.Contains(log, "b/s2 catch-up gtid of a/s2") {
						t.Errorf("waits for what nobody has fenced: %q", log)
					}
					before(t, log, "b/s2 cut", "b/s2 catch-up")
					told := a.Entries[0].Err + a.Entries[0].Facts["s2.unreachable"]
					if !strings.Contains(told, "s2") || what == "open" && a.Entries[0].Facts["s2.unreachable"] == "" {
						t.Errorf("the first step does not tell why: %+v", a.Entries[0])
					}
				})
			}
		})
		t.Run("switchover, hangs in "+what, func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = hangs(what)
				b.request("r1", forward, func(r *plan.Request) { r.Kind = plan.Switchover })
				a := b.answer("r1")
				if got := phasesOf(a); got != "fence-writes:failed cut:failed catch-up:failed promote:failed" {
					t.Fatalf("answer %s", got)
				}
				if !strings.Contains(a.Entries[0].Err, "s2") || a.Entries[1].Err != plan.NotRun || a.Entries[3].Err != plan.NotRun {
					t.Errorf("why: %+v", a.Entries)
				}
				if slices.ContainsFunc(b.happened(), func(s string) bool { return strings.HasPrefix(s, "b/") }) {
					t.Errorf("went on: %q", b.happened())
				}
			})
		})
	}
}

// What an earlier request has fenced counts for the next one, also when the old instance has gone meanwhile.
func TestFencedByAnEarlierRequest(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", []plan.StepName{plan.Cut}, func(r *plan.Request) {
			r.Facts = map[string]string{"fence-writes.s1.gtid": "0-1-9"}
		})
		b.answer("r1")
		before(t, b.happened(), "b/s1 catch-up 0-1-9", "b/s1 cut")
	})
}

// Each step fails in turn: what follows is not run, and the answer still names every step.
func TestStepFails(t *testing.T) {
	for i, step := range forward[1:] {
		t.Run(string(step), func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = func(_ context.Context, name, what string) error {
					if name == "b/s1" && (what == string(step) || strings.HasPrefix(what, string(step)+" 8")) {
						return errors.New("disk is full")
					}
					return nil
				}
				b.request("r1", forward)
				a := b.answer("r1")
				for n, e := range a.Entries {
					want := plan.Done
					if n > i {
						want = plan.Failed
					}
					if e.Phase != want || (n == i+1) != strings.Contains(e.Err, "shard s1: disk is full") || (n > i+1) != (e.Err == plan.NotRun) {
						t.Errorf("entry %d: %+v", n, e)
					}
				}
				if len(a.Entries) != 4 || slices.Contains(b.happened(), "b/s2 promote 8 s7 b") {
					t.Errorf("answer %s, did %q", phasesOf(a), b.happened())
				}
			})
		})
	}
}

// Older steps are killed at every instance before anything else is done there; where that fails at the target, nothing is done at all.
func TestKillOlderComesFirst(t *testing.T) {
	kill := func(r *plan.Request) { r.KillOlder = true }
	benched(t, func(b *bench) {
		b.request("r1", forward, kill)
		b.answer("r1")
		log := b.happened()
		for i, s := range log {
			if strings.HasSuffix(s, " kill") != (i < 4) {
				t.Fatalf("not first: %q", log)
			}
		}
	})
	for where, want := range map[string]plan.Phase{"b/s2": plan.Failed, "a/s2": plan.Skipped} {
		benched(t, func(b *bench) {
			b.do = func(_ context.Context, name, what string) error {
				if name == where && what == "kill" {
					return errors.New("access denied")
				}
				return nil
			}
			b.request("r1", forward, kill)
			if a := b.answer("r1"); a.Entries[0].Phase != want {
				t.Errorf("%s cannot be cleared: %s", where, phasesOf(a))
			}
			done := slices.ContainsFunc(b.happened(), func(s string) bool { return !strings.HasSuffix(s, " kill") })
			if done != (want == plan.Skipped) {
				t.Errorf("%s cannot be cleared: did %q", where, b.happened())
			}
		})
	}
}

// Term, fence and age of the view are checked right before each statement: the first that is refused ends the request.
func TestCheckRefuses(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"a newer term":         func(b *bench) { b.raise(4); b.show() },
		"the fence is history": func(b *bench) { b.assign(cluster.Assignment{Epoch: 9}); b.show() },
		"the view is old": func(b *bench) {
			st := b.state()
			st.FreshAt = time.Now().Add(-fresh - time.Millisecond)
			b.exec.Observe(st)
		},
	} {
		t.Run(name, func(t *testing.T) {
			benched(t, func(b *bench) {
				var once sync.Once
				b.do = func(_ context.Context, name, what string) error {
					if name == "b/s1" && strings.HasPrefix(what, "promote") {
						once.Do(func() { change(b) })
					}
					return nil
				}
				b.request("r1", forward)
				b.pass(100 * time.Millisecond)
				log := b.happened()
				before(t, log, "b/s1 cut", "b/s2 catch-up")
				if slices.ContainsFunc(log, func(s string) bool { return strings.Contains(s, "promote") }) {
					t.Errorf("promoted all the same: %q", log)
				}
				b.show()
				b.pass(10 * time.Millisecond)
				answered := b.state().Switches["s7"].Answers["mc-b"]
				if name == "a newer term" {
					if answered.Mod != 0 {
						t.Errorf("answers a term that is over: %+v", answered.Value)
					}
				} else if got := phasesOf(answered.Value); got != "fence-writes:done cut:done catch-up:done promote:failed" {
					t.Errorf("answer %s", got)
				}
			})
		})
	}
}

// In a failover an unreachable old side is skipped; a stale check never is.
func TestStaleCheckIsNoSkip(t *testing.T) {
	benched(t, func(b *bench) {
		b.do = func(_ context.Context, name, what string) error {
			if name == "a/s1" && what == "fence-writes" {
				b.assign(cluster.Assignment{Epoch: 9})
				b.show()
			}
			return nil
		}
		b.request("r1", forward)
		if a := b.answer("r1"); phasesOf(a) != "fence-writes:failed cut:failed catch-up:failed promote:failed" {
			t.Errorf("answer %s", phasesOf(a))
		}
	})
}

// A request that rode in the transaction of its fence has that transaction's revision as its fence.
func TestRequestRidesWithItsFence(t *testing.T) {
	benched(t, func(b *bench) {
		r := plan.Request{ID: "r1", Switch: "s7", Kind: plan.Failover, Term: 3, Epoch: 9, From: "a", To: "b", Shards: pair.Shards, Steps: forward, Budget: time.Second}
		_, err := b.ops.Do(t.Context(), "fence", nil, dcs.Doc(b.keys.Assignment(), cluster.Assignment{Epoch: 9, Site: "a", Phase: cluster.Switching, Switch: "s7", To: "b"}),
			dcs.Doc(b.keys.Switch("s7", "request/mc-b"), r))
		if err != nil {
			t.Fatal(err)
		}
		b.show()
		if a := b.answer("r1"); a.Entries[3].Phase != plan.Done {
			t.Errorf("answer %+v", a)
		}
	})
}

// Requests of an older term are refused, whatever they ask for.
func TestOlderTermIsRefused(t *testing.T) {
	benched(t, func(b *bench) {
		b.raise(5)
		b.request("r1", forward, func(r *plan.Request) { r.Term = 5 })
		b.answer("r1")
		did := len(b.happened())
		b.raise(4) // a restored backup: the executor itself remembers
		b.request("r2", forward, func(r *plan.Request) { r.Term = 4 })
		a := b.answer("r2")
		if a.Refused == "" || len(a.Entries) > 0 || len(b.happened()) != did {
			t.Errorf("answer %+v, did %q", a, b.happened()[did:])
		}
	})
}

// A newer request cancels the one under way and waits for its end: never two at a time on this node.
func TestNewerRequestWaitsForTheEnd(t *testing.T) {
	benched(t, func(b *bench) {
		var mu sync.Mutex
		var ended, began time.Time
		b.do = func(ctx context.Context, name, what string) error {
			switch {
			case name == "b/s1" && strings.HasPrefix(what, "promote"):
				<-ctx.Done()
				<-time.After(40 * time.Millisecond) // the statement does not end at once
				mu.Lock()
				defer mu.Unlock()
				ended = time.Now()
				return context.Cause(ctx)
			case what == "demote":
				mu.Lock()
				defer mu.Unlock()
				began = time.Now()
			}
			return nil
		}
		b.request("r1", forward)
		b.pass(50 * time.Millisecond)
		asked := time.Now()
		b.request("r2", []plan.StepName{plan.UndoTarget, plan.UndoSource}, func(r *plan.Request) { r.KillOlder = true })
		b.pass(time.Millisecond)
		if slices.ContainsFunc(b.happened(), func(s string) bool { return strings.HasSuffix(s, "kill") }) {
			t.Error("the second request began before the first had ended")
		}
		if a := b.answer("r2"); phasesOf(a) != "undo-target:done undo-source:done" {
			t.Errorf("answer %+v", a)
		}
		mu.Lock()
		defer mu.Unlock()
		if took := began.Sub(asked); took > 100*time.Millisecond {
			t.Errorf("the second request waited %s: the first was not cancelled", took)
		}
		if ended.IsZero() || began.Before(ended) {
			t.Errorf("ended %v, next began %v", ended, began)
		}
	})
}

// Two sights of one request run it once.
func TestRequestRunsOnce(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", forward)
		b.answer("r1")
		did := len(b.happened())
		for range 3 {
			b.show()
			b.pass(20 * time.Millisecond)
		}
		if got := len(b.happened()); got != did {
			t.Errorf("%d statements more", got-did)
		}
	})
}

var undo = []plan.StepName{plan.UndoTarget, plan.UndoSource}

func refuses(sites ...string) func(context.Context, string, string) error {
	return func(_ context.Context, name, what string) error {
		if what == "open" && slices.Contains(sites, name) {
			return errors.New("connection refused")
		}
		return nil
	}
}

func TestUndoSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		kind   plan.Kind
		gone   []string
		steps  []plan.StepName
		want   []string // must be done
		never  []string
		phases string
		fact   string // "step fact"
	}{
		"all answer": {
			kind: plan.Switchover, steps: undo, want: []string{"b/s1 demote", "b/s2 demote", "a/s1 restore 8 a", "a/s2 restore 8 a"},
			never: []string{"a/s1 relax"}, phases: "undo-target:done undo-source:done",
		},
		"the target is gone: its source must not wait for it": {
			kind: plan.Switchover, steps: undo, gone: []string{"b/s1"}, want: []string{"b/s2 demote", "a/s1 relax", "a/s1 restore 8 a"},
			never: []string{"a/s2 relax"}, phases: "undo-target:done undo-source:done", fact: "undo-source s1.semi_sync",
		},
		"the target is gone, and only the second step is left": {
			kind: plan.Switchover, steps: undo[1:], gone: []string{"b/s1"}, want: []string{"a/s1 relax", "a/s1 restore 8 a", "a/s2 restore 8 a"},
			phases: "undo-source:done", fact: "undo-source s1.semi_sync",
		},
		"the old one is gone": {
			kind: plan.Failover, steps: undo, gone: []string{"a/s1"}, want: []string{"b/s1 demote", "a/s2 restore 8 a"},
			phases: "undo-target:done undo-source:done", fact: "undo-source s1.left",
		},
		"the old one is gone, and only the second step is left": {
			kind: plan.Switchover, steps: undo[1:], gone: []string{"a/s1"}, want: []string{"a/s2 restore 8 a"},
			phases: "undo-source:done", fact: "undo-source s1.left",
		},
		"of a first start": {
			kind: plan.First, steps: undo, want: []string{"b/s1 demote"}, never: []string{"a/s1 restore 8 a"}, phases: "undo-target:done undo-source:done",
		},
	} {
		t.Run(name, func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = refuses(tc.gone...)
				b.request("r1", tc.steps, func(r *plan.Request) {
					r.Kind = tc.kind
					if tc.kind == plan.First {
						r.From = ""
					}
				})
				a := b.answer("r1")
				if got := phasesOf(a); got != tc.phases {
					t.Fatalf("answer %s: %+v", got, a)
				}
				log := b.happened()
				for _, s := range tc.want {
					if !slices.Contains(log, s) {
						t.Errorf("missing %q in %q", s, log)
					}
				}
				for _, s := range tc.never {
					if slices.Contains(log, s) {
						t.Errorf("did %q: %q", s, log)
					}
				}
				if step, fact, ok := strings.Cut(tc.fact, " "); ok {
					i := slices.IndexFunc(a.Entries, func(e plan.Entry) bool { return string(e.Step) == step })
					if a.Entries[i].Facts[fact] == "" {
						t.Errorf("%s is not told: %+v", tc.fact, a.Entries[i])
					}
				}
			})
		})
	}
}

// Every mending asks the instances that it needs, and tells what it did.
func TestMendingSteps(t *testing.T) {
	for _, tc := range []struct {
		kind plan.Kind
		step plan.StepName
		to   cluster.SiteName
		want []string
	}{
		{plan.Rejoin, plan.RejoinStep, "b", []string{"b/s2 rejoin 10.0.97.2:3306", "a/s2 arm", "b/s1 rejoin 10.0.97.1:3306", "a/s1 arm"}},
		{plan.Repair, plan.RepairStep, "a", []string{"a/s2 restore 8 a", "a/s1 restore 8 a"}},
		{plan.Degrade, plan.DegradeStep, "a", []string{"a/s2 relax", "a/s1 relax"}},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			for _, gone := range []string{"", "b/s1", "a/s1"} {
				benched(t, func(b *bench) {
					b.do = refuses(gone)
					b.request("r1", []plan.StepName{tc.step}, func(r *plan.Request) { r.Kind, r.From, r.To = tc.kind, "a", tc.to })
					a := b.answer("r1")
					log := b.happened()
					needs := gone == "" || tc.kind != plan.Rejoin && strings.HasPrefix(gone, "b")
					if (a.Entries[0].Phase == plan.Done) != needs {
						t.Errorf("%q gone: %+v, did %q", gone, a, log)
					}
					for n, want := range tc.want {
						spared := needs || tc.kind != plan.Rejoin && n == 0 // a dead shard keeps no other from being mended
						if slices.Contains(log, want) != spared {
							t.Errorf("%q gone: %q done: %t, did %q", gone, want, !spared, log)
						}
					}
					if needs && tc.kind == plan.Rejoin && (a.Entries[0].Facts["s1.semi_sync"] != "on" || a.Entries[0].Facts["s2.gtid"] != "x") {
						t.Errorf("facts %v", a.Entries[0].Facts)
					}
				})
			}
		})
	}
}

// Etcd is away when the answer is due: it is written when it is back, and etcd is not flooded meanwhile.
func TestAnswerWaitsForEtcd(t *testing.T) {
	benched(t, func(b *bench) {
		tries := 0
		away := time.Now().Add(time.Second)
		b.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if then[0].Kind != dcs.Put {
				return dcs.None
			}
			tries++
			if tries > 1000 || !time.Now().Before(away) {
				return dcs.None
			}
			return dcs.NoLeader
		})
		b.request("r1", forward)
		b.answer("r1")
		if tries > 100 {
			t.Errorf("%d tries within a second", tries)
		}
		if time.Now().Before(away) {
			t.Error("answered while etcd was away")
		}
	})
}

// A step that this version does not know is a newer controller's: the request is refused, and the daemon lives on.
func TestUnknownStepIsRefused(t *testing.T) {
	benched(t, func(b *bench) {
		b.request("r1", []plan.StepName{plan.FenceWrites, "teleport"})
		if a := b.answer("r1"); !strings.Contains(a.Refused, "teleport") || len(b.happened()) > 0 {
			t.Errorf("answer %+v, did %q", a, b.happened())
		}
		b.request("r2", nil)
		if a := b.answer("r2"); a.Refused == "" {
			t.Errorf("answer %+v", a)
		}
		b.request("r3", forward)
		if a := b.answer("r3"); phasesOf(a) != "fence-writes:done cut:done catch-up:done promote:done" {
			t.Errorf("answer %+v", a)
		}
	})
}

// The daemon ends in the middle of a request: the statement is cancelled and waited for.
func TestEndOfTheDaemonWaitsForTheStatement(t *testing.T) {
	benched(t, func(b *bench) {
		ended := false
		b.do = func(ctx context.Context, name, what string) error {
			if name == "b/s1" && what == "cut" {
				<-ctx.Done()
				<-time.After(20 * time.Millisecond)
				ended = true
			}
			return nil
		}
		b.request("r1", forward)
		b.pass(20 * time.Millisecond)
		b.end()
		<-b.done
		if !ended {
			t.Error("the executor ended before its statement")
		}
	})
}
