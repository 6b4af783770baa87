package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

var update = flag.Bool("update", false, "write what is rendered to testdata")

// golden compares with a file of testdata, so that whoever changes what operators read sees all of it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

func bank() config.Config {
	cfg := config.Config{Mode: policy.Automatic, Profile: cluster.Fast()}
	cfg.Cluster = cluster.Cluster{
		Name: "bank", VIP: cluster.VIP{Addr: netip.MustParseAddr("10.77.0.100"), Port: 8066}, Shards: []cluster.ShardName{"s1", "s2"},
		Nodes: []cluster.Node{{Name: "mc-a"}, {Name: "mc-b"}, {Name: "witness"}},
	}
	for i, name := range []cluster.SiteName{"a", "b"} {
		s := cluster.Site{Name: name, Node: "mc-" + cluster.NodeName(name)}
		s.Mycat.SQL = netip.MustParseAddrPort(fmt.Sprintf("10.77.0.1%d:8066", i+1))
		for j, shard := range cfg.Cluster.Shards {
			s.Instances = append(s.Instances, cluster.Instance{Shard: shard, Addr: netip.MustParseAddrPort(fmt.Sprintf("10.77.0.%d%d:3306", i+3, j+1))})
		}
		cfg.Cluster.Sites = append(cfg.Cluster.Sites, s)
	}
	return cfg
}

func well() Status {
	s := Status{
		Cluster: "bank", Ready: true, Renewing: true, Lease: 1500 * time.Millisecond, LeaseLeft: 1234 * time.Millisecond, Term: cluster.Term{N: 4, Node: "witness"},
		Assignment: cluster.Assignment{Epoch: 7, Site: "a", Phase: cluster.Serving},
		Holder:     cluster.Holder{Site: "a", Node: "mc-a", MAC: "02:00:00:00:00:01", Gate: cluster.GateEBPF},
		Observers:  map[cluster.NodeName]health.Report{},
	}
	s.Readiness = switcher.Readiness{
		RTO: 120 * time.Millisecond, Sites: map[cluster.SiteName]switcher.SiteReady{"a": {RPO: "0"}, "b": {RPO: "0"}},
		Decision: policy.Decision{Reason: policy.Healthy, Text: "site a is up: 3 up, 0 down, 0 unknown"},
		Votes:    map[cluster.SiteName]policy.Votes{"a": {State: health.Up, Up: 3}, "b": {State: health.Up, Up: 3}},
		Instances: []switcher.Instance{
			{Site: "a", Shard: "s1", Role: "writable", SemiSync: "on, 1 replicas"},
			{Site: "a", Shard: "s2", Role: "writable", SemiSync: "on, 1 replicas"},
			{Site: "b", Shard: "s1", Role: "replica", Source: "10.77.0.31:3306", Lag: new(1500 * time.Microsecond)},
			{Site: "b", Shard: "s2", Role: "replica", Source: "10.77.0.32:3306", Lag: new(time.Duration(0))},
		},
	}
	for _, n := range bank().Cluster.Nodes {
		r := health.Report{Node: n.Name, Verdicts: map[cluster.SiteName]health.Verdict{}}
		for _, site := range bank().Cluster.Sites {
			v := health.Verdict{State: health.Up, HTrip: 3}
			for _, f := range []health.Factor{health.SQL, health.Heartbeat, health.Port} {
				v.Targets = append(v.Targets, health.TargetState{Target: health.Target{Site: site.Name, Kind: health.Mycat}, Factor: f, Trip: 3})
				for _, shard := range bank().Cluster.Shards {
					v.Targets = append(v.Targets, health.TargetState{Target: health.Target{Site: site.Name, Kind: health.MySQL, Shard: shard}, Factor: f, Trip: 3})
				}
			}
			r.Verdicts[site.Name] = v
		}
		s.Observers[n.Name] = r
	}
	return s
}

