package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Install puts the gate in force: load, self-test, attach to the head of every interface, take away the gates of this VIP that predecessors left, verify.
//
// preload is the deadline that it starts with, from this process's own lease and never out of an older map; zero installs it closed. Under an open gate of
// a predecessor no frame is lost when preload is open too, because both let it pass until the older one is gone; and none leaks when either is closed.
// A predecessor that is still alive writes into a map that nobody reads any more.
//
// Before the last interface has its gate an error undoes what was done, and a predecessor's gate goes on as it was. After that an error is what Verify
// would say: the gate is in force and the caller must not serve. One process installs once; Cover repairs.
func (g *Gate) Install(ctx context.Context, preload Word) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.install(ctx, preload); err != nil {
		return fmt.Errorf("install gate of %s: %w", g.cfg.VIP, err)
	}
	g.log.Info("gate installed", slog.String("target", strings.Join(g.cfg.Interfaces, " ")), slog.String("step", string(g.method)))
	return nil
}

func (g *Gate) install(ctx context.Context, preload Word) error {
	switch {
	case g.cell.Load() != nil:
		return ErrInstalled
	case preload != 0 && !preload.Deadline():
		return fmt.Errorf("%w: preloaded word %v is no deadline", ErrConfig, preload)
	}
	if err := g.attachAll(ctx, preload); err != nil {
		return errors.Join(err, g.giveUp())
	}
	var left []error
	for _, h := range g.hooks {
		left = append(left, g.sweep(h.place, h))
	}
	return errors.Join(append(left, g.sweepGone(), g.inspectAll())...)
}

// attachAll loads and tests a program for every place before it attaches the first one, and detaches all when one cannot be attached.
func (g *Gate) attachAll(ctx context.Context, preload Word) error {
	places, err := g.prepare(ctx)
	if err != nil {
		return err
	}
	word, err := newCell(!g.cfg.unmapped)
	if err != nil {
		return err
	}
	if preload == 0 {
		preload = g.nextClose()
	}
	if err := g.load(places, word, preload); err != nil {
		return errors.Join(err, word.close())
	}
	g.cell.Store(word) // from here on Close reaches the programs that are about to be attached
	for i, h := range g.hooks {
		err := context.Cause(ctx)
		if err == nil {
			err = g.chain.attach(h)
		}
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(g.hooks[:i]) {
			err = errors.Join(err, g.chain.detach(done))
		}
		return err
	}
	return nil
}

// prepare decides how to stand in the path, and where.
func (g *Gate) prepare(ctx context.Context) ([]place, error) {
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	if err := g.choose(ctx); err != nil {
		return nil, err
	}
	return g.places(g.cfg.Interfaces)
}

// load makes a tested program for each place. It leaves the word preloaded and the drops at zero.
func (g *Gate) load(places []place, word *cell, preload Word) error {
	var err error
	if g.drops, err = newDrops(); err != nil {
		return fmt.Errorf("create map of drops: %w", refusal(err))
	}
	for _, p := range places {
		h, err := g.newHook(p, word)
		if err != nil {
			return err
		}
		g.hooks = append(g.hooks, h)
	}
	if err := selfTest(g.cfg.VIP, g.hooks, word); err != nil {
		return err
	}
	if err := g.drops.Put(uint32(0), make([]uint64, ebpf.MustPossibleCPU())); err != nil {
		return fmt.Errorf("reset drops after self-test: %w", err)
	}
	return word.store(preload)
}

// newHook loads a program for a place.
func (g *Gate) newHook(p place, word *cell) (*hook, error) {
	prog, err := newProgram(p.dir, g.cfg.VIP, word.m, g.drops)
	if err != nil {
		return nil, fmt.Errorf("load program for %v: %w", p, refusal(err))
	}
	info, err := prog.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("identify program for %v: %w", p, err), prog.Close())
	}
	id, known := info.ID()
	if !known {
		return nil, errors.Join(fmt.Errorf("identify program for %v: %w: no program ids (Linux 4.13)", p, ErrUnsupported), prog.Close())
	}
	return &hook{place: p, prog: prog, id: id}, nil
}

// choose decides how to stand in the path.
func (g *Gate) choose(ctx context.Context) error {
	method, err := Probe(ctx)
	if err != nil {
		return err
	}
	if g.cfg.method != "" {
		method = g.cfg.method
	}
	g.method, g.chain = Clsact, g.clsact()
	if method != TCX {
		return nil
	}
	root, err := g.pinRoot()
	if err != nil {
		if g.cfg.BPFFS != "" || g.cfg.method == TCX {
			return err
		}
		g.log.Warn("the gate uses clsact for want of a lasting BPF filesystem: mount one and name it, so that removing a qdisc does not open the gate", slog.Any("err", err))
		return nil
	}
	c, err := g.tcx()
	if err != nil {
		return err
	}
	if c.dir, err = g.pinDir(root); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil { // who can open a pin can take the gate away
		return fmt.Errorf("make directory of pins: %w", err)
	}
	g.method, g.chain = TCX, c
	return nil
}

// tcx returns the tcx chain, with the directories where predecessors may have pinned.
func (g *Gate) tcx() (tcxChain, error) {
	var c tcxChain
	for _, root := range g.pinRoots() {
		dir, err := g.pinDir(root)
		if err != nil {
			return c, err
		}
		c.older = append(c.older, dir)
	}
	return c, nil
}

func (g *Gate) clsact() clsactChain { return clsactChain{nl: g.nl, vip: g.cfg.VIP.String()} }

// places are both directions of the interfaces that are there, with an error for each that is not.
func (g *Gate) places(names []string) ([]place, error) {
	var places []place
	var missing []error
	for _, name := range names {
		index, err := findInterface(g.nl, name)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		places = append(places, place{name, index, in}, place{name, index, out})
	}
	return places, errors.Join(missing...)
}

// sweep takes away the gates of this VIP at a place but keep, by whichever method a predecessor put them there.
func (g *Gate) sweep(p place, keep *hook) error {
	tcx, err := g.tcx()
	if err != nil {
		return err
	}
	return errors.Join(tcx.sweep(p, keep), g.clsact().sweep(p, keep))
}

// giveUp closes everything of this process; what the kernel holds stays in force.
func (g *Gate) giveUp() error {
	var errs []error
	for _, h := range g.hooks {
		errs = append(errs, h.close())
	}
	if g.drops != nil {
		errs = append(errs, g.drops.Close())
	}
	if c := g.cell.Swap(nil); c != nil {
		errs = append(errs, c.close())
	}
	if g.nl != nil {
		g.nl.Close()
	}
	g.hooks, g.drops, g.nl, g.chain, g.method = nil, nil, nil, nil, ""
	return errors.Join(errs...)
}

// setTimeout bounds every netlink request by what is left of ctx. bpf(2) needs no bound: it waits for nobody but the lock of network configuration, as netlink does.
func setTimeout(ctx context.Context, nl *netlink.Handle) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nl.SetSocketTimeout(netlink.GetSocketTimeout())
	}
	return nl.SetSocketTimeout(max(time.Until(deadline), time.Millisecond))
}
