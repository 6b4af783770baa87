package plan

// Actor says who carries a step out.
type Actor uint8

// The actors.
const (
	Controller Actor = iota // whoever holds the lock: transactions, and looking
	Executor                // the node that runs the sites' MySQL steps: one request with all shards, one answer
	OldGuard                // the guard of the old site, on sight of the fence; or time, when it does not answer
	NewGuard                // the guard of the new site, on sight of the commit
	Observers               // every node, on sight of the journal: a quorum of them must see it
)

// OnFail says what a failed step leads to.
type OnFail uint8

// What a failure leads to. Past the commit nothing is undone: Retry, and in the end a person.
const (
	Abort OnFail = iota // nothing was changed: end the plan
	Undo                // take back what was done
	Retry               // do it again
)

// Step is one line of a plan's table.
type Step struct {
	Name   StepName
	Actor  Actor
	After  []StepName // all of them must be done or skipped
	OnFail OnFail
}

// The tables of PROTOCOL 5. Release runs beside the data steps, and nothing but its evidence lets the commit start: a table
// without that dependency is the mutant "commit before release". Promote after cut, bind after commit likewise.
var (
	moveTable = []Step{
		{Recheck, Controller, nil, Abort},
		{Fence, Controller, []StepName{Recheck}, Abort},
		{Release, OldGuard, []StepName{Fence}, Undo},
		{FenceWrites, Executor, []StepName{Fence}, Undo},
		{Cut, Executor, []StepName{FenceWrites}, Undo},
		{CatchUp, Executor, []StepName{Cut}, Undo},
		{Promote, Executor, []StepName{CatchUp}, Undo},
		{Commit, Controller, []StepName{Release, Promote}, Undo},
		{Bind, NewGuard, []StepName{Commit}, Retry},
		{Verify, Observers, []StepName{Bind}, Retry},
	}
	// A planned switch fences writes only when the old VIP has fallen silent: no client is told "read-only" by a site that it still
	// reaches. In a failover both run side by side, for the old guard may never answer.
	plannedTable = []Step{
		{Recheck, Controller, nil, Abort},
		{Fence, Controller, []StepName{Recheck}, Abort},
		{Release, OldGuard, []StepName{Fence}, Undo},
		{FenceWrites, Executor, []StepName{Release}, Undo},
		{Cut, Executor, []StepName{FenceWrites}, Undo},
		{CatchUp, Executor, []StepName{Cut}, Undo},
		{Promote, Executor, []StepName{CatchUp}, Undo},
		{Commit, Controller, []StepName{Promote}, Undo},
		{Bind, NewGuard, []StepName{Commit}, Retry},
		{Verify, Observers, []StepName{Bind}, Retry},
	}
	firstTable = []Step{
		{Recheck, Controller, nil, Abort},
		{Fence, Controller, []StepName{Recheck}, Abort},
		{Promote, Executor, []StepName{Fence}, Undo},
		{Commit, Controller, []StepName{Promote}, Undo},
		{Bind, NewGuard, []StepName{Commit}, Retry},
		{Verify, Observers, []StepName{Bind}, Retry},
	}
	giveUpTable = []Step{
		{Recheck, Controller, nil, Abort},
		{Fence, Controller, []StepName{Recheck}, Abort},
		{Release, OldGuard, []StepName{Fence}, Undo},
		{Commit, Controller, []StepName{Release}, Undo},
	}
	rejoinTable = []Step{
		{RejoinStep, Executor, nil, Abort},
	}
	repairTable = []Step{
		{RepairStep, Executor, nil, Abort},
	}
	degradeTable = []Step{
		{DegradeStep, Executor, nil, Abort},
	}
	undoTable = []Step{
		{UndoMark, Controller, nil, Retry},
		{UndoTarget, Executor, []StepName{UndoMark}, Retry},
		{UndoSource, Executor, []StepName{UndoTarget}, Retry},
		{UndoServe, Controller, []StepName{UndoSource}, Retry},
	}
	// A plan that has touched no MySQL is undone by its assignment alone.
	undoBareTable = []Step{
		{UndoMark, Controller, nil, Retry},
		{UndoServe, Controller, []StepName{UndoMark}, Retry},
	}
)

var tables = map[Kind][]Step{
	First: firstTable, Failover: moveTable, Switchover: plannedTable, GiveUp: giveUpTable,
	Rejoin: rejoinTable, Repair: repairTable, Degrade: degradeTable,
}

// Table returns the steps of the plan's kind, in order.
func (p Plan) Table() []Step { return tables[p.Kind] }

// UndoTable returns the steps that undo the plan, in order.
func (p Plan) UndoTable() []Step {
	if p.Kind == GiveUp {
		return undoBareTable
	}
	return undoTable
}

// Do says what a move is.
type Do uint8

