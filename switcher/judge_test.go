package switcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// well is every instance of the bank while a serves and b replicates.
func well() []Seen {
	var out []Seen
	for _, s := range bank.Sites {
		for i, in := range s.Instances {
			x := Seen{Instance: Instance{Site: s.Name, Shard: in.Shard, Addr: in.Addr.String(), Role: "writable"}, SourceOn: true, Clients: 1, LosslessSet: true}
			if s.Name == "b" {
				x.Role, x.ReadOnly, x.SourceOn, x.Clients = "replica", true, false, 0
				x.Replicates, x.Source, x.IORunning, x.SQLRunning = true, bank.Sites[0].Instances[i].Addr.String(), "Yes", "Yes"
			}
			out = append(out, x)
		}
	}
	return out
}

func TestJudge(t *testing.T) {
	const as1, bs1 = 0, 2 // indexes in well
	armed := map[cluster.ShardName]cluster.SyncState{"s1": {State: cluster.SyncArmed}, "s2": {State: cluster.SyncArmed}}
	degraded := map[cluster.ShardName]cluster.SyncState{"s1": {State: cluster.SyncDegraded}, "s2": {State: cluster.SyncArmed}}
	for name, tc := range map[string]struct {
		change   func(s []Seen)
		sync     map[cluster.ShardName]cluster.SyncState
		blockers []string // of b
		mendB    string   // a word of b's rejoin reasons; "": none
		mendA    string   // of a's
		alone    []cluster.ShardName
		alarm    string
		rpo      string
	}{
		"all is well":               {},
		"standby is gone":           {change: func(s []Seen) { s[bs1].Err = "refused" }, blockers: []string{"UNREACHABLE"}, alone: []cluster.ShardName{"s1"}},
		"standby is writable":       {change: func(s []Seen) { s[bs1].ReadOnly = false }, blockers: []string{"STANDBY_WRITABLE"}, mendB: "writable", alarm: "b/s1 is writable although"},
		"standby follows nobody":    {change: func(s []Seen) { s[bs1].Replicates, s[bs1].Source = false, "" }, blockers: []string{"NOT_REPLICATING"}, mendB: "does not replicate"},
		"standby follows a third":   {change: func(s []Seen) { s[bs1].Source = "10.9.9.9:3306" }, blockers: []string{"NOT_REPLICATING"}, mendB: "does not replicate"},
		"applier stopped":           {change: func(s []Seen) { s[bs1].SQLRunning, s[bs1].SQLError = "No", "1062" }, blockers: []string{"APPLIER_STOPPED"}, mendB: "applier"},
		"standby wrote by itself":   {change: func(s []Seen) { s[bs1].Errant = "0-7-3" }, blockers: []string{"ERRANT"}, alarm: "b/s1 has errant transactions 0-7-3"},
		"receiver stopped":          {change: func(s []Seen) { s[bs1].IORunning = "No" }, mendB: "receiver"},
		"receiver connects":         {change: func(s []Seen) { s[bs1].IORunning = "Connecting" }},
		"semi-sync is recorded off": {sync: degraded, mendB: "semi-sync of s1", rpo: "s1"},
		"semi-sync was never on":    {sync: map[cluster.ShardName]cluster.SyncState{}, mendB: "semi-sync of s1", rpo: "s1"},
		"source half is off":        {change: func(s []Seen) { s[as1].SourceOn = false }, mendB: "semi-sync of s1"},
		"source waits alone":        {change: func(s []Seen) { s[as1].Clients = 0 }, alone: []cluster.ShardName{"s1"}},
		"active is read-only":       {change: func(s []Seen) { s[as1].ReadOnly = true }, mendA: "s1 of the active site is read-only"},
		"active is gone": {change: func(s []Seen) {
			s[as1] = Seen{Instance: Instance{Site: "a", Shard: "s1", Addr: s[as1].Addr, Err: "refused"}}
			s[bs1].IORunning = "Connecting"
		}},
		"active is gone and the standby is broken": {change: func(s []Seen) {
			s[as1] = Seen{Instance: Instance{Site: "a", Shard: "s1", Addr: s[as1].Addr, Err: "refused"}}
			s[bs1].SQLRunning = "No"
		}, blockers: []string{"APPLIER_STOPPED"}}, // without a source there is nothing to rejoin to
	} {
		t.Run(name, func(t *testing.T) {
			seen := well()
			if tc.change != nil {
				tc.change(seen)
			}
			if tc.sync == nil {
				tc.sync = armed
			}
			at := time.Unix(1000, 0)
			r := Judge(bank, cluster.Assignment{Epoch: 7, Site: "a", Phase: cluster.Serving, Shards: map[cluster.ShardName]cluster.SiteName{"s1": "a", "s2": "a"}}, tc.sync, seen, at)
			if r.Epoch != 7 || r.Active != "a" || !r.At.Equal(at) || len(r.Instances) != 4 {
				t.Errorf("head of %+v", r)
			}
			var codes []string
			for _, b := range r.Sites["b"].Blockers {
				codes = append(codes, b.Code)
				if b.Shard != "s1" || b.Text == "" || b.Loss {
					t.Errorf("blocker %+v", b)
				}
			}
			if !slices.Equal(codes, tc.blockers) {
				t.Errorf("blockers of b are %v, want %v", codes, tc.blockers)
			}
			if len(r.Sites["a"].Blockers) > 0 {
				t.Errorf("blockers of the active site: %+v", r.Sites["a"].Blockers)
			}
			says(t, "rejoin of b", r.Sites["b"].Rejoin, tc.mendB)
			says(t, "repair of a", r.Sites["a"].Rejoin, tc.mendA)
			says(t, "alarms", r.Alarms, tc.alarm)
			if got := slices.Concat(r.Sites["a"].Alone, r.Sites["a"].Unreached); !slices.Equal(got, tc.alone) {
				t.Errorf("alone are %v, want %v", r.Sites["a"].Alone, tc.alone)
			}
			if rpo := r.Sites["b"].RPO; tc.rpo == "" && rpo != "0" || !strings.Contains(rpo, tc.rpo) {
				t.Errorf("rpo is %q", rpo)
			}
		})
	}
}

func says(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 || want != "" && !strings.Contains(strings.Join(got, "\n"), want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// Before the first start nobody's instances are anybody's: all are standbys of nothing.
func TestJudgeBeforeTheFirstStart(t *testing.T) {
	r := Judge(bank, cluster.Assignment{}, nil, well(), time.Unix(1, 0))
	for name, s := range r.Sites {
		if len(s.Rejoin)+len(s.Alone) > 0 {
			t.Errorf("%s is to be mended before anybody serves: %+v", name, s)
		}
	}
}

// An instance that was not read at all (a new one in the configuration) blocks: silence is no health.
func TestJudgeUnreadInstance(t *testing.T) {
	r := Judge(bank, cluster.Assignment{Epoch: 1, Site: "a"}, nil, well()[:3], time.Unix(1, 0))
	if len(r.Sites["b"].Blockers) == 0 {
		t.Error("an instance that nobody has read does not block")
	}
}
