// Package check is the preflight behind `baton check`: it looks at everything that a switch will rest on, while there is still
// time to mend it, and says what it saw, what that means and what to do.
//
// It only reads. It takes no lease and writes no key, sets no variable, starts and stops nothing, touches no replication, and asks
// for the VIP by ARP probes that change no neighbour's entry. Every look has a deadline, and a thing that could not be looked at
// is a finding of its own: silence never counts as good.
//
// First everything is looked at, all at once, by a World; then the checks judge what was seen, each a pure function of the
// configuration and of the facts.
package check

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/baton-ha/baton/internal/config"
)

// Severity says how much a finding matters.
type Severity string

// The severities, the worst first. With a critical finding, mode automatic does not start.
const (
	Critical Severity = "critical" // a switch would fail, lose writes, or leave two writers
	Warning  Severity = "warning"  // it would work today, and is one step from not working
	Info     Severity = "info"     // worth knowing; nothing to do
)

var severities = []Severity{Critical, Warning, Info}

// Finding is one thing that was found, in the four parts that an operator needs.
type Finding struct {
	Code     string   `json:"code"` // stable: "MYSQL_READ_ONLY_AT_BOOT"; docs/check.md explains each
	Severity Severity `json:"severity"`
	Place    string   `json:"place"` // "mysql b/s1 (10.77.0.41:3306)"
	Seen     string   `json:"seen"`
	Means    string   `json:"means"`
	Do       string   `json:"do,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Cluster  string        `json:"cluster,omitempty"`
	Node     string        `json:"node,omitempty"`
	Findings []Finding     `json:"findings"` // the worst first
	Checks   int           `json:"checks"`   // how many checks judged what was seen
	Clean    int           `json:"clean"`    // how many of them found nothing
	Took     time.Duration `json:"took"`     // nanoseconds
}

// ExitCode is that of the command: 0 nothing to do, 1 warnings, 2 critical findings.
func (r Report) ExitCode() int {
	code := 0
	for _, f := range r.Findings {
		switch f.Severity {
		case Critical:
			return 2
		case Warning:
			code = 1
		}
	}
	return code
}

// Count is how many findings have that severity.
func (r Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// input is what every check judges.
type input struct {
	cfg   config.Config
	facts Facts
}

// checks is every check. Each is a function of what was seen and of nothing else.
var checks = slices.Concat(configChecks, networkChecks, etcdChecks, mysqlChecks, syncChecks, accountChecks, replicationChecks, mycatChecks, hostChecks)

// Run looks at the world and judges it. It returns by ctx's deadline plus a moment, whatever hangs.
func Run(ctx context.Context, cfg config.Config, w World) Report {
	began := time.Now()
	in := input{cfg: cfg, facts: look(ctx, cfg, w)}
	r := Report{Cluster: cfg.Cluster.Name, Node: string(cfg.Node), Checks: len(checks)}
	for _, check := range checks {
		found := check(in)
		if len(found) == 0 {
			r.Clean++
		}
		r.Findings = append(r.Findings, found...)
	}
	sortFindings(r.Findings)
	r.Took = time.Since(began)
	return r
}

// InvalidConfig is the report on a file that could not be read: nothing else was looked at.
func InvalidConfig(err error) Report {
	r := Report{Checks: 1}
	for _, e := range parts(err) {
		place := "configuration"
		text := e.Error()
		if at, ok := errors.AsType[*config.Error](e); ok {
			place, text = at.Place(), at.Text
		}
		r.Findings = append(r.Findings, configInvalid.at(place, text))
	}
	return r
}

// parts takes a joined error apart.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// sortFindings puts the worst first; within a severity the order of the checks stays, which is that of the way from the
// configuration to the host.
func sortFindings(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
}
