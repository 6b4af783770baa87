package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// Burst is when announcements are repeated after the first: the early ones against a lost frame, the ones after a second because
// Linux ignores an update of an entry that is younger than its locktime of 1 s.
var Burst = []time.Duration{
	0, 20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, 1100 * time.Millisecond, 2200 * time.Millisecond,
}

// Refresh is the time between announcements after the burst. It stays under the ageing of a switch's forwarding table (often 300 s,
// sometimes 30 s) and heals a neighbour that believed somebody else.
const Refresh = 10 * time.Second

// AnnouncerConfig says what is announced and where.
type AnnouncerConfig struct {
	VIP       netip.Addr
	Interface string
	Burst     []time.Duration // offsets from the start, rising; nil: Burst
	Refresh   time.Duration   // 0: Refresh
	Sent      func(Announced) // called after each pair of frames, in Announce's goroutine; may be nil
	Log       *slog.Logger
}

// Announced is what left so far in the present or last Announce.
type Announced struct {
	Frames int
	First  time.Time // when the first frame was handed to the kernel; zero: none yet
	Last   time.Time
	MAC    string // the one of the last frame
}

// Announcer sends gratuitous ARP for a VIP. One Announce at a time; Kick, Report and Poke at any time.
type Announcer struct {
	cfg  AnnouncerConfig
	log  *slog.Logger
	k    kernel
	kick chan struct{}

	mu     sync.Mutex
	conn   *packet.Conn
	report Announced
}

// NewAnnouncer checks the configuration and opens nothing.
func NewAnnouncer(cfg AnnouncerConfig) (*Announcer, error) {
	if err := checkIPv4(cfg.VIP); err != nil {
		return nil, err
	}
	if cfg.Burst == nil {
		cfg.Burst = Burst
	}
	if cfg.Refresh <= 0 {
		cfg.Refresh = Refresh
	}
	return &Announcer{cfg: cfg, log: orDiscard(cfg.Log), k: kernel{family: unix.NETLINK_ROUTE}, kick: make(chan struct{}, 1)}, nil
}

// Open opens the sockets, so that the switch does not pay for it. Again is no error.
func (a *Announcer) Open(ctx context.Context) error {
	_, _, err := a.ready(ctx)
	return err
}

// Close ends the sockets. A later Announce opens them again.
func (a *Announcer) Close() {
	a.drop()
	a.k.close()
}

func (a *Announcer) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		_ = a.conn.Close() // sends only: nothing can be lost
		a.conn = nil
	}
}

// ready reads the link afresh (a bond changes its MAC) and returns the socket, opened if need be.
func (a *Announcer) ready(ctx context.Context) (link, *packet.Conn, error) {
	h, err := a.k.open(ctx)
	if err != nil {
		return link{}, nil, err
	}
	l, err := linkOf(h, a.cfg.Interface)
	if err != nil {
		return l, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		if a.conn, err = listen(l, 0, nil); err != nil {
			return l, nil, err
		}
	}
	return l, a.conn, nil
}

// Kick makes a running Announce start its burst anew at once: after a change of link or MAC, or to defend the address.
func (a *Announcer) Kick() {
	select {
	case a.kick <- struct{}{}:
	default: // one is waiting already
	}
}

// Report says what the present or last Announce has sent.
func (a *Announcer) Report() Announced {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

// Announce sends both forms of gratuitous ARP at once, at the offsets of the burst, and then at each refresh, until ctx ends.
//
// owned is asked before each frame, and its error ends Announce at once: one late frame of a loser takes its neighbours away from the
// holder until the holder's next. A frame that the gate drops ends it with ErrGateClosed. When Announce has returned, nothing of it
// is on its way. Other troubles (a link that is down, an interface that is gone) are logged, and the next turn tries again.
func (a *Announcer) Announce(ctx context.Context, owned func() error) error {
	a.begin()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for turn := 0; ; turn++ {
		if err := a.burst(ctx, owned); err != nil {
			return fmt.Errorf("announce %s: %w", a.cfg.VIP, err)
		}
		timer.Reset(time.Until(start.Add(a.offset(turn + 1))))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.kick:
			start, turn = time.Now(), -1
		case <-timer.C:
		}
	}
}

// begin forgets the report and the kicks of an earlier Announce.
func (a *Announcer) begin() {
	select {
	case <-a.kick:
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.report = Announced{}
}

// offset is when the turn is due, from the start of the burst.
func (a *Announcer) offset(turn int) time.Duration {
	if turn < len(a.cfg.Burst) {
		return a.cfg.Burst[turn]
	}
	last := time.Duration(0)
	if n := len(a.cfg.Burst); n > 0 {
		last = a.cfg.Burst[n-1]
	}
	return last + time.Duration(turn-len(a.cfg.Burst)+1)*a.cfg.Refresh
}

// burst sends one pair. Its error ends the announcing.
func (a *Announcer) burst(ctx context.Context, owned func() error) error {
	l, conn, err := a.ready(ctx)
	if err != nil {
		return a.tolerate(ctx, err)
	}
	frames, err := announcements(l.mac, a.cfg.VIP)
	if err != nil {
		return a.tolerate(ctx, err)
	}
	for _, frame := range frames {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := owned(); err != nil {
			return err
		}
		_, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: broadcast})
		if errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send on %s: %w", l.name, ErrGateClosed)
		}
		if err != nil {
			a.drop()
			return a.tolerate(ctx, err)
		}
		a.count(l)
	}
	if a.cfg.Sent != nil {
		a.cfg.Sent(a.Report())
	}
	return nil
}

// tolerate logs what the next turn may find mended. Only the end of ctx is final.
func (a *Announcer) tolerate(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.log.Warn("the VIP was not announced: neighbours may look for it elsewhere until the next announcement",
		slog.String("addr", a.cfg.VIP.String()), slog.Any("err", err))
	return nil
}

func (a *Announcer) count(l link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.report.Frames == 0 {
		a.report.First = now
	}
	a.report.Frames++
	a.report.Last, a.report.MAC = now, l.mac.String()
}
