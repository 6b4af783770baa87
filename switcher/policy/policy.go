// Package policy decides whether what was seen leads to a switch. Every answer has a named reason, the "no" most of all: it is what
// `baton why` prints.
//
// It is pure: facts, limits and now go in, a decision comes out.
package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

// Mode says how far Baton goes by itself.
type Mode string

// The modes (DESIGN 3).
const (
	Observe   Mode = "observe"   // probe and log
	Advise    Mode = "advise"    // say what it would do
	Automatic Mode = "automatic" // do it
)

// Reason is the stable code of a decision.
type Reason string

// The reasons. Only SiteDown and Asked act.
const (
	SiteDown        Reason = "SITE_DOWN"
	Asked           Reason = "ASKED"
	WouldSwitch     Reason = "WOULD_SWITCH"
	Healthy         Reason = "HEALTHY"
	Suspected       Reason = "SUSPECT"
	Disagree        Reason = "NO_QUORUM_OF_OBSERVERS"
	StoreStale      Reason = "STORE_STALE"
	NobodyServes    Reason = "NOBODY_SERVES"
	SwitchRunning   Reason = "SWITCH_RUNNING"
	InMaintenance   Reason = "MAINTENANCE"
	CoolingDown     Reason = "COOLDOWN"
	BudgetSpent     Reason = "SWITCH_BUDGET_SPENT"
	ProbeFrozen     Reason = "PROBE_MISCONFIGURED"
	FewObservers    Reason = "TOO_FEW_OBSERVERS"
	NoGate          Reason = "NO_GATE"
	NoTarget        Reason = "NO_TARGET"
	TargetDown      Reason = "TARGET_DOWN"
	TargetNotReady  Reason = "TARGET_NOT_READY"
	SyncRelaxed     Reason = "SEMI_SYNC_DEGRADED"
	AckersElsewhere Reason = "ACKERS_ELSEWHERE"
	DataElsewhere   Reason = "DATA_ELSEWHERE"
	AfterAbort      Reason = "PAUSE_AFTER_ABORT"
	AlreadyThere    Reason = "ALREADY_THERE"
	NeedsReason     Reason = "NEEDS_REASON"
	UnknownSite     Reason = "UNKNOWN_SITE"
	SourceUnhealthy Reason = "SOURCE_NOT_HEALTHY"
)

// Votes is what the observers together believe of a site.
type Votes struct {
	State   health.State `json:"state"`
	Up      int          `json:"up"`
	Down    int          `json:"down"`
	Unknown int          `json:"unknown"`
	Text    string       `json:"text"` // the evidence, for people
}

// Blocker is why a site cannot take over.
type Blocker struct {
	Code  string            `json:"code"`
	Shard cluster.ShardName `json:"shard,omitempty"`
	Text  string            `json:"text"` // seen, means, do
	// Loss: the operator may waive it with --accept-loss; everything else is never waived.
	Loss bool `json:"loss,omitempty"`
}

// Ready is a site's fitness as a target, known all the time.
type Ready struct {
	Known    bool
	Blockers []Blocker
	Seen     time.Time // when it was looked at
}

// Past is the last switch that ended.
type Past struct {
	ID      string
	Kind    plan.Kind
	At      time.Time
	Outcome plan.Outcome
	Blocker string // what aborted it
	Aborts  int    // aborted or undone ones in a row
}

// Facts are all that a decision rests on.
type Facts struct {
	Mode        Mode
	StoreAge    time.Duration // since the last proof that our view of etcd is connected
	Assignment  cluster.Assignment
	Running     string // id of a switch that has not ended
	Sites       map[cluster.SiteName]Votes
	Frozen      []string // probes whose configuration is wrong
	Maintenance *cluster.Maintenance
	Last        *Past       // the last switch that ended
	Completed   []time.Time // automatic switches that were completed, newest last
	Targets     map[cluster.SiteName]Ready
	Gate        cluster.GateLevel // of the present holder
	Relaxed     []cluster.ShardName
	DownSince   time.Time // since when the active site is down by quorum
}

// Limits are the operator's policy.
type Limits struct {
	Observers  int           // configured; automatic needs three
	Fresh      time.Duration // a view of etcd older than this decides nothing
	Cooldown   time.Duration // after a completed switch, until readiness is back
	Budget     int           // automatic switches in BudgetSpan
	BudgetSpan time.Duration
	Grace      time.Duration // a site down for less is not switched
	Zero       bool          // rpo: zero
}

