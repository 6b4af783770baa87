package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// after is the state in which the assignment serves site b by switch s1, whose journal has these entries.
func after(mod int64, journal ...plan.Entry) dcs.State {
	for i := range journal {
		journal[i].Seq = i + 1
	}
	s := dcs.State{Switches: map[string]dcs.SwitchDocs{"s1": {
		Journal: dcs.Versioned[[]plan.Entry]{Value: journal}, Plan: dcs.Versioned[plan.Plan]{Mod: mod - 2},
	}}}
	s.Assignment.Mod, s.Assignment.Value = mod, cluster.Assignment{Site: "b", Phase: cluster.Serving, Switch: "s1"}
	return s
}

var (
	bound    = plan.Entry{Step: plan.Bind, Phase: plan.Done, Facts: map[string]string{"mac": "02:00"}}
	verify   = plan.Entry{Step: plan.Verify, Phase: plan.Started}
	failed   = plan.Entry{Step: plan.Verify, Phase: plan.Failed}
	verified = plan.Entry{Step: plan.Verify, Phase: plan.Done}
)

// An observer looks when a verify step waits for it, and only then.
func TestAsked(t *testing.T) {
	undoing := after(7, bound, verify)
	undoing.Assignment.Value.Phase = cluster.Undoing
	for name, tt := range map[string]struct {
		state dcs.State
		want  question
	}{
		"nothing":          {dcs.State{}, question{}},
		"not bound yet":    {after(7, plan.Entry{Step: plan.Bind, Phase: plan.Started}), question{}},
		"asked":            {after(7, bound, verify), question{"s1", 2, "b", "02:00", 7, 5}},
		"answered":         {after(7, bound, verify, verified), question{}},
		"given up":         {after(7, bound, verify, failed), question{}},
		"asked again":      {after(7, bound, verify, failed, verify), question{"s1", 4, "b", "02:00", 7, 5}},
		"undone meanwhile": {undoing, question{}},
	} {
		if got := asked(tt.state); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// told keeps what the onlooker writes; the first write is lost.
type told struct {
	keys  dcs.Keys
	lost  bool
	looks []string
}

func (d *told) Do(_ context.Context, _ string, cmps []dcs.Cmp, ops ...dcs.Op) (dcs.Result, error) {
	if !d.lost {
		d.lost = true
		return dcs.Result{}, dcs.ErrUnavailable
	}
	if len(cmps) != 2 || cmps[1].Key != d.keys.Switch("s1", "plan") || cmps[1].Mod != 5 {
		return dcs.Result{}, dcs.ErrCompare
	}
	d.looks = append(d.looks, fmt.Sprintf("if %s is at %d: %s %s", strings.TrimPrefix(cmps[0].Key, d.keys.Prefix()), cmps[0].Mod,
		strings.TrimPrefix(ops[0].Key, d.keys.Prefix()), ops[0].Value[:strings.IndexByte(string(ops[0].Value), ',')]))
	return dcs.Result{}, nil
}

// An observer looks until the service works from where it stands, tells four times a second why it does not, and begins anew when it is
// asked anew; a write that is lost is made again.
func TestOnlooker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &told{keys: dcs.KeysOf("bank")}
		looks, until := 0, 3
		o := &onlooker{
			store: store, keys: store.keys, node: "witness", log: slog.New(slog.DiscardHandler), states: make(chan dcs.State, 1),
			look: func(_ context.Context, site cluster.SiteName, mac string) (map[string]string, error) {
				if looks++; looks%100 <= until {
					return nil, errors.New("not yet")
				}
				return map[string]string{"site": string(site), "mac": mac}, nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- o.Run(ctx) }()
		sees := func(s dcs.State) {
			o.observe(s)
			<-time.After(time.Second)
			synctest.Wait()
		}
		sees(after(7, bound, verify))
		if looks != 4 {
			t.Errorf("looked %d times, want 4", looks)
		}
		sees(after(7, bound, verify)) // nothing new
		sees(after(7, bound, verify, verified))
		looks, until = 0, 99 // never
		sees(after(7, bound, verify, failed, verify))
		sees(after(7, bound, verify, failed, verify, verified))
		before := looks
		sees(after(7, bound, verify, failed, verify, verified))
		if looks != before || before < 50 {
			t.Errorf("looked %d times while asked, and %d times after it", before, looks-before)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{`if assignment is at 7: switch/s1/look/witness {"question":2`}
		for range time.Second / tellAgain {
			want = append(want, `if assignment is at 7: switch/s1/look/witness {"question":4`)
		}
		if got := store.looks[:min(len(want), len(store.looks))]; !slices.Equal(got, want) || len(store.looks) > len(want)+1 {
			t.Errorf("told %q, want %q", store.looks, want)
		}
	})
}
