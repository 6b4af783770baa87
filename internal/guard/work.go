package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// work is one request being carried out.
type work struct {
	*Executor
	req   plan.Request
	check Check
	from  []Database // by the index of req.Shards; nil where the instance does not answer
	to    []Database
	third [][]acker // by the index of req.Shards: the other sites' replicas

	mu     sync.Mutex // guards the fields below: shards run side by side
	fenced map[cluster.ShardName]string
	facts  map[plan.StepName]Facts
}

// acker is a replica of a site that is neither the old nor the new one: it may have acknowledged what the new one has not received.
type acker struct {
	site cluster.SiteName
	in   cluster.Instance
	db   Database // nil where it does not answer
}

// stage is how a step is done: each for every shard, and then what belongs to all of them.
type stage struct {
	each     func(ctx context.Context, i int, shard cluster.ShardName) error
	patience func(cluster.ShardName) time.Duration // of each
	then     func(ctx context.Context) error       // after the last shard's each; nil: nothing
	barrier  bool                                  // no shard begins before all have ended the step before
	spare    bool                                  // a failure skips the step and ends nothing
}

// run carries the steps out and stops at the first failure; the answer names every step.
func (w *work) run(ctx context.Context) plan.Answer {
	a := plan.Answer{Request: w.req.ID, Node: w.Node}
	w.fenced, w.facts = map[cluster.ShardName]string{}, map[plan.StepName]Facts{}
	for _, shard := range w.req.Shards {
		if g := w.req.Facts["fence-writes."+string(shard)+".gtid"]; g != "" {
			w.fenced[shard] = g
		}
	}
	stages, unknown := w.stages()
	if unknown != "" {
		a.Refused = unknown
		return a
	}
	defer w.close()
	began := time.Now()
	a.Entries = w.carryOut(ctx, stages, began, w.open(ctx))
	for i := range a.Entries {
		e := &a.Entries[i]
		e.Term, e.Node, e.Facts = w.req.Term, w.Node, w.facts[e.Step]
	}
	return a
}

// stages are what the request asks for, or why it cannot be taken: a newer version's controller may know more steps.
func (w *work) stages() (todo []stage, unknown string) {
	all := map[plan.StepName]stage{
		plan.FenceWrites: {each: w.fenceWrites, patience: w.budget, spare: w.optional()},
		plan.Cut:         {each: w.cut, barrier: !w.optional()}, // a planned switch that cannot fence is undone before the new side is touched
		plan.CatchUp:     {each: w.catchUp},
		plan.Promote:     {each: w.quiesce, then: w.promote},
		plan.UndoTarget:  {each: w.undoTarget},
		plan.UndoSource:  {each: w.undoSource, barrier: true}, // no old instance is writable before every new one is read-only again
		plan.RejoinStep:  {each: w.rejoin, patience: func(cluster.ShardName) time.Duration { return 20 * time.Second }},
		plan.RepairStep:  {each: w.repair},
		plan.DegradeStep: {each: w.degrade},
	}
	for _, s := range w.req.Steps {
		st, ok := all[s]
		if !ok {
			return nil, fmt.Sprintf("this version knows no step %q: run the same version on all nodes", s)
		}
		if st.patience == nil {
			st.patience = w.whole
		}
		todo = append(todo, st)
	}
	if len(todo) == 0 {
		return nil, "the request names no step"
	}
	return todo, ""
}

// old says whether a request touches the old side, too.
func (w *work) old() bool {
	switch w.req.Kind {
	case plan.First, plan.Repair, plan.Degrade:
		return false
	case plan.Rejoin:
		return true
	}
	return w.req.From != ""
}

// open connects to every instance, all side by side, the old ones within their budget; only then it asks whether the request still
// stands, and only then it ends what others left there. The order is what makes this safe: whoever came later kills the connections
// that were opened before his question, and those that are opened after it are refused by theirs (PROTOCOL 4).
func (w *work) open(ctx context.Context) error {
	n := len(w.req.Shards)
	w.from, w.to, w.third = make([]Database, n), make([]Database, n), w.thirds()
	if err := w.sites(ctx, w.connect); err != nil {
		return err
	}
	if err := w.confirm(ctx); err != nil {
		return err
	}
	if !w.req.KillOlder {
		return nil
	}
	return w.sites(ctx, w.killOlder)
}

// sites does the same at every instance of the request. One that may be silent is noted and done without.
func (w *work) sites(ctx context.Context, do func(context.Context, *Database, cluster.SiteName, cluster.ShardName) error) error {
	from := w.old()
	g, ctx := errgroup.WithContext(ctx)
	at := func(db *Database, site cluster.SiteName, shard cluster.ShardName, patience time.Duration, spare bool, what string) {
		g.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s/%s did not let us in within %s", site, shard, patience))
			defer cancel()
			err := do(ctx, db, site, shard)
			if err != nil && spare {
				w.note(w.req.Steps[0], shard, what, err.Error())
				return nil
			}
			return err
		})
	}
	for i, shard := range w.req.Shards {
		at(&w.to[i], w.req.To, shard, w.patience(), w.undoing() || w.single(), "unknown")
		if from {
			at(&w.from[i], w.req.From, shard, w.budget(shard), w.optional() || w.single(), "unreachable")
		}
		for j := range w.third[i] {
			at(&w.third[i][j].db, w.third[i][j].site, shard, w.req.Budget, true, "unreachable."+string(w.third[i][j].site))
		}
	}
	return g.Wait()
}