// Decision is what to do, and why.
type Decision struct {
	Act    bool             `json:"act"`
	Kind   plan.Kind        `json:"kind,omitempty"`
	From   cluster.SiteName `json:"from,omitempty"`
	To     cluster.SiteName `json:"to,omitempty"`
	Reason Reason           `json:"reason"`
	Text   string           `json:"text"`           // what was seen, what it means, what to do
	Left   time.Duration    `json:"left,omitempty"` // of a cooldown or pause
}

func no(r Reason, format string, args ...any) Decision {
	return Decision{Reason: r, Text: fmt.Sprintf(format, args...)}
}

// Decide says whether the active site is to be replaced now, without being asked.
func Decide(c cluster.Cluster, f Facts, l Limits, now time.Time) Decision {
	if d, ended := idle(f, l); ended {
		return d
	}
	active := f.Assignment.Site
	votes := f.Sites[active]
	if d, ended := verdict(active, votes, f, l, now); ended {
		return d
	}
	if d, ended := brakes(f, l, now); ended {
		return d
	}
	to, d := target(c, f, l)
	if to == "" {
		return d
	}
	if f.Mode != Automatic {
		d := no(WouldSwitch, "WOULD SWITCH %s→%s now: %s", active, to, votes.Text)
		d.Kind, d.From, d.To = plan.Failover, active, to
		return d
	}
	return Decision{Act: true, Kind: plan.Failover, From: active, To: to, Reason: SiteDown, Text: votes.Text}
}

// idle ends a decision before the verdict is even looked at.
func idle(f Facts, l Limits) (Decision, bool) {
	switch {
	case f.StoreAge > l.Fresh:
		return no(StoreStale, "etcd has not answered for %s: without it nothing is decided; check etcd's quorum and the network to it", round(f.StoreAge)), true
	case f.Running != "":
		return no(SwitchRunning, "switch %s is under way", f.Running), true
	case f.Assignment.Site == "" || f.Assignment.Phase != cluster.Serving:
		return no(NobodyServes, "no site is assigned: start the service with `baton switch --to SITE`"), true
	}
	return Decision{}, false
}

func verdict(active cluster.SiteName, v Votes, f Facts, l Limits, now time.Time) (Decision, bool) {
	switch v.State {
	case health.Up, health.Busy:
		return no(Healthy, "site %s is %s: %d up, %d down, %d unknown", active, v.State, v.Up, v.Down, v.Unknown), true
	case health.Suspect:
		return no(Suspected, "site %s is suspect: %s", active, v.Text), true
	case health.Down:
	default:
		return no(Disagree, "no quorum says that site %s is down: %d up, %d down, %d unknown; look at the observers that abstain", active, v.Up, v.Down, v.Unknown), true
	}
	if down := now.Sub(f.DownSince); down < l.Grace {
		d := no(Suspected, "site %s is down for %s; a restart within %s is no switch", active, round(down), l.Grace)
		d.Left = l.Grace - down
		return d, true
	}
	return Decision{}, false
}

// brakes hold back a switch that the verdict asks for.
func brakes(f Facts, l Limits, now time.Time) (Decision, bool) {
	switch {
	case f.Maintenance != nil && f.Maintenance.Active(now):
		return no(InMaintenance, "maintenance by %s (%s): nothing is switched automatically; `baton maintenance off` ends it", f.Maintenance.Who, f.Maintenance.Reason), true
	case l.Observers < 3 && f.Mode == Automatic:
		return no(FewObservers, "%d observers are configured, automatic switching needs 3: add a witness to nodes:", l.Observers), true
	case len(f.Frozen) > 0:
		return no(ProbeFrozen, "a probe is misconfigured (%s): automatic switching waits until it is mended", strings.Join(f.Frozen, "; ")), true
	case f.Gate == cluster.GateNone:
		return no(NoGate, "the holder has no gate: nothing in its kernel ends its lease; see `baton check`"), true
	}
	if d, ended := pause(f, now); ended {
		return d, true
	}
	return cooldown(f, l, now)
}

// pause after an aborted switch grows: 2 s, 4 s, ... 5 min.
func pause(f Facts, now time.Time) (Decision, bool) {
	if f.Last == nil || f.Last.Aborts == 0 {
		return Decision{}, false
	}
	wait := min(time.Second<<min(f.Last.Aborts, 9), 5*time.Minute)
	left := f.Last.At.Add(wait).Sub(now)
	if left <= 0 {
		return Decision{}, false
	}
	d := no(AfterAbort, "switch %s was %s (%s): next try in %s", f.Last.ID, f.Last.Outcome, f.Last.Blocker, round(left))
	d.Left = left
	return d, true
}