func ill() Status {
	s := well()
	s.Ready, s.Renewing = false, false
	s.NotReady = []string{"the holder does not renew its lease", "b: APPLIER_STOPPED the applier of b/s2 does not run: error 1062", "semi-sync of s2 is not armed"}
	s.Maintenance = &cluster.Maintenance{Who: "ann@desk", Until: noon, Reason: "new disks"}
	s.Bad = []string{"/baton/bank/sync/s2: read document: unexpected end of JSON input"}
	s.Readiness.Alarms = []string{"b/s1 is writable although its site does not serve: two writers could diverge"}
	s.Readiness.Instances[3].Err = "timeout: no answer within 600 ms"
	s.Readiness.Votes["a"] = policy.Votes{State: health.Suspect, Up: 1, Down: 1, Unknown: 1}
	s.Readiness.Decision = policy.Decision{Reason: policy.InMaintenance, Text: "maintenance by ann@desk (new disks): nothing is switched automatically"}
	s.Readiness.Instances[2].Lag, s.Readiness.Instances[2].Stopped = nil, "receiver Connecting, applier No"
	s.Silent = []cluster.NodeName{"witness"}
	s.Observers["mc-b"] = health.Report{Node: "mc-b", Blind: "none of its anchors answers"}
	v := s.Observers["mc-a"].Verdicts["a"]
	v.State, v.H = health.Down, 3
	for i := range v.Targets {
		if v.Targets[i].Target.Kind == health.MySQL && v.Targets[i].Target.Shard == "s1" && v.Targets[i].Factor == health.Port {
			v.Targets[i].Fill = 3
		}
	}
	s.Observers["mc-a"].Verdicts["a"] = v
	return s
}

func TestRenderStatus(t *testing.T) {
	nobody := Status{Cluster: "bank", NotReady: []string{"no site serves"}}
	switching := well()
	switching.Assignment = cluster.Assignment{Epoch: 8, Site: "a", Phase: cluster.Switching, To: "b"}
	switching.Ready, switching.NotReady = false, []string{"no site serves"}
	for name, s := range map[string]Status{"status-well": well(), "status-ill": ill(), "status-nobody": nobody, "status-switching": switching} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			renderStatus(&b, bank(), s)
			golden(t, name, b.String())
		})
	}
}

func failover() plan.Summary {
	s := plan.Summary{
		Plan:    plan.Plan{ID: "s12", Kind: plan.Failover, From: "a", To: "b", By: "automatic", Reason: "2 of 3 say down, 2 are needed", At: noon},
		Outcome: plan.Completed, Took: 134567 * time.Microsecond, Outage: 251 * time.Millisecond, Ended: after(140),
		Times: plan.Times{
			LastGood: after(-120), FirstBad: after(-90), Verdict: noon, Lock: after(1), Fenced: after(12), Released: after(20), Promoted: after(70),
			Committed: after(75), Bound: after(100), Verified: after(134), WorksSince: after(134),
		},
	}
	add := func(step plan.StepName, ph plan.Phase, took time.Duration, err string, facts map[string]string) {
		s.Journal = append(s.Journal, plan.Entry{Seq: len(s.Journal) + 1, Step: step, Phase: ph, Took: took, Err: err, Facts: facts})
	}
	add(plan.Recheck, plan.Started, 0, "", nil)
	add(plan.Recheck, plan.Done, 11230*time.Microsecond, "", map[string]string{"votes": "2 of 3 say down"})
	add(plan.Fence, plan.Done, 2*time.Millisecond, "", map[string]string{"epoch": "8"})
	add(plan.Release, plan.Done, 700*time.Microsecond, "", map[string]string{"how": "acknowledged", "unbind_ms": "2.1", "incarnation": "x"})
	add(plan.FenceWrites, plan.Skipped, 50*time.Millisecond, "shard s1: refused\nshard s2: refused", nil)
	add(plan.Bind, plan.Done, 25*time.Millisecond, "", map[string]string{"mac": "02:00:00:00:00:02", "silence_ms": "150", "bind_ms": "0.2"})
	add(plan.Verify, plan.Done, 34*time.Millisecond, "", map[string]string{"arp": "02:00:00:00:00:02", "observers": "mc-b witness", "s1": "written at server 41"})
	return s
}

// history is one switch of every kind and outcome.
func history() []plan.Summary {
	out := []plan.Summary{failover()}
	for i, k := range []plan.Kind{plan.First, plan.Switchover, plan.GiveUp, plan.Rejoin, plan.Repair, plan.Degrade} {
		s := plan.Summary{Plan: plan.Plan{ID: fmt.Sprintf("s%d", i+1), Kind: k, From: "a", To: "b", By: "ann@desk", Reason: "drill", At: noon}, Outcome: plan.Completed, Took: 5 * time.Second, Ended: after(5000)}
		switch k {
		case plan.First:
			s.From = ""
		case plan.GiveUp:
			s.To = ""
		}
		out = append(out, s)
	}
	for i, o := range []plan.Outcome{plan.Running, plan.Aborted, plan.UndoneAll, plan.Stuck} {
		out = append(out, plan.Summary{Plan: plan.Plan{ID: fmt.Sprintf("s%d", i+20), Kind: plan.Switchover, From: "a", To: "b", By: "ann@desk", Reason: "drill", At: noon}, Outcome: o, Why: "promote: disk is full"})
	}
	return out
}

