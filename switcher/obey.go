package switcher

import (
	"context"
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
	if cmd.Mod == 0 || cmd.Value.ID == t.replied || cmd.Value.ID == t.state.Reply.Value.Command {
		return nil
	}
	t.replied = cmd.Value.ID
	c := cmd.Value
	gone := dcs.Op{Kind: dcs.Delete, Key: t.Keys.Command()}
	if now.Sub(c.At) > commandLife {
		_, err := t.do(ctx, "drop command", nil, gone, t.reply(plan.Reply{Command: c.ID, Refused: "nobody took the command up in time; give it again", Code: "COMMAND_EXPIRED"}))
		return deposed(err)
	}
	d := policy.Permit(t.Cluster, f, t.Limits, c)
	t.Log.Info("command", slog.String("by", c.By), slog.String("do", c.Do), slog.String("to", string(c.To)), slog.String("reason", c.Reason),
		slog.String("code", string(d.Reason)), slog.Bool("force", c.Force))
	if !d.Act {
		_, err := t.do(ctx, "refuse command", nil, gone, t.reply(plan.Reply{Command: c.ID, Refused: d.Text, Code: string(d.Reason)}))
		return deposed(err)
	}
	p := t.plan(d, c)
	answer := plan.Reply{Command: c.ID, Code: string(d.Reason), Switch: p.ID, Plan: &p}
	for _, s := range p.Table() {
		answer.Steps = append(answer.Steps, string(s.Name))
	}
	if c.DryRun {
		answer.Switch = ""
	}
	if _, err := t.do(ctx, "take command", nil, gone, t.reply(answer)); err != nil || c.DryRun {
		return deposed(err)
	}
	return t.carryOut(ctx, p, f)
}

func (t *tenure) reply(r plan.Reply) dcs.Op { return dcs.Doc(t.Keys.Reply(), r) }
