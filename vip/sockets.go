package vip

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// SocketsConfig says whose connections are meant.
type SocketsConfig struct {
	VIP  netip.Addr
	Port uint16 // only connections to this local port; 0: to any
	Log  *slog.Logger
}

// Sockets lists and ends the TCP connections of this host whose local address is the VIP.
type Sockets struct {
	cfg SocketsConfig
	log *slog.Logger
	k   kernel

	mu   sync.Mutex
	raw  *rawSocket
	diag *nl.SocketHandle
}

// NewSockets checks the configuration and opens nothing.
func NewSockets(cfg SocketsConfig) (*Sockets, error) {
	if err := checkIPv4(cfg.VIP); err != nil {
		return nil, err
	}
	return &Sockets{cfg: cfg, log: orDiscard(cfg.Log), k: kernel{family: unix.NETLINK_INET_DIAG}}, nil
}

// Open opens the sockets for Destroy and Tickle, so that the switch does not pay for it. Again is no error.
func (s *Sockets) Open(ctx context.Context) error {
	if _, err := s.k.open(ctx); err != nil {
		return err
	}
	if _, err := s.diagSocket(); err != nil {
		return err
	}
	_, err := s.rawSocket()
	return err
}

// diagSocket is a socket of our own for requests that the netlink library does not know, kept open because 1000 connections are ended
// by 1000 requests.
func (s *Sockets) diagSocket() (*nl.SocketHandle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.diag != nil {
		return s.diag, nil
	}
	sock, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a sock_diag socket: %w", err)
	}
	patience := unix.NsecToTimeval(netlinkPatience.Nanoseconds())
	if err := errors.Join(sock.SetSendTimeout(&patience), sock.SetReceiveTimeout(&patience)); err != nil {
		sock.Close()
		return nil, fmt.Errorf("bound the sock_diag socket: %w", err)
	}
	s.diag = &nl.SocketHandle{Socket: sock}
	return s.diag, nil
}

// Close ends the sockets of this value, not the connections.
func (s *Sockets) Close() {
	s.k.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw != nil {
		s.raw.close()
		s.raw = nil
	}
	if s.diag != nil {
		s.diag.Close()
		s.diag = nil
	}
}

// conn is one TCP socket of the VIP as the kernel names it.
type conn struct {
	family        uint8
	state         uint8
	local, remote netip.AddrPort
	id            netlink.SocketID
}

// TCP states of include/net/tcp_states.h. A listener is never touched. TIME_WAIT holds no peer; its end is silent.
const (
	stateEstablished = 1
	stateTimeWait    = 6
	stateClose       = 7
	stateListen      = 10
)

// all lists the sockets of the VIP. Both families are asked: a Java server listens on [::], and a connection over IPv4 to such a
// listener is an IPv6 socket with mapped addresses, which a list of IPv4 sockets lacks.
func (s *Sockets) all(ctx context.Context) ([]conn, error) {
	h, err := s.k.open(ctx)
	if err != nil {
		return nil, err
	}
	var found []conn
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		socks, err := h.SocketDiagTCP(family)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			s.log.Debug("connections came or went while they were listed: one may be missing", slog.String("addr", s.cfg.VIP.String()))
		} else if err != nil {
			return nil, fmt.Errorf("list connections of %s: %w", s.cfg.VIP, err)
		}
		for _, sock := range socks {
			c := conn{
				family: family, state: sock.State, id: sock.ID,
				local: addrPort(sock.ID.Source, sock.ID.SourcePort), remote: addrPort(sock.ID.Destination, sock.ID.DestinationPort),
			}
			if c.local.Addr() == s.cfg.VIP && (s.cfg.Port == 0 || c.local.Port() == s.cfg.Port) {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

func addrPort(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// Connections returns the clients of the established connections to the VIP, sorted. It is what the holder publishes, for the next
// holder to tickle.
func (s *Sockets) Connections(ctx context.Context) ([]netip.AddrPort, error) {
	all, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	clients := make([]netip.AddrPort, 0, len(all))
	for _, c := range all {
		if c.state == stateEstablished {
			clients = append(clients, c.remote)
		}
	}
	slices.SortFunc(clients, netip.AddrPort.Compare)
	return slices.Compact(clients), nil
}

// Destroy ends every connection whose local address is the VIP by SOCK_DESTROY, and returns how many. Each peer gets a RST, which can
// leave only while the address is still there: destroy before removing it. Run it on acquiring as well: connections of an earlier
// time as holder live on without the address, and would answer again when it comes back.
func (s *Sockets) Destroy(ctx context.Context) (int, error) {
	all, err := s.all(ctx)
	if err != nil {
		return 0, err
	}
	diag, err := s.diagSocket()
	if err != nil {
		return 0, err
	}
	n := 0
	var errs []error
	for _, c := range all {
		if c.state == stateListen || c.state == stateClose || c.state == stateTimeWait {
			continue
		}
		switch err := destroy(diag, c); {
		case err == nil:
			n++
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE): // it ended by itself
		default:
			errs = append(errs, fmt.Errorf("destroy the connection of %s to %s: %w", c.remote, c.local, err))
		}
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
	}
	return n, errors.Join(errs...)
}

// destroy names the socket by its cookie as well. Without one the kernel looks the addresses up as it does for a packet: for a
// connection that ended meanwhile it finds the listener, and many kernels close that one then.
func destroy(diag *nl.SocketHandle, c conn) error {
	req := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: diag}
	req.AddRawData(diagRequest(c))
	_, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
	return err
}

// diagRequest is struct inet_diag_req_v2 of linux/inet_diag.h.
func diagRequest(c conn) []byte {
	b := make([]byte, 8, 56)
	b[0], b[1] = c.family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], 1<<c.state)
	b = binary.BigEndian.AppendUint16(b, c.id.SourcePort)
	b = binary.BigEndian.AppendUint16(b, c.id.DestinationPort)
	for _, ip := range [][]byte{c.id.Source, c.id.Destination} {
		var field [16]byte
		if c.family == unix.AF_INET {
			ip = ip[len(ip)-4:]
		}
		copy(field[:], ip)
		b = append(b, field[:]...)
	}
	for _, v := range []uint32{c.id.Interface, c.id.Cookie[0], c.id.Cookie[1]} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

// Digest names a list of clients in a few bytes, whatever its order: "3-5feceb66ffc86f38". Equal lists have equal digests, so that the
// holder publishes the list only when it changed.
func Digest(clients []netip.AddrPort) string {
	sorted := slices.SortedFunc(slices.Values(clients), func(x, y netip.AddrPort) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Port(), y.Port()))
	})
	h := sha256.New()
	for _, c := range sorted {
		_, _ = h.Write([]byte(c.String() + "\n")) // a hash never fails
	}
	return strconv.Itoa(len(sorted)) + "-" + hex.EncodeToString(h.Sum(nil)[:8])
}
