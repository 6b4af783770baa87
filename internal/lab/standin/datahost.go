package standin

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dataHost is a dataHost at work: the pools and hearts of its writeHosts, and which of them is in use.
type dataHost struct {
	cfg    DataHost
	pools  []*pool
	hearts []*heart
	spawn  func(func())

	mu     sync.Mutex // guards the fields below
	active int
	ready  bool // its active writeHost has accepted a connection
}

func (h *dataHost) index() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active
}

// source is the pool in use. Without one the caller's own thread tries to initialise the data host, without a lock and without a
// back-off, as Mycat does (PhysicalDBNode.checkRequest): that is how a backend that is frozen at the start starves the whole server.
func (h *dataHost) source(database string, limit time.Duration) (*pool, error) {
	h.mu.Lock()
	active, ready := h.active, h.ready
	h.mu.Unlock()
	if !ready {
		if err := h.initialise(active, database, limit); err != nil {
			return nil, mycatError(erNewAbort, "Invalid DataSource:%d", active)
		}
	}
	return h.pools[active], nil
}

// initialise opens the first connections of a writeHost and waits for them for up to limit. A connect that hangs goes on hanging, and
// keeps its place in the pool.
func (h *dataHost) initialise(index int, database string, limit time.Duration) error {
	done := make(chan error, h.cfg.MinCon)
	for range h.cfg.MinCon {
		h.spawn(func() {
			b, err := h.pools[index].borrow(database)
			if err == nil {
				h.pools[index].release(b, false)
			}
			done <- err
		})
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var errs []error
	for range h.cfg.MinCon {
		select {
		case err := <-done:
			errs = append(errs, err)
			if err != nil {
				continue
			}
			h.mu.Lock() // one connection is enough to serve
			h.ready = h.ready || h.active == index
			h.mu.Unlock()
		case <-timer.C:
			return fmt.Errorf("initialise data host %s: nothing within %s", h.cfg.Name, limit)
		}
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// switchTo puts another writeHost in use and closes every connection to the old one, in-flight statements included.
func (h *dataHost) switchTo(index int) bool {
	h.mu.Lock()
	old := h.active
	if index == old || index < 0 || index >= len(h.pools) {
		h.mu.Unlock()
		return false
	}
	h.active, h.ready = index, false
	h.mu.Unlock()
	h.pools[old].closeAll("closed connection:switch datasource", false)
	return true
}

// switches says whether Mycat itself would ever switch this data host.
func (h *dataHost) switches() bool {
	return h.cfg.SwitchType >= 1 && !h.cfg.NotSwitch && len(h.pools) > 1
}

// candidate is the next writeHost whose heartbeat is well, or -1.
func (h *dataHost) candidate() int {
	active := h.index()
	for i := 1; i < len(h.pools); i++ {
		next := (active + i) % len(h.pools)
		if h.hearts[next].code() == rsOK {
			return next
		}
	}
	return -1
}

// loadIndexes reads dnindex.properties. A data host with switchType=-1 refuses an index above 0 and silently starts at writeHost 0.
func loadIndexes(path string, hosts []*dataHost) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read data host indexes: %w", err)
	}
	defer func() { _ = f.Close() }()
	saved := map[string]int{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		if n, err := strconv.Atoi(value); err == nil {
			saved[name] = n
		}
	}
	for _, h := range hosts {
		if i := saved[h.cfg.Name]; i > 0 && i < len(h.pools) && h.cfg.SwitchType >= 1 {
			h.active = i
		}
	}
	return nil
}

// saveIndexes writes dnindex.properties.
func saveIndexes(path string, hosts []*dataHost) error {
	if path == "" {
		return nil
	}
	var out strings.Builder
	out.WriteString("#update\n")
	for _, h := range hosts {
		fmt.Fprintf(&out, "%s=%d\n", h.cfg.Name, h.index())
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		return fmt.Errorf("write data host indexes: %w", err)
	}
	return nil
}
