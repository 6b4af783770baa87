package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Host is what Parse asks of the machine. Tests and the fuzzer hand in their own.
type Host struct {
	Hostname  func() (string, error)
	LookupEnv func(string) (string, bool)
	Stat      func(string) (fs.FileInfo, error)
	ReadFile  func(string) ([]byte, error)
}

// ThisHost asks the machine that runs the process.
func ThisHost() Host {
	return Host{Hostname: os.Hostname, LookupEnv: os.LookupEnv, Stat: os.Stat, ReadFile: os.ReadFile}
}

// Load reads and checks the file. The error joins every mistake, each an *Error with its line and column.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data, ThisHost())
}

// Parse checks the text of a file; name stands in front of each mistake. It never panics, whatever the text is.
func Parse(name string, data []byte, host Host) (Config, error) {
	d := &decoder{file: name, at: map[string]*yaml.Node{}}
	root, err := d.document(data)
	if err != nil {
		return Config{}, err
	}
	r := &read{decoder: d, host: host, c: Config{Path: name}}
	r.file(root)
	r.check()
	if err := d.err(); err != nil {
		return Config{}, err
	}
	r.c.Warnings = d.warn
	return r.c, nil
}

// document parses the YAML text, which must be one mapping.
func (d *decoder) document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return nil, d.syntax(err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, &Error{File: d.file, Line: max(more.Line, 1), Col: max(more.Column, 1), Text: "a second document (---) begins here: one file holds one cluster"}
	} else if !errors.Is(err, io.EOF) {
		return nil, d.syntax(err)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, &Error{File: d.file, Line: max(root.Line, 1), Col: max(root.Column, 1), Text: fmt.Sprintf("the file should be a mapping (cluster: bank, ...), not %s", kind(root))}
	}
	d.at[""] = root
	return root, nil
}

// syntax turns the library's "yaml: line 3: did not find ..." into the form of every other mistake. The library gives no
// column, and no line for some.
func (d *decoder) syntax(err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{File: d.file, Line: 1, Col: 1, Text: "the file is empty: docs/configuration.md has one to begin with"}
	}
	line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, after, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil && n > 0 {
			line, text = n, after
		}
	}
	return &Error{File: d.file, Line: line, Col: 1, Text: "no YAML: " + text, Err: err}
}
