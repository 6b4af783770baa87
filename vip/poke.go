package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pokeAgain is the time after which those who have not answered a poke are asked again. Answers take 0.06 ms, 1.1 ms at p99.
const pokeAgain = 50 * time.Millisecond

// Confirmation is one neighbour's proof that its entry for the VIP is ours: it answered an ARP request that came from the VIP.
type Confirmation struct {
	Addr netip.Addr
	MAC  net.HardwareAddr
	Took time.Duration // from the first question to the answer
}

// Poke asks each target on the link by an ARP request whose sender is the VIP. That creates or updates the target's entry for the VIP,
// which an announcement does not when there is none, and the answer proves it. Targets beyond a router cannot be asked and are left
// out: poke the gateway instead. It returns when all have answered, or with those who did when ctx ends, which is no error.
// owned is asked before each frame, as in Announce.
func (a *Announcer) Poke(ctx context.Context, owned func() error, targets []netip.Addr) ([]Confirmation, error) {
	h, err := a.k.open(ctx)
	if err != nil {
		return nil, err
	}
	l, err := linkOf(h, a.cfg.Interface)
	if err != nil {
		return nil, err
	}
	open, err := onLink(h, l, targets)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	filter, err := allOf(uint32(offARPTarget+4), at(offEtherType, 2, unix.ETH_P_ARP), at(offARPOp, 2, uint32(arp.OperationReply)),
		at(offARPTarget, 4, addr32(a.cfg.VIP)))
	if err != nil {
		return nil, err
	}
	conn, err := listen(l, unix.ETH_P_ARP, filter)
	if err != nil {
		return nil, err
	}
	defer closeLater(conn)
	p := &poke{vip: a.cfg.VIP, mac: l.mac, conn: conn, open: open, start: time.Now(), owned: owned}
	err = p.run(ctx)
	return p.done, err
}

// onLink keeps the targets that are in a network of the link.
func onLink(h *netlink.Handle, l link, targets []netip.Addr) (map[netip.Addr]bool, error) {
	addrs, err := h.AddrList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: l.name, Index: l.index}}, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.name, err)
	}
	open := map[netip.Addr]bool{}
	for _, t := range targets {
		for _, addr := range addrs {
			if t.Is4() && addr.Contains(t.AsSlice()) && !addr.IP.Equal(t.AsSlice()) {
				open[t] = true
			}
		}
	}
	return open, nil
}

// poke is one round of questions.
type poke struct {
	vip   netip.Addr
	mac   net.HardwareAddr
	conn  *packet.Conn
	open  map[netip.Addr]bool // asked, not answered
	start time.Time
	owned func() error
	done  []Confirmation
}

func (p *poke) run(ctx context.Context) error {
	for len(p.open) > 0 && ctx.Err() == nil {
		if err := p.ask(ctx); err != nil {
			return err
		}
		p.collect(ctx, time.Now().Add(pokeAgain))
	}
	return nil
}

func (p *poke) ask(ctx context.Context) error {
	for target := range p.open {
		if ctx.Err() != nil {
			return nil
		}
		if err := p.owned(); err != nil {
			return fmt.Errorf("poke %s: %w", target, err)
		}
		frame, err := arpFrame(arp.OperationRequest, p.mac, p.vip, nobody, target)
		if err != nil {
			return err
		}
		_, err = p.conn.WriteTo(frame, &packet.Addr{HardwareAddr: broadcast})
		if errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("poke %s: %w", target, ErrGateClosed)
		}
		if err != nil {
			return fmt.Errorf("poke %s: %w", target, err)
		}
	}
	return nil
}

// collect reads answers until all are in, the time is up, or ctx ends.
func (p *poke) collect(ctx context.Context, until time.Time) {
	for len(p.open) > 0 {
		frame, err := readUntil(ctx, p.conn, until)
		if err != nil {
			return
		}
		answer, ok := parseARP(frame)
		if !ok || !p.open[answer.SenderIP] {
			continue
		}
		delete(p.open, answer.SenderIP)
		p.done = append(p.done, Confirmation{Addr: answer.SenderIP, MAC: answer.SenderHardwareAddr, Took: time.Since(p.start)})
	}
}
