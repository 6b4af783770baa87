package doctest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lease"
)

// TestTimes: the table of times is computed from the profiles.
func TestTimes(t *testing.T) {
	profiles := []cluster.Profile{cluster.Steady(), cluster.Fast()}
	rules := []accumulator.Config{accumulator.Steady(), accumulator.Fast()}
	var b strings.Builder
	b.WriteString("| | `steady` | `fast` |\n|---|---|---|\n")
	row := func(what string, of func(cluster.Profile, accumulator.Config) string) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, of(profiles[0], rules[0]), of(profiles[1], rules[1]))
	}
	row("one beat of every probe", func(p cluster.Profile, _ accumulator.Config) string { return p.Interval.String() })
	row("probes after hard evidence (refused, reset)", func(p cluster.Profile, _ accumulator.Config) string { return p.ConfirmEvery.String() })
	row("life of one probe", func(p cluster.Profile, _ accumulator.Config) string { return p.ProbeTimeout.String() })
	row("a target is down after", func(_ cluster.Profile, r accumulator.Config) string {
		return fmt.Sprintf("%d failures in %s", r.Failures, r.Window)
	})
	row("a restart within this is no switch", func(p cluster.Profile, _ accumulator.Config) string { return p.Grace.String() })
	row("lease (D)", func(p cluster.Profile, _ accumulator.Config) string { return p.Lease.String() })
	row("taken off it by the guard (margin)", func(p cluster.Profile, _ accumulator.Config) string { return p.Margin.String() })
	row("renewal every D/10, each try at most D/8", func(p cluster.Profile, _ accumulator.Config) string {
		terms := lease.Terms{D: p.Lease, Margin: p.Margin}
		return terms.RenewEvery().String() + ", " + terms.AttemptTimeout().String()
	})
	row("the controller's lock is free after", func(p cluster.Profile, _ accumulator.Config) string { return p.LockPulse.String() })
	row("an old MySQL that does not answer is given up after", func(p cluster.Profile, _ accumulator.Config) string { return p.StepBudget.String() })
	generated(t, "docs/install.md", "times", b.String())
}

// TestReasons: the runbook has every reason that a decision can have, and no other.
func TestReasons(t *testing.T) {
	var want []string
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "switcher/policy/policy.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, text)
		return true
	})
	var got []string
	for _, r := range rows(between(t, "docs/operations.md", "reasons")) {
		for _, code := range strings.Split(r[0], ", ") {
			got = append(got, strings.Trim(code, "`"))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("docs/operations.md has %v, the policy has %v", got, want)
	}
}
