package health

import (
	"fmt"
	"strconv"
	"time"

	"github.com/baton-ha/baton/accumulator"
)

// effect is what a sample does to the score of its key.
type effect uint8

const (
	void   effect = iota // our own fault: as if it had not been taken
	good                 // a success
	bad                  // a failure
	stall                // a failure by the slower rule of writes
	busy                 // neither: the server answers and has no room
	freeze               // neither: our account, schema or TLS is wrong
)

var effects = map[Class]effect{
	ClassOK: good, ClassHard: bad, ClassSoft: bad, ClassStall: stall, ClassBusy: busy, ClassConfig: freeze, ClassRole: bad, ClassIgnored: void,
}

// maxEvidence bounds the samples that a key keeps for people; more would only make reports long.
const maxEvidence = 8

// score is an accumulator with the grace of restarts.
type score struct {
	acc   accumulator.Accumulator
	clear int
	grace time.Duration

	clock time.Time // of the newest sample; one that comes late counts at it, as in the accumulator
	good  int       // successes in a row, up to clear
	first time.Time // first failure of the present trouble, which ends with clear successes in a row
	down  bool      // tripped, by trouble that has lasted for the grace
}

func (s *score) add(at time.Time, failed bool) {
	if at.Before(s.clock) {
		at = s.clock
	}
	s.clock = at
	s.down = s.down && s.acc.Tripped(at)
	s.acc.Add(at, failed)
	if !failed {
		s.well()
		return
	}
	s.ill(at)
	// Only a failure can make it down: the end of the grace alone must not, when the server is back since.
	s.down = s.down || s.acc.Tripped(at) && at.Sub(s.first) >= s.grace
}

func (s *score) well() {
	s.good = min(s.good+1, s.clear)
	if s.good >= s.clear {
		s.first = time.Time{}
	}
}

func (s *score) ill(at time.Time) {
	s.good = 0
	if s.first.IsZero() {
		s.first = at
	}
}

func (s *score) isDown(now time.Time) bool { return s.down && s.acc.Tripped(now) }

func (s *score) reset() {
	s.acc.Reset()
	s.clock, s.good, s.first, s.down = time.Time{}, 0, time.Time{}, false
}

// key is one factor of one target.
type key struct {
	target   Target
	place    int // of the target among the judge's
	factor   Factor
	advisory bool
	writer   bool // writes are expected to work here
	score

	frozen       string
	frozenAt     time.Time // of the newest sample that said so
	stallSince   time.Time // first hung write since the last good one
	stalled      bool      // for longer than the stall rule allows
	newest       time.Time // of the samples that were not void
	last         Sample    // that came last and was not void: the newest word, also when it was sent before another
	lastBad      bool      // and whether it was a failure
	evidence     [maxEvidence]Sample
	evidenceSize int
}

// effect says what a sample with that cause does here.
func (k *key) effect(c Cause, readsFine bool) effect {
	e := effects[c.Class()]
	switch {
	case c.Class() == ClassRole && !k.writer:
		return good // read-only is what a standby should be
	case k.factor == Heartbeat && k.target.Kind == MySQL && k.writer && (e == stall || c == Timeout || c == Pending):
		if readsFine {
			return stall
		}
		return bad
	}
	return e
}

// take puts the sample into the books.
func (k *key) take(s Sample, e effect, stallAfter, expire time.Duration) {
	if e == void {
		return
	}
	if (e == bad || e == stall) && k.thaws(s, expire) {
		k.frozen = ""
	}
	k.last, k.lastBad = s, false
	if s.At.After(k.newest) {
		k.newest = s.At
	}
	switch {
	case e == good:
		k.frozen = ""
		k.stallSince = time.Time{}
		k.add(s.At, false)
		k.stalled = k.stalled && k.good < k.clear
	case e == freeze:
		k.frozen, k.frozenAt = s.what(), s.At
	case e == busy, k.frozen != "": // a probe that cannot log in says nothing when it fails otherwise
	case e == bad:
		k.lastBad = true
		k.add(s.At, true)
		k.keep(s)
	case e == stall:
		k.lastBad = true
		k.ill(s.At)
		if k.stallSince.IsZero() {
			k.stallSince = s.At
		}
		k.stalled = k.stalled || s.At.Sub(k.stallSince) >= stallAfter
		k.keep(s)
	}
}