// The moves.
const (
	Run   Do = iota // start Move.Steps
	Await           // steps are under way in this term: wait for their entries
	End             // nothing is left: Move.Outcome
)

// Move is what comes next.
type Move struct {
	Do      Do
	Steps   []Step  // to start now; those of the executor travel as one request, in order
	Outcome Outcome // of End
	Why     string  // of an abort or an undo: the step that failed, and its error
}

// maxTries of a step past the commit: it cannot be undone, so after that many failures a person is called.
const maxTries = 10

// progress of one step as the journal tells it.
type progress struct {
	phase Phase
	term  int64
	err   string
	fails int
}

func fold(log []Entry) map[StepName]progress {
	m := make(map[StepName]progress, len(log))
	for _, e := range log {
		p := progress{e.Phase, e.Term, e.Err, m[e.Step].fails}
		if e.Phase == Failed && e.Err != NotRun {
			p.fails++
		}
		m[e.Step] = p
	}
	return m
}

func (p progress) finished() bool { return p.phase == Done || p.phase == Skipped }

// NotRun is the error of a step whose mate before it in the same request failed. An answer names every step of its request, so that
// none stays started for ever.
const NotRun = "not run: a step before it failed"

// Next folds the journal into the next move for a controller of that term. It is pure, and the only place that knows order, undo
// and resume: a step that an older term started and did not finish is started again, since every step is idempotent and a new
// term may not assume that the old one's request had, or had not, its effect.
func Next(p Plan, log []Entry, term int64) Move {
	state := fold(log)
	if m := state[UndoMark]; m.phase != "" {
		return undo(p, state, term, m.err)
	}
	if state[Commit].finished() {
		return past(p, state, term)
	}
	for _, s := range p.Table() {
		st := state[s.Name]
		if st.phase != Failed {
			continue
		}
		why := string(s.Name) + ": " + st.err
		if s.OnFail == Abort && !touched(state) {
			return Move{Do: End, Outcome: Aborted, Why: why}
		}
		return undo(p, state, term, why)
	}
	return forward(p.Table(), state, term, Completed)
}

// Due are the steps that the plan waits for: all before them is finished, and they are not.
func Due(p Plan, log []Entry) []StepName {
	state, table := fold(log), p.Table()
	if state[UndoMark].phase != "" {
		table = p.UndoTable()
	}
	var due []StepName
	for _, s := range table {
		if !state[s.Name].finished() && ready(s, state, nil) {
			due = append(due, s.Name)
		}
	}
	return due
}

// past the commit there is forward only, until a person is needed.
func past(p Plan, state map[StepName]progress, term int64) Move {
	for _, s := range p.Table() {
		if st := state[s.Name]; st.phase == Failed && st.fails >= maxTries {
			return Move{Do: End, Outcome: Stuck, Why: string(s.Name) + ": " + st.err}
		}
	}
	return forward(p.Table(), state, term, Completed)
}

// touched says whether the fence may have taken effect: from then on an end without an undo would leave nobody serving. A fence
// that is journaled as failed was refused by its compares, so it did not.
func touched(state map[StepName]progress) bool {
	f := state[Fence].phase
	return f != "" && f != Failed
}

// leftAfter so many failures at a site an undo goes on without it. Nobody serves while an undo lasts, and none of its steps is what keeps
// the sites apart: a target has no lease, and an old instance that stays read-only is repaired under the serving assignment.
const leftAfter = 3

func undo(p Plan, state map[StepName]progress, term int64, why string) Move {
	for _, s := range p.UndoTable() {
		if st := state[s.Name]; s.Actor == Executor && st.phase == Failed && st.fails >= leftAfter {
			st.phase = Skipped
			state[s.Name] = st
		}
	}
	m := forward(p.UndoTable(), state, term, UndoneAll)
	m.Why = why
	return m
}

// forward starts every step whose predecessors are finished. Steps of the executor that follow each other travel as one request.
func forward(table []Step, state map[StepName]progress, term int64, end Outcome) Move {
	var start []Step
	batch := make(map[StepName]bool)
	left := false
	for _, s := range table {
		st := state[s.Name]
		if st.finished() {
			continue
		}
		left = true
		if st.phase == Started && st.term == term {
			continue
		}
		if ready(s, state, batch) {
			start = append(start, s)
			batch[s.Name] = s.Actor == Executor
		}
	}
	switch {
	case len(start) > 0:
		return Move{Do: Run, Steps: start}
	case left:
		return Move{Do: Await}
	}
	return Move{Do: End, Outcome: end}
}

// ready says whether all that s waits for is finished. Only a step of the executor may count on a mate that rides before it in the
// same request: the executor runs them in order and stops at the first failure.
func ready(s Step, state map[StepName]progress, batch map[StepName]bool) bool {
	for _, a := range s.After {
		if !state[a].finished() && (s.Actor != Executor || !batch[a]) {
			return false
		}
	}
	return true
}