// optional says whether the old side may be silent: in a failover, and in an undo, which must give the service back to what is left.
func (w *work) optional() bool { return w.req.Kind == plan.Failover || w.undoing() }

// undoing says whether the request takes back: then a target that does not answer is no obstacle either, for it has no lease.
func (w *work) undoing() bool {
	return w.req.Steps[0] == plan.UndoTarget || w.req.Steps[0] == plan.UndoSource
}

// single says whether each shard is mended by itself: one whose instance is dead must not keep the others waiting.
func (w *work) single() bool { return w.req.Kind.Mends() }

func (w *work) connect(ctx context.Context, db *Database, site cluster.SiteName, shard cluster.ShardName) error {
	s, _ := w.Cluster.Site(site)
	in, ok := s.Instance(shard)
	if !ok {
		return fmt.Errorf("site %s has no instance of shard %s", site, shard)
	}
	c, err := w.Databases.Open(ctx, in)
	if err != nil {
		return fmt.Errorf("connect to %s/%s: %w", site, shard, err)
	}
	*db = c
	return nil
}

// killOlder gives up an instance where what is older cannot be killed: it may still be changed by somebody else.
func (w *work) killOlder(ctx context.Context, db *Database, site cluster.SiteName, shard cluster.ShardName) error {
	if *db == nil {
		return nil
	}
	if err := (*db).KillOlder(ctx, w.check); err != nil {
		err = errors.Join(fmt.Errorf("kill older steps at %s/%s: %w", site, shard, err), (*db).Close())
		*db = nil
		return err
	}
	return nil
}

// confirm asks etcd itself, once, with every connection open. A view may lag behind by as much as it may be old, and then a repair of
// yesterday makes a site writable that has just been fenced. The read makes the question linearizable: a transaction of compares alone
// is answered by any member from what it happens to know.
func (w *work) confirm(ctx context.Context) error {
	if err := w.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, w.Fresh, fmt.Errorf("etcd did not confirm the request within %s", w.Fresh))
	defer cancel()
	term := w.latest.Load().Term
	if term.Value.N != w.req.Term {
		return ErrOlderTerm
	}
	_, err := w.Store.Do(ctx, "confirm request", []dcs.Cmp{{Key: w.Keys.Term(), Mod: term.Mod}, {Key: w.Keys.Assignment(), Mod: w.req.Fence}},
		dcs.Op{Kind: dcs.Get, Key: w.Keys.Term()})
	return err
}

func (w *work) close() {
	all := slices.Concat(w.from, w.to)
	for _, ackers := range w.third {
		for _, a := range ackers {
			all = append(all, a.db)
		}
	}
	for _, db := range all {
		if db != nil {
			_ = db.Close() // the statements are done, or their connection is dead: nothing is lost
		}
	}
}

// patience bounds a step at an instance that must answer. A failover waits for a relay log that is being applied: an undo would only
// try the same again. The controller's own patience is longer.
func (w *work) patience() time.Duration {
	if w.req.Kind == plan.Failover && !w.undoing() {
		return 30 * time.Second
	}
	return 5 * time.Second
}

// budget of an old instance: a third where the observers see it down already, for then its silence is no news.
func (w *work) budget(shard cluster.ShardName) time.Duration {
	if !w.optional() {
		return w.patience()
	}
	for _, s := range w.req.Suspects {
		if s == shard {
			return w.req.Budget / 3
		}
	}
	return w.req.Budget
}

func (w *work) note(step plan.StepName, shard cluster.ShardName, name, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.facts[step] == nil {
		w.facts[step] = Facts{}
	}
	w.facts[step][string(shard)+"."+name] = value
}

func (w *work) whole(cluster.ShardName) time.Duration { return w.patience() }

func (w *work) fenceWrites(ctx context.Context, i int, shard cluster.ShardName) error {
	if w.from[i] == nil {
		return errors.New("the old instance does not answer") // one that hangs or is dead is fenced by the cut on our own side
	}
	executed, err := w.from[i].FenceWrites(ctx, w.check)
	if err != nil {
		return err
	}
	w.note(plan.FenceWrites, shard, "gtid", executed)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fenced[shard] = executed
	return nil
}

// cut ends acknowledgements at the replica. One whose source is fenced takes all that the source has first; any other cuts at once, and
// so are the other sites' cut.
func (w *work) cut(ctx context.Context, i int, shard cluster.ShardName) error {
	w.mu.Lock()
	g, ok := w.fenced[shard]
	w.mu.Unlock()
	if ok {
		if _, err := w.to[i].CatchUp(ctx, w.check, g); err != nil {
			return err
		}
	}
	received, err := w.to[i].Cut(ctx, w.check)
	if err != nil {
		return err
	}
	w.note(plan.Cut, shard, "received", received)
	if ok {
		return nil // all that the old one has is here, and it takes no more
	}
	return w.union(ctx, i, shard)
}

