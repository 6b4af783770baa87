package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/baton-ha/baton/internal/guard"
)

func memoryIn(t *testing.T, dir string) *memory {
	t.Helper()
	m, err := openMemory(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMemorySurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	if err := memoryIn(t, dir).Admit(7, 100); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		epoch, revision int64
		old             bool
	}{
		{7, 100, false},
		{6, 100, true},
		{6, 200, true}, // an older epoch at a newer revision: a restored backup that has been written to since
		{7, 99, true},
		{8, 99, true}, // a newer epoch at an older revision: etcd was built anew, and epochs went on by hand
		{7, 101, false},
		{8, 100, true}, // the line before was admitted
		{9, 300, false},
	} {
		err := memoryIn(t, dir).Admit(tc.epoch, tc.revision)
		if errors.Is(err, guard.ErrOld) != tc.old || (err != nil) != tc.old {
			t.Errorf("epoch %d at revision %d: %v", tc.epoch, tc.revision, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left in the directory: %v %v", left, err)
	}
}

func TestMemoryRefusesABrokenFile(t *testing.T) {
	for _, content := range []string{"", "{", "null", "{}", `{"epoch":"x"}`, `{"epoch":7}`, `{"epoch":7,"revision":100}garbage`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "seen.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := openMemory(dir); err == nil {
			t.Errorf("%q is read as %+v", content, m.seen)
		}
	}
}

// What could not be written was not admitted, also not when it is asked for again.
func TestMemoryThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m := memoryIn(t, dir)
	if err := m.Admit(7, 100); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Admit(8, 200); err == nil || errors.Is(err, guard.ErrOld) {
			t.Errorf("admitted without a file: %v", err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Admit(8, 200); err != nil {
		t.Errorf("refused when it can be written again: %v", err)
	}
	if err := memoryIn(t, dir).Admit(7, 100); !errors.Is(err, guard.ErrOld) {
		t.Errorf("not on disk: %v", err)
	}
}
