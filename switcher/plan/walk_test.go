package plan

import (
	"fmt"
	"strings"
	"testing"
)

// The walk visits every journal that a plan can have: each step that a move starts is done, skipped (where its executor may),
// failed, or its controller crashes before it knows; at most two crashes and two failures a path, so that the walk ends.
type walker struct {
	t     *testing.T
	plan  Plan
	paths int
}

func (w *walker) walk(log []Entry, term int64, running []Step, crashes, fails int) {
	m := Next(w.plan, log, term)
	w.check(log, m)
	switch m.Do {
	case End:
		w.paths++
		w.checkEnd(log, m)
		return
	case Run:
		for _, s := range m.Steps {
			log = append(log[:len(log):len(log)], Entry{Step: s.Name, Phase: Started, Term: term})
			running = append(running[:len(running):len(running)], s)
		}
	case Await:
		if len(running) == 0 {
			w.t.Fatalf("waits for nothing after\n%s", script(log))
		}
	}
	if crashes > 0 { // a new term knows only the journal: nothing runs for it
		w.walk(log, term+1, nil, crashes-1, fails)
	}
	for i, s := range running {
		if s.Actor == Executor && i > 0 && running[i-1].Actor == Executor {
			continue // the executor runs its steps in order
		}
		rest := append(append([]Step{}, running[:i]...), running[i+1:]...)
		w.walk(with(log, s, Done, term), term, rest, crashes, fails)
		if s.Name == FenceWrites {
			w.walk(with(log, s, Skipped, term), term, rest, crashes, fails)
		}
		if fails > 0 {
			failed := with(log, s, Failed, term)
			if s.Actor == Executor { // its later mates never run, and its answer says so
				for _, mate := range rest {
					if mate.Actor == Executor {
						failed = with(failed, mate, Failed, term)
					}
				}
				rest = dropExecutor(rest)
			}
			w.walk(failed, term, rest, crashes, fails-1)
		}
	}
}

func dropExecutor(steps []Step) []Step {
	var out []Step
	for _, s := range steps {
		if s.Actor != Executor {
			out = append(out, s)
		}
	}
	return out
}

func with(log []Entry, s Step, ph Phase, term int64) []Entry {
	return append(log[:len(log):len(log)], Entry{Step: s.Name, Phase: ph, Term: term, Err: "test"})
}

func script(log []Entry) string {
	var b strings.Builder
	for _, e := range log {
		fmt.Fprintf(&b, "%s %s (term %d)\n", e.Step, e.Phase, e.Term)
	}
	return b.String()
}

func (w *walker) check(log []Entry, m Move) {
	st := fold(log)
	began := func(n StepName) bool { return st[n].phase != "" }
	for _, s := range m.Steps {
		must := func(ok bool, rule string) {
			if !ok {
				w.t.Fatalf("%s: starts %s after\n%s", rule, s.Name, script(log))
			}
		}
		switch s.Name {
		case Commit:
			if w.plan.Kind != First {
				must(st[Release].finished(), "never commit before release")
			}
			if w.plan.Kind != GiveUp {
				must(st[Promote].finished(), "never commit before promote")
			}
			must(!began(UndoMark), "never commit once an undo began")
		case Bind:
			must(st[Commit].finished(), "never bind before commit")
		case Promote:
			if w.plan.Kind != First {
				must(st[Cut].finished() || inBatch(m, Cut), "never promote before cut")
			}
		case Release, FenceWrites, Cut, CatchUp:
			must(st[Fence].finished(), "nothing before the fence")
			must(!began(UndoMark), "nothing of the plan once an undo began")
		case UndoMark:
			must(!st[Commit].finished(), "nothing is undone past the commit")
		case UndoTarget, UndoSource, UndoServe:
			must(st[UndoMark].finished(), "undo begins with its own phase")
		}
	}
}

func inBatch(m Move, n StepName) bool {
	for _, s := range m.Steps {
		if s.Name == n {
			return true
		}
	}
	return false
}

func (w *walker) checkEnd(log []Entry, m Move) {
	st := fold(log)
	switch m.Outcome {
	case Completed:
		for _, s := range w.plan.Table() {
			if !st[s.Name].finished() {
				w.t.Fatalf("completed without %s:\n%s", s.Name, script(log))
			}
		}
	case UndoneAll:
		if !st[UndoServe].finished() {
			w.t.Fatalf("undone, and nobody serves:\n%s", script(log))
		}
	case Aborted:
		if touched(st) {
			w.t.Fatalf("aborted past the fence: nobody serves:\n%s", script(log))
		}
	default:
		w.t.Fatalf("ends %s:\n%s", m.Outcome, script(log))
	}
}

