package cluster

import "time"

// Phase is the state of the assignment.
type Phase string

// The phases of an assignment (PROTOCOL 1). While serving, the guard of the VIP's site may renew; in the others nobody may.
const (
	Serving   Phase = "serving"
	Switching Phase = "switching"
	Undoing   Phase = "undoing"
)

// Assignment says who may serve. It changes only at fence, commit and undo, each with epoch+1.
// A missing assignment means that nobody serves; so does a serving one whose Site is empty (after `baton release`).
type Assignment struct {
	Epoch   int64                  `json:"epoch"` // explicit counter, never a revision: the fencing token of who may serve
	Site    SiteName               `json:"site"`  // the VIP's site; while switching, the one that must fall silent
	Phase   Phase                  `json:"phase"`
	Switch  string                 `json:"switch,omitempty"`  // id of the switch under way or of the one that made this
	To      SiteName               `json:"to,omitempty"`      // the target while switching
	Release *Release               `json:"release,omitempty"` // written at commit: why the old VIP is known to be silent
	Shards  map[ShardName]SiteName `json:"shards"`            // the data site of each shard: where it is writable
}

// Release is the evidence that the old site's VIP is silent (PROTOCOL 3).
type Release struct {
	Epoch       int64  `json:"epoch"`                 // the epoch whose fence it answers
	Incarnation string `json:"incarnation,omitempty"` // acknowledged by this incarnation of the old guard
	Revision    int64  `json:"revision,omitempty"`    // or waited out on this revision of holder
	None        bool   `json:"none,omitempty"`        // nobody held the VIP before (first start)
}

// Serves says whether the assignment lets that site serve.
func (a Assignment) Serves(site SiteName) bool {
	return a.Phase == Serving && site != "" && a.Site == site
}

// GateLevel says what closes the VIP's gate when the guard cannot.
type GateLevel string

// The gate levels, best first. With none, automatic switching is never allowed (PROTOCOL 3).
const (
	GateEBPF     GateLevel = "ebpf"
	GateValidLft GateLevel = "valid_lft"
	GateNone     GateLevel = "none"
)

// Slack is how long after the lease's end the level may still let traffic through (PROTOCOL 3).
func (l GateLevel) Slack() time.Duration {
	if l == GateEBPF {
		return 50 * time.Millisecond
	}
	return 1100 * time.Millisecond // the kernel checks valid_lft at rounded seconds: up to 0.99 s late
}

// Holder is the lease: written by the guard's renewals and by nobody else.
type Holder struct {
	Site        SiteName      `json:"site"`
	Node        NodeName      `json:"node"`
	Incarnation string        `json:"incarnation"` // one per life of a daemon; a renewal of a replaced one fails
	Seq         int64         `json:"seq"`
	Gate        GateLevel     `json:"gate"`
	Lease       time.Duration `json:"lease,omitempty"` // D by the holder's own configuration: whoever waits it out waits no less
	MAC         string        `json:"mac,omitempty"`   // what the VIP's ARP answer must show
	Conns       string        `json:"conns,omitempty"` // digest of the published list of client connections
}

// Term says who may act: the lock. Only a compare-and-swap that raises N changes it.
type Term struct {
	N    int64    `json:"n"`
	Node NodeName `json:"node"`
}

// Beat is the lock's pulse. A non-empty Next hands the lock over on purpose.
type Beat struct {
	Node NodeName `json:"node"`
	Seq  int64    `json:"seq"`
	Next NodeName `json:"next,omitempty"`
}

// Maintenance switches automatic switching off; it never stops renewals, a running switch or an undo.
type Maintenance struct {
	Until  time.Time `json:"until"` // the zero time: until switched off
	Who    string    `json:"who"`
	Reason string    `json:"reason,omitempty"`
}

// Active says whether it lasts at that time.
func (m Maintenance) Active(now time.Time) bool { return m.Until.IsZero() || now.Before(m.Until) }

// SyncState says whether semi-sync of a shard was relaxed by Baton; S4 is decided by it, not by the last sample.
type SyncState struct {
	State  string    `json:"state"` // SyncArmed or SyncDegraded
	Since  time.Time `json:"since"`
	Switch string    `json:"switch,omitempty"`
}

// The states of a shard's semi-sync.
const (
	SyncArmed    = "armed"
	SyncDegraded = "degraded"
)
