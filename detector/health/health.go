// Package health turns samples into verdicts: what one observer believes of a site, and what a quorum of observers believes.
//
// It is pure: samples and now go in, a verdict with its evidence comes out. No I/O, no clock, no goroutine.
package health

import (
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// Factor is one way to look at a target.
type Factor string

// The factors (DESIGN 4). Lease and VIP belong to the site, the others to a MySQL instance or a Mycat.
const (
	Port      Factor = "port"      // TCP and the server's greeting
	Heartbeat Factor = "heartbeat" // MySQL: a committed write (active) or the age of the replicated row (standby); Mycat: show @@heartbeat, advisory
	SQL       Factor = "sql"       // the user's business SQL with an expected answer; through Mycat per dataNode, by hint
	Lease     Factor = "lease"     // the holder's renewals
	VIP       Factor = "vip"       // business SQL through the VIP
)

// TargetKind says what a target is.
type TargetKind string

// The kinds of targets.
const (
	MySQL TargetKind = "mysql"
	Mycat TargetKind = "mycat"
	Site  TargetKind = "site"
)

// Target is one thing that is probed.
type Target struct {
	Site  cluster.SiteName  `json:"site"`
	Kind  TargetKind        `json:"kind"`
	Shard cluster.ShardName `json:"shard,omitempty"` // of a MySQL instance; of a Mycat's sql factor, the dataNode's shard
}

// String names the target for people: "mysql b/s2", "mycat b", "site b".
func (t Target) String() string {
	if t.Shard == "" {
		return string(t.Kind) + " " + string(t.Site)
	}
	return string(t.Kind) + " " + string(t.Site) + "/" + string(t.Shard)
}

// Sample is one look at one target by one factor.
type Sample struct {
	Target Target        `json:"target"`
	Factor Factor        `json:"factor"`
	Cause  Cause         `json:"cause"`
	At     time.Time     `json:"at"`   // when the probe was sent (monotonic reading kept)
	Took   time.Duration `json:"took"` // until its answer, or until it was judged
	Detail string        `json:"detail,omitempty"`
	Number uint16        `json:"number,omitempty"` // MySQL error number, 0 if none
}

// State is what an observer believes of a target or a site.
type State string

// The states. Busy never moves a writer; unknown is the observer's own trouble.
const (
	Unknown State = "unknown"
	Up      State = "up"
	Busy    State = "busy"
	Suspect State = "suspect"
	Down    State = "down"
)

// TargetState is one target's part of a verdict.
type TargetState struct {
	Target Target   `json:"target"`
	Factor Factor   `json:"factor"`
	State  State    `json:"state"`
	Fill   int      `json:"fill"`          // failures in the window now
	Trip   int      `json:"trip"`          // failures that trip the rule
	Last   Sample   `json:"last"`          // the newest sample
	Bad    []Sample `json:"bad,omitempty"` // the samples that are the evidence, newest last

	// Frozen is set while the probe itself is wrongly configured, with what was answered. Such a probe never counts, and automatic
	// switching is frozen as long as one is: what it would have seen nobody sees.
	Frozen   string `json:"frozen,omitempty"`
	Advisory bool   `json:"advisory,omitempty"` // never a reason for the site's state, only shown
}

// Verdict is what one observer believes of one site, with the samples that are its evidence.
type Verdict struct {
	Site    cluster.SiteName `json:"site"`
	State   State            `json:"state"`
	At      time.Time        `json:"at"`
	Since   time.Time        `json:"since"` // of this state
	Phi     int              `json:"phi"`   // Φ(t) of the paper: 1 when any factor of the site is abnormal at this beat
	H       int              `json:"h"`     // H(t): the sum of Φ over the window
	HTrip   int              `json:"h_trip"`
	Reason  string           `json:"reason"` // one line for people: "mysql s2 port refused 3 of 3 in 1s"
	Targets []TargetState    `json:"targets,omitempty"`

	Frozen []string `json:"frozen,omitempty"` // probes whose configuration is wrong: "mysql a/s1 sql: config 1045 (...)"

	LastGood time.Time `json:"last_good"` // last beat at which nothing of the site was abnormal
	FirstBad time.Time `json:"first_bad"` // first abnormal sample of the present trouble
}

// Report is what an observer publishes: its presence and its verdict on every site.
type Report struct {
	Node     cluster.NodeName             `json:"node"`
	Seq      int64                        `json:"seq"`
	Nonce    string                       `json:"nonce,omitempty"` // the last recheck that was seen before these samples were taken
	Blind    string                       `json:"blind,omitempty"` // why the observer abstains; empty: it does not
	Epoch    int64                        `json:"epoch"`           // the assignment's epoch that the samples were taken under
	Verdicts map[cluster.SiteName]Verdict `json:"verdicts"`
}
