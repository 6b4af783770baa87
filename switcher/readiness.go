package switcher

import (
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/switcher/policy"
)

// Instance is one MySQL as the controller saw it last.
type Instance struct {
	Site     cluster.SiteName  `json:"site"`
	Shard    cluster.ShardName `json:"shard"`
	Addr     string            `json:"addr"`
	Version  string            `json:"version,omitempty"`
	ReadOnly bool              `json:"read_only"`
	Role     string            `json:"role"` // writable, replica, standalone, unreachable
	Source   string            `json:"source,omitempty"`
	Lag      *time.Duration    `json:"lag,omitempty"`       // absent: unknown, as while a thread does not run
	Stopped  string            `json:"stopped,omitempty"`   // which threads of a replica do not run
	SemiSync string            `json:"semi_sync,omitempty"` // on, off, replica
	Executed string            `json:"executed,omitempty"`
	Err      string            `json:"err,omitempty"` // why it could not be read
}

// SiteReady is a site's fitness to take over.
type SiteReady struct {
	Blockers []policy.Blocker    `json:"blockers,omitempty"`
	Since    time.Time           `json:"since,omitzero"`   // ready without a break since
	Rejoin   []string            `json:"rejoin,omitempty"` // why the site must be rejoined before it can be ready
	Alone    []cluster.ShardName `json:"alone,omitempty"`  // sources whose commits wait for a replica, and none is connected
	// Unreached are sources that count a replica which this controller does not reach: alone too, if the observers agree that it is down.
	Unreached []cluster.ShardName `json:"unreached,omitempty"`
	RPO       string              `json:"rpo"` // what would be lost now: "0", or an estimate
}

// Advice is what mode advise would do now, for an operator to order by its number.
type Advice struct {
	ID    int              `json:"id"`
	From  cluster.SiteName `json:"from"`
	To    cluster.SiteName `json:"to"`
	Until time.Time        `json:"until"` // valid so long; renewed while it holds
	Text  string           `json:"text"`
}

// AdviceLife is how long an advice may be ordered after it was true last: what an operator reads at three in the morning must still
// be so when he has typed it.
const AdviceLife = 60 * time.Second

// Readiness is the answer to "if the active site died now": looked at all the time, published for everybody.
type Readiness struct {
	At         time.Time                         `json:"at"`
	Epoch      int64                             `json:"epoch"`
	Active     cluster.SiteName                  `json:"active"`
	Instances  []Instance                        `json:"instances"`
	Sites      map[cluster.SiteName]SiteReady    `json:"sites"`
	Alarms     []string                          `json:"alarms,omitempty"` // two writers of a shard, a standby that is writable, ...
	RTO        time.Duration                     `json:"rto"`              // expected, from the profile
	Advice     *Advice                           `json:"advice,omitempty"` // in mode advise
	Decision   policy.Decision                   `json:"decision"`         // the newest, with its reason
	Votes      map[cluster.SiteName]policy.Votes `json:"votes"`
	Controller cluster.NodeName                  `json:"controller"`
}
