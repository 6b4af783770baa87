package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddressConfig names one VIP and the interface that carries it.
type AddressConfig struct {
	VIP       netip.Addr   // IPv4
	Interface string       // "eth0"
	Log       *slog.Logger // nil discards
}

// Address is one VIP on one interface. Its methods may be called at the same time.
type Address struct {
	cfg AddressConfig
	log *slog.Logger
	k   kernel
}

// NewAddress checks the configuration and touches nothing.
func NewAddress(cfg AddressConfig) (*Address, error) {
	if err := checkIPv4(cfg.VIP); err != nil {
		return nil, err
	}
	if cfg.Interface == "" {
		return nil, fmt.Errorf("bind %s: %w: the name is empty", cfg.VIP, ErrNoInterface)
	}
	return &Address{cfg: cfg, log: orDiscard(cfg.Log), k: kernel{family: unix.NETLINK_ROUTE}}, nil
}

// Close ends the netlink socket; the address stays as it is.
func (a *Address) Close() { a.k.close() }

// VIP is the address.
func (a *Address) VIP() netip.Addr { return a.cfg.VIP }

// Interface is the name of the interface.
func (a *Address) Interface() string { return a.cfg.Interface }

// AddressState is what the kernel has of the VIP now.
type AddressState struct {
	Present   bool
	Forever   bool             // present without an end
	Left      time.Duration    // whole seconds until the kernel removes it; 0 when Forever
	Interface string           // where it is; the configured one when absent
	Prefix    int              // its prefix length, 32 when Baton or its keepalived put it there
	Others    []string         // further places, "eth1/24": each of them answers ARP as well
	MAC       net.HardwareAddr // of Interface
	LinkUp    bool             // Interface is up and has carrier
}

// place is one occurrence of the VIP.
type place struct {
	addr netlink.Addr
	link link
}

// places finds the VIP with any prefix length on any interface, those on the configured interface first.
// Any will do for ARP: Linux answers for an address on whichever interface the question comes in.
func (a *Address) places(h *netlink.Handle) ([]place, error) {
	addrs, err := h.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var found []place
	for _, addr := range addrs {
		if ip, ok := netip.AddrFromSlice(addr.IP.To4()); !ok || ip != a.cfg.VIP {
			continue
		}
		l, err := h.LinkByIndex(addr.LinkIndex)
		if err != nil { // gone since the list was made, and the address with it
			continue
		}
		found = append(found, place{addr, fromAttrs(l.Attrs())})
	}
	slices.SortStableFunc(found, func(x, y place) int {
		return rank(x.link.name == a.cfg.Interface) - rank(y.link.name == a.cfg.Interface)
	})
	return found, nil
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// State looks for the VIP with any prefix length on any interface.
func (a *Address) State(ctx context.Context) (AddressState, error) {
	h, err := a.k.open(ctx)
	if err != nil {
		return AddressState{}, err
	}
	found, err := a.places(h)
	if err != nil {
		return AddressState{}, err
	}
	if len(found) == 0 {
		l, err := linkOf(h, a.cfg.Interface)
		return AddressState{Interface: l.name, MAC: l.mac, LinkUp: l.up}, err
	}
	first := found[0]
	s := AddressState{Present: true, Interface: first.link.name, MAC: first.link.mac, LinkUp: first.link.up}
	s.Prefix, _ = first.addr.Mask.Size()
	if s.Forever = first.addr.ValidLft == math.MaxUint32; !s.Forever {
		s.Left = time.Duration(first.addr.ValidLft) * time.Second
	}
	for _, p := range found[1:] {
		bits, _ := p.addr.Mask.Size()
		s.Others = append(s.Others, fmt.Sprintf("%s/%d", p.link.name, bits))
	}
	return s, nil
}

// Add puts the VIP on the interface as a /32, which brings no route with it, for the lifetime (rounded up to whole seconds, the
// kernel's unit). If the interface has it already, whatever its prefix length, that one gets the lifetime: a second one is never made.
func (a *Address) Add(ctx context.Context, lifetime time.Duration) error {
	err := a.Extend(ctx, lifetime)
	if !errors.Is(err, ErrAbsent) {
		return err
	}
	h, err := a.k.open(ctx)
	if err != nil {
		return err
	}
	l, err := linkOf(h, a.cfg.Interface)
	if err != nil {
		return err
	}
	ip := net.IP(a.cfg.VIP.AsSlice())
	return a.replace(h, l, netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}}, lifetime)
}

// Extend gives the VIP a new lifetime where the interface has it, and is ErrAbsent where not: what the kernel removed at its end
// is not brought back by a renewal that was on its way. Between the look and the request the kernel may still remove it, and then
// the request adds it again (IPv4 ignores that NLM_F_CREATE is missing): harmless, because the gate's deadline is absolute.
func (a *Address) Extend(ctx context.Context, lifetime time.Duration) error {
	if _, err := seconds(lifetime); err != nil {
		return err
	}
	h, err := a.k.open(ctx)
	if err != nil {
		return err
	}
	found, err := a.places(h)
	if err != nil {
		return err
	}
	if len(found) == 0 || found[0].link.name != a.cfg.Interface {
		return fmt.Errorf("extend %s on %s: %w", a.cfg.VIP, a.cfg.Interface, ErrAbsent)
	}
	for _, p := range found {
		if p.link.name != a.cfg.Interface {
			continue
		}
		same := netlink.Addr{IPNet: p.addr.IPNet, Peer: p.addr.Peer, Scope: p.addr.Scope, Flags: p.addr.Flags & unix.IFA_F_NOPREFIXROUTE}
		if err := a.replace(h, p.link, same, lifetime); err != nil {
			return err
		}
	}
	return nil
}

func (a *Address) replace(h *netlink.Handle, l link, addr netlink.Addr, lifetime time.Duration) error {
	s, err := seconds(lifetime)
	if err != nil {
		return err
	}
	addr.ValidLft, addr.PreferedLft = s, s // more preferred than valid is EINVAL
	if err := h.AddrReplace(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: l.name, Index: l.index}}, &addr); err != nil {
		return fmt.Errorf("put %s on %s: %w", a.cfg.VIP, l.name, err)
	}
	return nil
}

// seconds rounds a lifetime up to the kernel's unit, and refuses what the kernel would take for "for ever".
func seconds(lifetime time.Duration) (int, error) {
	s := int64((lifetime + time.Second - 1) / time.Second)
	if lifetime <= 0 || lifetime > math.MaxInt32*time.Second {
		return 0, fmt.Errorf("lifetime %s: %w", lifetime, ErrNoLifetime)
	}
	return int(s), nil
}

const slash32 = "ffffffff" // how net.IPMask prints it

// Remove takes the VIP off every interface and prefix length that has it; none is no error. A /24 that is the first address of its
// network takes the others of that network along unless the host has promote_secondaries: bind a /32.
func (a *Address) Remove(ctx context.Context) error {
	h, err := a.k.open(ctx)
	if err != nil {
		return err
	}
	found, err := a.places(h)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range found {
		del := netlink.Addr{IPNet: p.addr.IPNet, Peer: p.addr.Peer}
		err := h.AddrDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: p.link.name, Index: p.link.index}}, &del)
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("take %s off %s: %w", a.cfg.VIP, p.link.name, err))
			continue
		}
		if p.link.name != a.cfg.Interface || p.addr.Mask.String() != slash32 {
			a.log.Warn("somebody else had put the VIP on this host: it was taken off; look for who binds it beside Baton",
				slog.String("addr", p.addr.IPNet.String()), slog.String("target", p.link.name))
		}
	}
	return errors.Join(errs...)
}
