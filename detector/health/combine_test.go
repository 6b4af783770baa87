package health

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/baton-ha/baton/internal/cluster"
)

var three = Quorum{Nodes: []cluster.NodeName{"mc-a", "mc-b", "witness"}, Need: 2, Fresh: time.Second}

func report(node cluster.NodeName, state State, change ...func(*Received)) Received {
	r := Received{Report: Report{Node: node, Epoch: 7, Nonce: "n1", Verdicts: map[cluster.SiteName]Verdict{"a": {Site: "a", State: state, Reason: "seen by " + string(node)}}}, At: epoch}
	for _, f := range change {
		f(&r)
	}
	return r
}

func TestCombine(t *testing.T) {
	blind := func(r *Received) { r.Report.Blind = "own link" }
	old := func(r *Received) { r.At = epoch.Add(-2 * time.Second) }
	future := func(r *Received) { r.At = epoch.Add(time.Second) }
	otherEpoch := func(r *Received) { r.Report.Epoch = 6 }
	otherNonce := func(r *Received) { r.Report.Nonce = "n0" }
	silent := func(r *Received) { r.Report.Verdicts = nil }
	recheck := three
	recheck.Nonce = "n1"
	atEpoch := three
	atEpoch.Epoch = 7
	tests := []struct {
		name    string
		q       Quorum
		reports []Received
		want    State
		up      int
		down    int
		words   string
	}{
		{"nothing", three, nil, Unknown, 0, 0, "3 of 3 say unknown, 2 are needed: mc-a: no report"},
		{"all up", three, []Received{report("mc-a", Up), report("mc-b", Up), report("witness", Up)}, Up, 3, 0, "3 of 3 say up"},
		{"a majority down", three, []Received{report("mc-a", Up), report("mc-b", Down), report("witness", Down)}, Down, 1, 2, "2 of 3 say down, 2 are needed: mc-b: seen by mc-b; witness: seen by witness"},
		{"one alone", three, []Received{report("mc-a", Down)}, Suspect, 0, 1, "1 of 3 say down, 2 are needed: mc-a: seen by mc-a"},
		{"suspect has not decided", three, []Received{report("mc-a", Suspect), report("mc-b", Suspect), report("witness", Up)}, Suspect, 1, 0, ""},
		{"busy is up", three, []Received{report("mc-a", Busy), report("mc-b", Up)}, Busy, 2, 0, "2 of 3 say up"},
		{"blind", three, []Received{report("mc-a", Down, blind), report("mc-b", Down)}, Suspect, 0, 1, ""},
		{"stale", three, []Received{report("mc-a", Down, old), report("mc-b", Down, old)}, Unknown, 0, 0, "stale: received 2s ago"},
		{"from the future", three, []Received{report("mc-a", Down, future), report("mc-b", Down, future)}, Unknown, 0, 0, "stale"},
		{"stranger", three, []Received{report("x", Down), report("y", Down), report("z", Down)}, Unknown, 0, 0, ""},
		{"twice the same", three, []Received{report("mc-a", Down), report("mc-a", Down)}, Suspect, 0, 1, ""},
		{"the newest counts", three, []Received{report("mc-a", Up), report("mc-a", Down, old), report("mc-b", Up)}, Up, 2, 0, ""},
		{"recheck answered", recheck, []Received{report("mc-a", Down), report("mc-b", Down)}, Down, 0, 2, ""},
		{"recheck not answered", recheck, []Received{report("mc-a", Down, otherNonce), report("mc-b", Down)}, Suspect, 0, 1, ""},
		{"of another epoch", atEpoch, []Received{report("mc-a", Down, otherEpoch), report("mc-b", Down, otherEpoch)}, Unknown, 0, 0, "speaks of epoch 6, not of 7"},
		{"says nothing", three, []Received{report("mc-a", Down, silent)}, Unknown, 0, 0, "says nothing of this site"},
		{"no quorum configured", Quorum{Nodes: three.Nodes, Fresh: time.Second}, []Received{report("mc-a", Down)}, Suspect, 0, 1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Combine(tt.reports, "a", tt.q, epoch)
			if c.State != tt.want || c.Up != tt.up || c.Down != tt.down || c.Up+c.Down+c.Unknown != len(tt.q.Nodes) {
				t.Errorf("combined is %s, %d up, %d down, %d unknown; want %s, %d, %d", c.State, c.Up, c.Down, c.Unknown, tt.want, tt.up, tt.down)
			}
			if !strings.Contains(c.Reason, tt.words) {
				t.Errorf("reason is %q, want %q in it", c.Reason, tt.words)
			}
		})
	}
}

func TestCombineCarriesWhatIsFrozen(t *testing.T) {
	frozen := func(r *Received) {
		v := r.Report.Verdicts["a"]
		v.Frozen = []string{"mysql a/s1 sql: config 1045"}
		r.Report.Verdicts["a"] = v
	}
	c := Combine([]Received{report("mc-a", Up, frozen), report("mc-b", Up, frozen)}, "a", three, epoch)
	if len(c.Frozen) != 1 {
		t.Errorf("frozen is %q, want one line", c.Frozen)
	}
}

// Fewer than the quorum of observers must never make a site down, whatever they and the others send.
func TestMinorityNeverDecides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := []State{Unknown, Up, Busy, Suspect, Down}
		q := three
		q.Nonce = rapid.SampledFrom([]string{"", "n1"}).Draw(t, "nonce")
		var reports []Received
		downs := map[cluster.NodeName]bool{}
		for _, node := range append(q.Nodes, "stranger") {
			if !rapid.Bool().Draw(t, "sent") {
				continue
			}
			r := report(node, rapid.SampledFrom(states).Draw(t, "state"))
			void := rapid.Bool().Draw(t, "void")
			if void {
				r.At = epoch.Add(-time.Hour)
			}
			reports = append(reports, r)
			downs[node] = !void && node != "stranger" && r.Report.Verdicts["a"].State == Down
		}
		n := 0
		for _, d := range downs {
			if d {
				n++
			}
		}
		if c := Combine(reports, "a", q, epoch); (c.State == Down) != (n >= q.Need) {
			t.Fatalf("%d fresh votes for down give %s", n, c.State)
		}
	})
}

func TestReportSurvivesJSON(t *testing.T) {
	want := Report{Node: "mc-a", Seq: 3, Verdicts: map[cluster.SiteName]Verdict{"a": {Site: "a", State: Down, Targets: []TargetState{{State: Down, Last: Sample{Cause: Refused}, Frozen: "x"}}, Frozen: []string{"x"}}}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if ts := got.Verdicts["a"].Targets; len(ts) != 1 || ts[0].Last.Cause != Refused || ts[0].Frozen != "x" {
		t.Errorf("%s came back as %+v", data, got)
	}
}

func TestCauses(t *testing.T) {
	for c := range Cause(len(causes)) {
		var back Cause
		if err := back.UnmarshalText([]byte(c.String())); err != nil || back != c {
			t.Errorf("%d is %q is %d", c, c, back)
		}
	}
	var c Cause
	if err := c.UnmarshalText([]byte("of a newer daemon")); err != nil || c != Self {
		t.Errorf("an unknown cause is %s, want self", c)
	}
	if Cause(200).Class() != ClassIgnored || Cause(200).String() != "invalid" {
		t.Error("a cause out of range must not count")
	}
}
