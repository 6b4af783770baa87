package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/guard"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/gate"
)

// filter is the eBPF gate: *gate.Gate, or a test's.
type filter interface {
	Install(ctx context.Context, preload gate.Word) error
	Word() gate.Word
	Swap(old, next gate.Word) gate.Outcome
	Close() (gate.Word, error)
	Verify(ctx context.Context) error
	Cover(ctx context.Context, interfaces []string) error
}

// kernelGate is the eBPF gate as the guard sees it. It follows the host's interfaces: one that comes up later would serve the VIP
// ungated, and one that goes away must not end the service.
type kernelGate struct {
	f          filter
	interfaces func() ([]string, error) // that the gate must stand on now

	turn    chan struct{} // of one: who looks or repairs; Word, Swap and the closing never wait for it
	covered []string      // of whose turn it is
}

func newKernelGate(f filter, interfaces func() ([]string, error), covered []string) *kernelGate {
	return &kernelGate{f: f, interfaces: interfaces, turn: make(chan struct{}, 1), covered: covered}
}

// take waits for the turn: a look that hangs in the kernel must not hang the fence behind it.
func (k *kernelGate) take(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a look at the gate that hangs: %w", context.Cause(ctx))
	}
}

// Install implements guard.Gate. A try that attached the gate and found something in its way is repaired, shut.
func (k *kernelGate) Install(ctx context.Context, preload lease.Boot) error {
	err := k.f.Install(ctx, gate.Word(preload))
	if !errors.Is(err, gate.ErrInstalled) {
		return err
	}
	shut, err := k.f.Close()
	if err != nil {
		return err
	}
	if err := k.Verify(ctx); err != nil || preload == 0 {
		return err
	}
	return k.Swap(uint64(shut), preload)
}

func (k *kernelGate) Word() uint64 { return uint64(k.f.Word()) }

func (k *kernelGate) Swap(old uint64, deadline lease.Boot) error {
	if out := k.f.Swap(gate.Word(old), gate.Word(deadline)); out != gate.Swapped {
		return fmt.Errorf("swap the gate's word: %s: %w", out, guard.ErrOvertaken)
	}
	return nil
}

// Shut implements guard.Gate. A gate that was not in force is repaired, shut: then, and not before, the host is silent.
func (k *kernelGate) Shut(ctx context.Context) error {
	if _, err := k.f.Close(); err != nil {
		return err
	}
	return k.Verify(ctx)
}

// Verify implements guard.Gate. What it finds is repaired only while the gate is shut: then the guard has taken the address away already,
// and without a repair the site would stay silent for ever.
func (k *kernelGate) Verify(ctx context.Context) error {
	if err := k.take(ctx); err != nil {
		return err
	}
	defer func() { <-k.turn }()
	names, err := k.interfaces()
	if err != nil {
		return err
	}
	if !slices.Equal(names, k.covered) {
		return k.cover(ctx)
	}
	err = k.f.Verify(ctx)
	if err == nil || errors.Is(err, gate.ErrNotOurs) {
		return err
	}
	if k.f.Word().Open(gate.Now()) {
		// An interface of somebody's container that has gone since it was listed has stolen nothing.
		if now, lerr := k.interfaces(); lerr != nil || slices.Equal(now, k.covered) {
			return err
		}
	}
	return k.cover(ctx)
}

// cover puts the gate on all interfaces that are there. One that goes away meanwhile is looked for once more and no longer missed.
func (k *kernelGate) cover(ctx context.Context) error {
	for try := 0; ; try++ {
		names, err := k.interfaces()
		if err != nil {
			return err
		}
		if err = k.f.Cover(ctx, names); err == nil {
			k.covered = names
			return nil
		}
		if try > 0 || !errors.Is(err, gate.ErrNoInterface) {
			return err
		}
	}
}

// gated lists the interfaces that the gate must stand on: every Ethernet interface that is up. One that is left out would serve the
// VIP ungated, since Linux answers for an address on any interface.
func gated() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []string
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) == 6 {
			out = append(out, i.Name)
		}
	}
	return out, nil
}

// netlinkBinder is `bind: netlink`.
type netlinkBinder struct {
	addr *vip.Address
	nl   *vip.Netlink
}

func (b netlinkBinder) Bind(ctx context.Context, lifetime time.Duration) (guard.Facts, error) {
	if err := b.nl.Bind(ctx, lifetime); err != nil {
		return nil, err
	}
	return withMAC(ctx, b.addr, guard.Facts{"binder": "netlink"})
}

func withMAC(ctx context.Context, addr *vip.Address, f guard.Facts) (guard.Facts, error) {
	s, err := addr.State(ctx)
	if err != nil {
		return f, err
	}
	f["mac"] = s.MAC.String()
	return f, nil
}

func (b netlinkBinder) Unbind(ctx context.Context) (guard.Facts, error) {
	err := b.nl.Unbind(ctx)
	return guard.Facts{"binder": "netlink"}, err
}

