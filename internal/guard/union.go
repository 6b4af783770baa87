package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

// thirds names, for each shard, the replicas of the sites that are neither the old nor the new one, where the request cuts or undoes a cut.
// A planned switch needs none: its old side answers.
func (w *work) thirds() [][]acker {
	out := make([][]acker, len(w.req.Shards))
	if w.req.From == "" || !w.undoing() && (w.req.Kind != plan.Failover || !slices.Contains(w.req.Steps, plan.Cut)) {
		return out
	}
	for i, shard := range w.req.Shards {
		for _, s := range w.Cluster.Others(w.req.From) {
			if in, ok := s.Instance(shard); ok && s.Name != w.req.To {
				out[i] = append(out[i], acker{site: s.Name, in: in})
			}
		}
	}
	return out
}

// union cuts the replicas of all other sites, so that nothing more can be acknowledged anywhere, and then fetches from each what it has
// received and the new one has not: under lossless semi-sync one of them may be the only one that has it (PROTOCOL 5, step 5). One that
// cannot be cut ends a switch that may lose nothing.
func (w *work) union(ctx context.Context, i int, shard cluster.ShardName) error {
	received := make([]string, len(w.third[i]))
	for j, a := range w.third[i] {
		err := errSilent
		if a.db != nil {
			received[j], err = a.db.Cut(ctx, w.check)
		}
		if err := w.spared(err, shard, a.site); err != nil {
			return err
		}
	}
	for j, a := range w.third[i] {
		if err := w.spared(w.fetch(ctx, i, shard, a, received[j]), shard, a.site); err != nil {
			return err
		}
	}
	return nil
}

// fetch gives the new one what only the acker has received. The acker applies it first: it is read from its binlog.
func (w *work) fetch(ctx context.Context, i int, shard cluster.ShardName, a acker, received string) error {
	if received == "" {
		return nil
	}
	missing, err := w.to[i].Missing(ctx, received)
	if err != nil || missing == "" {
		return err
	}
	has, err := a.db.CatchUp(ctx, w.check, "")
	if err != nil {
		return err
	}
	if _, err := w.to[i].Obtain(ctx, w.check, a.in, has); err != nil {
		return err
	}
	w.note(plan.Cut, shard, "obtained."+string(a.site), missing)
	return nil
}

// spared turns a failure at an acker into a note where the switch may lose what it has; a request that is no longer current never goes on.
func (w *work) spared(err error, shard cluster.ShardName, site cluster.SiteName) error {
	if err == nil {
		return nil
	}
	if stale := w.check(); stale != nil {
		return stale
	}
	if w.req.Lossless {
		return fmt.Errorf("site %s may have acknowledged what the new one lacks, and rpo is zero: %w", site, err)
	}
	w.note(plan.Cut, shard, "left."+string(site), err.Error())
	return nil
}

// uncut lets the other sites' replicas follow the old source again. One that does not is rejoined later.
func (w *work) uncut(ctx context.Context, i int, shard cluster.ShardName) {
	for _, a := range w.third[i] {
		err := errSilent
		if a.db != nil {
			err = a.db.Resume(ctx, w.check)
		}
		if err != nil {
			w.note(plan.UndoTarget, shard, "left."+string(a.site), err.Error())
		}
	}
}

var errSilent = errors.New("the instance does not answer")