func TestNextWalkedExhaustively(t *testing.T) {
	for _, kind := range []Kind{First, Failover, Switchover, GiveUp, Rejoin, Repair, Degrade} {
		w := &walker{t: t, plan: Plan{ID: "1", Kind: kind, From: "a", To: "b"}}
		w.walk(nil, 1, nil, 2, 2)
		t.Logf("%s: %d paths", kind, w.paths)
		if w.paths < 3 {
			t.Errorf("%s: only %d paths walked", kind, w.paths)
		}
	}
}

func TestStuckPastTheCommitCallsAPerson(t *testing.T) {
	p := Plan{Kind: Failover, From: "a", To: "b"}
	var log []Entry
	for _, s := range p.Table() {
		if s.Name != Verify {
			log = with(log, s, Done, 1)
		}
	}
	verify := p.Table()[len(p.Table())-1]
	for range maxTries {
		if m := Next(p, log, 1); m.Do != Run || m.Steps[0].Name != Verify {
			t.Fatalf("verify is not tried again: %+v", m)
		}
		log = with(log, verify, Failed, 1)
	}
	if m := Next(p, log, 1); m.Do != End || m.Outcome != Stuck {
		t.Fatalf("after %d tries: %+v", maxTries, m)
	}
}

func TestExecutorStepsTravelTogether(t *testing.T) {
	p := Plan{Kind: Failover, From: "a", To: "b"}
	log := with(with(nil, Step{Name: Recheck}, Done, 1), Step{Name: Fence}, Done, 1)
	var names []string
	for _, s := range Next(p, log, 1).Steps {
		names = append(names, string(s.Name))
	}
	if got, want := strings.Join(names, " "), "release fence-writes cut catch-up promote"; got != want {
		t.Fatalf("after the fence: %q, want %q", got, want)
	}
}

func TestDueIsWhatIsWaitedFor(t *testing.T) {
	p := Plan{Kind: Failover, From: "a", To: "b"}
	var log []Entry
	for _, tc := range []struct {
		step  StepName
		phase Phase
		want  string
	}{
		{Recheck, Started, "recheck"},
		{Recheck, Done, "fence"},
		{Fence, Done, "release fence-writes"},
		{FenceWrites, Done, "release cut"},
		{Cut, Skipped, "release catch-up"},
		{CatchUp, Done, "release promote"},
		{Promote, Done, "release"},
		{Release, Failed, "release"},
		{UndoMark, Done, "undo-target"},
		{UndoTarget, Done, "undo-source"},
		{UndoSource, Done, "undo-serve"},
	} {
		log = with(log, Step{Name: tc.step}, tc.phase, 1)
		var names []string
		for _, s := range Due(p, log) {
			names = append(names, string(s))
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("after %s %s: %q, want %q", tc.step, tc.phase, got, tc.want)
		}
	}
}

// A site that lets no undo through does not keep the other from serving; a step that was never reached has not failed.
func TestUndoGoesOnWithoutASite(t *testing.T) {
	p := Plan{Kind: Switchover, From: "a", To: "b"}
	log := with(with(with(nil, Step{Name: Fence}, Done, 1), Step{Name: Promote}, Failed, 1), Step{Name: UndoMark}, Done, 1)
	target, source := Step{Name: UndoTarget}, Step{Name: UndoSource}
	for range leftAfter {
		if m := Next(p, log, 1); m.Do != Run || len(m.Steps) != 2 {
			t.Fatalf("tries %+v", m)
		}
		log = with(log, target, Failed, 1)
		log = append(log, Entry{Step: UndoSource, Phase: Failed, Term: 1, Err: NotRun})
	}
	if m := Next(p, log, 1); m.Do != Run || len(m.Steps) != 1 || m.Steps[0].Name != UndoSource {
		t.Fatalf("with a target that fails: %+v, want the source alone", m)
	}
	for range leftAfter {
		log = with(log, source, Failed, 1)
	}
	if m := Next(p, log, 1); m.Do != Run || m.Steps[0].Name != UndoServe {
		t.Fatalf("with both failing: %+v, want the old site to serve", m)
	}
}
