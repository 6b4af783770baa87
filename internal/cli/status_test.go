package cli

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
	"github.com/baton-ha/baton/switcher/policy"
)

// A reason is said once, and an observer that publishes nothing while we look is called silent, whatever its last report said.
func TestStatusReadsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := dcs.NewMem()
		s := &session{cfg: bank(), store: dcs.NewStore(mem.Client("c"), "bank")}
		s.cfg.Profile = cluster.Steady()
		keys := s.store.Keys
		put := func(ops ...dcs.Op) {
			if _, err := s.store.Do(t.Context(), "put", nil, ops...); err != nil {
				t.Error(err)
			}
		}
		r := switcher.Readiness{At: time.Now(), Epoch: 7, Sites: map[cluster.SiteName]switcher.SiteReady{"b": {
			Blockers: []policy.Blocker{{Code: "APPLIER_STOPPED", Text: "the applier of b/s1 does not run: error 1062"}},
			Rejoin:   []string{"the applier of b/s1 does not run", "semi-sync of s1 is not armed", "the receiver of b/s2 does not run"},
		}}, Votes: map[cluster.SiteName]policy.Votes{"a": {State: health.Up}, "b": {State: health.Up}}}
		report := func(n cluster.NodeName, seq int64) dcs.Op {
			return dcs.Doc(keys.Observer(n), health.Report{Node: n, Seq: seq})
		}
		put(dcs.Doc(keys.Assignment(), cluster.Assignment{Epoch: 7, Site: "a", Phase: cluster.Serving}), dcs.Doc(keys.Readiness(), r),
			dcs.Doc(keys.Holder(), cluster.Holder{Site: "a", Seq: 1}), dcs.Doc(keys.Sync("s2"), cluster.SyncState{State: cluster.SyncArmed}),
			report("mc-a", 1), report("mc-b", 1), report("witness", 1))
		go func() {
			<-time.After(time.Millisecond)
			put(report("mc-a", 2), report("mc-b", 2), dcs.Doc(keys.Holder(), cluster.Holder{Site: "a", Seq: 2}))
		}()
		st, err := s.status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(st.Silent, []cluster.NodeName{"witness"}) {
			t.Errorf("silent: %v", st.Silent)
		}
		want := []string{"b: APPLIER_STOPPED the applier of b/s1 does not run: error 1062", "semi-sync of s1 is not armed", "b: the receiver of b/s2 does not run"}
		if !slices.Equal(st.NotReady, want) {
			t.Errorf("not ready: %q", st.NotReady)
		}
	})
}

// A wrong word under a command that has commands of its own is a wrong word, and no help text with another exit code.
func TestWrongSubcommand(t *testing.T) {
	for _, args := range [][]string{{"config", "validat"}, {"maintenance", "maybe"}, {"maintenance"}} {
		var out, errOut bytes.Buffer
		err := app(&out, &errOut).RunContext(t.Context(), append([]string{"baton"}, args...))
		if code(err) != ExitUsage || out.Len() != 0 {
			t.Errorf("%v: exit %d, %q", args, code(err), out.String())
		}
	}
}