func (w *work) catchUp(ctx context.Context, i int, shard cluster.ShardName) error {
	executed, err := w.to[i].CatchUp(ctx, w.check, "")
	if err != nil {
		return err
	}
	w.note(plan.CatchUp, shard, "executed", executed)
	return nil
}

// quiesce is the part of a promotion that no client notices.
func (w *work) quiesce(ctx context.Context, i int, _ cluster.ShardName) error {
	return w.to[i].Quiesce(ctx, w.check)
}

// promote asks everywhere whether it may, writes the epoch everywhere, and then makes shard by shard writable in the configured order: a
// bank switches its databases in order. The epoch's row is errant after an undo, so that none is written before all may be promoted.
func (w *work) promote(ctx context.Context) error {
	e := Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.To}
	err := w.shards(ctx, w.whole, func(ctx context.Context, i int, _ cluster.ShardName) error { return w.to[i].Prepare(ctx, w.check, e) })
	if err != nil {
		return err
	}
	err = w.shards(ctx, w.whole, func(ctx context.Context, i int, _ cluster.ShardName) error { return w.to[i].Mark(ctx, w.check, e) })
	if err != nil {
		return err
	}
	for i, shard := range w.req.Shards {
		ctx, cancel := context.WithTimeoutCause(ctx, w.patience(), fmt.Errorf("shard %s took longer than %s", shard, w.patience()))
		executed, err := w.to[i].Open(ctx, w.check)
		cancel()
		if err != nil {
			return fmt.Errorf("shard %s: %w", shard, err)
		}
		w.note(plan.Promote, shard, "gtid", executed)
	}
	return nil
}

func (w *work) undoTarget(ctx context.Context, i int, shard cluster.ShardName) error {
	if w.to[i] == nil {
		w.note(plan.UndoTarget, shard, "unknown", "the target does not answer; it has no lease and is no candidate")
	} else if err := w.to[i].Demote(ctx, w.check); err != nil {
		return err
	}
	w.uncut(ctx, i, shard)
	return nil
}

func (w *work) undoSource(ctx context.Context, i int, shard cluster.ShardName) error {
	if w.from[i] == nil {
		w.note(plan.UndoSource, shard, "left", "the instance does not answer; it is made writable when it returns")
		return nil
	}
	if w.to[i] == nil { // nobody would acknowledge: without this the first commit hangs for the whole timeout
		w.note(plan.UndoSource, shard, "semi_sync", "off")
		if err := w.from[i].Relax(ctx, w.check); err != nil {
			return err
		}
	}
	return w.from[i].Restore(ctx, w.check, Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.From})
}

// rejoin makes the site a replica again, and semi-sync lossless again at the source. The replica has all that the source has before it is
// armed, or every writer would wait for a replica that is hours behind; and once more after it, or what was committed in between and is
// not here yet would be lost with its source although sync/ says armed (PROTOCOL 5).
func (w *work) rejoin(ctx context.Context, i int, shard cluster.ShardName) error {
	if w.to[i] == nil || w.from[i] == nil {
		return errSilent
	}
	source, _ := w.Cluster.Site(w.req.From)
	in, _ := source.Instance(shard)
	facts, err := w.to[i].Rejoin(ctx, w.check, in)
	for k, v := range facts {
		w.note(plan.RejoinStep, shard, k, v)
	}
	if err != nil {
		return err
	}
	if err := w.level(ctx, i); err != nil {
		return err
	}
	if err := w.from[i].Arm(ctx, w.check); err != nil {
		return err
	}
	if err := w.level(ctx, i); err != nil {
		return err
	}
	w.note(plan.RejoinStep, shard, "semi_sync", "on")
	return nil
}

// level waits until the replica has executed all that its source has by now.
func (w *work) level(ctx context.Context, i int) error {
	has, err := w.from[i].CatchUp(ctx, w.check, "")
	if err != nil {
		return err
	}
	_, err = w.to[i].CatchUp(ctx, w.check, has)
	return err
}

// repair makes an instance of the active site writable again that came back read-only.
func (w *work) repair(ctx context.Context, i int, shard cluster.ShardName) error {
	err := errSilent
	if w.to[i] != nil {
		err = w.to[i].Restore(ctx, w.check, Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.To})
	}
	if errors.Is(err, errSilent) || errors.Is(err, ErrRefused) {
		w.note(plan.RepairStep, shard, "left", err.Error()) // nobody has written there: what was lossless is
	}
	return err
}

// degrade lets a serving source go on without a replica; the controller has written it down before.
func (w *work) degrade(ctx context.Context, i int, _ cluster.ShardName) error {
	if w.to[i] == nil {
		return errSilent
	}
	return w.to[i].Relax(ctx, w.check)
}
