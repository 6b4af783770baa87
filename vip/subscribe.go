package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddressEvent is a change of the VIP or of its link.
type AddressEvent struct {
	Present bool             // the VIP is on some interface
	MAC     net.HardwareAddr // of the configured interface
	LinkUp  bool             // it is up and has carrier
	At      time.Time        // when the event was read
}

// Subscription is a stream of address events. It belongs to one goroutine.
type Subscription struct {
	a      *Address
	file   *os.File
	raw    syscall.RawConn
	queue  []AddressEvent
	places map[[2]int]bool // interface index and prefix length
	link   link
	last   AddressEvent
}

// Subscribe listens from now on; the first event is the state at this moment. It exists so that a caller can subscribe, act, and
// then wait for the effect.
func (a *Address) Subscribe(ctx context.Context) (*Subscription, error) {
	s := &Subscription{a: a}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("watch %s: %w", a.cfg.VIP, err)
	}
	return s, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	if s.file != nil {
		_ = s.file.Close() // read only: nothing can be lost
		s.file = nil
	}
}

// open joins the groups first and reads the state after, so that no change falls between.
func (s *Subscription) open(ctx context.Context) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	s.file = os.NewFile(uintptr(fd), "netlink")
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20) // without it a storm of links overflows sooner, and is re-read
	groups := uint32(1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_LINK-1))
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		s.Close()
		return fmt.Errorf("join the address group: %w", err)
	}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.Close()
		return fmt.Errorf("use the netlink socket: %w", err)
	}
	if err := s.reread(ctx); err != nil {
		s.Close()
		return err
	}
	return nil
}

// reread takes the state from the kernel and queues it as an event.
func (s *Subscription) reread(ctx context.Context) error {
	h, err := s.a.k.open(ctx)
	if err != nil {
		return err
	}
	found, err := s.a.places(h)
	if err != nil {
		return err
	}
	l, err := linkOf(h, s.a.cfg.Interface)
	if err != nil && !errors.Is(err, ErrNoInterface) {
		return err
	}
	s.link, s.places = l, map[[2]int]bool{}
	for _, p := range found {
		bits, _ := p.addr.Mask.Size()
		s.places[[2]int{p.link.index, bits}] = true
	}
	s.last = s.event()
	s.queue = append(s.queue, s.last)
	return nil
}

func (s *Subscription) event() AddressEvent {
	return AddressEvent{Present: len(s.places) > 0, MAC: slices.Clone(s.link.mac), LinkUp: s.link.up, At: time.Now()}
}

// Next blocks until something changed, or ctx ends. A lifetime that is renewed is no change. When the kernel's queue overflowed
// the state is read again, and comes as one event.
func (s *Subscription) Next(ctx context.Context) (AddressEvent, error) {
	for {
		if len(s.queue) > 0 {
			e := s.queue[0]
			s.queue = s.queue[1:]
			return e, nil
		}
		msgs, err := s.receive(ctx)
		if errors.Is(err, unix.ENOBUFS) {
			err = s.reread(ctx)
		}
		if err != nil {
			return AddressEvent{}, err
		}
		for _, m := range msgs {
			s.take(m)
		}
	}
}

// receive reads one datagram. What was read counts, also when ctx ended meanwhile: a lost event would be waited for in vain.
func (s *Subscription) receive(ctx context.Context) ([]syscall.NetlinkMessage, error) {
	buf := make([]byte, 32<<10) // the kernel builds messages of at most a page or 16 kB
	var n int
	var got error
	err := wakeable(ctx, s.file, time.Time{}, func() error {
		return s.raw.Read(func(fd uintptr) bool {
			n, _, got = unix.Recvfrom(int(fd), buf, 0)
			return !errors.Is(got, unix.EAGAIN)
		})
	})
	if err == nil {
		err = got
	}
	if err != nil {
		return nil, fmt.Errorf("read address events: %w", err)
	}
	msgs, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil {
		return nil, fmt.Errorf("read address events: %w", err)
	}
	return msgs, nil
}

// take applies one message and queues an event when it changed anything.
func (s *Subscription) take(m syscall.NetlinkMessage) {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		s.takeAddress(m)
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		s.takeLink(m)
	}
	e := s.event()
	if e.Present == s.last.Present && e.LinkUp == s.last.LinkUp && slices.Equal(e.MAC, s.last.MAC) {
		return
	}
	s.last = e
	s.queue = append(s.queue, e)
}

func (s *Subscription) takeAddress(m syscall.NetlinkMessage) {
	attrs, err := syscall.ParseNetlinkRouteAttr(&m)
	if err != nil || len(m.Data) < unix.SizeofIfAddrmsg {
		return
	}
	bits, index := int(m.Data[1]), int(nativeUint32(m.Data[4:8])) // struct ifaddrmsg: family, prefixlen, flags, scope, index
	for _, attr := range attrs {
		ip, ok := netip.AddrFromSlice(attr.Value)
		if attr.Attr.Type != unix.IFA_LOCAL || !ok || ip != s.a.cfg.VIP {
			continue
		}
		if m.Header.Type == unix.RTM_NEWADDR {
			s.places[[2]int{index, bits}] = true
		} else {
			delete(s.places, [2]int{index, bits})
		}
	}
}

func (s *Subscription) takeLink(m syscall.NetlinkMessage) {
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return // a bridge's word about a port: its DELLINK means that the port left the bridge
	}
	l, err := netlink.LinkDeserialize(nil, m.Data)
	if err != nil || l.Attrs().Name != s.a.cfg.Interface {
		return
	}
	s.link = fromAttrs(l.Attrs())
	if m.Header.Type == unix.RTM_DELLINK {
		s.link = link{name: s.a.cfg.Interface}
	}
}

// Watch calls fn with the state now, and then with each change of it, until ctx ends. It blocks.
// fn runs between two reads: while it works events queue up in the kernel, and none is lost.
func (a *Address) Watch(ctx context.Context, fn func(AddressEvent)) error {
	s, err := a.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return err
		}
		fn(e)
	}
}
