package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/plan"
)

var undo = []plan.StepName{plan.UndoTarget, plan.UndoSource}

func refuses(sites ...string) func(context.Context, string, string) error {
	return func(_ context.Context, name, what string) error {
		if what == "open" && slices.Contains(sites, name) {
			return errors.New("connection refused")
		}
		return nil
	}
}

func TestUndoSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		kind   plan.Kind
		gone   []string
		steps  []plan.StepName
		want   []string // must be done
		never  []string
		phases string
		fact   string // "step fact"
	}{
		"all answer": {
			kind: plan.Switchover, steps: undo, want: []string{"b/s1 demote", "b/s2 demote", "a/s1 restore 8 a", "a/s2 restore 8 a"},
			never: []string{"a/s1 relax"}, phases: "undo-target:done undo-source:done",
		},
		"the target is gone: its source must not wait for it": {
			kind: plan.Switchover, steps: undo, gone: []string{"b/s1"}, want: []string{"b/s2 demote", "a/s1 relax", "a/s1 restore 8 a"},
			never: []string{"a/s2 relax"}, phases: "undo-target:done undo-source:done", fact: "undo-source s1.semi_sync",
		},
		"the target is gone, and only the second step is left": {
			kind: plan.Switchover, steps: undo[1:], gone: []string{"b/s1"}, want: []string{"a/s1 relax", "a/s1 restore 8 a", "a/s2 restore 8 a"},
			phases: "undo-source:done", fact: "undo-source s1.semi_sync",
		},
		"the old one is gone": {
			kind: plan.Failover, steps: undo, gone: []string{"a/s1"}, want: []string{"b/s1 demote", "a/s2 restore 8 a"},
			phases: "undo-target:done undo-source:done", fact: "undo-source s1.left",
		},
		"the old one is gone, and only the second step is left": {
			kind: plan.Switchover, steps: undo[1:], gone: []string{"a/s1"}, want: []string{"a/s2 restore 8 a"},
			phases: "undo-source:done", fact: "undo-source s1.left",
		},
		"of a first start": {
			kind: plan.First, steps: undo, want: []string{"b/s1 demote"}, never: []string{"a/s1 restore 8 a"}, phases: "undo-target:done undo-source:done",
		},
	} {
		t.Run(name, func(t *testing.T) {
			benched(t, func(b *bench) {
				b.do = refuses(tc.gone...)
				b.request("r1", tc.steps, func(r *plan.Request) {
					r.Kind = tc.kind
					if tc.kind == plan.First {
						r.From = ""
					}
				})
				a := b.answer("r1")
				if got := phasesOf(a); got != tc.phases {
					t.Fatalf("answer %s: %+v", got, a)
				}
				log := b.happened()
				for _, s := range tc.want {
					if !slices.Contains(log, s) {
						t.Errorf("missing %q in %q", s, log)
					}
				}
				for _, s := range tc.never {
					if slices.Contains(log, s) {
						t.Errorf("did %q: %q", s, log)
					}
				}
				if step, fact, ok := strings.Cut(tc.fact, " "); ok {
					i := slices.IndexFunc(a.Entries, func(e plan.Entry) bool { return string(e.Step) == step })
					if a.Entries[i].Facts[fact] == "" {
						t.Errorf("%s is not told: %+v", tc.fact, a.Entries[i])
					}
				}
			})
		})
	}
}

// Every mending asks the instances that it needs, and tells what it did.
func TestMendingSteps(t *testing.T) {
	for _, tc := range []struct {
		kind plan.Kind
		step plan.StepName
		to   cluster.SiteName
		want []string
	}{
		{plan.Rejoin, plan.RejoinStep, "b", []string{"b/s2 rejoin 10.0.97.2:3306", "a/s2 arm", "b/s1 rejoin 10.0.97.1:3306", "a/s1 arm"}},
		{plan.Repair, plan.RepairStep, "a", []string{"a/s2 restore 8 a", "a/s1 restore 8 a"}},
		{plan.Degrade, plan.DegradeStep, "a", []string{"a/s2 relax", "a/s1 relax"}},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			for _, gone := range []string{"", "b/s1", "a/s1"} {
				benched(t, func(b *bench) {
					b.do = refuses(gone)
					b.request("r1", []plan.StepName{tc.step}, func(r *plan.Request) { r.Kind, r.From, r.To = tc.kind, "a", tc.to })
					a := b.answer("r1")
					log := b.happened()
					needs := gone == "" || tc.kind != plan.Rejoin && strings.HasPrefix(gone, "b")
					if (a.Entries[0].Phase == plan.Done) != needs {
						t.Errorf("%q gone: %+v, did %q", gone, a, log)
					}
					for _, want := range tc.want {
						spared := needs || !strings.Contains(want, "s1") // a dead shard keeps no other from being mended
						if slices.Contains(log, want) != spared {
							t.Errorf("%q gone: %q done: %t, did %q", gone, want, !spared, log)
						}
					}
					if on := a.Entries[0].Facts["s1.semi_sync"] == "on"; tc.kind == plan.Rejoin && (on != needs || a.Entries[0].Facts["s2.semi_sync"] != "on" || a.Entries[0].Facts["s2.gtid"] != "x") {
						t.Errorf("facts %v", a.Entries[0].Facts)
					}
				})
			}
		})
	}
}
