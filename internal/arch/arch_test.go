// Package arch holds one test: that the packages of the module depend on each other in one direction, that the pure ones touch
// nothing outside, and that each library from elsewhere is known to few packages. It has no code of its own.
package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/baton-ha/baton"

// layer is where a package stands. Each may import those that its row in below names.
type layer string

const (
	pure    layer = "pure"    // values in, values out
	adapter layer = "adapter" // one outside thing each
	loop    layer = "loop"    // Run(ctx) error
	config  layer = "config"  // the file
	wiring  layer = "wiring"  // puts the parts together
	command layer = "command" // no logic
	lab     layer = "lab"     // laboratories, stand-ins, scenarios: nothing of the product imports them, tests may
)

// below says what each layer may import of this module. What is not named is an import upwards.
var below = map[layer][]layer{
	pure:    {pure},
	adapter: {pure, adapter},
	loop:    {pure, adapter},
	config:  {pure},
	wiring:  {pure, adapter, loop, config, wiring},
	command: {pure, adapter, loop, config, wiring},
	lab:     {pure, adapter, loop, config, wiring, command, lab},
}

// layers places every package. "x/..." is x and all below it; the longest row wins. A package without a row fails the test: whoever
// adds one says where it stands.
var layers = map[string]layer{
	"accumulator":         pure,
	"detector/health":     pure,
	"switcher/plan":       pure,
	"switcher/policy":     pure,
	"internal/cluster":    pure,
	"internal/lease":      pure,
	"internal/mysql/gtid": pure,

	"detector/probe":   adapter,
	"internal/dcs/...": adapter,
	"internal/mysql":   adapter,
	"internal/args":    adapter,
	"mycat":            adapter,
	"vip/...":          adapter,

	"detector":       loop,
	"internal/guard": loop,
	"switcher":       loop,

	"internal/config": config,

	"internal/check":  wiring,
	"internal/daemon": wiring,

	"cmd/...":          command,
	"internal/cli":     wiring,
	"cmd/batonlab":     lab,
	"internal/arch":    lab,
	"internal/doctest": lab,

	"internal/lab/...":         lab,
	"internal/mysql/mysqltest": lab,
	"internal/sim/...":         lab,
	"internal/standin/...":     lab,
	"scenarios/...":            lab,
	"vip/internal/nettest":     lab,
}

// outside says which packages know a library from elsewhere. The longest row wins; docs/dependencies.md says why each is there.
var outside = map[string][]string{
	"github.com/cilium/ebpf":         {"vip/gate"},
	"github.com/go-sql-driver/mysql": {"internal/mysql", "detector/probe", "mycat"},
	"github.com/mdlayher/arp":        {"vip"},
	"github.com/mdlayher/ethernet":   {"vip"},
	"github.com/mdlayher/packet":     {"vip"},
	"github.com/urfave/cli/v2":       {"internal/args", "internal/cli"},
	"github.com/vishvananda/netlink": {"vip", "vip/gate"},
	"github.com/vishvananda/netns":   {"vip"},
	"go.etcd.io/etcd/api/v3":         {"internal/dcs"},
	"go.etcd.io/etcd/client/pkg/v3":  {"internal/dcs", "internal/dcs/member"},
	"go.etcd.io/etcd/client/v3":      {"internal/dcs"},
	"go.etcd.io/etcd/server/v3":      {"internal/dcs/member"},
	"go.uber.org/zap":                {"internal/dcs", "internal/dcs/member"},
	"go.yaml.in/yaml/v3":             {"internal/config"},
	"golang.org/x/net":               {"vip"},
	"golang.org/x/sync":              anywhere, // goroutine groups: no outside thing
	"golang.org/x/sys":               {"vip", "vip/gate", "vip/keepalived", "internal/check", "internal/daemon", "internal/dcs", "internal/guard"},
	"golang.org/x/term":              {"internal/cli"},
	"google.golang.org/grpc":         {"internal/dcs", "internal/dcs/member"},
}

var anywhere = []string{"*"}

// untouchable is what a pure package must not import: whoever holds one of these can do I/O, log, or be different next time.
var untouchable = []string{"bufio", "crypto/rand", "database/sql", "io", "log", "math/rand", "net", "os", "runtime", "sync", "syscall", "testing", "unsafe"}

// harmless are exceptions below an untouchable name.
var harmless = []string{"net/netip"}

// clock is what a pure package must not call: its time comes as an argument.
var clock = []string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Sleep"}

// pkg is one package as its files are written, whatever their build tags.
type pkg struct {
	name    string              // path inside the module
	imports map[string]string   // of the product's files: import path → where
	tests   map[string]string   // of _test.go files
	acts    map[string][]string // "go" and "time.X" → where, of the product's files
	sleeps  []string            // every time.Sleep, tests included
}

func (p pkg) layer() (layer, bool) { return place(p.name) }

func place(name string) (layer, bool) {
	best, found := "", layer("")
	for row, l := range layers {
		base, deep := strings.CutSuffix(row, "/...")
		if (name == base || deep && strings.HasPrefix(name, base+"/")) && len(row) > len(best) {
			best, found = row, l
		}
	}
	return found, best != ""
}