// cooldown holds back a second switch until the site left behind is ready again: going back to one that is not would be the flap
// that it is meant to stop. A second real failure after readiness is back is not blocked.
func cooldown(f Facts, l Limits, now time.Time) (Decision, bool) {
	n := 0
	for _, at := range f.Completed {
		if now.Sub(at) < l.BudgetSpan {
			n++
		}
	}
	if l.Budget > 0 && n >= l.Budget {
		d := no(BudgetSpent, "%d automatic switches within %s: a person decides; `baton switch` still works", n, l.BudgetSpan)
		d.Left = f.Completed[len(f.Completed)-l.Budget].Add(l.BudgetSpan).Sub(now)
		return d, true
	}
	if f.Last == nil || f.Last.Outcome != plan.Completed && f.Last.Outcome != plan.Stuck || f.Last.Kind == plan.First {
		return Decision{}, false
	}
	left := f.Last.At.Add(l.Cooldown).Sub(now)
	if left <= 0 {
		return Decision{}, false
	}
	if f.Last.Outcome == plan.Stuck { // it did not work through the VIP, and going back at once may not either: a person is called
		d := no(CoolingDown, "switch %s is stuck since %s: cooldown for another %s; `baton history %s` says what does not work", f.Last.ID, round(now.Sub(f.Last.At)), round(left), f.Last.ID)
		d.Left = left
		return d, true
	}
	for _, r := range f.Targets {
		if r.Known && len(r.Blockers) == 0 && r.Seen.After(f.Last.At) {
			return Decision{}, false
		}
	}
	d := no(CoolingDown, "switch %s was completed %s ago and no site is ready again: cooldown for another %s", f.Last.ID, round(now.Sub(f.Last.At)), round(left))
	d.Left = left
	return d, true
}

// target picks the first site in the order of takeover that may serve; if none may, the reason of the first.
func target(c cluster.Cluster, f Facts, l Limits) (cluster.SiteName, Decision) {
	first := no(NoTarget, "there is no other site")
	for i, s := range c.Others(f.Assignment.Site) {
		d := candidate(s.Name, f, l, false)
		if v := f.Sites[s.Name]; d.Reason == "" && v.State == health.Suspect { // the recheck would abort, and a pause would follow
			d = no(TargetDown, "site %s is suspect itself and is not moved to: %s", s.Name, v.Text)
		}
		if d.Reason == "" {
			d = uncuttable(c, s.Name, f, l)
		}
		if d.Reason == "" {
			return s.Name, d
		}
		if i == 0 {
			first = d
		}
	}
	return "", first
}

// uncuttable says why a failover could lose what was acknowledged although semi-sync was armed: a third site's replicas may acknowledge,
// too, so that they are cut like the new site's, and what they alone have received is fetched from them. One that is gone may have
// anything, and may go on.
func uncuttable(c cluster.Cluster, to cluster.SiteName, f Facts, l Limits) Decision {
	if !l.Zero {
		return Decision{}
	}
	for _, s := range c.Others(f.Assignment.Site) {
		if v := f.Sites[s.Name]; s.Name != to && (v.State == health.Down || v.State == health.Unknown || v.State == "") {
			return no(AckersElsewhere, "rpo is zero, and site %s, which is %s, may have acknowledged what site %s has not received: bring its MySQL back, or `baton switch --force --accept-loss`", s.Name, orUnknown(v.State), to)
		}
	}
	return Decision{}
}

// candidate says why the site cannot take over; an empty reason means that it can.
func candidate(site cluster.SiteName, f Facts, l Limits, acceptLoss bool) Decision {
	if v := f.Sites[site]; v.State == health.Down || v.State == health.Unknown || v.State == "" {
		return no(TargetDown, "site %s cannot take over: the observers see it %s (%s)", site, orUnknown(v.State), v.Text)
	}
	r := f.Targets[site]
	if !r.Known {
		return no(TargetNotReady, "site %s has not been looked at yet", site)
	}
	for _, b := range r.Blockers {
		if !b.Loss || !acceptLoss {
			return no(TargetNotReady, "site %s cannot take over: %s %s", site, b.Code, b.Text)
		}
	}
	if l.Zero && len(f.Relaxed) > 0 && !acceptLoss {
		return no(SyncRelaxed, "rpo is zero and semi-sync of %v is not armed: acknowledged writes could be lost; Baton arms it again by itself as soon as the standby is level, mostly within seconds; only if the standby is lost for good: `baton switch --force --accept-loss --reason TEXT`", f.Relaxed)
	}
	return Decision{}
}

func orUnknown(s health.State) health.State {
	if s == "" {
		return health.Unknown
	}
	return s
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
