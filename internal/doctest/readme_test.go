package doctest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cli"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/lab"
	"github.com/baton-ha/baton/scenarios"
)

var (
	results = flag.String("results", "", "files of batonlab bench, with spaces between: with -update the README's table is made of them")
	demo    = flag.String("demo", "", "what batonlab demo has printed: with -update it becomes the README's transcript")
)

func TestReadmeIsShort(t *testing.T) {
	lines := strings.Split(read(t, "README.md"), "\n")
	if len(lines) > 350 {
		t.Errorf("README.md has %d lines: move something to docs/", len(lines))
	}
	if !strings.Contains(strings.Join(lines[:min(40, len(lines))], "\n"), "Applications had no good write for") {
		t.Error("README.md shows no failover with its time in its first 40 lines")
	}
}

// passwords stands for the files that a configuration names.
type passwords struct{ fs.FileInfo }

func (passwords) Mode() fs.FileMode { return 0o600 }

// TestReadmeConfiguration: the file that a newcomer copies is accepted, short, and begins with advise.
func TestReadmeConfiguration(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "README.md"), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("README.md has no baton.yaml")
	}
	if n := strings.Count(text, "\n"); n > 30 {
		t.Errorf("baton.yaml has %d lines, want 30 at most", n)
	}
	c, err := config.Parse("README.md", []byte(text), config.Host{
		Hostname: func() (string, error) { return "mc-a", nil }, LookupEnv: func(string) (string, bool) { return "", false },
		Stat: func(string) (fs.FileInfo, error) { return passwords{}, nil }, ReadFile: func(string) ([]byte, error) { return []byte("secret\n"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != "advise" || c.Profile.Name != "steady" {
		t.Errorf("mode %s, profile %s: the README begins with advise and steady", c.Mode, c.Profile.Name)
	}
	for _, key := range []string{"gate", "lease"} {
		if regexp.MustCompile(`(?m)^\s*` + key + `\s*:`).MatchString(text) {
			t.Errorf("baton.yaml has a key %s", key)
		}
	}
}

func TestReadmeExitCodes(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "README.md"), "| exit code |")
	table, _, _ = strings.Cut("| exit code |"+table, "\n\n")
	var got []string
	for _, r := range rows(table) {
		got = append(got, r[0])
	}
	var want []string
	for _, code := range []int{cli.ExitOK, cli.ExitWarnings, cli.ExitCritical, cli.ExitUsage, cli.ExitNoStore, cli.ExitFailed, cli.ExitConfig} {
		want = append(want, fmt.Sprint(code))
	}
	if !slices.Equal(got, want) {
		t.Errorf("README.md lists exit codes %v, the commands have %v", got, want)
	}
}

var command = regexp.MustCompile("(?m)(?:^(?:# )?|`)baton ([a-z]+)(?: ([a-z]+))?")

// TestCommandsExist asks the command line for the help of every command that a document shows.
func TestCommandsExist(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range documents {
		for _, m := range command.FindAllStringSubmatch(read(t, name), -1) {
			seen[m[1]] = true
			if m[1] == "maintenance" || m[1] == "config" {
				seen[m[1]+" "+m[2]] = true
			}
		}
	}
	if len(seen) < 8 {
		t.Fatalf("the documents show only %v", slices.Sorted(maps.Keys(seen)))
	}
	silence(t)
	for _, words := range slices.Sorted(maps.Keys(seen)) {
		if code := cli.Main(append(append([]string{"baton"}, strings.Fields(words)...), "--help")); code != cli.ExitOK {
			t.Errorf("baton %s --help: exit code %d", words, code)
		}
	}
}

// silence keeps what the command line prints out of the test's own output.
func silence(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	out, errOut := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = null, null
	t.Cleanup(func() {
		os.Stdout, os.Stderr = out, errOut
		if err := null.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestScenariosAreTold: the README tells what every shipped scenario leads to, and names none that is not there.
func TestScenariosAreTold(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "README.md"), "## What each failure leads to")
	section, _, _ = strings.Cut(section, "\n## ")
	var got []string
	for _, r := range regexp.MustCompile(`(?m)^\|[^|]+\| ([a-z-]+) \|`).FindAllStringSubmatch(section, -1) {
		if r[1] != "scenario" {
			got = append(got, r[1])
		}
	}
	if got = slices.Compact(slices.Sorted(slices.Values(got))); !slices.Equal(got, slices.Sorted(slices.Values(scenarios.Names()))) {
		t.Errorf("README.md tells of %v, the scenarios are %v", got, scenarios.Names())
	}
}

// columns are the measured columns of the README's table, steady first.
var columns = []struct{ profile, bind string }{{"steady", "keepalived"}, {"steady", "netlink"}, {"fast", "keepalived"}, {"fast", "netlink"}}

// TestReadmeNumbers: every scenario of the benchmark has a row, every cell is a measurement or an open place. With -results and
// -update the cells are filled from the benchmark's files; a cell without runs stays as it is.
func TestReadmeNumbers(t *testing.T) {
	table := between(t, "README.md", "bench")
	measured := outages(t)
	cell := regexp.MustCompile(`^(…|\d+ / \d+)$`)
	var names []string
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		cells := strings.Split(line, " | ")
		if i < 2 || len(cells) != 3+len(columns) {
			b.WriteString(line + "\n")
			continue
		}
		names = append(names, cells[1])
		for k, c := range columns {
			if m := measured[c.profile+" "+c.bind+" "+cells[1]]; len(m) > 0 {
				cells[2+k] = fmt.Sprintf("%.0f / %.0f", lab.Quantile(m, 0.5), lab.Quantile(m, 0.99))
			}
			if !cell.MatchString(cells[2+k]) {
				t.Errorf("%s, %s %s: %q is no measurement", cells[1], c.profile, c.bind, cells[2+k])
			}
		}
		b.WriteString(strings.Join(cells, " | ") + "\n")
	}
	var want []string
	for _, target := range lab.Targets() {
		want = append(want, target.Scenario)
	}
	if slices.Sort(names); !slices.Equal(names, slices.Sorted(slices.Values(want))) {
		t.Errorf("the table has %v, the benchmark runs %v", names, want)
	}
	generated(t, "README.md", "bench", b.String())
}

// outages reads the files of -results: the outages of the runs that were ok, by profile, bind and scenario.
func outages(t *testing.T) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, name := range strings.Fields(*results) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var r lab.Result
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if r.OK {
				k := r.Profile + " " + r.Bind + " " + r.Scenario
				all[k] = append(all[k], r.OutageMS)
			}
		}
	}
	return all
}

