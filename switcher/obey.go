package switcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// commandLife is how long a command waits for a controller. An older one would surprise the operator who has gone away.
const commandLife = 10 * time.Second

// obey takes an operator's command up: the reply says which switch it became, or the policy's reason why not.
func (t *tenure) obey(ctx context.Context, f policy.Facts, now time.Time) error {
	cmd := t.state.Command
	if cmd.Mod == 0 {
		return nil
	}
	c := cmd.Value
	if now.Sub(c.At) > commandLife {
		return t.answer(ctx, cmd.Mod, plan.Reply{Command: c.ID, Refused: "nobody took the command up in time; give it again", Code: "COMMAND_EXPIRED"})
	}
	if t.ready.At.IsZero() || t.ready.Epoch != t.assignment.Value.Epoch {
		return nil // nobody has looked yet in this term, or since the last switch: a refusal for that would say nothing
	}
	d := policy.Permit(t.Cluster, f, t.Limits, c)
	t.Log.Info("command", slog.String("by", c.By), slog.String("do", c.Do), slog.String("to", string(c.To)), slog.String("reason", c.Reason),
		slog.String("code", string(d.Reason)), slog.Bool("force", c.Force))
	if !d.Act {
		return t.answer(ctx, cmd.Mod, plan.Reply{Command: c.ID, Refused: d.Text, Code: string(d.Reason)})
	}
	p := t.plan(d, c)
	answer := plan.Reply{Command: c.ID, Code: string(d.Reason), Switch: p.ID, Plan: &p}
	for _, s := range p.Table() {
		answer.Steps = append(answer.Steps, string(s.Name))
	}
	if c.DryRun {
		answer.Switch = ""
		return t.answer(ctx, cmd.Mod, answer)
	}
	// The plan goes with the promise: whoever dies in between leaves a switch that is resumed, and no operator who waits for nothing.
	before := t.wrote
	if err := t.answer(ctx, cmd.Mod, answer, dcs.Doc(t.Keys.Switch(p.ID, "plan"), p)); err != nil || t.wrote == before {
		return err
	}
	return t.carryOut(ctx, p, f)
}

// answer takes the command away and answers it, unless it was withdrawn or another one has taken its place meanwhile.
func (t *tenure) answer(ctx context.Context, mod int64, r plan.Reply, ops ...dcs.Op) error {
	ops = append(ops, dcs.Op{Kind: dcs.Delete, Key: t.Keys.Command()}, dcs.Doc(t.Keys.Reply(), r))
	_, err := t.do(ctx, "answer command", []dcs.Cmp{{Key: t.Keys.Command(), Mod: mod}}, ops...)
	if errors.Is(err, dcs.ErrCompare) {
		return nil // the newer view says which: a deposed one ends by it, as by the next pulse
	}
	return deposed(err)
}
