package switcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

func advising(c *Config) { c.Mode = policy.Advise }

// serving is a world in which a serves under epoch 1 and semi-sync is armed.
func (w *world) serving() {
	w.t.Helper()
	ops := []dcs.Op{dcs.Doc(w.keys.Assignment(), cluster.Assignment{
		Epoch: 1, Site: "a", Phase: cluster.Serving, Release: &cluster.Release{Epoch: 1, None: true},
		Shards: map[cluster.ShardName]cluster.SiteName{"s1": "a", "s2": "a"},
	})}
	for _, shard := range bank.Shards {
		ops = append(ops, dcs.Doc(w.keys.Sync(shard), cluster.SyncState{State: cluster.SyncArmed}))
	}
	w.do(ops...)
}

// lead starts a controller on the node and waits until it leads and knows who is ready.
func (w *world) lead(node cluster.NodeName, change ...func(*Config)) *controller {
	w.t.Helper()
	c := w.start(node, change...)
	w.wait("readiness of "+string(node), func(st dcs.State) bool {
		return st.Term.Value.Node == node && strings.Contains(string(st.Readiness.Value), `"controller":"`+string(node)+`"`)
	})
	w.pass(300 * time.Millisecond)
	return c
}

func (w *world) do(ops ...dcs.Op) int64 {
	w.t.Helper()
	r, err := w.ops.Do(w.t.Context(), "do", nil, ops...)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Revision
}

func (w *world) down(s cluster.SiteName) { w.set(func() { w.seen[s] = health.Down }) }

func (w *world) state() dcs.State {
	w.t.Helper()
	st, err := w.ops.Read(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

// pass lets virtual time pass.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// wait lets virtual time pass, a minute at most, until cond holds.
func (w *world) wait(what string, cond func(dcs.State) bool) dcs.State {
	w.t.Helper()
	for range 2400 {
		synctest.Wait()
		if st := w.state(); cond(st) {
			return st
		}
		<-time.After(25 * time.Millisecond)
	}
	st := w.state()
	w.t.Fatalf("never: %s; term %+v, assignment %+v, switches:\n%s", what, st.Term.Value, st.Assignment.Value, told(st))
	return st
}

// ended waits for the end of a switch.
func (w *world) ended(id string) plan.Summary {
	w.t.Helper()
	return w.wait("end of "+id, func(st dcs.State) bool { return st.Switches[id].Summary.Mod != 0 }).Switches[id].Summary.Value
}

// told is every switch as its journal tells it.
func told(st dcs.State) string {
	var b strings.Builder
	for _, s := range Summaries(st.Switches) {
		fmt.Fprintf(&b, "%s %s %s→%s %s %s\n%s", s.ID, s.Kind, s.From, s.To, s.Outcome, s.Why, lines(s.Journal))
	}
	return b.String()
}

func lines(log []plan.Entry) string {
	var b strings.Builder
	for _, e := range log {
		fmt.Fprintf(&b, "  %s %s term %d by %s %s %v\n", e.Step, e.Phase, e.Term, e.Node, e.Err, e.Facts)
	}
	return b.String()
}

// phases are the versions of the assignment, in short: "serving(a) switching(a)".
func (w *world) phases() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, c := range w.changes {
		out = append(out, fmt.Sprintf("%s(%s)", c.Phase, c.Site))
	}
	return strings.Join(out, " ")
}

// at is when the n-th version of the assignment (from 0) was written.
func (w *world) at(n int) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n >= len(w.changes) {
		w.t.Fatalf("the assignment has %d versions only", len(w.changes))
	}
	return w.changes[n].at
}

// requests are the steps that executors were asked for, one string each request.
func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, r := range w.asked {
		var steps []string
		for _, s := range r.Steps {
			steps = append(steps, string(s))
		}
		out = append(out, strings.Join(steps, " "))
	}
	return out
}

// command leaves an operator's word, and returns its id.
func (w *world) command(c plan.Command) string {
	w.t.Helper()
	if c.Do == "" {
		c.Do = "switch"
	}
	if c.At.IsZero() {
		c.At = time.Now()
	}
	c.ID, c.By = fmt.Sprintf("c%d", w.mem.Revision()), "op@desk"
	w.do(dcs.Doc(w.keys.Command(), c))
	return c.ID
}

// reply waits for the answer to a command.
func (w *world) reply(id string) plan.Reply {
	w.t.Helper()
	return w.wait("reply to "+id, func(st dcs.State) bool { return st.Reply.Value.Command == id }).Reply.Value
}

// entry is the last entry of a step.
func entry(log []plan.Entry, s plan.StepName) plan.Entry {
	var out plan.Entry
	for _, e := range log {
		if e.Step == s {
			out = e
		}
	}
	return out
}

// keysOf are the keys that a transaction puts, without the cluster's prefix.
func keysOf(k dcs.Keys, ops []dcs.Op) map[string][]byte {
	out := map[string][]byte{}
	for _, op := range ops {
		if op.Kind == dcs.Put {
			out[strings.TrimPrefix(op.Key, k.Prefix())] = op.Value
		}
	}
	return out
}

// one says whether exactly one site serves, that it is the one wanted, and that nothing is left over.
func (w *world) one(want cluster.SiteName) {
	w.t.Helper()
	st := w.state()
	if a := st.Assignment.Value; !a.Serves(want) {
		w.t.Errorf("in the end %s(%s), want %s serving\n%s", a.Phase, a.Site, want, told(st))
	}
	for _, shard := range bank.Shards {
		if got := st.Assignment.Value.Shards[shard]; got != want {
			w.t.Errorf("in the end %s is at %s, want %s", shard, got, want)
		}
	}
	for id, d := range st.Switches {
		if d.Summary.Mod == 0 || d.Plan.Mod != 0 || len(d.Requests)+len(d.Answers) > 0 {
			w.t.Errorf("switch %s is left half: %s", id, slices.Collect(maps.Keys(d.Requests)))
		}
	}
}
