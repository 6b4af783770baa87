package switcher

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// combine counts the observers' votes on a site, by what has been received here and is about the present epoch.
func (t *tenure) combine(site cluster.SiteName, nonce string, now time.Time) health.Combined {
	q := health.Quorum{Need: t.Cluster.Quorum(), Fresh: t.fresh(), Nonce: nonce, Epoch: t.assignment.Value.Epoch}
	var reports []health.Received
	for _, n := range t.Cluster.Nodes {
		q.Nodes = append(q.Nodes, n.Name)
		if r, ok := t.state.Reports[n.Name]; ok {
			reports = append(reports, health.Received{Report: r.Value, At: r.Received})
		}
	}
	return health.Combine(reports, site, q, now)
}

// facts gathers all that a decision rests on.
func (t *tenure) facts(now time.Time) policy.Facts {
	f := policy.Facts{
		Mode: t.Mode, StoreAge: now.Sub(t.state.FreshAt), Assignment: t.assignment.Value, Gate: t.state.Holder.Value.Gate,
		Sites: map[cluster.SiteName]policy.Votes{}, Targets: map[cluster.SiteName]policy.Ready{},
	}
	if a := f.Assignment; a.Phase == cluster.Switching || a.Phase == cluster.Undoing {
		f.Running = a.Switch
	}
	for _, s := range t.Cluster.Sites {
		c := t.combine(s.Name, "", now)
		f.Sites[s.Name] = policy.Votes{State: c.State, Up: c.Up, Down: c.Down, Unknown: c.Unknown, Text: c.Reason}
		if s.Name == f.Assignment.Site {
			f.Frozen = c.Frozen
		}
		if r, ok := t.ready.Sites[s.Name]; ok && t.ready.Epoch == f.Assignment.Epoch && now.Sub(t.ready.At) < 10*t.Profile.Interval+5*time.Second {
			f.Targets[s.Name] = policy.Ready{Known: true, Blockers: slices.Concat(r.Blockers, t.guardSilent(s, now)), Seen: t.ready.At}
		}
	}
	if f.Sites[f.Assignment.Site].State != health.Down {
		t.downSince = time.Time{}
	} else if t.downSince.IsZero() {
		t.downSince = now
	}
	f.DownSince = t.downSince
	if m := t.state.Maintenance; m.Mod != 0 {
		f.Maintenance = &m.Value
	}
	for _, shard := range t.Cluster.Shards {
		if t.state.Sync[shard].Value.State != cluster.SyncArmed {
			f.Relaxed = append(f.Relaxed, shard)
		}
	}
	t.history(&f)
	return f
}

// guardSilent blocks a site whose guard is not there: nobody would bind the VIP, and past the commit there is no way back.
func (t *tenure) guardSilent(s cluster.Site, now time.Time) []policy.Blocker {
	rep := t.state.Reports[s.Node]
	if age := now.Sub(rep.Received); rep.Mod == 0 || age > max(4*t.fresh(), time.Second) {
		return []policy.Blocker{{Code: "GUARD_SILENT", Text: fmt.Sprintf("the daemon of %s has not reported for %s: start it, nobody else can bind the VIP there", s.Node, age.Round(time.Second))}}
	}
	return nil
}

// abortsFade is when an abort is no longer one of a row: twice the longest pause. Weeks of them must not hold back a real failure.
const abortsFade = 10 * time.Minute

// history adds what the switches that ended say: the last one, automatic aborts in a row, and automatic ones after which the other site
// served: a stuck one moved the service too.
func (t *tenure) history(f *policy.Facts) {
	aborts, aborted := 0, time.Time{}
	for _, s := range Summaries(t.state.Switches) {
		if s.Kind.Mends() || s.Outcome == plan.Running {
			continue
		}
		switch moved := s.Outcome == plan.Completed || s.Outcome == plan.Stuck; {
		case moved:
			aborts = 0
		case s.By == automatic && s.At.Sub(aborted) > abortsFade:
			aborts, aborted = 1, s.Ended
		case s.By == automatic:
			aborts, aborted = aborts+1, s.Ended
		}
		ended := s.Ended
		if heard := t.state.Switches[s.ID].Summary.Received; !heard.IsZero() && heard.Before(ended) {
			ended = heard // its controller's clock is ahead of ours: no pause may last for the difference
		}
		if (s.Outcome == plan.Completed || s.Outcome == plan.Stuck) && s.Kind == plan.Failover && s.By == automatic {
			f.Completed = append(f.Completed, ended)
		}
		f.Last = &policy.Past{ID: s.ID, Kind: s.Kind, At: ended, Outcome: s.Outcome, Blocker: s.Why, Aborts: aborts}
	}
}

// automatic is who a switch without an operator is by.
const automatic = "automatic"

// number is the switch's place in the history.
func number(id string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "s"))
	if err != nil {
		return 0
	}
	return n
}

func byNumber(a, b plan.Summary) int { return cmp.Compare(number(a.ID), number(b.ID)) }

func sortSummaries(s []plan.Summary) { slices.SortFunc(s, byNumber) }