// terminal is a session that prints into a buffer, and the context of a command with or without --json.
func terminal(json bool) (*session, *cli.Context, *bytes.Buffer) {
	var b bytes.Buffer
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.Bool("json", json, "")
	return &session{out: &b, cfg: bank(), store: dcs.NewStore(dcs.NewMem().Client("c"), "bank")}, cli.NewContext(cli.NewApp(), flags, nil), &b
}

func TestRenderHistory(t *testing.T) {
	s, c, b := terminal(false)
	s.list(history())
	golden(t, "history", b.String())
	b.Reset()
	if err := s.one(c, history(), "s12"); err != nil {
		t.Fatal(err)
	}
	golden(t, "history-one", b.String())
	if err := s.one(c, history(), "s99"); code(err) != ExitFailed || !strings.Contains(err.Error(), "s99") {
		t.Errorf("a switch that is not there: %v", err)
	}
	s, c, b = terminal(true)
	if err := s.one(c, history(), "s12"); err != nil || !strings.Contains(b.String(), `"outcome": "completed"`) {
		t.Errorf("%v: %s", err, b.String())
	}
}

// A switch as it happens: no line twice and none left out, also when a long journal loses its oldest ones, and the end says how it ended.
func TestFollow(t *testing.T) {
	s, c, b := terminal(false)
	f := follower{session: s, c: c, cmd: plan.Command{ID: "c1", At: time.Now()}}
	st := dcs.State{Switches: map[string]dcs.SwitchDocs{}}
	look := func() (bool, error) {
		b.Reset()
		return f.show(t.Context(), st)
	}
	if end, err := look(); end || err != nil {
		t.Fatalf("ended before an answer: %v", err)
	}
	st.Reply.Value = plan.Reply{Command: "another", Refused: "x"}
	if end, err := look(); end || err != nil {
		t.Fatalf("took another's answer: %v", err)
	}
	st.Reply.Value = plan.Reply{Command: "c1", Switch: "s12"}
	var docs dcs.SwitchDocs
	log := failover().Journal
	docs.Journal.Value = log[:3]
	st.Switches["s12"] = docs
	if end, err := look(); end || err != nil || strings.Count(b.String(), "\n") != 2 || !strings.Contains(b.String(), "fence") {
		t.Errorf("%v %v: %q", end, err, b.String())
	}
	docs.Journal.Value = log[2:5]
	st.Switches["s12"] = docs
	if end, err := look(); end || err != nil || strings.Count(b.String(), "\n") != 2 || !strings.Contains(b.String(), "fence-writes") {
		t.Errorf("%v %v: %q", end, err, b.String())
	}
	docs.Summary.Mod, docs.Summary.Value = 1, failover()
	st.Switches["s12"] = docs
	if end, err := look(); !end || err != nil || strings.Count(b.String(), "\n") != 3 || !strings.HasSuffix(b.String(), "s12: failed over a→b in 135ms, outage through the VIP about 251ms\n") {
		t.Errorf("%v %v: %q", end, err, b.String())
	}
	docs.Summary.Value.Outcome, docs.Summary.Value.Why = plan.UndoneAll, "promote: disk is full"
	st.Switches["s12"] = docs
	if end, err := look(); !end || code(err) != ExitWarnings || !strings.Contains(b.String(), "was undone: promote: disk is full") {
		t.Errorf("%v %v: %q", end, err, b.String())
	}
}

