package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

// Verify reads back from the kernel that on every interface the attached programs are this process's own and the first that frames meet.
//
// The error joins every finding: ErrDetached, ErrNotOurs, ErrShadowed, ErrUnpinned, ErrLeftover, ErrNoInterface, or ErrNotInstalled. On any but ErrLeftover the VIP
// may be open, or in another process's hands: close, take the address away, and only then repair by Cover; on ErrNotOurs stop.
func (g *Gate) Verify(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.ready(ctx)
	if err == nil {
		err = g.inspectAll()
	}
	if err != nil {
		return fmt.Errorf("verify gate of %s: %w", g.cfg.VIP, err)
	}
	return nil
}

// Cover makes the gate stand first on these interfaces, with the word that it has: after Verify found something, and for interfaces that came up.
//
// A place in order is left alone. Where ours is missing, behind another program or unpinned, a copy goes to the head before the older one is taken away.
// Interfaces that are not named any more keep their gate and are no longer verified. When another process's gate stands somewhere (ErrNotOurs) nothing is touched.
// What could not be put right is in the error, as Verify tells it.
func (g *Gate) Cover(ctx context.Context, interfaces []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.ready(ctx)
	if err == nil {
		err = checkInterfaces(interfaces)
	}
	if err == nil {
		err = g.cover(ctx, interfaces)
	}
	if err != nil {
		return fmt.Errorf("cover interfaces by gate of %s: %w", g.cfg.VIP, err)
	}
	return nil
}

// ready is for what needs an installed gate.
func (g *Gate) ready(ctx context.Context) error {
	if g.cell.Load() == nil {
		return ErrNotInstalled
	}
	return g.start(ctx)
}

// inspectAll joins the findings about all hooks.
func (g *Gate) inspectAll() error {
	pins, err := g.chain.survey()
	if err != nil {
		return err
	}
	var found []error
	for _, h := range g.hooks {
		found = append(found, g.inspect(h, pins))
	}
	return errors.Join(found...)
}

func (g *Gate) inspect(h *hook, pins []string) error {
	index, err := findInterface(g.nl, h.name)
	switch {
	case err != nil:
		return err
	case index != h.index:
		return fmt.Errorf("%v: %w: the interface was created anew, its index is %d and was %d", h.place, ErrDetached, index, h.index)
	}
	return g.chain.inspect(h, pins)
}

func (g *Gate) cover(ctx context.Context, interfaces []string) error {
	pins, err := g.chain.survey()
	if err != nil {
		return err
	}
	for _, h := range g.hooks {
		if err := g.inspect(h, pins); errors.Is(err, ErrNotOurs) {
			return err
		}
	}
	places, err := g.places(interfaces)
	errs := []error{err}
	hooks := make([]*hook, 0, len(places))
	for _, p := range places {
		h, err := g.renew(ctx, p, pins)
		errs = append(errs, err)
		if h != nil {
			hooks = append(hooks, h)
		}
	}
	for _, h := range g.hooks {
		switch at := slices.IndexFunc(hooks, func(n *hook) bool { return n.name == h.name && n.dir == h.dir }); {
		case at < 0 && slices.Contains(interfaces, h.name):
			hooks = append(hooks, h) // still wanted but not found: Verify must go on to say so
		case at < 0 || hooks[at] != h:
			errs = append(errs, h.close())
		}
	}
	g.hooks = hooks
	return errors.Join(append(errs, g.sweepGone(), g.inspectAll())...)
}

// sweepGone takes away the pins of interfaces that are not there any more: the kernel ends such a link and leaves its pin, and each
// container that starts and ends would leave two more for every look to read. The pins are listed before the interfaces: a pin that
// was there first had its interface then.
func (g *Gate) sweepGone() error {
	tcx, err := g.tcx()
	if err != nil {
		return err
	}
	pins, err := allPins(tcx.older)
	if err != nil {
		return err
	}
	links, err := g.nl.LinkList()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil // an interface may be missing from this list: the next repair sweeps
	}
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, pin := range pins {
		index := pinIndex(pin)
		if index == 0 || slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index }) {
			continue
		}
		err = errors.Join(err, detachPinned(pin))
	}
	return err
}

// renew returns a hook in order for the place: the one that is there, or a copy of it at the head. With an error it returns what is in force there, if anything.
func (g *Gate) renew(ctx context.Context, p place, pins []string) (*hook, error) {
	var old *hook
	if i := slices.IndexFunc(g.hooks, func(h *hook) bool { return h.place == p }); i >= 0 {
		old = g.hooks[i]
		why := g.chain.inspect(old, pins)
		if why == nil {
			return old, nil
		}
		g.log.Warn("gate is put at the head again", slog.String("target", p.String()), slog.Any("cause", why))
	}
	if err := ctx.Err(); err != nil {
		return old, context.Cause(ctx)
	}
	h, err := g.newHook(p, g.cell.Load())
	if err != nil {
		return old, err
	}
	err = selfTest(g.cfg.VIP, []*hook{h}, nil)
	if err == nil {
		err = g.chain.attach(h)
	}
	if err != nil {
		return old, errors.Join(err, h.close())
	}
	if old != nil {
		err = g.chain.detach(old) // not only by sweep, which does not find a link without its pin
	}
	return h, errors.Join(err, g.sweep(p, h))
}

// Uninstall takes every gate of this VIP off this network namespace, whoever installed it. That opens the VIP for ever: it is for disarming, and for after the address is gone.
func (g *Gate) Uninstall(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.start(ctx)
	if err == nil {
		err = g.uninstall()
	}
	if err != nil {
		return fmt.Errorf("uninstall gate of %s: %w", g.cfg.VIP, err)
	}
	g.log.Warn("gate uninstalled: traffic of the VIP is not limited any more")
	return nil
}

func (g *Gate) uninstall() error {
	var errs []error
	for _, h := range g.hooks {
		errs = append(errs, g.chain.detach(h))
	}
	tcx, err := g.tcx()
	if err != nil {
		return err
	}
	pins, err := allPins(tcx.older)
	errs = append(errs, err)
	for _, pin := range pins {
		errs = append(errs, detachPinned(pin))
	}
	for _, dir := range tcx.older {
		_ = os.Remove(dir) // where there is one, and it is empty now
	}
	links, err := g.nl.LinkList()
	errs = append(errs, err)
	for _, l := range links {
		for _, d := range []direction{in, out} {
			errs = append(errs, g.clsact().sweep(place{l.Attrs().Name, l.Attrs().Index, d}, nil))
		}
	}
	return errors.Join(append(errs, g.giveUp())...)
}

// Release gives the gate up without taking it away: it stays in force with the word that it has, until a successor's Install. For the daemon's exit.
//
// A tcx link whose pin somebody removed would go, and open, with our last file descriptor: then Release refuses (ErrUnpinned), and Cover pins a new one.
func (g *Gate) Release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.chain == nil {
		return nil
	}
	pins, err := g.chain.survey()
	for _, h := range g.hooks {
		if found := g.chain.inspect(h, pins); errors.Is(found, ErrUnpinned) {
			err = errors.Join(err, found)
		}
	}
	if err == nil {
		err = g.giveUp()
	}
	if err != nil {
		return fmt.Errorf("release gate of %s: %w", g.cfg.VIP, err)
	}
	return nil
}
