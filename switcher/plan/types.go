// Package plan holds a switch as data: its steps, what the journal says was done, and what comes next.
//
// It is pure, and the only place that knows order, undo and resume. Crash recovery, dry run, status and history are the same
// journal read differently.
package plan

import (
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// Kind says why a switch is made.
type Kind string

// The kinds of plan.
const (
	First      Kind = "first"      // nobody serves yet
	Failover   Kind = "failover"   // the active site failed
	Switchover Kind = "switchover" // planned, both sites well
	Rejoin     Kind = "rejoin"     // the old site comes back as replica
	GiveUp     Kind = "release"    // the VIP is given up on purpose
	Repair     Kind = "repair"     // an instance of the active site came back read-only
	Degrade    Kind = "degrade"    // the standby of a shard is gone: its source must not wait for it for ever
)

// StepName is the field's name of a step.
type StepName string

// The steps of PROTOCOL 5, in order.
const (
	Recheck     StepName = "recheck"
	Fence       StepName = "fence"
	Release     StepName = "release"
	FenceWrites StepName = "fence-writes"
	Cut         StepName = "cut"
	CatchUp     StepName = "catch-up"
	Promote     StepName = "promote"
	Commit      StepName = "commit"
	Bind        StepName = "bind"
	Verify      StepName = "verify"
	RejoinStep  StepName = "rejoin"
	RepairStep  StepName = "repair"
	DegradeStep StepName = "degrade"
)

// The steps of an undo, in order. An undo has a phase of its own in the assignment, before any site is touched.
const (
	UndoMark   StepName = "undo"        // assignment → undoing
	UndoTarget StepName = "undo-target" // target read-only, its replica runs again, the old source's semi-sync has its clients
	UndoSource StepName = "undo-source" // old instances writable
	UndoServe  StepName = "undo-serve"  // assignment → serving(old)
)

// Mends says whether a plan of that kind moves nothing: it mends one site beside the watch, and a switch preempts it.
func (k Kind) Mends() bool { return k == Rejoin || k == Repair || k == Degrade }

// Plan is one switch. Its ID is never used again, also not after an undo.
type Plan struct {
	ID         string              `json:"id"`
	Kind       Kind                `json:"kind"`
	From       cluster.SiteName    `json:"from,omitempty"`
	To         cluster.SiteName    `json:"to"`
	Shards     []cluster.ShardName `json:"shards"` // in the order of promotion
	Epoch      int64               `json:"epoch"`  // the epoch of its fence
	By         string              `json:"by"`     // "automatic", or the operator: user@host
	Reason     string              `json:"reason"`
	Force      bool                `json:"force,omitempty"`       // skips the observers' quorum, nothing else
	AcceptLoss bool                `json:"accept_loss,omitempty"` // waives evidence of the old side and the RPO policy
	At         time.Time           `json:"at"`
}

// Phase is what happened to a step.
type Phase string

// The phases of a journal entry.
const (
	Started  Phase = "started"
	Done     Phase = "done"
	Skipped  Phase = "skipped" // its budget is spent and the plan goes on without
	Failed   Phase = "failed"
	Undone   Phase = "undone"
	UndoFail Phase = "undo-failed"
)

// Entry is one line of the journal.
type Entry struct {
	Seq   int               `json:"seq"`
	Step  StepName          `json:"step"`
	Phase Phase             `json:"phase"`
	Term  int64             `json:"term"`
	Node  cluster.NodeName  `json:"node"`
	At    time.Time         `json:"at"`
	Took  time.Duration     `json:"took,omitempty"`
	Facts map[string]string `json:"facts,omitempty"` // evidence, by name: "s1.gtid", "revision", "mac"
	Err   string            `json:"err,omitempty"`   // why it failed or was skipped: seen, means, do
}

// Times are the moments that every switch logs (DESIGN 3). A zero time was not seen.
type Times struct {
	LastGood  time.Time `json:"last_good,omitzero"`
	FirstBad  time.Time `json:"first_bad,omitzero"`
	Verdict   time.Time `json:"verdict,omitzero"`
	Lock      time.Time `json:"lock,omitzero"`
	Fenced    time.Time `json:"fenced,omitzero"`
	Released  time.Time `json:"released,omitzero"`
	Promoted  time.Time `json:"promoted,omitzero"`
	Committed time.Time `json:"committed,omitzero"`
	Bound     time.Time `json:"bound,omitzero"`
	Verified  time.Time `json:"verified,omitzero"`
	// The outage as applications saw it, by business SQL through the VIP.
	FailedFrom time.Time `json:"failed_from,omitzero"`
	WorksSince time.Time `json:"works_since,omitzero"`
}

// Outcome is how a switch ended.
type Outcome string

// The outcomes. Running: not ended. Stuck: past the commit and a person is needed.
const (
	Running   Outcome = "running"
	Completed Outcome = "completed"
	Aborted   Outcome = "aborted"
	UndoneAll Outcome = "undone"
	Stuck     Outcome = "stuck"
)

// Summary is a switch as history shows it.
type Summary struct {
	Plan
	Outcome Outcome                    `json:"outcome"`
	Why     string                     `json:"why,omitempty"` // of an abort, an undo, a switch that is stuck
	Times   Times                      `json:"times"`
	Ended   time.Time                  `json:"ended,omitzero"`
	Took    time.Duration              `json:"took"`   // verdict (or the operator's word) to verified
	Outage  time.Duration              `json:"outage"` // as seen through the VIP
	Steps   map[StepName]time.Duration `json:"steps"`
	Journal []Entry                    `json:"journal,omitempty"`
}
