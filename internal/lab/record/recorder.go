package record

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/netns"
)

const (
	snap       = 128      // enough for Ethernet, IPv4 with options, and TCP's flags
	ring       = 16 << 20 // socket buffer: 4,000 frames a second for ten seconds without a reader
	readBudget = 100 * time.Millisecond
)

// Recorder captures every frame that answers for the VIP, at the port of the switch where it comes in.
type Recorder struct {
	vip  netip.Addr
	net  *netns.Network
	sock int

	mu    sync.Mutex
	holds Holds
	last  map[string]time.Time // host → its newest answer
}

// New opens the capture at the switch; frames count from now on. Run reads them.
func New(n *netns.Network, vip netip.Addr) (*Recorder, error) {
	r := &Recorder{vip: vip, net: n, last: make(map[string]time.Time)}
	err := n.Switch.Do(func() error {
		var err error
		r.sock, err = open(vip)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the capture at the switch: %w", err)
	}
	return r, nil
}

func open(vip netip.Addr) (int, error) {
	prog, err := filter(vip)
	if err != nil {
		return -1, err
	}
	// Protocol 0: nothing is received before the filter is attached and the socket is bound.
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(readBudget.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptSockFprog(sock, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog),
		unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ring),
		unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(sock, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)}),
	)
	if err != nil {
		return -1, errors.Join(err, unix.Close(sock))
	}
	return sock, nil
}

// filter lets through, in the kernel, only incoming frames with the VIP as ARP sender or IPv4 source.
func filter(vip netip.Addr) (*unix.SockFprog, error) {
	addr := vip.As4()
	want := binary.BigEndian.Uint32(addr[:])
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 7}, // each frame once, where it comes in
		bpf.LoadAbsolute{Off: etherTypeAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherIPv4, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherARP, SkipFalse: 4},
		bpf.LoadAbsolute{Off: arpSenderAt, Size: 4},
		bpf.Jump{Skip: 1},
		bpf.LoadAbsolute{Off: ipSourceAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: want, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: snap},
	})
	if err != nil {
		return nil, fmt.Errorf("assemble the capture's filter: %w", err)
	}
	return &unix.SockFprog{Len: uint16(len(raw)), Filter: (*unix.SockFilter)(unsafe.Pointer(&raw[0]))}, nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Run reads the capture until ctx ends, and closes it. Frames that the kernel had to drop make it an error: what was not seen
// proves nothing.
func (r *Recorder) Run(ctx context.Context) error {
	frame, control := make([]byte, snap), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for ctx.Err() == nil {
		n, cn, _, from, err := unix.Recvmsg(r.sock, frame, control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN): // a port went down: a fault
			continue
		case err != nil:
			return errors.Join(fmt.Errorf("read the capture: %w", err), unix.Close(r.sock))
		}
		if err := r.take(frame[:n], control[:cn], from); err != nil {
			return errors.Join(err, unix.Close(r.sock))
		}
	}
	stats, err := unix.GetsockoptTpacketStats(r.sock, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil && stats.Drops > 0 {
		err = fmt.Errorf("capture lost %d of %d frames: two holders may have gone unseen; run it again on a quieter machine", stats.Drops, stats.Packets)
	}
	return errors.Join(err, unix.Close(r.sock))
}

func (r *Recorder) take(frame, control []byte, from unix.Sockaddr) error {
	kind := Kind(frame, r.vip)
	link, ok := from.(*unix.SockaddrLinklayer)
	if kind == "" || !ok {
		return nil
	}
	host, ok := r.net.Port(link.Ifindex)
	if !ok {
		return nil // the bridge itself shows broadcasts a second time
	}
	at, err := stamp(control)
	if err != nil {
		return err
	}
	if mac := net.HardwareAddr(frame[6:12]); r.foreign(host, mac) {
		host = "? " + mac.String() + " behind " + host
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds.Add(Answer{At: at, Host: host, Kind: kind})
	r.last[host] = at
	return nil
}

func (r *Recorder) foreign(host string, mac net.HardwareAddr) bool {
	h, err := r.net.Host(host)
	return err != nil || h.MAC.String() != mac.String()
}

// stamp reads the kernel's receive time.
func stamp(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, fmt.Errorf("read a frame's time: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			ts := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return time.Unix(ts.Sec, ts.Nsec), nil
		}
	}
	return time.Time{}, errors.New("read a frame's time: the kernel gave none")
}

// Holds returns what was seen so far.
func (r *Recorder) Holds() []Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds.List()
}

// Since returns the hosts that answered for the VIP after the time.
func (r *Recorder) Since(t time.Time) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var hosts []string
	for host, last := range r.last {
		if last.After(t) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
