// Package doctest keeps the documents honest: what they show must parse, exist, or be what the code computes. It has tests only.
package doctest

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the code computes between the documents' markers")

// root is the module's directory, seen from here.
const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// between returns the text between the markers <!-- name:begin --> and <!-- name:end -->.
func between(t *testing.T, file, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, file), "<!-- "+name+":begin -->\n")
	inside, _, closed := strings.Cut(rest, "<!-- "+name+":end -->")
	if !ok || !closed {
		t.Fatalf("%s has no markers %s:begin and %s:end", file, name, name)
	}
	return inside
}

// generated compares what stands between the markers with what the code computes; -update writes it there.
func generated(t *testing.T, file, name, want string) {
	t.Helper()
	got := between(t, file, name)
	switch {
	case got == want:
	case *update:
		text := read(t, file)
		begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
		text = strings.Replace(text, begin+got+end, begin+want+end, 1)
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s, between the markers %s, differs from what the code computes; go test ./internal/doctest -update writes it:\n%s", file, name, want)
	}
}

// rows splits a Markdown table into its cells, without head and rule.
func rows(table string) [][]string {
	var out [][]string
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		out = append(out, cells)
	}
	if len(out) < 2 {
		return nil
	}
	return out[2:]
}

var documents = []string{
	"README.md", "docs/accounts.md", "docs/check.md", "docs/configuration.md", "docs/dependencies.md", "docs/install.md",
	"docs/operations.md", "docs/paper.md",
}

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, name := range documents {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
			}
		}
	}
}
