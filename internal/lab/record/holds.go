// Package record watches the switch of the laboratory for hosts that answer for the VIP, and says for how long two did at once.
package record

import (
	"slices"
	"time"
)

// Window is how far apart two answers of one host may be for it to hold the VIP between them. The writer asks for an answer every
// millisecond, so a holder's answers are far closer; a stay of less than Window between two moves counts as two holders.
const Window = time.Second

// leastOverlap is charged for every answer inside another host's hold: one stray answer is a violation that lasts no time at all.
const leastOverlap = time.Millisecond

// Answer is one frame that answers for the VIP.
type Answer struct {
	At   time.Time
	Host string // the host whose port it came in at; "?" with the source MAC when that is not the host's own
	Kind string // "arp" or "ip"
}

// Hold is a time in which one host answered for the VIP, with no pause longer than Window.
type Hold struct {
	Host        string    `json:"host"`
	First, Last time.Time `json:"-"`
	Answers     int       `json:"answers"`
	ARP         int       `json:"arp"` // of the answers
}

// Holds folds answers into holds. Answers of one host must come in order.
type Holds struct {
	all  []Hold
	last map[string]int // host → index of its newest hold
}

// Add takes one answer.
func (h *Holds) Add(a Answer) {
	i, known := h.last[a.Host]
	if !known || a.At.Sub(h.all[i].Last) > Window {
		if h.last == nil {
			h.last = make(map[string]int)
		}
		i = len(h.all)
		h.last[a.Host], h.all = i, append(h.all, Hold{Host: a.Host, First: a.At})
	}
	hold := &h.all[i]
	hold.Last = a.At
	hold.Answers++
	if a.Kind == "arp" {
		hold.ARP++
	}
}

// List returns the holds, in the order in which they began.
func (h *Holds) List() []Hold {
	list := slices.Clone(h.all)
	slices.SortStableFunc(list, func(a, b Hold) int { return a.First.Compare(b.First) })
	return list
}

// Double is the time in which two or more hosts held the VIP: the length of the union of all overlaps of holds of different
// hosts. Each pair of holds that overlap counts for leastOverlap at least, also when it is one frame.
func Double(holds []Hold) time.Duration {
	var overlaps []span
	for i, a := range holds {
		for _, b := range holds[i+1:] {
			s := span{later(a.First, b.First), earlier(a.Last, b.Last)}
			if a.Host == b.Host || s.to.Before(s.from) {
				continue
			}
			if s.to.Sub(s.from) < leastOverlap {
				s.to = s.from.Add(leastOverlap)
			}
			overlaps = append(overlaps, s)
		}
	}
	return union(overlaps)
}

type span struct{ from, to time.Time }

func union(spans []span) time.Duration {
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var total time.Duration
	var end time.Time
	for _, s := range spans {
		if s.from.Before(end) {
			s.from = end
		}
		if s.to.After(s.from) {
			total += s.to.Sub(s.from)
			end = s.to
		}
	}
	return total
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
