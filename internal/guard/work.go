package guard

import (
	"context"
	"errors"
	"fmt"
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

	mu     sync.Mutex // guards the fields below: shards run side by side
	fenced map[cluster.ShardName]string
	facts  Facts
}

// run carries the steps out in order and stops at the first failure; the answer names every step.
func (w *work) run(ctx context.Context) plan.Answer {
	a := plan.Answer{Request: w.req.ID, Node: w.Node}
	w.fenced = map[cluster.ShardName]string{}
	for _, shard := range w.req.Shards {
		if g := w.req.Facts["fence-writes."+string(shard)+".gtid"]; g != "" {
			w.fenced[shard] = g
		}
	}
	steps, unknown := w.steps()
	if unknown != "" {
		a.Refused = unknown
		return a
	}
	defer w.close()
	err := w.open(ctx)
	for i, s := range w.req.Steps {
		e := plan.Entry{Step: s, Term: w.req.Term, Node: w.Node, Phase: plan.Failed}
		began := time.Now()
		if i > 0 {
			w.facts = nil // the first step tells whom it could not connect to
		}
		switch {
		case err != nil:
			e.Err = err.Error()
		default:
			e.Phase, err = steps[i](ctx)
			if err != nil {
				e.Err = err.Error()
			}
		}
		e.At, e.Took, e.Facts = time.Now(), time.Since(began), w.facts
		a.Entries = append(a.Entries, e)
		if e.Phase == plan.Failed {
			err = errors.New(plan.NotRun)
		} else {
			err = nil
		}
	}
	return a
}

