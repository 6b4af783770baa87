package gate

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// errCellClosed is a cell whose map this process has given up.
var errCellClosed = errors.New("gate: map is closed")

// cell is the word in its map: alone in it, because a write of a whole value would wipe what lay beside it.
//
// Where the kernel maps it into our memory (BPF_F_MMAPABLE, Linux 5.5) a swap is one atomic instruction, and one that was begun before a close cannot land after it.
// Elsewhere system calls read and write it under mu, which is as good as long as this process alone writes the map; no other process has it.
type cell struct {
	mu   sync.RWMutex // keeps the memory mapped while it is used; without memory, keeps read and write together
	m    *ebpf.Map
	mem  []byte
	word *uint64 // into mem; nil when the map is not mapped
}

// newCell creates the map, closed. mapped false forces the way of old kernels.
func newCell(mapped bool) (*cell, error) {
	spec := &ebpf.MapSpec{Name: "baton_word", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	if mapped {
		spec.Flags = unix.BPF_F_MMAPABLE
		if m, err := ebpf.NewMap(spec); err == nil {
			if c, err := mapCell(m); err == nil {
				return c, nil
			}
			_ = m.Close()
		}
		spec.Flags = 0
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create map of the word: %w", err)
	}
	return &cell{m: m}, nil
}

// mapCell maps m and proves that a write to the memory is what the kernel reads.
func mapCell(m *ebpf.Map) (*cell, error) {
	mem, err := unix.Mmap(m.FD(), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the word: %w", err)
	}
	c := &cell{m: m, mem: mem, word: (*uint64)(unsafe.Pointer(&mem[0]))}
	atomic.StoreUint64(c.word, 1)
	if seen, err := c.lookup(); err != nil || seen != 1 {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("read the mapped word back: saw %d: %w", seen, err)
	}
	return c, nil
}

// load reads the word.
func (c *cell) load() (Word, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch {
	case c.m == nil:
		return 0, errCellClosed
	case c.word != nil:
		return Word(atomic.LoadUint64(c.word)), nil
	}
	return c.lookup()
}

// loadKernel reads the word by system call also where it is mapped: what the program sees, not what we believe we wrote.
func (c *cell) loadKernel() (Word, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.m == nil {
		return 0, errCellClosed
	}
	return c.lookup()
}

// compareAndSwap writes next if the word is still old.
func (c *cell) compareAndSwap(old, next Word) (Outcome, error) {
	if c.word != nil {
		c.mu.RLock()
		defer c.mu.RUnlock()
		switch {
		case c.m == nil:
			return NotInstalled, errCellClosed
		case atomic.CompareAndSwapUint64(c.word, uint64(old), uint64(next)):
			return Swapped, nil
		}
		return Overtaken, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		return NotInstalled, errCellClosed
	}
	seen, err := c.lookup()
	switch {
	case err != nil:
		return Unwritable, err
	case seen != old:
		return Overtaken, nil
	}
	if err := c.update(next); err != nil {
		return Unwritable, err
	}
	return Swapped, nil
}

// store writes w whatever the word is.
func (c *cell) store(w Word) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.m == nil:
		return errCellClosed
	case c.word != nil:
		atomic.StoreUint64(c.word, uint64(w))
		return nil
	}
	return c.update(w)
}

// close gives the map up; programs that use it keep it alive.
func (c *cell) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		return nil
	}
	m, mem := c.m, c.mem
	c.m, c.mem = nil, nil
	if mem == nil {
		return m.Close()
	}
	return errors.Join(unix.Munmap(mem), m.Close())
}

func (c *cell) lookup() (Word, error) {
	var v uint64
	if err := c.m.Lookup(uint32(0), &v); err != nil {
		return 0, fmt.Errorf("read word: %w", err)
	}
	return Word(v), nil
}

func (c *cell) update(w Word) error {
	if err := c.m.Update(uint32(0), uint64(w), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write word: %w", err)
	}
	return nil
}
