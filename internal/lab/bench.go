package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Target is what a scenario's outage should be, in milliseconds, and what one would have without Baton (DESIGN 8).
type Target struct {
	Scenario string
	P50, P99 map[string]float64 // by bind
	Instead  string
}

func limits(netlink50, netlink99, keepalived50, keepalived99 float64) (p50, p99 map[string]float64) {
	return map[string]float64{"netlink": netlink50, "keepalived": keepalived50},
		map[string]float64{"netlink": netlink99, "keepalived": keepalived99}
}

// Targets are the numbers of profile fast.
func Targets() []Target {
	var list []Target
	add := func(instead string, p50, p99 map[string]float64, names ...string) {
		for _, name := range names {
			list = append(list, Target{name, p50, p99, instead})
		}
	}
	p50, p99 := limits(120, 350, 150, 420)
	add("keepalived + script 2-4 s; orchestrator 2.2 s (database alone), 5-7 s by defaults", p50, p99, "mysql-kill", "mysql-kill-all", "mycat-kill")
	p50, p99 = limits(600, 1000, 600, 1000)
	add("never, or 25-75 s", p50, p99, "mysql-freeze", "mycat-freeze")
	p50, p99 = limits(1600, 2000, 1600, 2000)
	add("3-4 s, no fencing", p50, p99, "host-cut")
	p50, p99 = limits(1800, 2400, 1800, 2400)
	add("two holders", p50, p99, "agent-freeze-then-kill")
	p50, p99 = limits(60, 150, 100, 230)
	add("5 s (p99, MoHA)", p50, p99, "switchover")
	return list
}

// Quantile is the smallest value that at least the share q of the values does not exceed (nearest rank); 0 of no values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	// The rank is counted in thousandths: q·n as a float would round 0.99·100 up.
	rank := (int(q*1000+0.5)*len(sorted) + 999) / 1000
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Table writes the outages of the results beside their targets, and the steps' medians below.
func Table(results []Result) string {
	type key struct{ scenario, bind string }
	groups := make(map[key][]Result)
	for _, r := range results {
		k := key{r.Scenario, r.Bind}
		groups[k] = append(groups[k], r)
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b key) int {
		return cmp.Or(strings.Compare(a.scenario, b.scenario), strings.Compare(a.bind, b.bind))
	})
	targets := make(map[string]Target)
	for _, t := range Targets() {
		targets[t.Scenario] = t
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s %-10s %5s  %17s  %17s  %s\n", "outage, ms", "bind", "ok", "p50 / p99", "target at most", "instead")
	for _, k := range keys {
		outages := column(groups[k], func(r Result) float64 { return r.OutageMS })
		t, known := targets[k.scenario]
		aim := ""
		if known {
			aim = fmt.Sprintf("%.0f / %.0f", t.P50[k.bind], t.P99[k.bind])
		}
		fmt.Fprintf(&b, "%-24s %-10s %2d/%-2d  %17s  %17s  %s\n", k.scenario, k.bind, okCount(groups[k]), len(groups[k]),
			fmt.Sprintf("%.0f / %.0f", Quantile(outages, 0.5), Quantile(outages, 0.99)), aim, t.Instead)
	}
	b.WriteByte('\n')
	for _, k := range keys {
		if line := stepLine(groups[k]); line != "" {
			fmt.Fprintf(&b, "%-24s %-10s %s\n", k.scenario, k.bind, line)
		}
	}
	return b.String()
}

func column(results []Result, of func(Result) float64) []float64 {
	var values []float64
	for _, r := range results {
		values = append(values, of(r))
	}
	return values
}

func okCount(results []Result) int {
	n := 0
	for _, r := range results {
		if r.OK {
			n++
		}
	}
	return n
}

// stepLine is the median of each step of the switches, longest first.
func stepLine(results []Result) string {
	steps := make(map[string][]float64)
	for _, r := range results {
		for name, took := range r.Steps {
			steps[name] = append(steps[name], took)
		}
	}
	names := slices.SortedFunc(maps.Keys(steps), func(a, b string) int {
		return cmp.Or(cmp.Compare(Quantile(steps[b], 0.5), Quantile(steps[a], 0.5)), strings.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.1f", name, Quantile(steps[name], 0.5)))
	}
	return strings.Join(parts, ", ")
}
