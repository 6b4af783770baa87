// Package gtid holds sets of global transaction identifiers of both families, as values with the algebra that a switch needs.
//
// It is pure: text in, text out, no I/O and no clock. It does not compare sets of two kinds, every such comparison answers "not
// contained", with one exception: a MariaDBState contains a MariaDBPos when it has each of its GTIDs.
//
// There are three kinds. MySQL: intervals per source UUID and tag (gtid_executed). MariaDBState: intervals per (domain, server), as
// gtid_binlog_state prints their upper ends; only this kind finds errant transactions on MariaDB. MariaDBPos: one GTID per domain
// (gtid_binlog_pos, gtid_slave_pos, Gtid_IO_Pos), which stands for itself and all that came before it in its domain; it rests on
// gtid_strict_mode, under which the sequence numbers of a domain only grow. Positions are what replication waits for, and what a
// replica seeded from a backup has from the start, while its binlog state begins empty.
package gtid

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Kind says how a set compares.
type Kind string

// The kinds of sets.
const (
	MySQL        Kind = "mysql"
	MariaDBPos   Kind = "mariadb-pos"
	MariaDBState Kind = "mariadb-state"
)

// The errors of this package.
var (
	// ErrSyntax: the text is no set of that kind.
	ErrSyntax = errors.New("gtid: not a GTID set")
	// ErrKind: two sets of different kinds were to be joined.
	ErrKind = errors.New("gtid: sets of different kinds")
	// ErrDiverged: two positions name different servers for the same sequence number of a domain: two histories, no union.
	ErrDiverged = errors.New("gtid: positions have diverged")
)

// Set is an immutable set of GTIDs of one kind. The zero Set is empty and goes with every kind.
type Set struct {
	kind Kind
	runs map[origin][]run // MySQL and MariaDBState: sorted, apart, never empty
	pos  map[uint32]point // MariaDBPos: by domain
}

// origin is who numbers transactions: a UUID with a tag, or a server in a domain.
type origin struct {
	uuid, tag      string
	domain, server uint32
}

func (o origin) compare(p origin) int {
	return cmp.Or(cmp.Compare(o.uuid, p.uuid), cmp.Compare(o.tag, p.tag), cmp.Compare(o.domain, p.domain), cmp.Compare(o.server, p.server))
}

// run is an interval of sequence numbers, both ends included, first >= 1.
type run struct{ first, last uint64 }

// point is the last GTID of a domain.
type point struct {
	server uint32
	seq    uint64
}

// covers says whether what p stands for includes q. An equal number of another server is another history.
func (p point) covers(q point) bool { return p.seq > q.seq || p == q }

// Kind says how the set compares; the zero Set has none.
func (s Set) Kind() Kind { return s.kind }

// Empty says whether the set holds nothing.
func (s Set) Empty() bool { return len(s.runs) == 0 && len(s.pos) == 0 }

// comparable says whether the two may be compared at all; an empty zero Set goes with every kind.
func (s Set) comparable(o Set) bool { return s.kind == o.kind || s.kind == "" || o.kind == "" }

// Contains says whether every transaction of o is in s. Positions compare per domain: a higher sequence number is later, an equal one
// must be of the same server. The others compare per (domain, server), or per UUID and tag.
func (s Set) Contains(o Set) bool {
	if s.kind == MariaDBState && o.kind == MariaDBPos {
		for domain, p := range o.pos {
			if !slices.ContainsFunc(s.runs[origin{domain: domain, server: p.server}], func(r run) bool { return r.first <= p.seq && p.seq <= r.last }) {
				return false
			}
		}
		return true
	}
	return s.comparable(o) && o.Subtract(s).Empty()
}

// Equal says whether both hold the same.
func (s Set) Equal(o Set) bool { return s.Contains(o) && o.Contains(s) }