func (b netlinkBinder) Extend(ctx context.Context, lifetime time.Duration) error {
	return b.addr.Extend(ctx, lifetime)
}

func (b netlinkBinder) Held(ctx context.Context) (bool, error) {
	s, err := b.addr.State(ctx)
	return s.Present, err
}

// wire is what the guard says and hears on the VIP's interface.
type wire struct {
	vip       cluster.VIP
	iface     string
	announcer *vip.Announcer
	prober    *vip.Prober
	sockets   *vip.Sockets
	log       *slog.Logger
	open      func() bool // the gate is open here
}

func newWire(ctx context.Context, v cluster.VIP, iface string, open func() bool, log *slog.Logger) (*wire, error) {
	w := &wire{vip: v, iface: iface, log: log, open: open}
	var err error
	if w.announcer, err = vip.NewAnnouncer(vip.AnnouncerConfig{VIP: v.Addr, Interface: iface, Log: log}); err != nil {
		return nil, fmt.Errorf("prepare announcements: %w", err)
	}
	if w.prober, err = vip.NewProber(vip.ProberConfig{VIP: v.Addr, Interface: iface, Every: probeEvery, Log: log}); err != nil {
		return nil, fmt.Errorf("prepare ARP probes: %w", err)
	}
	if w.sockets, err = vip.NewSockets(vip.SocketsConfig{VIP: v.Addr}); err != nil {
		return nil, fmt.Errorf("prepare sockets: %w", err)
	}
	return w, errors.Join(w.announcer.Open(ctx), w.sockets.Open(ctx)) // opened now, so that a switch does not pay for it
}

// probeEvery is the spacing of ARP probes during a switch. An answer takes 0.07 ms; 10 ms makes the 30 ms of silence after an
// acknowledged release three probes.
const probeEvery = 10 * time.Millisecond

func (w *wire) Announce(ctx context.Context, owned func() error, first func(net.HardwareAddr)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := false
	err := w.announcer.Announce(ctx, func() error {
		if rep := w.announcer.Report(); !told && rep.Frames > 0 {
			told = true
			mac, _ := net.ParseMAC(rep.MAC) //nolint:errcheck // the announcer's own text of a MAC
			first(mac)
			if gw := w.vip.Gateway; gw.IsValid() {
				go w.poke(ctx, owned, []netip.Addr{gw})
			}
		}
		return owned()
	})
	return err
}

// poke makes neighbours resolve the VIP anew, and their answer proves that they have.
func (w *wire) poke(ctx context.Context, owned func() error, neighbours []netip.Addr) {
	if len(neighbours) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	proof, err := w.announcer.Poke(ctx, owned, neighbours)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("poke neighbours", slog.Any("err", err))
	}
	for _, c := range proof {
		w.log.Info("neighbour has the VIP's new place", slog.String("addr", c.Addr.String()), slog.Duration("took", c.Took))
	}
}

func (w *wire) Probe(ctx context.Context) error { return w.prober.Run(ctx) }

func (w *wire) Silence() guard.Silence {
	s := w.prober.Silence(time.Now())
	return guard.Silence{Since: s.Since, Probes: s.Probes, MAC: s.LastMAC, At: s.LastAt}
}

// errOpened ends the refusing of clients: this host serves again.
var errOpened = errors.New("the gate is open on this host")

func (w *wire) Refuse(ctx context.Context) error {
	r, err := vip.NewResetter(vip.ResetterConfig{VIP: w.vip.Addr, Interface: w.iface, Log: w.log, Closed: func() error {
		if w.open() {
			return errOpened
		}
		return nil
	}})
	if err != nil {
		return err
	}
	if err := r.Run(ctx); !errors.Is(err, errOpened) {
		return err
	}
	return nil
}

func (w *wire) Clients(ctx context.Context) ([]netip.AddrPort, error) {
	return w.sockets.Connections(ctx)
}

func (w *wire) Destroy(ctx context.Context) (int, error) { return w.sockets.Destroy(ctx) }

// errShut ends a poke when the gate has been shut meanwhile.
var errShut = errors.New("the gate is shut on this host")

// Tickle also asks the clients that are on the wire who they are, from the VIP: that updates or makes their ARP entry, and their answer
// proves it, also where the announcement was lost.
func (w *wire) Tickle(ctx context.Context, clients []netip.AddrPort) (int, error) {
	n, err := w.sockets.Tickle(ctx, w.vip.Port, clients)
	var hosts []netip.Addr
	for _, c := range clients {
		if !slices.Contains(hosts, c.Addr()) && len(hosts) < pokeMost {
			hosts = append(hosts, c.Addr())
		}
	}
	w.poke(ctx, func() error {
		if !w.open() {
			return errShut
		}
		return nil
	}, hosts)
	return n, err
}

// pokeMost clients are poked: a few prove that the announcement has arrived, and thousands would be a storm.
const pokeMost = 64
