package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

var (
	now  = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	bank = cluster.Cluster{
		Name: "bank", VIP: cluster.VIP{Addr: netip.MustParseAddr("10.0.0.100")}, Shards: []cluster.ShardName{"s1"},
		Sites: []cluster.Site{{Name: "a", Node: "mc-a"}, {Name: "b", Node: "mc-b"}},
	}
	limits = Limits{Observers: 3, Fresh: time.Second, Cooldown: time.Minute, Budget: 3, BudgetSpan: 24 * time.Hour, Zero: true}
)

// down is the case in which everything asks for a failover and nothing holds it back.
func down() Facts {
	return Facts{
		Mode: Automatic, Assignment: cluster.Assignment{Epoch: 4, Site: "a", Phase: cluster.Serving}, Gate: cluster.GateEBPF,
		Sites:     map[cluster.SiteName]Votes{"a": {State: health.Down, Down: 3, Text: "s1 refused"}, "b": {State: health.Up, Up: 3}},
		Targets:   map[cluster.SiteName]Ready{"b": {Known: true, Seen: now}},
		DownSince: now,
	}
}

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		name string
		with func(*Facts, *Limits)
		want Reason
	}{
		{"a quorum says down", func(*Facts, *Limits) {}, SiteDown},
		{"all is well", func(f *Facts, _ *Limits) { f.Sites["a"] = Votes{State: health.Up} }, Healthy},
		{"busy never moves a writer", func(f *Facts, _ *Limits) { f.Sites["a"] = Votes{State: health.Busy} }, Healthy},
		{"suspect", func(f *Facts, _ *Limits) { f.Sites["a"] = Votes{State: health.Suspect} }, Suspected},
		{"observers disagree", func(f *Facts, _ *Limits) { f.Sites["a"] = Votes{State: health.Unknown} }, Disagree},
		{"nobody has voted", func(f *Facts, _ *Limits) { delete(f.Sites, "a") }, Disagree},
		{"etcd is silent", func(f *Facts, _ *Limits) { f.StoreAge = 2 * time.Second }, StoreStale},
		{"nobody serves", func(f *Facts, _ *Limits) { f.Assignment.Site = "" }, NobodyServes},
		{"an assignment that is not serving", func(f *Facts, _ *Limits) { f.Assignment.Phase = cluster.Undoing }, NobodyServes},
		{"a switch runs", func(f *Facts, _ *Limits) { f.Running = "s9" }, SwitchRunning},
		{"maintenance", func(f *Facts, _ *Limits) { f.Maintenance = &cluster.Maintenance{Until: now.Add(time.Minute)} }, InMaintenance},
		{"maintenance without an end", func(f *Facts, _ *Limits) { f.Maintenance = &cluster.Maintenance{} }, InMaintenance},
		{"maintenance that is over", func(f *Facts, _ *Limits) { f.Maintenance = &cluster.Maintenance{Until: now.Add(-time.Second)} }, SiteDown},
		{"two observers", func(_ *Facts, l *Limits) { l.Observers = 2 }, FewObservers},
		{"a probe is misconfigured", func(f *Facts, _ *Limits) { f.Frozen = []string{"s1 sql: 1045"} }, ProbeFrozen},
		{"no gate", func(f *Facts, _ *Limits) { f.Gate = cluster.GateNone }, NoGate},
		{"within the grace", func(_ *Facts, l *Limits) { l.Grace = 3 * time.Second }, Suspected},
		{"after the grace", func(f *Facts, l *Limits) { l.Grace = 3 * time.Second; f.DownSince = now.Add(-4 * time.Second) }, SiteDown},
		{"the other site is down too", func(f *Facts, _ *Limits) { f.Sites["b"] = Votes{State: health.Down} }, TargetDown},
		{"the other site is unknown", func(f *Facts, _ *Limits) { delete(f.Sites, "b") }, TargetDown},
		{"the other site is suspect itself", func(f *Facts, _ *Limits) { f.Sites["b"] = Votes{State: health.Suspect} }, TargetDown},
		{"the other site was never looked at", func(f *Facts, _ *Limits) { delete(f.Targets, "b") }, TargetNotReady},
		{"the other site has a blocker", func(f *Facts, _ *Limits) {
			f.Targets["b"] = Ready{Known: true, Blockers: []Blocker{{Code: "APPLIER_STOPPED"}}}
		}, TargetNotReady},
		{"semi-sync is not armed under rpo zero", func(f *Facts, _ *Limits) { f.Relaxed = []cluster.ShardName{"s1"} }, SyncRelaxed},
		{"semi-sync is not armed, and loss is allowed", func(f *Facts, l *Limits) { f.Relaxed = []cluster.ShardName{"s1"}; l.Zero = false }, SiteDown},
		{"mode advise", func(f *Facts, _ *Limits) { f.Mode = Advise }, WouldSwitch},
		{"cooldown, and nothing is ready again", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", Kind: plan.Failover, At: now.Add(-time.Second), Outcome: plan.Completed}
			f.Targets["b"] = Ready{Known: true, Blockers: []Blocker{{Code: "NOT_REPLICATING"}}, Seen: now}
		}, CoolingDown},
		{"cooldown, and readiness is old", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", Kind: plan.Failover, At: now.Add(-time.Second), Outcome: plan.Completed}
			f.Targets["b"] = Ready{Known: true, Seen: now.Add(-2 * time.Second)}
		}, CoolingDown},
		{"a second real failure after readiness is back", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", Kind: plan.Failover, At: now.Add(-time.Second), Outcome: plan.Completed}
		}, SiteDown},
		{"the last switch is stuck", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", Kind: plan.Failover, At: now.Add(-time.Second), Outcome: plan.Stuck}
		}, CoolingDown},
		{"a first start is no switch", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s1", Kind: plan.First, At: now.Add(-time.Second), Outcome: plan.Completed}
			f.Targets["b"] = Ready{Known: true, Seen: now.Add(-2 * time.Second)}
		}, SiteDown},
		{"right after an abort", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", At: now.Add(-time.Second), Outcome: plan.UndoneAll, Aborts: 1, Blocker: "cut"}
		}, AfterAbort},
		{"long after an abort", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", At: now.Add(-time.Minute), Outcome: plan.UndoneAll, Aborts: 1}
		}, SiteDown},
		{"the pause grows", func(f *Facts, _ *Limits) {
			f.Last = &Past{ID: "s3", At: now.Add(-time.Minute), Outcome: plan.UndoneAll, Aborts: 7}
		}, AfterAbort},
		{"the budget is spent", func(f *Facts, _ *Limits) {
			f.Completed = []time.Time{now.Add(-3 * time.Hour), now.Add(-2 * time.Hour), now.Add(-time.Hour)}
		}, BudgetSpent},
		{"old switches leave the budget", func(f *Facts, _ *Limits) {
			f.Completed = []time.Time{now.Add(-30 * time.Hour), now.Add(-2 * time.Hour), now.Add(-time.Hour)}
		}, SiteDown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, l := down(), limits
			tc.with(&f, &l)
			d := Decide(bank, f, l, now)
			if d.Reason != tc.want {
				t.Fatalf("%s (%s), want %s", d.Reason, d.Text, tc.want)
			}
			if d.Act != (tc.want == SiteDown) {
				t.Errorf("act is %t with %s", d.Act, d.Reason)
			}
			if d.Text == "" {
				t.Error("a decision without words")
			}
			if tc.want == SiteDown && (d.From != "a" || d.To != "b" || d.Kind != plan.Failover) {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestTakeoverOrder(t *testing.T) {
	three := bank
	three.Sites = append(three.Sites, cluster.Site{Name: "c", Node: "mc-c"})
	f, l := down(), limits
	l.Zero = false
	f.Sites["c"], f.Targets["c"] = Votes{State: health.Up}, Ready{Known: true, Seen: now}
	if d := Decide(three, f, l, now); d.To != "b" {
		t.Errorf("to %s, want the first in order, b", d.To)
	}
	f.Sites["b"] = Votes{State: health.Down}
	if d := Decide(three, f, l, now); d.To != "c" {
		t.Errorf("to %s (%s), want c, since b is down", d.To, d.Text)
	}
}

// A third site's replicas can acknowledge what the new one never gets. They are cut with it; but with rpo: zero nobody fails over past
// one that is gone, but an operator who accepts it.
func TestAThirdSiteCanAcknowledge(t *testing.T) {
	three := bank
	three.Sites = append(three.Sites, cluster.Site{Name: "c", Node: "mc-c"})
	cmd := plan.Command{Do: "switch", To: "b"}
	for _, state := range []health.State{health.Down, health.Unknown, ""} {
		f := down()
		f.Sites["c"] = Votes{State: state}
		if d := Decide(three, f, limits, now); d.Act || d.Reason != AckersElsewhere {
			t.Errorf("c is %q: decided %+v", state, d)
		}
		if d := Permit(three, f, limits, cmd); d.Act || d.Reason != AckersElsewhere {
			t.Errorf("c is %q: permitted %+v", state, d)
		}
		forced := cmd
		forced.Force, forced.AcceptLoss, forced.Reason = true, true, "drill"
		if d := Permit(three, f, limits, forced); !d.Act {
			t.Errorf("c is %q: refused %+v", state, d)
		}
		f.Sites["a"] = Votes{State: health.Up}
		if d := Permit(three, f, limits, cmd); !d.Act || d.Kind != plan.Switchover {
			t.Errorf("c is %q: a planned switch waits for equality and loses nothing: %+v", state, d)
		}
		bounded := limits
		bounded.Zero = false
		if d := Decide(three, down(), bounded, now); !d.Act {
			t.Errorf("c is %q: with a bounded rpo: %+v", state, d)
		}
	}
	f := down()
	f.Sites["c"] = Votes{State: health.Up}
	if d := Decide(three, f, limits, now); !d.Act || d.To != "b" {
		t.Errorf("c is up: decided %+v", d)
	}
}

// After a release the service begins where its data is.
func TestStartWhereTheDataIs(t *testing.T) {
	f := down()
	f.Assignment = cluster.Assignment{Epoch: 3, Phase: cluster.Serving, Shards: map[cluster.ShardName]cluster.SiteName{"s1": "a"}}
	if d := Permit(bank, f, limits, plan.Command{Do: "switch", To: "b"}); d.Act || d.Reason != DataElsewhere {
		t.Errorf("%+v", d)
	}
	if d := Permit(bank, f, limits, plan.Command{Do: "switch", To: "a"}); !d.Act || d.Kind != plan.First {
		t.Errorf("%+v", d)
	}
}

func TestPermit(t *testing.T) {
	for _, tc := range []struct {
		name string
		cmd  plan.Command
		with func(*Facts)
		want Reason
		kind plan.Kind
	}{
		{"planned, both sites well", plan.Command{To: "b"}, func(f *Facts) { f.Sites["a"] = Votes{State: health.Up} }, Asked, plan.Switchover},
		{"the active site is down", plan.Command{}, func(*Facts) {}, Asked, plan.Failover},
		{"in mode advise too", plan.Command{}, func(f *Facts) { f.Mode = Advise }, Asked, plan.Failover},
		{"maintenance does not stop an operator", plan.Command{}, func(f *Facts) { f.Maintenance = &cluster.Maintenance{} }, Asked, plan.Failover},
		{"a blip does not stop a planned switch: the recheck waits for it", plan.Command{}, func(f *Facts) { f.Sites["a"] = Votes{State: health.Suspect} }, Asked, plan.Switchover},
		{"force does not skip what was read from the target", plan.Command{Force: true, AcceptLoss: true, Reason: "x"}, func(f *Facts) {
			f.Sites["b"] = Votes{State: health.Down}
			f.Targets["b"] = Ready{Known: true, Blockers: []Blocker{{Code: "UNREACHABLE"}}}
		}, TargetNotReady, ""},
		{"already there", plan.Command{To: "a"}, func(*Facts) {}, AlreadyThere, ""},
		{"no such site", plan.Command{To: "z"}, func(*Facts) {}, UnknownSite, ""},
		{"first start", plan.Command{To: "a"}, func(f *Facts) { f.Assignment = cluster.Assignment{} }, Asked, plan.First},
		{"first start without a name", plan.Command{}, func(f *Facts) { f.Assignment = cluster.Assignment{} }, UnknownSite, ""},
		{"observers disagree", plan.Command{}, func(f *Facts) { f.Sites["a"] = Votes{State: health.Unknown} }, SourceUnhealthy, ""},
		{"force skips the quorum", plan.Command{Force: true, Reason: "x"}, func(f *Facts) { f.Sites["a"] = Votes{State: health.Unknown} }, Asked, plan.Failover},
		{"force needs a reason", plan.Command{Force: true}, func(*Facts) {}, NeedsReason, ""},
		{"force does not skip the RPO policy", plan.Command{Force: true, Reason: "x"}, func(f *Facts) { f.Relaxed = []cluster.ShardName{"s1"} }, SyncRelaxed, ""},
		{"accept-loss does", plan.Command{Force: true, AcceptLoss: true, Reason: "x"}, func(f *Facts) { f.Relaxed = []cluster.ShardName{"s1"} }, Asked, plan.Failover},
		{"nothing skips a stopped applier", plan.Command{Force: true, AcceptLoss: true, Reason: "x"}, func(f *Facts) {
			f.Targets["b"] = Ready{Known: true, Blockers: []Blocker{{Code: "APPLIER_STOPPED"}}}
		}, TargetNotReady, ""},
		{"release", plan.Command{Do: "release"}, func(*Facts) {}, Asked, plan.GiveUp},
		{"release of nothing", plan.Command{Do: "release"}, func(f *Facts) { f.Assignment.Site = "" }, NobodyServes, ""},
		{"a switch runs", plan.Command{}, func(f *Facts) { f.Running = "s9" }, SwitchRunning, ""},
		{"etcd is silent", plan.Command{}, func(f *Facts) { f.StoreAge = time.Hour }, StoreStale, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := down()
			tc.with(&f)
			d := Permit(bank, f, limits, tc.cmd)
			if d.Reason != tc.want || d.Kind != tc.kind && d.Act {
				t.Fatalf("%s %s (%s), want %s %s", d.Reason, d.Kind, d.Text, tc.want, tc.kind)
			}
			if d.Act != (tc.want == Asked) {
				t.Errorf("act is %t with %s", d.Act, d.Reason)
			}
		})
	}
}

func TestTextsNameTheMending(t *testing.T) {
	f := down()
	f.Relaxed = []cluster.ShardName{"s1"}
	if d := Decide(bank, f, limits, now); !strings.Contains(d.Text, "--accept-loss") {
		t.Errorf("no way out in %q", d.Text)
	}
}
