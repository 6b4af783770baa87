package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/baton-ha/baton/internal/guard"
)

// memory is the highest epoch and etcd revision that this host has seen, on disk: a restored backup of etcd is older (PROTOCOL 1).
type memory struct {
	path string
	seen seen
}

type seen struct {
	Epoch    int64 `json:"epoch"`
	Revision int64 `json:"revision"`
}

func openMemory(dir string) (*memory, error) {
	m := &memory{path: filepath.Join(dir, "seen.json")}
	b, err := os.ReadFile(m.path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", m.path, err)
	}
	err = json.Unmarshal(b, &m.seen)
	if err == nil && (m.seen.Epoch <= 0 || m.seen.Revision <= 0) {
		err = errors.New("it names no epoch and revision")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; without it a restored etcd would not be noticed: look at the file, and remove it only if etcd was not restored", m.path, err)
	}
	return m, nil
}

// Admit implements guard.Memory. It is on disk before it returns.
func (m *memory) Admit(epoch, revision int64) error {
	if epoch < m.seen.Epoch || revision < m.seen.Revision {
		return fmt.Errorf("epoch %d at revision %d, seen were %d and %d: %w", epoch, revision, m.seen.Epoch, m.seen.Revision, guard.ErrOld)
	}
	if epoch == m.seen.Epoch && revision == m.seen.Revision {
		return nil
	}
	now := seen{epoch, revision}
	b, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.path, err)
	}
	if err := replaceFile(m.path, b); err != nil {
		return err
	}
	m.seen = now
	return nil
}

// replaceFile writes through a temporary file and syncs both it and the directory: after a crash there is the old or the new one.
func replaceFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".seen-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("sync directory of %s: %w", path, err)
	}
	return errors.Join(d.Sync(), d.Close())
}