// own gives the path of an import inside the module.
func own(imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

func std(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// judge says what is wrong with one package.
func judge(p pkg) []string {
	l, ok := p.layer()
	if !ok {
		return []string{fmt.Sprintf("%s: has no row in layers: say where it stands", p.name)}
	}
	var wrong []string
	for _, imported := range slices.Sorted(maps.Keys(p.imports)) {
		at := p.imports[imported]
		if name, ok := own(imported); ok {
			if to, _ := place(name); !slices.Contains(below[l], to) {
				wrong = append(wrong, fmt.Sprintf("%s: %s (%s) imports %s (%s): that is upwards", at, p.name, l, name, to))
			}
			continue
		}
		if why := refused(p.name, l, imported); why != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s (%s) imports %s: %s", at, p.name, l, imported, why))
		}
	}
	if l == pure {
		for _, what := range slices.Sorted(maps.Keys(p.acts)) {
			wrong = append(wrong, fmt.Sprintf("%s: %s is pure and has %q", strings.Join(p.acts[what], " "), p.name, what))
		}
	}
	for _, at := range p.sleeps {
		wrong = append(wrong, at+": time.Sleep: wait for a condition or a ticker")
	}
	return append(wrong, judgeTests(p, l)...)
}

// judgeTests: a test may use the laboratory, but a pure package's test stays pure too, but for files of its own.
func judgeTests(p pkg, l layer) []string {
	var wrong []string
	for _, imported := range slices.Sorted(maps.Keys(p.tests)) {
		name, ok := own(imported)
		if to, _ := place(name); ok && to != lab && !slices.Contains(below[l], to) {
			wrong = append(wrong, fmt.Sprintf("%s: the test of %s (%s) imports %s (%s): that is upwards", p.tests[imported], p.name, l, name, to))
		}
	}
	return wrong
}

// refused says why a package may not import something from outside the module; empty: it may.
func refused(name string, l layer, imported string) string {
	if std(imported) {
		if l != pure || slices.ContainsFunc(harmless, func(h string) bool { return imported == h }) {
			return ""
		}
		for _, u := range untouchable {
			if imported == u || strings.HasPrefix(imported, u+"/") {
				return "a pure package touches nothing"
			}
		}
		return ""
	}
	if l == lab {
		return ""
	}
	row := library(imported)
	if row == "" {
		return "the library has no row in outside: say which package owns it, and why in docs/dependencies.md"
	}
	if l == pure {
		return "a pure package has the standard library only"
	}
	if users := outside[row]; !slices.Equal(users, anywhere) && !slices.Contains(users, name) {
		return fmt.Sprintf("only %s may know this library", strings.Join(users, ", "))
	}
	return ""
}

// library gives the row of outside that an import belongs to.
func library(imported string) string {
	best := ""
	for row := range outside {
		if (imported == row || strings.HasPrefix(imported, row+"/")) && len(row) > len(best) {
			best = row
		}
	}
	return best
}

func TestDependenciesGoOneWay(t *testing.T) {
	packages := load(t, filepath.Join("..", ".."))
	if len(packages) < 10 {
		t.Fatalf("only %d packages found: the test looks in the wrong place", len(packages))
	}
	for _, p := range packages {
		for _, wrong := range judge(p) {
			t.Error(wrong)
		}
	}
	if c := circle(packages); c != nil {
		t.Errorf("imports in a circle: %s", strings.Join(c, " → "))
	}
}

// TestLibrariesAreDocumented keeps docs/dependencies.md and the table in step.
func TestLibrariesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for row := range outside {
		if !strings.Contains(string(text), "`"+row+"`") {
			t.Errorf("docs/dependencies.md does not say why `%s` is there", row)
		}
	}
}

// circle finds packages that import each other in a circle, also where build tags hide it from the compiler.
func circle(packages []pkg) []string {
	edges := map[string][]string{}
	for _, p := range packages {
		for imported := range p.imports {
			if name, ok := own(imported); ok {
				edges[p.name] = append(edges[p.name], name)
			}
		}
		slices.Sort(edges[p.name])
	}
	done := map[string]bool{}
	var walk func(name string, trail []string) []string
	walk = func(name string, trail []string) []string {
		if i := slices.Index(trail, name); i >= 0 {
			return append(slices.Clone(trail[i:]), name)
		}
		if done[name] {
			return nil
		}
		for _, next := range edges[name] {
			if c := walk(next, append(trail, name)); c != nil {
				return c
			}
		}
		done[name] = true
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(edges)) {
		if c := walk(name, nil); c != nil {
			return c
		}
	}
	return nil
}

// load parses every Go file of the module.
func load(t *testing.T, root string) []pkg {
	t.Helper()
	found := map[string]*pkg{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() && file != root && (base == "testdata" || base[0] == '.' || base[0] == '_') {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return add(found, filepath.ToSlash(rel), text)
	})
	if err != nil {
		t.Fatal(err)
	}
	var packages []pkg
	for _, name := range slices.Sorted(maps.Keys(found)) {
		packages = append(packages, *found[name])
	}
	return packages
}

