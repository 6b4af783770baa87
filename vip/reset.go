package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ResetterConfig says for which address to refuse, and where.
type ResetterConfig struct {
	VIP       netip.Addr
	Interface string
	Listening func()       // called when Run hears segments from now on: close the gate after it; may be nil
	Closed    func() error // asked before each answer; its error ends Run. It must say no once the gate is open here: see Resetter
	Log       *slog.Logger
}

// Resetter refuses TCP to the VIP while this host must not serve it: it answers every segment that still comes here with the RST that a
// host without that connection would send. Without it the segment is lost in the closed gate, and a client whose SYN was lost
// waits a whole second for its kernel's retransmission; refused, it tries again in less than a millisecond.
//
// It would just as well kill the connections of a host that serves. That is what Closed is for.
type Resetter struct {
	cfg  ResetterConfig
	log  *slog.Logger
	k    kernel
	sent atomic.Int64
}

// NewResetter checks the configuration and opens nothing.
func NewResetter(cfg ResetterConfig) (*Resetter, error) {
	if err := checkIPv4(cfg.VIP); err != nil {
		return nil, err
	}
	if cfg.Closed == nil {
		return nil, errors.New("vip: a resetter must be able to ask whether the gate is closed")
	}
	return &Resetter{cfg: cfg, log: orDiscard(cfg.Log), k: kernel{family: unix.NETLINK_ROUTE}}, nil
}

// Sent is the number of resets that left.
func (r *Resetter) Sent() int64 { return r.sent.Load() }

// Run refuses until ctx ends, the usual end, or Closed says no. It hears frames before the gate drops them, and the gate lets resets out.
func (r *Resetter) Run(ctx context.Context) error {
	defer r.k.close()
	conn, err := r.listen(ctx)
	if err != nil {
		return fmt.Errorf("refuse connections to %s: %w", r.cfg.VIP, err)
	}
	defer func() { _ = conn.Close() }()
	if r.cfg.Listening != nil {
		r.cfg.Listening()
	}
	for {
		frame, err := readUntil(ctx, conn, time.Time{})
		switch {
		case errors.Is(err, unix.ENETDOWN): // the link went down; the socket works again when it is up
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("refuse connections to %s: %w", r.cfg.VIP, err)
		}
		if err := r.answer(conn, frame); err != nil {
			return fmt.Errorf("refuse connections to %s: %w", r.cfg.VIP, err)
		}
	}
}

// listen opens a tap. ETH_P_ALL taps come before the ingress hook where the gate sits; a socket bound to ETH_P_IP comes after it and
// would hear nothing. A tap hears what we send as well, which the filter leaves out.
func (r *Resetter) listen(ctx context.Context) (*packet.Conn, error) {
	h, err := r.k.open(ctx)
	if err != nil {
		return nil, err
	}
	l, err := linkOf(h, r.cfg.Interface)
	if err != nil {
		return nil, err
	}
	filter, err := refusable(r.cfg.VIP)
	if err != nil {
		return nil, err
	}
	conn, err := listen(l, unix.ETH_P_ALL, filter)
	if err != nil {
		return nil, err
	}
	r.ignoreOutgoing(conn)
	return conn, nil
}

// ignoreOutgoing spares the kernel a copy of each frame that we send (Linux 4.20); the filter would drop it anyway.
func (r *Resetter) ignoreOutgoing(conn *packet.Conn) {
	raw, err := conn.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1) })
		err = errors.Join(err, set)
	}
	if err != nil {
		r.log.Debug("outgoing frames are filtered late", slog.Any("err", err))
	}
}

// refusable matches what may be answered by a reset: a frame to this host with an unfragmented TCP segment for the VIP, no reset itself.
func refusable(vip netip.Addr) ([]bpf.RawInstruction, error) {
	const (
		toThisHost = 0 // PACKET_HOST
		offFlags   = etherHeader + 13
		snap       = etherHeader + 60 + 60 // the longest IPv4 and TCP headers
	)
	pktType := condition{load: []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtType}}, val: toThisHost}
	whole := at(etherHeader+6, 2, 0)
	whole.mask = 0x1fff
	notReset := condition{
		load: []bpf.Instruction{bpf.LoadMemShift{Off: etherHeader}, bpf.LoadIndirect{Off: offFlags, Size: 1}}, mask: flagRST, val: 0,
	}
	return allOf(snap, pktType, at(offEtherType, 2, unix.ETH_P_IP), at(etherHeader+9, 1, protoTCP), at(etherHeader+16, 4, addr32(vip)),
		whole, notReset)
}

// answer sends the reset back to where the frame came from, a router perhaps. Its error ends Run.
func (r *Resetter) answer(conn *packet.Conn, frame []byte) error {
	if len(frame) < etherHeader {
		return nil
	}
	seg, ok := parseSegment(frame[etherHeader:])
	if !ok {
		return nil
	}
	reset, ok := seg.reset()
	if !ok {
		return nil
	}
	if err := r.cfg.Closed(); err != nil {
		return err
	}
	out := make([]byte, 0, 64)
	out = append(out, frame[6:12]...)
	out = append(out, frame[0:6]...)
	out = append(out, frame[12:14]...)
	out = append(out, reset.marshal()...)
	if _, err := conn.WriteTo(out, &packet.Addr{HardwareAddr: frame[6:12]}); err != nil {
		r.log.Warn("a client of the VIP was not refused and will wait for its own timeout", slog.String("addr", reset.dst.String()),
			slog.Any("err", err))
		return nil
	}
	r.sent.Add(1)
	return nil
}
