package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// Received is a report with the moment at which the reader received it, by the reader's own monotonic clock: the times inside a report
// are the observer's and are only shown.
type Received struct {
	Report Report
	At     time.Time
}

// Quorum says which votes count.
type Quorum struct {
	Nodes []cluster.NodeName // the configured observers, one vote each
	Need  int                // how many must agree: cluster.Cluster.Quorum
	Fresh time.Duration      // a report received longer ago is unknown
	Nonce string             // of a recheck: only reports that carry it count; empty: any
	Epoch int64              // only reports about this epoch of the assignment count; 0: any
}

// Vote is one observer's part: up, down or unknown. Suspect is unknown: its observer has not decided yet.
type Vote struct {
	State  State         `json:"state"`
	Reason string        `json:"reason"`
	Age    time.Duration `json:"age,omitempty"` // since it was received
}

// Combined is what the observers together believe of a site.
type Combined struct {
	Site    cluster.SiteName          `json:"site"`
	State   State                     `json:"state"` // up, busy, suspect, down, unknown
	Up      int                       `json:"up"`
	Down    int                       `json:"down"`
	Unknown int                       `json:"unknown"`
	Votes   map[cluster.NodeName]Vote `json:"votes"`
	Reason  string                    `json:"reason"`
	Frozen  []string                  `json:"frozen,omitempty"` // probes that some observer has wrongly configured

	LastGood time.Time `json:"last_good"` // earliest among the votes for down
	FirstBad time.Time `json:"first_bad"` // earliest among the votes for down
}

// Combine counts the votes on a site. Down and up need the quorum of all configured observers; a missing, stale, blind or otherwise
// void report is a vote for unknown, never for what the others say.
func Combine(reports []Received, site cluster.SiteName, q Quorum, now time.Time) Combined {
	c := Combined{Site: site, Votes: make(map[cluster.NodeName]Vote, len(q.Nodes))}
	var suspect, busy int
	for _, node := range q.Nodes {
		v, verdict := vote(newest(reports, node), site, q, now)
		c.Votes[node] = v
		for _, f := range verdict.Frozen {
			if !slices.Contains(c.Frozen, f) {
				c.Frozen = append(c.Frozen, f)
			}
		}
		switch v.State {
		case Down:
			c.Down++
			c.LastGood, c.FirstBad = earliest(c.LastGood, verdict.LastGood), earliest(c.FirstBad, verdict.FirstBad)
		case Up:
			c.Up++
		default:
			c.Unknown++
		}
		switch verdict.State {
		case Suspect:
			suspect++
		case Busy:
			busy++
		}
	}
	switch {
	case q.Need > 0 && c.Down >= q.Need:
		c.State = Down
	case q.Need > 0 && c.Up >= q.Need && busy > 0:
		c.State = Busy
	case q.Need > 0 && c.Up >= q.Need:
		c.State = Up
	case c.Down+suspect > 0:
		c.State = Suspect
	default:
		c.State = Unknown
	}
	c.Reason = c.describe(q)
	return c
}

// newest is the node's report that was received last.
func newest(reports []Received, node cluster.NodeName) *Received {
	var out *Received
	for i := range reports {
		if reports[i].Report.Node == node && (out == nil || !reports[i].At.Before(out.At)) {
			out = &reports[i]
		}
	}
	return out
}

// vote is one observer's vote, and its verdict when the report counts.
func vote(r *Received, site cluster.SiteName, q Quorum, now time.Time) (Vote, Verdict) {
	if r == nil {
		return Vote{State: Unknown, Reason: "no report"}, Verdict{}
	}
	out := Vote{State: Unknown, Age: now.Sub(r.At)}
	verdict, ok := r.Report.Verdicts[site]
	switch {
	case out.Age > q.Fresh || out.Age < 0:
		out.Reason = fmt.Sprintf("stale: received %v ago", out.Age.Round(time.Millisecond))
	case r.Report.Blind != "":
		out.Reason = "blind: " + r.Report.Blind
	case q.Nonce != "" && r.Report.Nonce != q.Nonce:
		out.Reason = "has not answered the recheck"
	case q.Epoch != 0 && r.Report.Epoch != q.Epoch:
		out.Reason = fmt.Sprintf("speaks of epoch %d, not of %d", r.Report.Epoch, q.Epoch)
	case !ok:
		out.Reason = "says nothing of this site"
	default:
		out.Reason = verdict.Reason
		switch verdict.State {
		case Up, Busy:
			out.State = Up
		case Down:
			out.State = Down
		}
		return out, verdict
	}
	return out, Verdict{}
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// describe gives the count and the evidence: "2 of 3 say down: mc-b: mysql a/s2 port: refused, 3 of 3 in 1s".
func (c Combined) describe(q Quorum) string {
	want, n := Unknown, c.Unknown
	switch {
	case c.State == Down || c.State == Suspect && c.Down > 0:
		want, n = Down, c.Down
	case c.State == Up || c.State == Busy:
		want, n = Up, c.Up
	}
	text := fmt.Sprintf("%d of %d say %s, %d are needed", n, len(q.Nodes), want, q.Need)
	var seen []string
	for _, node := range q.Nodes {
		if v := c.Votes[node]; v.State == want && want != Up {
			seen = append(seen, string(node)+": "+v.Reason)
		}
	}
	if len(seen) > 0 {
		text += ": " + strings.Join(seen, "; ")
	}
	return text
}
