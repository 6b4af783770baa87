package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ProbeEvery is the default time between probes. An answer takes 0.07 ms, 2.7 ms at most measured.
const ProbeEvery = 25 * time.Millisecond

// ProberConfig says for which address to ask, and where.
type ProberConfig struct {
	VIP       netip.Addr
	Interface string
	Every     time.Duration // 0: ProbeEvery
	Passive   bool          // listen for claims only: the watch of a holder or of a bystander
	Claim     func(Claim)   // called for each claim, in Run's goroutine; may be nil
	Log       *slog.Logger
}

// Claim is an ARP packet by which another host says that the VIP is its own. While this host holds the VIP it is a conflict.
type Claim struct {
	MAC    net.HardwareAddr
	Answer bool // a reply; else a request, such as an announcement or a poke
	At     time.Time
}

// Silence says since when nobody claims the VIP although we asked.
type Silence struct {
	Since  time.Time     // when the first probe left that nobody answered; zero: no silence
	For    time.Duration // from Since to the time asked for
	Probes int           // probes since Since, all unanswered
	// Blind says why there is no silence to speak of although nobody was heard: ErrLinkDown, ErrNotProbing, or a probe that could
	// not be sent.
	Blind   error
	LastMAC net.HardwareAddr // who claimed it last
	LastAt  time.Time
}

// Prober asks who has the VIP by ARP probes, whose sender address is 0.0.0.0 (RFC 5227 section 2.1.1): they change no neighbour's
// entry, and a closed gate lets them and their answers through. The kernel answers for a host whose processes are frozen or dead,
// so that the probe finds those; it does not find a host that is cut off from this link.
type Prober struct {
	cfg ProberConfig
	log *slog.Logger
	k   kernel

	mu    sync.Mutex
	sil   Silence
	sent  time.Time       // the last probe
	own   map[string]bool // the MACs of this host
	ownAt time.Time       // when they were listed
}

// NewProber checks the configuration and opens nothing.
func NewProber(cfg ProberConfig) (*Prober, error) {
	if err := checkIPv4(cfg.VIP); err != nil {
		return nil, err
	}
	if cfg.Every <= 0 {
		cfg.Every = ProbeEvery
		if cfg.Passive {
			cfg.Every = time.Second // it only looks whether the link is still there
		}
	}
	return &Prober{cfg: cfg, log: orDiscard(cfg.Log), k: kernel{family: unix.NETLINK_ROUTE}}, nil
}

// Close ends the netlink socket. Run closes its own.
func (p *Prober) Close() { p.k.close() }

// Silence says since when the VIP is silent, as far as was heard until now. When the last probe is older than four intervals the
// prober was stalled, answers may lie unread, and nothing is said.
func (p *Prober) Silence(now time.Time) Silence {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sil
	if s.Blind == nil && now.Sub(p.sent) > 4*p.cfg.Every {
		s.Blind = ErrNotProbing
	}
	if s.Blind != nil || s.Since.IsZero() {
		s.Since, s.Probes = time.Time{}, 0
		return s
	}
	s.For = now.Sub(s.Since)
	return s
}

// Run probes and listens until ctx ends. A link that is down or an interface that is gone is no end: it makes the prober blind, and
// the next interval tries again.
func (p *Prober) Run(ctx context.Context) error {
	var conn *packet.Conn
	defer func() {
		p.blind(ErrNotProbing)
		if conn != nil {
			_ = conn.Close()
		}
	}()
	next := time.Now()
	for ctx.Err() == nil {
		var err error
		if conn == nil {
			conn, err = p.listen(ctx)
		}
		if now := time.Now(); err == nil && !now.Before(next) {
			err = p.probe(ctx, conn)
			next = now.Add(p.cfg.Every)
		}
		if err == nil {
			err = p.hear(ctx, conn, next)
		}
		if err != nil && ctx.Err() == nil {
			p.blind(err)
			conn = p.reopenLater(ctx, conn)
		}
	}
	return context.Cause(ctx)
}

// reopenLater closes the socket and waits for one interval.
func (p *Prober) reopenLater(ctx context.Context, conn *packet.Conn) *packet.Conn {
	if conn != nil {
		_ = conn.Close()
	}
	t := time.NewTimer(p.cfg.Every)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return nil
}

// listen hears every ARP packet whose sender address is the VIP. Our own are not among them: the socket hears what comes in.
func (p *Prober) listen(ctx context.Context) (*packet.Conn, error) {
	l, err := p.link(ctx)
	if err != nil {
		return nil, err
	}
	filter, err := allOf(uint32(offARPTarget+4), at(offEtherType, 2, unix.ETH_P_ARP), at(offARPSender, 4, addr32(p.cfg.VIP)))
	if err != nil {
		return nil, err
	}
	return listen(l, unix.ETH_P_ARP, filter)
}