// Nothing new for a second: the operator reads once what is waited for, and a program reads nothing.
func TestFollowSaysWhatItWaitsFor(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		s, c, b := terminal(asJSON)
		f := follower{session: s, c: c, cmd: plan.Command{ID: "c1", At: time.Now()}, since: noon}
		p := plan.Plan{Kind: plan.Failover}
		log := []plan.Entry{{Seq: 1, Step: plan.Recheck, Phase: plan.Started}}
		f.waiting(p, log, after(999))
		if b.String() != "" {
			t.Errorf("after less than a second: %q", b.String())
		}
		f.waiting(p, log, after(1000))
		f.waiting(p, log, after(3000))
		if n := strings.Count(b.String(), "waits for observers"); n != 1 && !asJSON || n != 0 && asJSON {
			t.Errorf("json %t: said %d times: %q", asJSON, n, b.String())
		}
		for i, s := range []plan.StepName{plan.Recheck, plan.Fence, plan.FenceWrites, plan.Cut, plan.CatchUp, plan.Promote} {
			log = append(log, plan.Entry{Seq: i + 2, Step: s, Phase: plan.Done})
		}
		b.Reset()
		f.waiting(p, log, after(4000))
		if want := "  ... waits for the old VIP's silence: its guard's word, or the end of its lease\n"; (b.String() == want) == asJSON {
			t.Errorf("json %t: %q", asJSON, b.String())
		}
	}
}

func TestFollowAnswers(t *testing.T) {
	refused := plan.Reply{Command: "c1", Refused: "site b is down", Code: "TARGET_DOWN"}
	dry := plan.Reply{Command: "c1", Plan: &plan.Plan{Kind: plan.First, To: "a"}, Steps: []string{"recheck", "fence"}}
	for _, tc := range []struct {
		name  string
		reply plan.Reply
		cmd   plan.Command
		json  bool
		code  int
		err   string
		out   string
	}{
		{"refused", refused, plan.Command{}, false, ExitCritical, "TARGET_DOWN: site b is down", ""},
		{"refused, json", refused, plan.Command{}, true, ExitCritical, "", `"code": "TARGET_DOWN"`},
		{"dry run", dry, plan.Command{DryRun: true}, false, ExitOK, "", "would be a first from nobody to a, in these steps:\n  1. recheck\n  2. fence\n"},
		{"dry run, json", dry, plan.Command{DryRun: true}, true, ExitOK, "", `"kind": "first"`},
		{"dry run, refused", refused, plan.Command{DryRun: true}, false, ExitCritical, "TARGET_DOWN", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c, b := terminal(tc.json)
			tc.cmd.ID, tc.cmd.At = "c1", time.Now()
			f := follower{session: s, c: c, cmd: tc.cmd}
			st := dcs.State{}
			st.Reply.Value = tc.reply
			end, err := f.show(t.Context(), st)
			got := ExitOK
			if err != nil {
				got = code(err)
			}
			if !end || got != tc.code || tc.err != "" && !strings.Contains(err.Error(), tc.err) || !strings.Contains(b.String(), tc.out) {
				t.Errorf("end %t, code %d, %v: %q", end, got, err, b.String())
			}
		})
	}
}

