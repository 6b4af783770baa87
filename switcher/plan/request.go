package plan

import (
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// Request asks a node to run steps of a switch at the sites' MySQL: all shards in one request, one answer.
type Request struct {
	ID        string              `json:"id"`
	Switch    string              `json:"switch"`
	Kind      Kind                `json:"kind"`
	Term      int64               `json:"term"`
	Fence     int64               `json:"fence"` // mod revision of the assignment that this request belongs to
	Epoch     int64               `json:"epoch"` // of that assignment; promote writes it into baton.epoch
	From      cluster.SiteName    `json:"from,omitempty"`
	To        cluster.SiteName    `json:"to"`
	Shards    []cluster.ShardName `json:"shards"`
	Steps     []StepName          `json:"steps"`
	Budget    time.Duration       `json:"budget"`             // of fence-writes at an instance that does not answer
	Suspects  []cluster.ShardName `json:"suspects"`           // old instances that the verdict names: a third of the budget
	Lossless  bool                `json:"lossless,omitempty"` // rpo: zero, and nobody waives it: every acker must be cut
	KillOlder bool                `json:"kill_older"`         // another node, or an older term, may have steps in flight: kill them first
	Facts     map[string]string   `json:"facts,omitempty"`    // of earlier steps of the same switch
}

// Answer is what the node did: an entry for every step of the request, those that did not run included.
type Answer struct {
	Request string           `json:"request"`
	Node    cluster.NodeName `json:"node"`
	Entries []Entry          `json:"entries"`
	Refused string           `json:"refused,omitempty"` // why the request was not taken: an older term, another switch
}

// Released is the old guard's answer to the fence: its gate is shut, read back as its own.
type Released struct {
	Incarnation string            `json:"incarnation"`
	Fence       int64             `json:"fence"` // mod revision of the assignment that it answers
	At          time.Time         `json:"at"`
	Took        time.Duration     `json:"took"` // from sight of the fence to the shut gate
	Facts       map[string]string `json:"facts,omitempty"`
}

// Bound is the new guard's word that the VIP is served: gate open, address bound, first announcement sent.
type Bound struct {
	Incarnation string            `json:"incarnation,omitempty"`
	Epoch       int64             `json:"epoch"`
	At          time.Time         `json:"at"`
	Took        time.Duration     `json:"took"` // from sight of the commit
	MAC         string            `json:"mac,omitempty"`
	Facts       map[string]string `json:"facts,omitempty"`
	Err         string            `json:"err,omitempty"` // why it is not bound yet: somebody else answers for the VIP, ...
}

// Look is what an observer found when it looked through the VIP after a switch, as an application and as a neighbour do.
type Look struct {
	Question int               `json:"question"` // the journal's Seq of the verify step that it answers
	At       time.Time         `json:"at"`       // when the whole of it worked, or was given up
	Facts    map[string]string `json:"facts,omitempty"`
	Err      string            `json:"err,omitempty"` // what does not work yet
}

// Command is an operator's word, left for the controller.
type Command struct {
	ID         string           `json:"id"`
	Do         string           `json:"do"` // switch, release, rejoin
	To         cluster.SiteName `json:"to,omitempty"`
	By         string           `json:"by"` // user@host
	Reason     string           `json:"reason,omitempty"`
	Force      bool             `json:"force,omitempty"`
	AcceptLoss bool             `json:"accept_loss,omitempty"`
	DryRun     bool             `json:"dry_run,omitempty"`
	At         time.Time        `json:"at"`
}

// Reply is the controller's answer to a command: the switch that it started, or why not.
type Reply struct {
	Command string   `json:"command"`
	Switch  string   `json:"switch,omitempty"`
	Refused string   `json:"refused,omitempty"`
	Code    string   `json:"code,omitempty"` // the policy's reason
	Plan    *Plan    `json:"plan,omitempty"` // of a dry run
	Steps   []string `json:"steps,omitempty"`
}
