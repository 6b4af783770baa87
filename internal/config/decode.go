package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is one mistake in the file.
type Error struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Col  int    `json:"col"`
	Path string `json:"path,omitempty"` // "sites[1].shards.s2"
	Text string `json:"text"`           // what was seen, and what to write instead
	Err  error  `json:"-"`              // the cause, may be nil
}

// Error begins with the place, as compilers do, so that editors jump to it.
func (e *Error) Error() string { return e.Place() + ": " + e.Text }

// Place is "baton.yaml:12:5".
func (e *Error) Place() string { return fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Col) }

// Unwrap gives the cause: one of cluster's sentinels, or an error of the file system.
func (e *Error) Unwrap() error { return e.Err }

// decoder walks the YAML nodes. It remembers where each path stands, so that mistakes found later (by cluster.Validate) get
// their line too, and which paths are wrong already, so that one mistake is reported once.
type decoder struct {
	file string
	at   map[string]*yaml.Node
	errs []*Error
	warn []Warning
}

// reader reads one node into its destination.
type reader func(n *yaml.Node, path string)

// field is one key of a mapping.
type field struct {
	key  string
	read reader
	need string // non-empty: must be there, and this says what to write
}

// retired are keys that people look for and that do not exist, with the reason.
var retired = map[string]string{
	"password": "a password does not belong in this file, which is read, copied and committed: write password_file: /etc/baton/NAME.pw (mode 0600) or password_env: NAME",
	"lease":    "there is no key of the lease: its times hang together and follow from profile: steady or fast",
	"gate":     "there is no key of the gate: it is always there, and its times follow from profile: steady or fast",
	"margin":   "there is no key of the lease: its times hang together and follow from profile: steady or fast",
}

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	d.failErr(n, path, nil, format, args...)
}

func (d *decoder) failErr(n *yaml.Node, path string, err error, format string, args ...any) {
	line, col := max(n.Line, 1), max(n.Column, 1)
	d.errs = append(d.errs, &Error{File: d.file, Line: line, Col: col, Path: path, Text: fmt.Sprintf(format, args...), Err: err})
}

// place finds the node of a path, or of the nearest thing around it.
func (d *decoder) place(path string) *yaml.Node {
	for {
		if n, ok := d.at[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.at[""]
		}
		path = path[:i]
	}
}

// wrong says whether the path, something in it or something around it has been reported.
func (d *decoder) wrong(path string) bool {
	return slices.ContainsFunc(d.errs, func(e *Error) bool { return within(e.Path, path) || within(path, e.Path) })
}

func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (d *decoder) warning(path, format string, args ...any) {
	n := d.place(path)
	d.warn = append(d.warn, Warning{Place: fmt.Sprintf("%s:%d:%d", d.file, max(n.Line, 1), max(n.Column, 1)), Text: fmt.Sprintf(format, args...)})
}

// err joins what was found, in the order of the file.
func (d *decoder) err() error {
	slices.SortStableFunc(d.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	var errs []error
	for _, e := range d.errs {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// pairs gives the keys and values of a mapping, each key once.
func (d *decoder) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node, sub string)) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "%s should be a mapping (key: value), not %s", name(path), kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		sub := join(path, key.Value)
		switch first := seen[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			d.fail(key, path, "a key must be a plain word, not %s", kind(key))
		case first > 0:
			d.fail(key, sub, "%s is here twice, first in line %d: keep one", name(sub), first)
		default:
			seen[key.Value] = max(key.Line, 1)
			d.at[sub] = value
			each(key, value, sub)
		}
	}
}

// object reads a mapping by a table of its keys. Unknown keys are refused, needed ones insisted on.
func (d *decoder) object(n *yaml.Node, path string, fields ...field) {
	present := map[string]bool{}
	d.pairs(n, path, func(key, value *yaml.Node, sub string) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if i < 0 {
			d.unknown(key, path, fields)
			return
		}
		present[key.Value] = true
		fields[i].read(value, sub)
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, f := range fields {
		if f.need != "" && !present[f.key] && !d.wrong(join(path, f.key)) {
			d.fail(n, join(path, f.key), "%s is missing: %s", name(join(path, f.key)), f.need)
		}
	}
}

func (d *decoder) unknown(key *yaml.Node, path string, fields []field) {
	if why, ok := retired[key.Value]; ok {
		d.fail(key, join(path, key.Value), "%s: %s", key.Value, why)
		return
	}
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	text := fmt.Sprintf("unknown key %q", key.Value)
	if path != "" {
		text += " in " + path
	}
	if s := nearest(key.Value, known); s != "" {
		d.fail(key, join(path, s), "%s: did you mean %q?", text, s)
		return
	}
	d.fail(key, join(path, key.Value), "%s: it has %s", text, strings.Join(known, ", "))
}

// items gives the elements of a list.
func (d *decoder) items(n *yaml.Node, path string, each func(item *yaml.Node, sub string)) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "%s should be a list ([a, b] or lines with '- '), not %s", name(path), kind(n))
		return
	}
	for i, item := range n.Content {
		sub := fmt.Sprintf("%s[%d]", path, i)
		d.at[sub] = item
		each(item, sub)
	}
}

// scalar reads a plain value through parse, whose error says what to write instead.
func scalar[T any](d *decoder, dst *T, parse func(string) (T, error)) reader {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			d.fail(n, path, "%s should be a plain value, not %s", name(path), kind(n))
			return
		}
		v, err := parse(n.Value)
		if err != nil {
			d.failErr(n, path, err, "%s: %v", name(path), err)
			return
		}
		*dst = v
	}
}

// oneOf reads a word out of a few.
func oneOf[T ~string](d *decoder, dst *T, words ...T) reader {
	return scalar(d, dst, func(s string) (T, error) {
		if slices.Contains(words, T(s)) {
			return T(s), nil
		}
		var known []string
		for _, w := range words {
			known = append(known, string(w))
		}
		if near := nearest(s, known); near != "" {
			return "", fmt.Errorf("%q is not known: did you mean %q?", s, near)
		}
		return "", fmt.Errorf("%q is not known: write one of %s", s, strings.Join(known, ", "))
	})
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func name(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias (*" + n.Value + "), which this file does not have"
	case n.Tag == "!!merge":
		return "a merge (<<), which this file does not have"
	case n.Tag == "!!null":
		return "nothing"
	}
	return fmt.Sprintf("%q", n.Value)
}

// nearest finds the word that was probably meant: one that this begins, or at most two letters off, and less than half of it.
func nearest(word string, known []string) string {
	for _, k := range known {
		if len(word) >= 3 && strings.HasPrefix(k, word) {
			return k
		}
	}
	best, found := 3, ""
	for _, k := range known {
		if n := distance(word, k); n < best && 2*n < len(k) {
			best, found = n, k
		}
	}
	return found
}

// distance is the number of letters to insert, delete, replace or swap with the next one (optimal string alignment).
func distance(a, b string) int {
	before, last := []int(nil), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
