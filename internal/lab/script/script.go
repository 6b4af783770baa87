// Package script reads scenarios: text files that say which faults strike the laboratory, in which order, and what must follow.
//
// It is pure: bytes go in, steps or every mistake with its line number come out. What a step does is said elsewhere.
package script

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Verb is what a step does.
type Verb string

// The verbs.
const (
	Pause      Verb = "pause"      // let time pass, under load
	Baseline   Verb = "baseline"   // measure the load's own jitter for a while, to compare "no interruption" with
	Kill       Verb = "kill"       // SIGKILL
	Freeze     Verb = "freeze"     // SIGSTOP: the port stays open
	Thaw       Verb = "thaw"       // SIGCONT
	Start      Verb = "start"      // start what was killed
	Restart    Verb = "restart"    // SIGTERM, wait for the end, start
	Cut        Verb = "cut"        // a host's cable, or what one host sends to another
	Mend       Verb = "mend"       // undo every cut
	Flap       Verb = "flap"       // freeze and thaw again and again
	Switchover Verb = "switchover" // an operator's planned switch
	Wait       Verb = "wait"       // until a condition holds
	Expect     Verb = "expect"     // a condition at the end, or that holds for a while
)

// Kind is what a fault strikes.
type Kind string

// The kinds of things. A host is named by itself; a MySQL and a Mycat by their site.
const (
	MySQL      Kind = "mysql"
	Mycat      Kind = "mycat"
	Daemon     Kind = "daemon"
	Keepalived Kind = "keepalived"
	Etcd       Kind = "etcd"
	Host       Kind = "host"
	Link       Kind = "link"
)

// Condition is what a step waits for or expects.
type Condition string

// The conditions.
const (
	SwitchedTo     Condition = "switched to"
	NoSwitch       Condition = "no switch"
	NoInterruption Condition = "no interruption"
	Repaired       Condition = "repaired"      // the VIP is bound and every shard takes writes
	Ready          Condition = "ready"         // Baton says that a failover would succeed
	Lost           Condition = "lost"          // acknowledged rows that are gone
	Duplicated     Condition = "duplicated"    // rows that stand twice
	Refused        Condition = "refused"       // statements answered with an error
	Unknown        Condition = "unknown"       // statements without an answer
	DoubleHolder   Condition = "double_holder" // milliseconds
)

// All stands for every shard of a site.
const All = "all"

// Length is a time: Fixed, or a number of beats of the profile (its probe interval), so that one file fits every profile.
type Length struct {
	Fixed time.Duration
	Beats float64
}

// Of is the length under a profile whose beat is given.
func (l Length) Of(beat time.Duration) time.Duration {
	return l.Fixed + time.Duration(l.Beats*float64(beat))
}

// IsZero says whether no length was given.
func (l Length) IsZero() bool { return l == Length{} }

// Step is one line of a scenario.
type Step struct {
	Line int
	Text string // as written, for reports
	Verb Verb

	Kind  Kind
	Site  string // of a MySQL or Mycat; of "switched to" and switchover
	Shard string // or All
	Host  string // of a daemon, keepalived, host; the sender of a link. "active" is the host that holds the VIP
	Peer  string // the receiver of a link
	Both  bool   // of a link: both directions

	Cond   Condition
	Number int    // of a numeric condition
	For    Length // how long
	Within Length // at most so long
	Down   Length // of a flap
	Every  Length // of a flap
}

// Scenario is a whole file.
type Scenario struct {
	Name  string
	Title string
	Why   string
	Bind  string // the only way of binding that it makes sense with; empty: any
	Steps []Step
}

// Parse reads a scenario. The error joins every mistake, each with its line number.
func Parse(name string, text []byte) (Scenario, error) {
	s := Scenario{Name: name}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.line(n, line); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", name, n, err))
		}
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	if s.Title == "" {
		errs = append(errs, fmt.Errorf("%s: no title: write a line: title WHAT HAPPENS", name))
	}
	if len(s.Steps) == 0 {
		errs = append(errs, fmt.Errorf("%s: no steps", name))
	}
	return s, errors.Join(errs...)
}

func (s *Scenario) line(n int, line string) error {
	words := strings.Fields(line)
	rest := strings.TrimSpace(line[len(words[0]):])
	switch words[0] {
	case "title":
		s.Title = rest
		return nil
	case "why":
		s.Why = strings.TrimSpace(s.Why + " " + rest)
		return nil
	case "bind":
		s.Bind = rest
		if rest != "keepalived" && rest != "netlink" {
			return fmt.Errorf("bind %s: there are keepalived and netlink", rest)
		}
		return nil
	}
	parse, ok := verbs[Verb(words[0])]
	if !ok {
		return fmt.Errorf("unknown word %q: a line begins with title, why, bind, %s", words[0], verbList)
	}
	step := Step{Line: n, Text: strings.Join(words, " "), Verb: Verb(words[0])}
	r := &reader{words: words[1:]}
	parse(r, &step)
	if r.err == nil && len(r.words) > 0 {
		r.fail("the line should end before %q", r.words[0])
	}
	if r.err != nil {
		return fmt.Errorf("%s: %w", step.Text, r.err)
	}
	s.Steps = append(s.Steps, step)
	return nil
}

// reader takes words off a line; after the first mistake it stands still.
type reader struct {
	words []string
	err   error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// next takes a word; what says what it should have been.
func (r *reader) next(what string) string {
	if r.err == nil && len(r.words) == 0 {
		r.fail("%s is missing", what)
	}
	if r.err != nil {
		return ""
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

// accept takes the words if they come next.
func (r *reader) accept(words ...string) bool {
	if r.err != nil || len(r.words) < len(words) {
		return false
	}
	for i, w := range words {
		if r.words[i] != w {
			return false
		}
	}
	r.words = r.words[len(words):]
	return true
}

func (r *reader) need(words ...string) {
	if !r.accept(words...) {
		r.fail("%q is missing", strings.Join(words, " "))
	}
}

// length reads "150ms", "3s" or "2beats".
func (r *reader) length(what string) Length {
	w := r.next(what)
	if r.err != nil {
		return Length{}
	}
	if beats, ok := strings.CutSuffix(w, "beats"); ok {
		n, err := strconv.ParseFloat(beats, 64)
		if err != nil || math.IsNaN(n) || n <= 0 || n > 1e6 {
			r.fail("%s is no number of beats: write 2beats", w)
		}
		return Length{Beats: n}
	}
	d, err := time.ParseDuration(w)
	if err != nil || d <= 0 {
		r.fail("%s is no time: write 150ms, 3s or 2beats", w)
	}
	return Length{Fixed: d}
}

func (r *reader) number() int {
	w := r.next("a number")
	n, err := strconv.Atoi(w)
	if r.err == nil && (err != nil || n < 0) {
		r.fail("%s is no number", w)
	}
	return n
}
