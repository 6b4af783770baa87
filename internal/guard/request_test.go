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

// script is every MySQL of two sites: what was done there, in order.
type script struct {
	mu   sync.Mutex
	done []string
	fail func(what string) error // what is "open b/s1"; may block
}

func (s *script) do(what string) error {
	s.mu.Lock()
	s.done = append(s.done, what)
	fail := s.fail
	s.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(what)
}

func (s *script) happened() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.done)
}

func (s *script) Open(_ context.Context, in cluster.Instance) (Database, error) {
	at := fmt.Sprintf("%c/%s", 'a'+in.Addr.Addr().As4()[2], in.Shard)
	return &scripted{s, at}, s.do("open " + at)
}

// scripted is one instance: it has executed "gtid of <name>", and asks before each statement.
type scripted struct {
	s  *script
	at string
}

func (d *scripted) do(check Check, what string) error {
	if err := check(); err != nil {
		return err
	}
	return d.s.do(what + " " + d.at)
}

func (d *scripted) KillOlder(_ context.Context, c Check) error { return d.do(c, "kill") }
func (d *scripted) FenceWrites(_ context.Context, c Check) (string, error) {
	return "gtid of " + d.at, d.do(c, "fence")
}
func (d *scripted) Cut(_ context.Context, c Check) (string, error) { return "", d.do(c, "cut") }
func (d *scripted) CatchUp(_ context.Context, c Check, upTo string) (string, error) {
	return "gtid of " + d.at, d.do(c, strings.TrimSpace("catch up "+upTo)+" at")
}

func (d *scripted) Missing(context.Context, string) (string, error) { return "", nil }

func (d *scripted) Obtain(_ context.Context, c Check, _ cluster.Instance, _ string) (string, error) {
	return "", d.do(c, "obtain")
}

func (d *scripted) Resume(_ context.Context, c Check) error { return d.do(c, "resume") }

func (d *scripted) Quiesce(_ context.Context, c Check) error { return c() }

func (d *scripted) Prepare(_ context.Context, c Check, _ Epoch) error { return c() }

func (d *scripted) Mark(_ context.Context, c Check, _ Epoch) error { return c() }

func (d *scripted) Open(_ context.Context, c Check) (string, error) {
	return "", d.do(c, "promote")
}
func (d *scripted) Demote(_ context.Context, c Check) error           { return d.do(c, "demote") }
func (d *scripted) Restore(_ context.Context, c Check, _ Epoch) error { return d.do(c, "restore") }
func (d *scripted) Rejoin(_ context.Context, c Check, _ cluster.Instance) (map[string]string, error) {
	return nil, d.do(c, "rejoin")
}
func (d *scripted) Arm(_ context.Context, c Check) error   { return d.do(c, "arm") }
func (d *scripted) Relax(_ context.Context, c Check) error { return d.do(c, "relax") }
func (d *scripted) Close() error                           { return nil }

// field is an executor of node mc-b with a mirror of its own, and the controller's hand on etcd.
type field struct {
	t    *testing.T
	kv   *dcs.MemClient
	ops  *dcs.Store
	keys dcs.Keys
	sql  *script
	term int64
	mod  int64 // of the assignment
	n    int
}

