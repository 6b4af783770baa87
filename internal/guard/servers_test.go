package guard

import (
	"context"
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

// three has a site more, whose replicas acknowledge, too.
var three = cluster.Cluster{Name: "bank", Shards: pair.Shards, Sites: []cluster.Site{instances("a"), instances("b"), instances("c")}}

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

	alone string // what only the server that has received it has
}

func (s *servers) Open(ctx context.Context, in cluster.Instance) (Database, error) {
	name := ""
	for _, site := range three.Sites {
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

func (d *server) Missing(ctx context.Context, received string) (string, error) {
	if err := d.s.hook(ctx, d.name, "missing"); err != nil {
		return "", err
	}
	if d.s.alone == received {
		return received, nil
	}
	return "", nil
}

func (d *server) Obtain(ctx context.Context, check Check, from cluster.Instance, upTo string) (string, error) {
	return "obtained by " + d.name, d.did(ctx, check, "obtain "+from.Addr.String()+" "+upTo)
}

func (d *server) Quiesce(ctx context.Context, check Check) error { return d.did(ctx, check, "quiesce") }

func (d *server) Prepare(ctx context.Context, check Check, e Epoch) error {
	return d.did(ctx, check, fmt.Sprintf("prepare %d %s %s", e.Epoch, e.Switch, e.Site))
}

func (d *server) Mark(ctx context.Context, check Check, e Epoch) error {
	return d.did(ctx, check, fmt.Sprintf("mark %d", e.Epoch))
}

func (d *server) Open(ctx context.Context, check Check) (string, error) {
	return "promoted " + d.name, d.did(ctx, check, "promote")
}

func (d *server) Demote(ctx context.Context, check Check) error { return d.did(ctx, check, "demote") }

func (d *server) Resume(ctx context.Context, check Check) error { return d.did(ctx, check, "resume") }

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

func newBench(t *testing.T, c cluster.Cluster) *bench {
	b := &bench{world: newWorld(t), servers: &servers{}, done: make(chan struct{})}
	b.kv = b.mem.Client("mc-b")
	b.exec = NewExecutor(ExecutorConfig{
		Cluster: c, Node: "mc-b", Keys: b.keys, Store: dcs.NewStore(b.kv, "bank"), Databases: b.servers, Fresh: fresh,
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
	benchedWith(t, pair, fn)
}

func benchedWith(t *testing.T, c cluster.Cluster, fn func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, c)
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
