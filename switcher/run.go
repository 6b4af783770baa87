package switcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// run is one switch under way in this term.
type run struct {
	*tenure
	p       plan.Plan
	log     []plan.Entry
	written bool // the plan is in etcd
	times   plan.Times

	armed    map[cluster.ShardName]bool // semi-sync was armed at the fence
	fenceMod int64                      // mod revision of the assignment that requests and answers belong to
	seen     lease.Renewal              // the holder's newest renewal as its event came here, before the fence
	silent   lease.Wait                 // when the old VIP is silent whatever its host does
	holder   int64                      // revision of holder that silent was counted on
	level    cluster.GateLevel
	request  plan.Request
	node     cluster.NodeName // who runs the request
	deadline map[plan.StepName]time.Time
	requests int
	pending  []plan.Entry // heard, and to be journaled with the commit that they allow
}

func newRun(t *tenure, p plan.Plan, docs *dcs.SwitchDocs) *run {
	r := &run{tenure: t, p: p, armed: map[cluster.ShardName]bool{}, deadline: map[plan.StepName]time.Time{}}
	r.times.Lock = t.lockedAt
	r.times.Verdict = p.At
	if p.At.After(t.lockedAt) {
		r.times.Lock = p.At // the lock was there already
	}
	if docs != nil {
		r.log, r.written = docs.Journal.Value, true
		r.recall()
	}
	for shard, s := range t.state.Sync {
		r.armed[shard] = s.Value.State == cluster.SyncArmed || s.Value.Switch == p.ID
	}
	return r
}

// recall fills in the times of steps that a predecessor did.
func (r *run) recall() {
	for _, e := range r.log {
		r.clock(e)
	}
}

// evidence keeps what the observers saw before the verdict.
func (r *run) evidence(_ policy.Facts) {
	c := r.combine(r.p.From, "", time.Now())
	r.times.LastGood, r.times.FirstBad = c.LastGood, c.FirstBad
}

// reread reads what a resumed plan stands on, within this term: the assignment and the holder. The wait begins with this answer.
func (r *run) reread(ctx context.Context) error {
	st, err := r.read(ctx)
	if err != nil {
		return err
	}
	r.assignment = st.Assignment
	r.fenceMod = st.Assignment.Mod
	r.waitFrom(lease.Renewal{}, st.Holder, time.Now())
	return nil
}

func (r *run) waitFrom(seen lease.Renewal, holder dcs.Versioned[cluster.Holder], received time.Time) {
	r.level, r.holder = holder.Value.Gate, holder.Mod
	if holder.Mod == 0 {
		r.level = cluster.GateEBPF // nobody has ever held: only the lease's length is waited
	}
	r.silent = lease.WaitOut(r.Terms.Outlasting(holder.Value), seen, lease.Fence{HolderRevision: holder.Mod, Received: received, Level: r.level})
}

// entry is a line of the journal by this controller.
func (r *run) entry(s plan.StepName, ph plan.Phase, began time.Time, facts map[string]string, err error) plan.Entry {
	now := time.Now()
	e := plan.Entry{Step: s, Phase: ph, Term: r.term.Value.N, Node: r.Node, At: now, Facts: facts}
	if !began.IsZero() {
		e.Took = now.Sub(began)
	}
	if err != nil {
		e.Err = err.Error()
	}
	return e
}

// record journals entries in one transaction with whatever belongs to them.
func (r *run) record(ctx context.Context, what string, cmps []dcs.Cmp, entries []plan.Entry, ops ...dcs.Op) (dcs.Result, error) {
	log := r.log[:len(r.log):len(r.log)]
	for _, e := range entries {
		e.Seq = 1
		if len(log) > 0 {
			e.Seq = log[len(log)-1].Seq + 1
		}
		log = append(shorten(log, e.Step), e)
	}
	ops = append(ops, dcs.Doc(r.Keys.Switch(r.p.ID, "journal"), log))
	if !r.written {
		ops = append(ops, dcs.Doc(r.Keys.Switch(r.p.ID, "plan"), r.p))
	}
	res, err := r.do(ctx, what, cmps, ops...)
	if err != nil {
		return res, err
	}
	r.log, r.written = log, true
	for _, e := range entries {
		r.clock(e)
		r.tell(e)
	}
	return res, nil
}

// mostTries of one step stay in the journal: an undo is tried until it succeeds, and etcd is no place for endless lists. It is more than
// plan.Next counts.
const mostTries = 24

// shorten drops the oldest entry of a step that has been tried too often.
func shorten(log []plan.Entry, s plan.StepName) []plan.Entry {
	n, oldest := 0, -1
	for i, e := range log {
		if e.Step == s {
			n++
			if oldest < 0 {
				oldest = i
			}
		}
	}
	if n < mostTries {
		return log
	}
	return slices.Delete(slices.Clone(log), oldest, oldest+1)
}

// clock keeps the moments that every switch logs.
func (r *run) clock(e plan.Entry) {
	if e.Phase != plan.Done && e.Phase != plan.Skipped {
		return
	}
	moments := map[plan.StepName]*time.Time{
		plan.Fence: &r.times.Fenced, plan.Release: &r.times.Released, plan.Promote: &r.times.Promoted,
		plan.Commit: &r.times.Committed, plan.Bind: &r.times.Bound, plan.Verify: &r.times.Verified,
	}
	if at := moments[e.Step]; at != nil {
		*at = e.At
	}
}

