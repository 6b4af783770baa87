package check

import "fmt"

// kind is a finding that can be made: its code, and the parts of its text that are always the same.
type kind struct {
	code     string
	severity Severity
	means    string
	do       string // may have verbs for what at is given
}

// kinds is every kind, in the order of the files. docs/check.md has a heading for each, and a test compares.
var kinds []*kind

// declare adds a kind. Its code never changes: people grep for it, and alerts are written on it.
func declare(code string, severity Severity, means, do string) *kind {
	k := &kind{code: code, severity: severity, means: means, do: do}
	kinds = append(kinds, k)
	return k
}

// at makes the finding. args fill in the verbs of what to do.
func (k *kind) at(place, seen string, args ...any) Finding {
	do := k.do
	if len(args) > 0 {
		do = fmt.Sprintf(k.do, args...)
	}
	return Finding{Code: k.code, Severity: k.severity, Place: place, Seen: seen, Means: k.means, Do: do}
}

// as gives a finding another severity, where it depends on the policy.
func (f Finding) as(s Severity) Finding {
	f.Severity = s
	return f
}

// zeroLoss is the severity of what S4 rests on: critical where the policy promises that nothing is lost, a warning elsewhere.
func (in input) zeroLoss() Severity {
	if in.cfg.Policy.RPO.Zero {
		return Critical
	}
	return Warning
}