func newField(t *testing.T) *field {
	mem := dcs.NewMem()
	f := &field{t: t, kv: mem.Client("mc-b"), ops: dcs.NewStore(mem.Client("controller"), "bank"), keys: dcs.KeysOf("bank"), sql: &script{}, term: 1}
	c := cluster.Cluster{Name: "bank", Shards: []cluster.ShardName{"s1", "s2"}}
	for i, name := range []cluster.SiteName{"a", "b"} {
		s := cluster.Site{Name: name, Node: cluster.NodeName("mc-" + name)}
		for j, shard := range c.Shards {
			s.Instances = append(s.Instances, cluster.Instance{Shard: shard, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(j)}), 3306)})
		}
		c.Sites = append(c.Sites, s)
	}
	e := NewExecutor(ExecutorConfig{
		Cluster: c, Node: "mc-b", Keys: f.keys, Store: dcs.NewStore(f.kv, "bank"), Databases: f.sql, Fresh: terms.D, Log: slog.New(slog.DiscardHandler),
	})
	go func() { _ = e.Run(t.Context()) }()
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: f.kv, Prefix: f.keys.Prefix()})
	changed, stop := mirror.Subscribe()
	go func() { _ = mirror.Run(t.Context()) }()
	go func() {
		defer stop()
		dec := dcs.NewDecoder(f.keys)
		for {
			select {
			case <-t.Context().Done():
				return
			case <-changed:
			}
			e.Observe(dec.DecodeView(mirror.View()))
		}
	}()
	f.mod = f.put(dcs.Doc(f.keys.Term(), cluster.Term{N: 1, Node: "witness"}), dcs.Doc(f.keys.Assignment(), serving(1)))
	return f
}

func (f *field) put(ops ...dcs.Op) int64 {
	f.t.Helper()
	r, err := f.ops.Do(f.t.Context(), "put", nil, ops...)
	if err != nil {
		f.t.Fatal(err)
	}
	return r.Revision
}

// ask leaves a request for mc-b.
func (f *field) ask(r plan.Request) {
	f.t.Helper()
	f.n++
	r.ID, r.Switch, r.Term, r.Fence = fmt.Sprint("r", f.n), "s9", f.term, f.mod
	if r.Shards == nil {
		r.Shards = []cluster.ShardName{"s1", "s2"}
	}
	r.Budget = 100 * time.Millisecond
	f.put(dcs.Doc(f.keys.Switch(r.Switch, "request/mc-b"), r))
}

// answer waits for it.
func (f *field) answer() plan.Answer {
	f.t.Helper()
	for range 60000 {
		synctest.Wait()
		st, err := f.ops.Read(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		if a := st.Switches["s9"].Answers["mc-b"]; a.Value.Request == fmt.Sprint("r", f.n) {
			return a.Value
		}
		<-time.After(time.Millisecond)
	}
	f.t.Fatalf("never answered; done: %q", f.sql.happened())
	return plan.Answer{}
}

// A repair is under way when the site is fenced by another controller. The executor's view lags, so that its own check would still let
// the statement pass: the old site would be writable again after its fence.
func TestRequestIsConfirmedByEtcdAndNotByTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newField(t)
		<-time.After(100 * time.Millisecond)
		hold := make(chan struct{})
		f.sql.fail = func(what string) error {
			if strings.HasPrefix(what, "open") {
				<-hold
			}
			return nil
		}
		f.ask(plan.Request{Kind: plan.Repair, To: "b", Steps: []plan.StepName{plan.RepairStep}, KillOlder: true})
		synctest.Wait()
		f.kv.DelayWatch(800 * time.Millisecond)
		f.put(dcs.Doc(f.keys.Assignment(), cluster.Assignment{Epoch: 2, Site: "b", Phase: cluster.Switching, Switch: "s10", To: "a"}))
		<-time.After(10 * time.Millisecond)
		close(hold)
		a := f.answer()
		for _, what := range f.sql.happened() {
			if !strings.HasPrefix(what, "open") {
				t.Errorf("%q after the fence", what)
			}
		}
		if len(a.Entries) != 1 || a.Entries[0].Phase != plan.Failed || !strings.Contains(a.Entries[0].Err, dcs.ErrCompare.Error()) {
			t.Errorf("answered %+v", a.Entries)
		}
	})
}