func (r *run) tell(e plan.Entry) {
	if e.Phase == plan.Started {
		return
	}
	level := slog.LevelInfo
	if e.Phase == plan.Failed {
		level = slog.LevelError
	}
	args := []slog.Attr{
		slog.String("switch", r.p.ID), slog.String("step", string(e.Step)), slog.String("phase", string(e.Phase)),
		slog.Duration("took", e.Took), slog.String("node", string(e.Node)),
	}
	if e.Err != "" {
		args = append(args, slog.String("err", e.Err))
	}
	if len(e.Facts) > 0 {
		args = append(args, slog.Any("facts", e.Facts))
	}
	r.Log.LogAttrs(context.Background(), level, "step", args...)
}

// breathe pauses before a step that failed is tried again, longer each time up to a second.
func (r *run) breathe(ctx context.Context, m plan.Move) error {
	fails := failures(r.log, m.Steps[0].Name)
	if fails == 0 {
		return nil
	}
	until := time.Now().Add(min(time.Duration(fails)*50*time.Millisecond, time.Second))
	for time.Now().Before(until) {
		if err := r.wait(ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// failures of a step in the journal.
func failures(log []plan.Entry, s plan.StepName) int {
	n := 0
	for _, e := range log {
		if e.Step == s && e.Phase == plan.Failed {
			n++
		}
	}
	return n
}

// start begins the steps of a move. Those of the executor travel as one request.
func (r *run) start(ctx context.Context, m plan.Move) error {
	var batch []plan.StepName
	for _, s := range m.Steps {
		var err error
		switch s.Actor {
		case plan.Executor:
			batch = append(batch, s.Name)
		case plan.OldGuard, plan.NewGuard, plan.Observers:
			r.deadline[s.Name] = time.Now().Add(r.patience(s.Name))
			_, err = r.record(ctx, "journal", nil, []plan.Entry{r.entry(s.Name, plan.Started, time.Time{}, nil, nil)})
		default:
			err = r.act(ctx, s.Name, m.Why)
		}
		if err != nil {
			return err
		}
	}
	if len(batch) == 0 {
		return nil
	}
	entries, op := r.ask(batch)
	_, err := r.record(ctx, "request steps", nil, entries, append(r.relax(batch), op)...)
	return err
}

// ask makes the request of a batch: the node that runs it, and the entries that say so. Older steps are killed in any case: of a
// predecessor's mending, of another node, of a guard's self-fence; of the last nobody but its guard knows.
func (r *run) ask(batch []plan.StepName) ([]plan.Entry, dcs.Op) {
	r.requests++
	r.node = r.executor()
	r.request = plan.Request{
		ID: fmt.Sprintf("%s/%d/%d", r.p.ID, r.term.Value.N, r.requests), Switch: r.p.ID, Kind: r.p.Kind, Term: r.term.Value.N,
		Fence: r.fenceMod, Epoch: r.assignment.Value.Epoch, From: r.p.From, To: r.p.To, Shards: r.p.Shards, Steps: batch,
		Budget: r.Profile.StepBudget, Suspects: r.suspects(), Lossless: r.Limits.Zero && !r.p.AcceptLoss, KillOlder: true,
		Facts: r.facts(),
	}
	var entries []plan.Entry
	for _, s := range batch {
		e := r.entry(s, plan.Started, time.Time{}, nil, nil)
		e.Node = r.node
		entries = append(entries, e)
	}
	r.deadline[batch[0]] = time.Now().Add(r.patience(batch[0]))
	return entries, dcs.Doc(r.Keys.Switch(r.p.ID, "request/"+string(r.node)), r.request)
}

// facts of the steps that were done, for the steps that build on them.
func (r *run) facts() map[string]string {
	all := map[string]string{}
	for _, e := range r.log {
		if e.Phase == plan.Done || e.Phase == plan.Skipped {
			for k, v := range e.Facts {
				all[string(e.Step)+"."+k] = v
			}
		}
	}
	return all
}

// suspects are the old site's shards that the observers see down: their instances are not waited for as long as the others.
func (r *run) suspects() []cluster.ShardName {
	var out []cluster.ShardName
	for _, shard := range r.p.Shards {
		for _, rep := range r.state.Reports {
			if shardDown(rep.Value.Verdicts[r.p.From], shard) {
				out = append(out, shard)
				break
			}
		}
	}
	return out
}

// executor picks the node that runs a batch: the target's guard, the old one's for undoing when the target's is gone, else this node.
func (r *run) executor() cluster.NodeName {
	prefer := []cluster.SiteName{r.p.To, r.p.From}
	for _, name := range prefer {
		site, ok := r.Cluster.Site(name)
		if rep := r.state.Reports[site.Node]; ok && rep.Mod != 0 && time.Since(rep.Received) < r.fresh() {
			return site.Node
		}
	}
	return r.Node
}

// verifyFor is how long one try to verify goes on before it is journaled as failed and tried anew.
const verifyFor = 3 * time.Second

// patience is how long a step may take before the plan goes on without it: undone, or tried again.
func (r *run) patience(s plan.StepName) time.Duration {
	switch s {
	case plan.Release: // the lease's end completes it at the latest
		return 4*r.Terms.Span() + 4*time.Second
	case plan.Bind:
		return 2*r.Terms.Span() + 3*time.Second
	case plan.Verify:
		return verifyFor
	case plan.RejoinStep, plan.RepairStep, plan.DegradeStep:
		return 30 * time.Second
	}
	if r.p.Kind == plan.Switchover {
		return r.Terms.D + 2*time.Second // clients wait all the while
	}
	return r.Terms.D + 40*time.Second // a failover waits for relay logs to be applied; the executor gives up before
}