// add parses one file into its package.
func add(found map[string]*pkg, file string, text []byte) error {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	name := path.Dir(file)
	p := found[name]
	if p == nil {
		p = &pkg{name: name, imports: map[string]string{}, tests: map[string]string{}, acts: map[string][]string{}}
		found[name] = p
	}
	test := strings.HasSuffix(file, "_test.go")
	at := func(n ast.Node) string { return fmt.Sprintf("%s:%d", file, files.Position(n.Pos()).Line) }
	timeName := ""
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		if imported == "time" {
			timeName = "time"
			if spec.Name != nil {
				timeName = spec.Name.Name
			}
		}
		if test {
			p.tests[imported] = at(spec)
		} else {
			p.imports[imported] = at(spec)
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		what := act(n, timeName)
		if what == "time.Sleep" {
			p.sleeps = append(p.sleeps, at(n))
		}
		if what != "" && !test {
			p.acts[what] = append(p.acts[what], at(n))
		}
		return true
	})
	return nil
}

// act names what a node does that a pure package must not: start a goroutine, or ask a clock. A function of the clock that is
// only named counts as well, because it can be called later.
func act(n ast.Node, timeName string) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "go"
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok && timeName != "" && x.Name == timeName && slices.Contains(clock, n.Sel.Name) {
			return "time." + n.Sel.Name
		}
	}
	return ""
}

// TestEachRuleBites feeds the rules one file that breaks each.
func TestEachRuleBites(t *testing.T) {
	for _, tc := range []struct{ name, file, text, want string }{
		{"pure and std", "accumulator/x.go", `import ("time"; "net/netip"; "slices"); var d = time.Second`, ""},
		{"adapter and its library", "vip/x.go", `import ("github.com/vishvananda/netlink"; "os"; "time"); var now = time.Now()`, ""},
		{"test uses the laboratory", "vip/x_test.go", `import "github.com/baton-ha/baton/internal/lab/box"`, ""},
		{"pure imports an adapter", "switcher/plan/x.go", `import "github.com/baton-ha/baton/internal/dcs"`, "upwards"},
		{"adapter imports a loop", "mycat/x.go", `import "github.com/baton-ha/baton/detector"`, "upwards"},
		{"adapter imports config", "internal/mysql/x.go", `import "github.com/baton-ha/baton/internal/config"`, "upwards"},
		{"loop imports config", "switcher/x.go", `import "github.com/baton-ha/baton/internal/config"`, "upwards"},
		{"loop imports a loop", "switcher/x.go", `import "github.com/baton-ha/baton/detector"`, "upwards"},
		{"command imports the laboratory", "cmd/baton/x.go", `import "github.com/baton-ha/baton/internal/lab/box"`, "upwards"},
		{"test imports upwards", "mycat/x_test.go", `import "github.com/baton-ha/baton/internal/daemon"`, "upwards"},
		{"pure imports os", "internal/lease/x.go", `import "os"`, "touches nothing"},
		{"pure imports a part of net", "internal/cluster/x.go", `import "net/http"`, "touches nothing"},
		{"pure logs", "detector/health/x.go", `import "log/slog"`, "touches nothing"},
		{"pure asks the clock", "switcher/policy/x.go", `import "time"; var now = time.Now()`, `"time.Now"`},
		{"pure hides the clock", "switcher/policy/x.go", `import t "time"; var now = t.Since`, `"time.Since"`},
		{"pure starts a goroutine", "switcher/plan/x.go", `func f() { go f() }`, `"go"`},
		{"pure has a library", "internal/cluster/x.go", `import "golang.org/x/sync/errgroup"`, "standard library only"},
		{"a library in a second package", "switcher/x.go", `import "github.com/vishvananda/netlink"`, "only vip"},
		{"etcd's server outside its package", "internal/dcs/x.go", `import "go.etcd.io/etcd/server/v3/embed"`, "only internal/dcs/member"},
		{"unknown library", "vip/x.go", `import "example.org/lib"`, "no row in outside"},
		{"unknown package", "internal/novel/x.go", ``, "no row in layers"},
		{"sleeping test", "vip/x_test.go", `import "time"; func f() { time.Sleep(1) }`, "time.Sleep"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := map[string]*pkg{}
			if err := add(found, tc.file, []byte("package x; "+tc.text)); err != nil {
				t.Fatal(err)
			}
			wrong := judge(*found[path.Dir(tc.file)])
			if tc.want == "" && len(wrong) > 0 || tc.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], tc.want)) {
				t.Errorf("got %q, want one with %q", wrong, tc.want)
			}
		})
	}
}

func TestCircleIsFound(t *testing.T) {
	edge := func(from, to string) pkg {
		return pkg{name: from, imports: map[string]string{module + "/" + to: ""}}
	}
	if c := circle([]pkg{edge("a", "b"), edge("b", "c"), edge("c", "d")}); c != nil {
		t.Errorf("no circle, found %q", c)
	}
	if c := circle([]pkg{edge("a", "b"), edge("b", "c"), edge("c", "b")}); strings.Join(c, " ") != "b c b" {
		t.Errorf("circle b c b, found %q", c)
	}
}