// All connections are open before the question, and what is older is killed only after it: the other way round a successor's kill could
// miss a connection that still passes its check.
func TestOpensThenConfirmsThenKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newField(t)
		f.kv.OnTxn(func(cmps []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if len(cmps) == 2 && len(then) == 1 && then[0].Kind == dcs.Get {
				_ = f.sql.do("confirm")
			}
			return dcs.None
		})
		f.ask(plan.Request{Kind: plan.Failover, From: "a", To: "b", Steps: []plan.StepName{plan.FenceWrites, plan.Cut}, KillOlder: true})
		for _, e := range f.answer().Entries {
			if e.Phase != plan.Done {
				t.Errorf("%+v", e)
			}
		}
		stage := map[string]int{"open": 1, "confirm": 2, "kill": 3, "fence": 4, "catch": 5, "cut": 6}
		last, confirms := 0, 0
		for _, what := range f.sql.happened() {
			word, _, _ := strings.Cut(what, " ")
			if word == "confirm" {
				confirms++
			}
			if now := stage[word]; now == 0 || now < last && last < 5 {
				t.Fatalf("%q comes too late in %q", what, f.sql.happened())
			}
			last = stage[word]
		}
		if confirms != 1 {
			t.Errorf("asked etcd %d times, want once", confirms)
		}
	})
}

// Semi-sync is armed only when the replica has all that its source has, and is called armed only when it had all again afterwards.
func TestRejoinArmsALevelReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newField(t)
		f.ask(plan.Request{Kind: plan.Rejoin, From: "a", To: "b", Shards: []cluster.ShardName{"s1"}, Steps: []plan.StepName{plan.RejoinStep}})
		e := f.answer().Entries[0]
		want := []string{
			"rejoin b/s1", "catch up at a/s1", "catch up gtid of a/s1 at b/s1", "arm a/s1", "catch up at a/s1", "catch up gtid of a/s1 at b/s1",
		}
		if got := f.sql.happened()[2:]; !slices.Equal(got, want) || e.Facts["s1.semi_sync"] != "on" {
			t.Errorf("did %q (%+v), want %q", got, e, want)
		}
		f.sql.fail = func(what string) error {
			if what == "catch up gtid of a/s1 at b/s1" {
				return errors.New("hours behind")
			}
			return nil
		}
		f.sql.done = nil
		f.ask(plan.Request{Kind: plan.Rejoin, From: "a", To: "b", Shards: []cluster.ShardName{"s1"}, Steps: []plan.StepName{plan.RejoinStep}})
		e = f.answer().Entries[0]
		if slices.Contains(f.sql.happened(), "arm a/s1") || e.Facts["s1.semi_sync"] != "" || e.Phase != plan.Failed {
			t.Errorf("armed a source whose replica is hours behind: %q, %+v", f.sql.happened(), e)
		}
	})
}

// One shard's instance is dead: the others of the site are mended all the same, and the answer says that one is left.
func TestRepairDoesNotWaitForADeadShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newField(t)
		f.sql.fail = func(what string) error {
			if what == "open b/s1" {
				return errors.New("connection refused")
			}
			return nil
		}
		f.ask(plan.Request{Kind: plan.Repair, To: "b", Steps: []plan.StepName{plan.RepairStep}})
		e := f.answer().Entries[0]
		if e.Phase != plan.Failed || !slices.Contains(f.sql.happened(), "restore b/s2") || e.Facts["s1.left"] == "" || e.Facts["s2.left"] != "" {
			t.Errorf("%+v after %q", e, f.sql.happened())
		}
	})
}

// What is left of an undo may be asked for by itself; it too goes without a site that does not answer.
func TestUndoOfTheSourceAloneNeedsNoTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newField(t)
		f.sql.fail = func(what string) error {
			if strings.HasPrefix(what, "open b/") {
				return errors.New("connection refused")
			}
			return nil
		}
		f.ask(plan.Request{Kind: plan.Switchover, From: "a", To: "b", Steps: []plan.StepName{plan.UndoSource}})
		e := f.answer().Entries[0]
		if e.Phase != plan.Done || !slices.Contains(f.sql.happened(), "restore a/s1") || !slices.Contains(f.sql.happened(), "relax a/s1") {
			t.Errorf("%+v after %q", e, f.sql.happened())
		}
	})
}
