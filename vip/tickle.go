package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// rawSocket sends IPv4 packets with a source address of our choice.
type rawSocket struct{ fd int }

func (s *Sockets) rawSocket() (*rawSocket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw != nil {
		return s.raw, nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // IPPROTO_RAW implies IP_HDRINCL
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	patience := unix.NsecToTimeval(int64(100e6)) // a full send buffer is a card that does not send: give up on this packet
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bound the raw socket: %w", err)
	}
	s.raw = &rawSocket{fd: fd}
	return s.raw, nil
}

func (r *rawSocket) close() { _ = unix.Close(r.fd) }

// Tickle makes clients notice that their connection to VIP:port is gone, also when the host that had it is dead. It sends each a bare
// ACK from VIP:port that fits no connection; the client answers with an ACK of its own, this host knows no such connection, and its
// kernel's RST with the right sequence number ends the client's wait. So the VIP must be here, open and announced: an answer that goes
// to the old holder is lost, and Linux answers a stray ACK only twice a second per connection: wait a second before tickling again.
// A connection that lives on this host is not harmed: the kernel answers for it with an ACK.
// It returns how many were sent; packets that could not be sent are in the error.
func (s *Sockets) Tickle(ctx context.Context, port uint16, clients []netip.AddrPort) (int, error) {
	raw, err := s.rawSocket()
	if err != nil {
		return 0, err
	}
	vip := netip.AddrPortFrom(s.cfg.VIP, port)
	n := 0
	var errs []error
	for _, c := range clients {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		if !c.Addr().Is4() {
			errs = append(errs, fmt.Errorf("tickle %s: %w", c, ErrIPv4Only))
			continue
		}
		packet := segment{src: vip, dst: c, flags: flagACK}.marshal()
		if err := unix.Sendto(raw.fd, packet, 0, &unix.SockaddrInet4{Addr: c.Addr().As4()}); err != nil {
			errs = append(errs, fmt.Errorf("tickle %s: %w", c, err))
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}