// TestReadmeTranscript: what stands there has the form of the demo's words. With -demo and -update it is taken from the demo's output,
// from the fault to the end of the switch.
func TestReadmeTranscript(t *testing.T) {
	want := between(t, "README.md", "demo")
	if *demo != "" {
		text, err := os.ReadFile(*demo)
		if err != nil {
			t.Fatal(err)
		}
		_, story, began := strings.Cut(string(text), "\n\n")
		story, _, ended := strings.Cut(story, "\n\n    recheck")
		if !began || !ended {
			t.Fatalf("%s is no whole demo", *demo)
		}
		want = "```\n" + story + "\n```\n"
	}
	if !regexp.MustCompile("(?s)^```\n    0 ms .*\nSwitched in \\d+ ms, to site b\\. Applications had no good write for \\d+ ms\\.\n```\n$").MatchString(want) {
		t.Errorf("this is no transcript of a failover:\n%s", want)
	}
	generated(t, "README.md", "demo", want)
}

// TestUnit: two lines of the unit decide whether the VIP outlives a restart of the daemon.
func TestUnit(t *testing.T) {
	unit := read(t, "contrib/systemd/baton.service")
	if !strings.Contains(unit, "\nKillMode=process\n") {
		t.Error("KillMode=process is missing: keepalived would die with the daemon")
	}
	m := regexp.MustCompile(`(?m)^RestartSec=(.+)$`).FindStringSubmatch(unit)
	if m == nil {
		t.Fatal("RestartSec is missing")
	}
	wait, err := time.ParseDuration(m[1])
	if err != nil || wait > 500*time.Millisecond {
		t.Errorf("RestartSec=%s: the daemon must be back well within the shortest lease of 1.5 s", m[1])
	}
	for _, option := range []string{"PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateMounts", "RuntimeDirectory"} {
		if regexp.MustCompile(`(?m)^` + option + `=`).MatchString(unit) {
			t.Errorf("%s= would take the gate's pins or keepalived's pid files along", option)
		}
	}
}
