package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

// carryOut does the stages and returns an entry for each. Shards do not wait for each other between two stages unless one of them says so:
// applications wait for the slowest shard as a whole, and not for the slowest one of each step.
func (w *work) carryOut(ctx context.Context, stages []stage, began time.Time, err error) []plan.Entry {
	var out []plan.Entry
	last := began // a step's time is what it adds to the request's
	add := func(phase plan.Phase, ended time.Time, why error) {
		e := plan.Entry{Step: w.req.Steps[len(out)], Phase: phase, At: ended, Took: ended.Sub(last)}
		if why != nil {
			e.Err = why.Error()
		}
		last = ended
		out = append(out, e)
	}
	for len(out) < len(stages) {
		if err != nil {
			add(plan.Failed, time.Now(), err)
			err = errNotRun
			continue
		}
		chain := stages[len(out):]
		chain = chain[:lengthOf(chain)]
		for k, r := range w.together(ctx, chain) {
			st, why := chain[k], r.err
			if why != nil && st.spare {
				if stale := w.check(); stale != nil {
					st.spare, why = false, stale
				}
			}
			switch {
			case err != nil:
				add(plan.Failed, last, err)
				continue
			case why != nil && st.spare:
				add(plan.Skipped, r.ended, why)
				continue
			case why == nil && st.then != nil:
				why = st.then(ctx)
				r.ended = time.Now()
			}
			if why != nil {
				add(plan.Failed, r.ended, why)
				err = errNotRun
				continue
			}
			add(plan.Done, r.ended, nil)
		}
	}
	return out
}

var errNotRun = errors.New(plan.NotRun)

// lengthOf is how many of the stages run as one chain: up to the first that waits for all shards.
func lengthOf(stages []stage) int {
	for k, st := range stages {
		if k > 0 && st.barrier {
			return k
		}
		if st.then != nil {
			return k + 1
		}
	}
	return len(stages)
}

// result of a stage over all shards.
type result struct {
	ended time.Time // of the last shard
	err   error     // of all that failed
}

// together runs the chain for every shard, side by side. A shard whose stage fails goes no further.
func (w *work) together(ctx context.Context, chain []stage) []result {
	errs, ended := make([][]error, len(chain)), make([][]time.Time, len(chain))
	for k := range chain {
		errs[k], ended[k] = make([]error, len(w.req.Shards)), make([]time.Time, len(w.req.Shards))
	}
	var wg sync.WaitGroup
	for i, shard := range w.req.Shards {
		wg.Go(func() {
			for k, st := range chain {
				err := w.one(ctx, i, shard, st.patience(shard), st.each)
				errs[k][i], ended[k][i] = err, time.Now()
				if err != nil && !st.spare {
					return
				}
			}
		})
	}
	wg.Wait()
	out := make([]result, len(chain))
	for k := range chain {
		out[k].err = errors.Join(errs[k]...)
		if k > 0 {
			out[k].ended = out[k-1].ended
		}
		for _, at := range ended[k] {
			if at.After(out[k].ended) {
				out[k].ended = at
			}
		}
	}
	return out
}

// one does something for a shard within its time.
func (w *work) one(ctx context.Context, i int, shard cluster.ShardName, patience time.Duration, fn func(ctx context.Context, i int, shard cluster.ShardName) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("shard %s took longer than %s", shard, patience))
	defer cancel()
	if err := fn(ctx, i, shard); err != nil {
		return fmt.Errorf("shard %s: %w", shard, err)
	}
	return nil
}

// shards does the same for all shards side by side and waits for all of them.
func (w *work) shards(ctx context.Context, patience func(cluster.ShardName) time.Duration, fn func(ctx context.Context, i int, shard cluster.ShardName) error) error {
	return w.together(ctx, []stage{{each: fn, patience: patience}})[0].err
}
