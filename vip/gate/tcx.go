package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/link"
)

// tcxChain stands at the head of the tcx chain by pinned links. Pins are named by place and link: "in_3_57".
type tcxChain struct {
	dir   string   // where ours are pinned
	older []string // where those of predecessors may be, dir included
}

func pinPrefix(p place) string { return fmt.Sprintf("%s_%d_", p.dir, p.index) }

func (c tcxChain) attach(h *hook) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: h.index, Program: h.prog, Attach: tcxType(h.dir), Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach to %v: %w", h.place, vanished(err))
	}
	info, err := l.Info()
	if err != nil {
		return errors.Join(fmt.Errorf("identify link of %v: %w", h.place, err), l.Close())
	}
	pin := filepath.Join(c.dir, fmt.Sprintf("%s%d", pinPrefix(h.place), info.ID))
	if err := l.Pin(pin); err != nil {
		return errors.Join(fmt.Errorf("pin link of %v: %w", h.place, err), l.Close())
	}
	h.link, h.pin = l, pin
	return nil
}

func (c tcxChain) survey() ([]string, error) { return allPins(c.older) }

func (c tcxChain) inspect(h *hook, pins []string) error {
	progs, err := tcxPrograms(h.place)
	if err != nil {
		return err
	}
	older := pinsAt(pins, h.place, h.pin)
	var found []error
	switch at := slices.IndexFunc(progs, func(p link.AttachedProgram) bool { return p.ID == h.id }); {
	case at < 0 && len(older) > 0:
		return fmt.Errorf("%v: %w: it is pinned at %s", h.place, ErrNotOurs, older[0])
	case at < 0:
		return fmt.Errorf("%v: %w: program %d is not among the %d that are there", h.place, ErrDetached, h.id, len(progs))
	case at > 0:
		found = append(found, fmt.Errorf("%v: %w: %d before program %d, the first is program %d", h.place, ErrShadowed, at, h.id, progs[0].ID))
	}
	if _, err := os.Lstat(h.pin); err != nil {
		found = append(found, fmt.Errorf("%v: %w: %w", h.place, ErrUnpinned, err))
	}
	if len(older) > 0 {
		found = append(found, fmt.Errorf("%v: %w: pinned at %s", h.place, ErrLeftover, older[0]))
	}
	return errors.Join(found...)
}

func (c tcxChain) detach(h *hook) error {
	err := h.link.Detach()
	if err == nil {
		err = removePin(h.pin)
	}
	if err != nil {
		return fmt.Errorf("detach from %v: %w", h.place, err)
	}
	return nil
}

func (c tcxChain) sweep(p place, keep *hook) error {
	var mine string
	if keep != nil {
		mine = keep.pin
	}
	pins, err := allPins(c.older)
	for _, pin := range pinsAt(pins, p, mine) {
		err = errors.Join(err, detachPinned(pin))
	}
	return err
}

// pinsAt are the pins of a place but mine.
func pinsAt(all []string, p place, mine string) []string {
	var at []string
	for _, pin := range all {
		if pin != mine && strings.HasPrefix(filepath.Base(pin), pinPrefix(p)) {
			at = append(at, pin)
		}
	}
	return at
}

// pinIndex reads the interface's index out of a pin's name; 0: it is none of ours.
func pinIndex(pin string) int {
	_, rest, _ := strings.Cut(filepath.Base(pin), "_")
	digits, _, _ := strings.Cut(rest, "_")
	index, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return index
}

// allPins lists the pins in the directories that exist.
func allPins(dirs []string) ([]string, error) {
	var pins []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return pins, fmt.Errorf("list pins: %w", err)
		}
		for _, e := range entries {
			pins = append(pins, filepath.Join(dir, e.Name()))
		}
	}
	return pins, nil
}

// detachPinned takes a pinned link out of its chain. Removing the pin alone is not enough: a frozen predecessor still holds the link.
func detachPinned(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pin of an older gate: %w", err)
	}
	defer func() { _ = l.Close() }()
	if err := l.Detach(); err != nil {
		return fmt.Errorf("detach older gate pinned at %s: %w", pin, err)
	}
	return removePin(pin)
}

func removePin(pin string) error {
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}
