// Package load writes numbered rows through the VIP without pause, keeps what was acknowledged, and says afterwards what became of
// each row.
package load

import (
	"slices"
	"time"
)

// Outcome is what the writer knows of one write.
type Outcome uint8

// The outcomes. Unknown was sent and had no answer: it may stand or not. Unsent never left: there was no connection.
const (
	Acknowledged Outcome = iota
	Refused              // the server answered with an error
	Unknown
	Unsent
)

var outcomes = [...]string{"acknowledged", "refused", "unknown", "unsent"}

// String is the outcome's name in reports.
func (o Outcome) String() string { return outcomes[o] }

// Write is one row that the writer tried to insert.
type Write struct {
	ID       int64
	Shard    int // from 0: ID modulo the number of shards, as the proxy routes it
	Sent     time.Time
	Answered time.Time // when its outcome was known
	Outcome  Outcome
	Err      string
}

// Gap is the longest time without an acknowledged write of one shard: from the last good to the first good answer.
type Gap struct {
	Shard int
	From  time.Time
	To    time.Time
	Open  bool // no good write came any more: To is the end of the record
}

// Length is the gap's duration.
func (g Gap) Length() time.Duration { return g.To.Sub(g.From) }

// Longest returns the longest gap over all shards that ends after from, in the record as it was at end: what was answered later does
// not count. writes must be in the order in which they were answered within each shard. A shard without any good write is one gap
// from its first try on.
func Longest(writes []Write, from, end time.Time) Gap {
	good := make(map[int]time.Time) // shard → its last good answer, or its first try
	var worst Gap
	consider := func(g Gap) {
		if g.To.After(from) && g.Length() > worst.Length() {
			worst = g
		}
	}
	for _, w := range writes {
		if w.Answered.After(end) {
			continue
		}
		last, seen := good[w.Shard]
		switch {
		case w.Outcome == Acknowledged && seen:
			consider(Gap{Shard: w.Shard, From: last, To: w.Answered})
			good[w.Shard] = w.Answered
		case w.Outcome == Acknowledged:
			consider(Gap{Shard: w.Shard, From: w.Sent, To: w.Answered})
			good[w.Shard] = w.Answered
		case !seen:
			good[w.Shard] = w.Sent
		}
	}
	for shard, last := range good {
		consider(Gap{Shard: shard, From: last, To: end, Open: true})
	}
	return worst
}

// Count counts the writes of an outcome that were sent in a span of time.
func Count(writes []Write, o Outcome, from, to time.Time) int {
	n := 0
	for _, w := range writes {
		if w.Outcome == o && !w.Sent.Before(from) && w.Sent.Before(to) {
			n++
		}
	}
	return n
}

// Row is a row as it stands on a server: ServerID is the one that took it from the proxy.
type Row struct {
	ID       int64
	ServerID uint32
}

// Audit is what became of the writes. Every number but Acknowledged should be 0, except the unknown ones, which a fault makes.
type Audit struct {
	Acknowledged   int `json:"acknowledged"`
	Lost           int `json:"lost"`       // acknowledged, and not there
	Duplicated     int `json:"duplicated"` // there more than once
	Refused        int `json:"refused"`
	RefusedPresent int `json:"refused_present"` // answered with an error, and there nevertheless
	UnknownPresent int `json:"unknown_present"`
	UnknownAbsent  int `json:"unknown_absent"`
	Moves          int `json:"moves"`        // most changes of the acknowledging server within a shard
	WrongServer    int `json:"wrong_server"` // acknowledged by a server that is none of the shard's, or by more moves than switches
}

// Check looks every write up in the rows of the servers that serve now (by shard). servers says which server ids belong to a shard,
// switches how often the service has moved: an acknowledging server that changes more often was a deposed one.
func Check(writes []Write, rows map[int][]Row, servers map[int][]uint32, switches int) Audit {
	var a Audit
	where := make(map[int64]Row)
	for _, shard := range rows {
		for _, r := range shard {
			if _, twice := where[r.ID]; twice {
				a.Duplicated++
			}
			where[r.ID] = r
		}
	}
	last, moves := make(map[int]uint32), make(map[int]int)
	for _, w := range writes {
		row, there := where[w.ID]
		switch w.Outcome {
		case Acknowledged:
			a.Acknowledged++
			if !there {
				a.Lost++
				continue
			}
			if !slices.Contains(servers[w.Shard], row.ServerID) {
				a.WrongServer++
			}
			if before, ok := last[w.Shard]; ok && before != row.ServerID {
				moves[w.Shard]++
			}
			last[w.Shard] = row.ServerID
		case Refused:
			a.Refused++
			if there {
				a.RefusedPresent++
			}
		case Unknown:
			if there {
				a.UnknownPresent++
			} else {
				a.UnknownAbsent++
			}
		case Unsent:
		}
	}
	for _, n := range moves {
		a.Moves = max(a.Moves, n)
		a.WrongServer += max(0, n-switches)
	}
	return a
}