// Nobody takes the command up: it is taken back, so that it surprises nobody later; but never another operator's.
func TestFollowWithdraws(t *testing.T) {
	s, c, _ := terminal(false)
	key := s.store.Keys.Command()
	leave := func(id string) dcs.State {
		t.Helper()
		if _, err := s.store.Do(t.Context(), "leave", nil, dcs.Doc(key, plan.Command{ID: id})); err != nil {
			t.Fatal(err)
		}
		st, err := s.store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	f := follower{session: s, c: c, cmd: plan.Command{ID: "c1", At: time.Now().Add(-noController)}}
	st := leave("c1")
	if end, err := f.show(t.Context(), st); !end || code(err) != ExitNoStore || !strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("%v %v", end, err)
	}
	if st, err := s.store.Read(t.Context()); err != nil || st.Command.Mod != 0 {
		t.Errorf("the command is still there: %v", err)
	}
	st = leave("c1")
	leave("c2")
	var err error
	if end, _ := f.show(t.Context(), st); !end {
		t.Error("waits for ever")
	}
	for range 2 { // by a view of before, and by one that shows it
		if st, err = s.store.Read(t.Context()); err != nil || st.Command.Value.ID != "c2" {
			t.Fatalf("another operator's command was taken back: %+v %v", st.Command.Value, err)
		}
		if end, err := f.show(t.Context(), st); !end || code(err) != ExitFailed {
			t.Errorf("%v %v", end, err)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{
		{errExit{ExitUsage, "x"}, ExitUsage},
		{fmt.Errorf("wrapped: %w", errExit{ExitCritical, "x"}), ExitCritical},
		{fmt.Errorf("read: %w", dcs.ErrUnavailable), ExitNoStore},
		{fmt.Errorf("do: %w", dcs.ErrUnknownOutcome), ExitNoStore},
		{fmt.Errorf("do: %w", dcs.ErrRefused), ExitNoStore}, // an HTTP server on etcd's port, say
		{fmt.Errorf("do: %w", dcs.ErrDenied), ExitNoStore},
		{&config.Error{}, ExitConfig},
		{errors.New("anything"), ExitFailed},
	} {
		if got := code(tc.err); got != tc.want {
			t.Errorf("%v exits with %d, want %d", tc.err, got, tc.want)
		}
	}
}

// Who asks for JSON gets the errors as JSON, too, and the mistakes of a configuration one by one.
func TestErrorsForPrograms(t *testing.T) {
	one, two := &config.Error{File: "b.yaml", Line: 3, Col: 1, Path: "vip", Text: "no VIP"}, &config.Error{File: "b.yaml", Line: 9, Col: 2, Text: "no site"}
	for name, tc := range map[string]struct {
		err  error
		json bool
		want string
	}{
		"for people":          {errors.New("no"), false, "baton: no\n"},
		"for programs":        {fmt.Errorf("read: %w", dcs.ErrUnavailable), true, `{"error":"read: ` + dcs.ErrUnavailable.Error() + `","exit":69}` + "\n"},
		"said already":        {errExit{code: ExitWarnings}, true, ""},
		"one mistake":         {one, true, `{"error":"b.yaml:3:1: no VIP","exit":78,"mistakes":[{"file":"b.yaml","line":3,"col":1,"path":"vip","text":"no VIP"}]}` + "\n"},
		"mistakes for people": {errors.Join(one, two), false, "baton: b.yaml:3:1: no VIP\nb.yaml:9:2: no site\n"},
	} {
		var out bytes.Buffer
		if complain(&out, tc.err, tc.json); out.String() != tc.want {
			t.Errorf("%s: %q, want %q", name, out.String(), tc.want)
		}
	}
	if got := mistakes(fmt.Errorf("load: %w", errors.Join(one, fmt.Errorf("and: %w", two)))); len(got) != 2 || got[0] != one || got[1] != two {
		t.Errorf("mistakes %v", got)
	}
}

// What a script asks of `config validate --json` it finds on stdout, also when the answer is no.
func TestValidateAnswersOnStdout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "baton.yaml")
	if err := os.WriteFile(path, []byte("clusterr: bank\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	err := app(&out, &errOut).RunContext(t.Context(), []string{"baton", "config", "validate", "--json", "-c", path})
	var said struct {
		OK       bool
		Path     string
		Mistakes []config.Error
	}
	if jerr := json.Unmarshal(out.Bytes(), &said); jerr != nil || said.OK || said.Path != path || len(said.Mistakes) == 0 || said.Mistakes[0].Line != 1 {
		t.Errorf("said %s, %v", out.String(), jerr)
	}
	if err == nil || code(err) != ExitConfig || err.Error() != "" {
		t.Errorf("exit %v", err)
	}
}

// Words that are wrong are named, with where to look; nothing is connected to.
func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		argv string
		code int
		text string
	}{
		{"baton nonsense", ExitUsage, `no command "nonsense"`},
		{"baton switch --too b", ExitUsage, "baton switch --help"},
		{"baton switch --accept-loss", ExitUsage, "--accept-loss goes with --force"},
		{"baton maintenance on --for 0s -c x.yaml", ExitUsage, "above zero"},
		{"baton status -c testdata/none.yaml", ExitConfig, "none.yaml"},
		{"baton version", ExitOK, ""},
	} {
		var out, errOut bytes.Buffer
		got, err := ExitOK, app(&out, &errOut).RunContext(t.Context(), strings.Fields(tc.argv))
		if err != nil {
			got = code(err)
		}
		if got != tc.code || err != nil && !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: exit %d: %v", tc.argv, got, err)
		}
	}
}

// A picture of the time before a switch names the roles of then: shown as the present it would call a good end a disaster.
func TestReadinessOfAnEarlierEpoch(t *testing.T) {
	var st dcs.State
	st.Readiness.Mod = 7
	for epoch, want := range map[int64]int{7: 1, 8: 0} {
		st.Assignment.Value.Epoch = epoch
		st.Readiness.Value = []byte(`{"epoch":7,"alarms":["a/s1 is writable"]}`)
		r, err := readiness(st)
		if err != nil || len(r.Alarms) != want {
			t.Errorf("epoch %d: %d alarms, %v", epoch, len(r.Alarms), err)
		}
	}
}
