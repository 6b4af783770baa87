// Package scenarios holds the shipped scenarios: one text file each, which every laboratory reads.
package scenarios

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.txt
var files embed.FS

// Names returns the scenarios' names, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic("scenarios: read embedded directory: " + err.Error()) // it is part of the program
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txt"))
	}
	return names
}

// Read returns the text of a scenario; an unknown name is fs.ErrNotExist.
func Read(name string) ([]byte, error) {
	text, err := files.ReadFile(name + ".txt")
	if err != nil {
		return nil, fmt.Errorf("read scenario %s: %w", name, err)
	}
	return text, nil
}
