package switcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// carryOut is the whole story. Misses have gone into the window, k in W of them, and a quorum of observers agreed; we hold the lock.
// Now the plan is written down, and its steps are done one after the other: the observers look again; the fence makes every renewal
// of the old site's lease fail; its guard stops keepalived and falls silent, or its lease is waited out; meanwhile the other site's
// MySQL is cut off from the old one, catches up and is made writable; the commit says that the new site serves; its guard starts
// keepalived and announces the VIP by gratuitous ARP; and the service is verified through the VIP. Each step and its time are kept.
func (t *tenure) carryOut(ctx context.Context, p plan.Plan, f policy.Facts) error {
	t.Log.Warn("switch begins", slog.String("switch", p.ID), slog.String("kind", string(p.Kind)), slog.String("from", string(p.From)),
		slog.String("to", string(p.To)), slog.String("by", p.By), slog.String("reason", p.Reason))
	defer t.move()()
	t.drop(p)
	r := newRun(t, p, nil)
	r.evidence(f)
	return r.finish(ctx)
}

// resume goes on with what a predecessor left: the journal says how far he came, and nothing else is believed.
func (t *tenure) resume(ctx context.Context, p plan.Plan, docs dcs.SwitchDocs) error {
	t.Log.Warn("switch resumed", slog.String("switch", p.ID), slog.Int64("term", t.term.Value.N), slog.Int("entries", len(docs.Journal.Value)))
	defer t.move()()
	r := newRun(t, p, &docs)
	if err := r.reread(ctx); err != nil {
		return deposed(err)
	}
	return r.finish(ctx)
}

// finish follows plan.Next to its end: it alone knows order, undo and resume.
func (r *run) finish(ctx context.Context) error {
	for {
		move := plan.Next(r.p, r.log, r.term.Value.N)
		var err error
		switch move.Do {
		case plan.End:
			return r.end(ctx, move)
		case plan.Run:
			if err = r.breathe(ctx, move); err == nil {
				err = r.start(ctx, move)
			}
		case plan.Await:
			err = r.await(ctx)
		}
		if err != nil {
			return fmt.Errorf("switch %s: %w", r.p.ID, err)
		}
	}
}

// plan writes a decision down as a plan. Its id has never been used, its epoch is the fence's.
func (t *tenure) plan(d policy.Decision, c plan.Command) plan.Plan {
	return plan.Plan{
		ID: t.nextID(), Kind: d.Kind, From: d.From, To: d.To, Shards: t.Cluster.Shards, Epoch: t.assignment.Value.Epoch + 1,
		By: c.By, Reason: c.Reason, Force: c.Force, AcceptLoss: c.AcceptLoss, At: time.Now(),
	}
}