// thaws says whether a failure outweighs what froze the key: nobody listens there any more, or our account has not been refused for as long
// as a sample is believed. A server that dies after it has refused us is dead.
func (k *key) thaws(s Sample, expire time.Duration) bool {
	return k.frozen != "" && (s.Cause.Class() == ClassHard || s.At.Sub(k.frozenAt) > expire)
}

func (k *key) keep(s Sample) {
	if k.evidenceSize == maxEvidence {
		copy(k.evidence[:], k.evidence[1:])
		k.evidenceSize--
	}
	k.evidence[k.evidenceSize] = s
	k.evidenceSize++
}

func (k *key) reset() {
	k.score.reset()
	k.frozen, k.frozenAt, k.stallSince, k.stalled, k.newest, k.last, k.lastBad, k.evidenceSize = "", time.Time{}, time.Time{}, false, time.Time{}, Sample{}, false, 0
}

func (k *key) state(now time.Time, expire time.Duration) State {
	switch {
	case k.newest.IsZero() || now.Sub(k.newest) > expire || k.frozen != "":
		return Unknown
	case k.stalled || k.isDown(now):
		return Down
	case k.last.Cause.Class() == ClassBusy:
		return Busy
	case !k.stallSince.IsZero() || k.acc.Count(now) > 0:
		return Suspect
	}
	return Up
}

// stateSince is state, where down needs a bad sample at or after since.
func (k *key) stateSince(now, since time.Time, expire time.Duration) State {
	s := k.state(now, expire)
	if s == Down && !since.IsZero() && (!k.lastBad || k.newest.Before(since)) {
		return Suspect
	}
	return s
}

func (k *key) show(now time.Time, expire time.Duration) TargetState {
	t := TargetState{
		Target: k.target, Factor: k.factor, State: k.state(now, expire), Fill: k.acc.Count(now), Trip: k.acc.Trip(),
		Last: k.last, Frozen: k.frozen, Advisory: k.advisory,
	}
	if t.State == Suspect || t.State == Down {
		t.Bad = append(t.Bad, k.evidence[:k.evidenceSize]...)
	}
	return t
}

func (k *key) name() string { return k.target.String() + " " + string(k.factor) }

func (k *key) describe(now time.Time, window string) string {
	s := k.last
	if !k.lastBad && k.evidenceSize > 0 {
		s = k.evidence[k.evidenceSize-1]
	}
	if !k.stallSince.IsZero() && !k.isDown(now) {
		return fmt.Sprintf("%s: %s, no good write for %v, reads are fine", k.name(), s.what(), now.Sub(k.stallSince).Round(time.Millisecond))
	}
	n := k.acc.Count(now)
	if k.isDown(now) {
		n = max(n, k.acc.Trip()) // it had reached that, and stands until the target has been well for long enough: "down, 0 of 3" says nothing
	}
	return fmt.Sprintf("%s: %s, %d of %d%s", k.name(), s.what(), n, k.acc.Trip(), window)
}

// what is the sample's cause as people read it: "refused", "config 1045 (access denied)". The detail is left out where the cause says
// it all.
func (s Sample) what() string {
	text := s.Cause.String()
	if s.Number != 0 {
		text += " " + strconv.Itoa(int(s.Number))
	}
	switch {
	case s.Detail == "", s.Cause.Class() == ClassHard, s.Cause == Timeout, s.Cause == NoGreeting, s.Cause == Unreachable, s.Cause == Pending:
		return text
	}
	return text + " (" + s.Detail + ")"
}