// link reads the interface: without carrier frames are dropped without an error, and silence would be no evidence.
func (p *Prober) link(ctx context.Context) (link, error) {
	h, err := p.k.open(ctx)
	if err != nil {
		return link{}, err
	}
	l, err := linkOf(h, p.cfg.Interface)
	if err == nil && !l.up {
		err = fmt.Errorf("probe for %s on %s: %w", p.cfg.VIP, l.name, ErrLinkDown)
	}
	if err != nil {
		return l, err
	}
	return l, p.learnOwn(h, l, time.Now())
}

// learnOwn lists the MACs of this host, once a second: with two cards on one segment our own kernel answers on the other, and that is
// no claim of another host.
func (p *Prober) learnOwn(h *netlink.Handle, l link, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own != nil && now.Sub(p.ownAt) < time.Second {
		p.own[string(l.mac)] = true
		return nil
	}
	links, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	p.own, p.ownAt = map[string]bool{string(l.mac): true}, now
	for _, each := range links {
		p.own[string(each.Attrs().HardwareAddr)] = true
	}
	return nil
}

func (p *Prober) isOwn(mac net.HardwareAddr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.own[string(mac)]
}

// probe sends one question and counts it as unanswered.
func (p *Prober) probe(ctx context.Context, conn *packet.Conn) error {
	l, err := p.link(ctx)
	if err != nil {
		return err
	}
	if !p.cfg.Passive {
		if err := sendProbe(conn, l, p.cfg.VIP); err != nil {
			return err
		}
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Passive {
		p.sil.Blind = ErrNotProbing
		return nil
	}
	p.sent, p.sil.Blind = now, nil
	if p.sil.Since.IsZero() {
		p.sil.Since = now
	}
	p.sil.Probes++
	return nil
}

func sendProbe(conn *packet.Conn, l link, vip netip.Addr) error {
	frame, err := arpFrame(arp.OperationRequest, l.mac, unspecified, nobody, vip)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: broadcast}); err != nil {
		return fmt.Errorf("probe for %s on %s: %w", vip, l.name, err)
	}
	return nil
}

// hear reads claims until the next probe is due.
func (p *Prober) hear(ctx context.Context, conn *packet.Conn, until time.Time) error {
	for {
		frame, err := readUntil(ctx, conn, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if a, ok := parseARP(frame); ok {
			p.claim(a)
		}
	}
}

// claim records that another host claims the VIP.
func (p *Prober) claim(a arp.Packet) {
	if p.isOwn(a.SenderHardwareAddr) {
		return
	}
	c := Claim{MAC: a.SenderHardwareAddr, Answer: a.Operation == arp.OperationReply, At: time.Now()}
	p.mu.Lock()
	p.sil.Since, p.sil.Probes = time.Time{}, 0
	p.sil.LastMAC, p.sil.LastAt = c.MAC, c.At
	p.mu.Unlock()
	if p.cfg.Claim != nil {
		p.cfg.Claim(c)
	}
}

// blind forgets the silence: a probe that was not sent is not one that nobody answered.
func (p *Prober) blind(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sil.Blind == nil && !errors.Is(err, ErrNotProbing) {
		p.log.Warn("cannot ask who has the VIP: its silence is unknown until the link works", slog.String("addr", p.cfg.VIP.String()),
			slog.Any("err", err))
	}
	p.sil.Since, p.sil.Probes, p.sil.Blind = time.Time{}, 0, err
}

// Resolve asks once who has the VIP, three times within the timeout, and returns the MAC of the first other host that claims it:
// ErrSilent when none does, ErrLinkDown when the answer would prove nothing. It does not need Run, and may run beside it.
func (p *Prober) Resolve(ctx context.Context, timeout time.Duration) (net.HardwareAddr, error) {
	conn, err := p.listen(ctx)
	if err != nil {
		return nil, err
	}
	defer closeLater(conn)
	start := time.Now()
	for turn := range 3 {
		l, err := p.link(ctx)
		if err != nil {
			return nil, err
		}
		if err := sendProbe(conn, l, p.cfg.VIP); err != nil {
			return nil, err
		}
		mac, err := p.answer(ctx, conn, start.Add(timeout*time.Duration(turn+1)/3))
		if err != nil || mac != nil {
			return mac, err
		}
	}
	return nil, fmt.Errorf("resolve %s on %s within %s: %w", p.cfg.VIP, p.cfg.Interface, timeout, ErrSilent)
}

// answer waits for a claim of another host; nil when the time is up.
func (p *Prober) answer(ctx context.Context, conn *packet.Conn, until time.Time) (net.HardwareAddr, error) {
	for {
		frame, err := readUntil(ctx, conn, until)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if a, ok := parseARP(frame); ok && !p.isOwn(a.SenderHardwareAddr) {
			return a.SenderHardwareAddr, nil
		}
	}
}
