package policy

import (
	"maps"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

// Permit says whether an operator's command may start, and as what. Force skips only the observers' quorum, and with AcceptLoss
// the evidence of the old side and the RPO policy; never the fence, the wait or a compare (PROTOCOL 8).
func Permit(c cluster.Cluster, f Facts, l Limits, cmd plan.Command) Decision {
	active := f.Assignment.Site
	switch {
	case f.StoreAge > l.Fresh:
		d, _ := idle(f, l)
		return d
	case f.Running != "":
		return no(SwitchRunning, "switch %s is under way: wait for its end, `baton history %s` shows it", f.Running, f.Running)
	case (cmd.Force || cmd.AcceptLoss) && cmd.Reason == "":
		return no(NeedsReason, "--force and --accept-loss need --reason TEXT: it is kept in the history")
	}
	if cmd.Do == "release" {
		if active == "" {
			return no(NobodyServes, "nobody serves, there is nothing to release")
		}
		return Decision{Act: true, Kind: plan.GiveUp, From: active, Reason: Asked, Text: cmd.Reason}
	}
	to, d := destination(c, f, cmd)
	if to == "" {
		return d
	}
	kind := plan.Switchover
	switch {
	case active == "":
		kind = plan.First
	case f.Sites[active].State == health.Suspect && !cmd.Force: // a blip: the recheck waits until it has left the windows, or aborts
	case f.Sites[active].State != health.Up && f.Sites[active].State != health.Busy:
		if f.Sites[active].State != health.Down && !cmd.Force {
			return no(SourceUnhealthy, "site %s is %s (%s): no quorum says up or down, so neither a planned switch nor a failover is right; `--force --reason` skips the quorum", active, orUnknown(f.Sites[active].State), f.Sites[active].Text)
		}
		kind = plan.Failover
	}
	waived := cmd.Force && cmd.AcceptLoss
	if d := elsewhere(to, f); kind == plan.First && d.Reason != "" && !waived {
		return d
	}
	if d := uncuttable(c, to, f, l); kind == plan.Failover && d.Reason != "" && !waived {
		return d
	}
	if kind != plan.First {
		if cmd.Force { // the observers' view of the target is not asked; what was read from its MySQL is
			f.Sites = maps.Clone(f.Sites)
			f.Sites[to] = Votes{State: health.Up}
		}
		if d := candidate(to, f, l, waived); d.Reason != "" {
			return d
		}
	}
	return Decision{Act: true, Kind: kind, From: active, To: to, Reason: Asked, Text: cmd.Reason}
}

// elsewhere says that the data is not at the site: after a release it is where it was served last.
func elsewhere(to cluster.SiteName, f Facts) Decision {
	for shard, home := range f.Assignment.Shards {
		if home != "" && home != to {
			return no(DataElsewhere, "the data of %s is at site %s, where the service was released: start it there and then switch; site %s would begin without what was written last", shard, home, to)
		}
	}
	return Decision{}
}

func destination(c cluster.Cluster, f Facts, cmd plan.Command) (cluster.SiteName, Decision) {
	active := f.Assignment.Site
	if cmd.To == "" {
		if active == "" {
			return "", no(UnknownSite, "nobody serves: say which site is to serve with --to SITE")
		}
		others := c.Others(active)
		if len(others) == 0 {
			return "", no(NoTarget, "there is no other site")
		}
		return others[0].Name, Decision{}
	}
	if _, ok := c.Site(cmd.To); !ok {
		return "", no(UnknownSite, "site %s is not configured", cmd.To)
	}
	if cmd.To == active {
		return "", no(AlreadyThere, "site %s serves already", cmd.To)
	}
	return cmd.To, Decision{}
}