// steps are what the request asks for, or why it cannot be taken: a newer version's controller may know more steps.
func (w *work) steps() (todo []func(context.Context) (plan.Phase, error), unknown string) {
	known := map[plan.StepName]func(context.Context) (plan.Phase, error){
		plan.FenceWrites: w.fenceWrites, plan.Cut: w.cut, plan.CatchUp: w.catchUp, plan.Promote: w.promote,
		plan.UndoTarget: w.undoTarget, plan.UndoSource: w.undoSource, plan.RejoinStep: w.rejoin, plan.RepairStep: w.repair,
		plan.DegradeStep: w.degrade,
	}
	for _, s := range w.req.Steps {
		if known[s] == nil {
			return nil, fmt.Sprintf("this version knows no step %q: run the same version on all nodes", s)
		}
		todo = append(todo, known[s])
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
	w.from, w.to = make([]Database, n), make([]Database, n)
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
				w.note(shard, what, err.Error())
				return nil
			}
			return err
		})
	}
	for i, shard := range w.req.Shards {
		at(&w.to[i], w.req.To, shard, w.patience(), w.undoing() || w.single(), "unknown")
		if from {
			at(&w.from[i], w.req.From, shard, w.budget(shard), w.optional(), "unreachable")
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
func (w *work) single() bool { return w.req.Kind == plan.Repair || w.req.Kind == plan.Degrade }

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
	for _, db := range append(w.from, w.to...) {
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

func (w *work) note(shard cluster.ShardName, name, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.facts == nil {
		w.facts = Facts{}
	}
	w.facts[string(shard)+"."+name] = value
}

// each runs fn for all shards side by side and waits for all of them.
func (w *work) each(ctx context.Context, patience func(cluster.ShardName) time.Duration, fn func(ctx context.Context, i int, shard cluster.ShardName) error) error {
	errs := make([]error, len(w.req.Shards))
	var wg sync.WaitGroup
	for i, shard := range w.req.Shards {
		wg.Go(func() {
			d := patience(shard)
			ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("shard %s took longer than %s", shard, d))
			defer cancel()
			if err := fn(ctx, i, shard); err != nil {
				errs[i] = fmt.Errorf("shard %s: %w", shard, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *work) whole(cluster.ShardName) time.Duration { return w.patience() }

func outcome(err error) (plan.Phase, error) {
	if err != nil {
		return plan.Failed, err
	}
	return plan.Done, nil
}

func (w *work) fenceWrites(ctx context.Context) (plan.Phase, error) {
	err := w.each(ctx, w.budget, func(ctx context.Context, i int, shard cluster.ShardName) error {
		if w.from[i] == nil {
			return errors.New("the old instance does not answer")
		}
		executed, err := w.from[i].FenceWrites(ctx, w.check)
		if err != nil {
			return err
		}
		w.note(shard, "gtid", executed)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fenced[shard] = executed
		return nil
	})
	if stale := w.check(); stale != nil {
		return plan.Failed, stale
	}
	if err != nil && w.optional() {
		return plan.Skipped, err // an old one that hangs or is dead is fenced by the cut on our own side
	}
	return outcome(err)
}

// cut ends acknowledgements at the replica. One whose source is fenced takes all that the source has first; any other cuts at once.
func (w *work) cut(ctx context.Context) (plan.Phase, error) {
	return outcome(w.each(ctx, w.whole, func(ctx context.Context, i int, shard cluster.ShardName) error {
		if g, ok := w.fenced[shard]; ok {
			if _, err := w.to[i].CatchUp(ctx, w.check, g); err != nil {
				return err
			}
		}
		received, err := w.to[i].Cut(ctx, w.check)
		if err != nil {
			return err
		}
		w.note(shard, "received", received)
		return nil
	}))
}

func (w *work) catchUp(ctx context.Context) (plan.Phase, error) {
	return outcome(w.each(ctx, w.whole, func(ctx context.Context, i int, shard cluster.ShardName) error {
		executed, err := w.to[i].CatchUp(ctx, w.check, "")
		if err != nil {
			return err
		}
		w.note(shard, "executed", executed)
		return nil
	}))
}

// promote goes shard by shard in the configured order: a bank switches its databases in order. What no client notices of it is done
// before, for all of them side by side.
func (w *work) promote(ctx context.Context) (plan.Phase, error) {
	err := w.each(ctx, w.whole, func(ctx context.Context, i int, _ cluster.ShardName) error { return w.to[i].Quiesce(ctx, w.check) })
	if err != nil {
		return plan.Failed, err
	}
	e := Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.To}
	for i, shard := range w.req.Shards {
		ctx, cancel := context.WithTimeoutCause(ctx, w.patience(), fmt.Errorf("shard %s took longer than %s", shard, w.patience()))
		executed, err := w.to[i].Promote(ctx, w.check, e)
		cancel()
		if err != nil {
			return plan.Failed, fmt.Errorf("shard %s: %w", shard, err)
		}
		w.note(shard, "gtid", executed)
	}
	return plan.Done, nil
}

func (w *work) undoTarget(ctx context.Context) (plan.Phase, error) {
	return outcome(w.each(ctx, w.whole, func(ctx context.Context, i int, shard cluster.ShardName) error {
		if w.to[i] == nil {
			w.note(shard, "unknown", "the target does not answer; it has no lease and is no candidate")
			return nil
		}
		return w.to[i].Demote(ctx, w.check)
	}))
}

func (w *work) undoSource(ctx context.Context) (plan.Phase, error) {
	e := Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.From}
	err := w.each(ctx, w.whole, func(ctx context.Context, i int, shard cluster.ShardName) error {
		if w.from[i] == nil {
			w.note(shard, "left", "the instance does not answer; it is made writable when it returns")
			return nil
		}
		if w.to[i] == nil { // nobody would acknowledge: without this the first commit hangs for the whole timeout
			w.note(shard, "semi_sync", "off")
			if err := w.from[i].Relax(ctx, w.check); err != nil {
				return err
			}
		}
		return w.from[i].Restore(ctx, w.check, e)
	})
	return outcome(err)
}

// rejoin makes the site a replica again, and semi-sync lossless again at the source. The replica has all that the source has before it is
// armed, or every writer would wait for a replica that is hours behind; and once more after it, or what was committed in between and is
// not here yet would be lost with its source although sync/ says armed (PROTOCOL 5).
func (w *work) rejoin(ctx context.Context) (plan.Phase, error) {
	source, _ := w.Cluster.Site(w.req.From)
	return outcome(w.each(ctx, func(cluster.ShardName) time.Duration { return 20 * time.Second }, func(ctx context.Context, i int, shard cluster.ShardName) error {
		in, _ := source.Instance(shard)
		facts, err := w.to[i].Rejoin(ctx, w.check, in)
		for k, v := range facts {
			w.note(shard, k, v)
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
		w.note(shard, "semi_sync", "on")
		return nil
	}))
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
func (w *work) repair(ctx context.Context) (plan.Phase, error) {
	e := Epoch{Epoch: w.req.Epoch, Switch: w.req.Switch, Site: w.req.To}
	return outcome(w.each(ctx, w.whole, func(ctx context.Context, i int, _ cluster.ShardName) error {
		if w.to[i] == nil {
			return errSilent
		}
		return w.to[i].Restore(ctx, w.check, e)
	}))
}

// degrade lets a serving source go on without a replica; the controller has written it down before.
func (w *work) degrade(ctx context.Context) (plan.Phase, error) {
	return outcome(w.each(ctx, w.whole, func(ctx context.Context, i int, _ cluster.ShardName) error {
		if w.to[i] == nil {
			return errSilent
		}
		return w.to[i].Relax(ctx, w.check)
	}))
}

var errSilent = errors.New("the instance does not answer")