// Subtract returns what of s is not in o. Of positions, it is the domains in which o has not reached s, at the position of s.
// A set of another kind takes nothing away.
func (s Set) Subtract(o Set) Set {
	if !s.comparable(o) {
		return s
	}
	out := Set{kind: s.kind}
	for domain, p := range s.pos {
		if q, ok := o.pos[domain]; !ok || !q.covers(p) {
			out.put(domain, p)
		}
	}
	for from, runs := range s.runs {
		out.set(from, subtract(runs, o.runs[from]))
	}
	return out
}

// Without returns the set without the transactions that one server has numbered: a MySQL by its UUID, a MariaDB by its id. Positions stay
// as they are: each stands for transactions of many servers.
func (s Set) Without(server uint32, uuid string) Set {
	out := Set{kind: s.kind, runs: maps.Clone(s.runs), pos: s.pos}
	maps.DeleteFunc(out.runs, func(o origin, _ []run) bool {
		return s.kind == MySQL && o.uuid == uuid || s.kind == MariaDBState && o.server == server
	})
	return out
}

// Union returns what is in either set. Of positions, it is the later one of each domain; ErrDiverged when neither is later.
func (s Set) Union(o Set) (Set, error) {
	if !s.comparable(o) {
		return Set{}, fmt.Errorf("join %s with %s: %w", s.kind, o.kind, ErrKind)
	}
	out := Set{kind: cmp.Or(s.kind, o.kind), runs: maps.Clone(s.runs), pos: maps.Clone(s.pos)}
	for domain, p := range o.pos {
		q, ok := out.pos[domain]
		switch {
		case !ok || p.covers(q):
			out.put(domain, p)
		case !q.covers(p):
			return Set{}, fmt.Errorf("join %s with %s: %w", s, o, ErrDiverged)
		}
	}
	for from, runs := range o.runs {
		out.set(from, normalize(slices.Concat(out.runs[from], runs)))
	}
	return out, nil
}

// Errant returns the transactions of old that current lacks: what the old source has committed and the new one never saw.
//
// On MariaDB the sequence numbers of a domain are shared by its servers, so that the bare difference of two binlog states begins at
// numbers which other servers used. They are taken off up to the last transaction of the domain that both have, which leaves the
// exact GTIDs unless several servers wrote errant ones into the same domain; then it is the smallest range that holds them.
func Errant(old, current Set) Set {
	diff := old.Subtract(current)
	if old.kind != MariaDBState || !old.comparable(current) {
		return diff
	}
	shared := map[uint32]uint64{}
	for from, runs := range old.runs {
		if other, ok := current.runs[from]; ok {
			last := min(runs[len(runs)-1].last, other[len(other)-1].last)
			shared[from.domain] = max(shared[from.domain], last)
		}
	}
	out := Set{kind: diff.kind}
	for from, runs := range diff.runs {
		tight := runs
		if last := shared[from.domain]; last > 0 {
			if cut := subtract(runs, []run{{1, last}}); len(cut) > 0 {
				tight = cut // without strict mode numbers may go backwards: then the whole range stays
			}
		}
		out.set(from, tight)
	}
	return out
}

func (s *Set) put(domain uint32, p point) {
	if s.pos == nil {
		s.pos = map[uint32]point{}
	}
	s.pos[domain] = p
}

func (s *Set) set(from origin, runs []run) {
	if len(runs) == 0 {
		return
	}
	if s.runs == nil {
		s.runs = map[origin][]run{}
	}
	s.runs[from] = runs
}

// normalize sorts runs and joins those that touch or overlap. It may reuse its argument.
func normalize(runs []run) []run {
	slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.first, b.first) })
	out := runs[:0]
	for _, r := range runs {
		if n := len(out); n > 0 && r.first-1 <= out[n-1].last { // first >= 1: no wrap
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// subtract takes the runs of b off those of a; both are normal.
func subtract(a, b []run) []run {
	var out []run
	for _, r := range a {
		for _, c := range b {
			if c.last < r.first {
				continue
			}
			if c.first > r.last {
				break
			}
			if c.first > r.first {
				out = append(out, run{r.first, c.first - 1})
			}
			if c.last >= r.last {
				r = run{}
				break
			}
			r.first = c.last + 1
		}
		if r.first > 0 {
			out = append(out, r)
		}
	}
	return out
}
