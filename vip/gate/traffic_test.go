package gate

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kind is a sort of traffic that may pass the gate.
type kind int

const (
	echo kind = iota // a datagram to the VIP and its answer: in and out
	push             // a datagram from the VIP that nobody asked for: out alone
	arp              // an ARP request for the VIP and its answer
	kinds
)

func (k kind) String() string { return [...]string{"echo", "push", "arp"}[k] }

// traffic runs all kinds at about one a millisecond each, and notes what passed.
//
// What passed is known by the boot clock's time right before it was sent, read on the same kernel: of an answered request the time of the request, and of a
// datagram from the VIP the time before it was handed to the kernel. A frame sent at or after the deadline must never pass, so no tolerance is needed at all.
type traffic struct {
	t    testing.TB
	lab  *lab
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	sent   [kinds]map[uint64]Word // by sequence number: when
	passed [kinds]map[uint64]Word // by sequence number: the last moment at which it was still on its way to the gate
}

const echoPort = 7

func newTraffic(l *lab) *traffic {
	l.t.Helper()
	tr := &traffic{t: l.t, lab: l, stop: make(chan struct{})}
	for k := range kinds {
		tr.sent[k], tr.passed[k] = make(map[uint64]Word), make(map[uint64]Word)
	}
	host, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.vip, echoPort)))
	l.must(err)
	var peer *net.UDPConn
	inside(l.t, l.peerNS, func() error {
		peer, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.peer, echoPort)))
		return err
	})
	for _, c := range []*net.UDPConn{host, peer} { // what a starved reader has not fetched must not be taken for lost
		l.must(c.SetReadBuffer(4 << 20))
	}
	wire := l.packetSocket(l.peerNS, l.peerDev, unix.ETH_P_ARP)
	vipAt, peerAt := netip.AddrPortFrom(l.vip, echoPort), netip.AddrPortFrom(l.peer, echoPort)
	tr.run(func() { tr.answer(host) })
	tr.run(func() { tr.receive(peer) })
	tr.run(func() { tr.receiveARP(wire) })
	tr.every(func(seq uint64) { tr.send(peer, vipAt, echo, seq) })
	tr.every(func(seq uint64) { tr.send(host, peerAt, push, seq) })
	tr.every(func(seq uint64) { tr.sendARP(wire, seq) })
	l.t.Cleanup(func() {
		close(tr.stop)
		host.Close()
		peer.Close()
		tr.wg.Wait()
	})
	return tr
}

func (tr *traffic) run(f func()) {
	tr.wg.Add(1)
	go func() {
		defer tr.wg.Done()
		f()
	}()
}

func (tr *traffic) every(f func(seq uint64)) {
	tr.run(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for seq := uint64(1); ; seq++ {
			select {
			case <-tr.stop:
				return
			case <-tick.C:
				f(seq)
			}
		}
	})
}

// A datagram is: kind, sequence number, when it was sent.
func (tr *traffic) send(c *net.UDPConn, to netip.AddrPort, k kind, seq uint64) {
	now := Now()
	tr.note(tr.sent[k], seq, now)
	b := binary.BigEndian.AppendUint64([]byte{byte(k)}, seq)
	_, _ = c.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(b, uint64(now)), to) // dropped ones come back as an error
}

// answer echoes a datagram with the time of the answer in place of that of the question.
func (tr *traffic) answer(c *net.UDPConn) {
	var b [64]byte
	for {
		n, from, err := c.ReadFromUDPAddrPort(b[:])
		if err != nil {
			return
		}
		if n == 17 {
			binary.BigEndian.PutUint64(b[9:], uint64(Now()))
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	}
}

func (tr *traffic) receive(c *net.UDPConn) {
	var b [64]byte
	for {
		n, err := c.Read(b[:])
		if err != nil {
			return
		}
		if n == 17 && b[0] < byte(kinds) {
			tr.note(tr.passed[b[0]], binary.BigEndian.Uint64(b[1:]), Word(binary.BigEndian.Uint64(b[9:])))
		}
	}
}

// sendARP asks for the VIP in the name of a sender that carries the sequence number, so that the kernel's answer carries it back.
func (tr *traffic) sendARP(fd int, seq uint64) {
	sender := netip.AddrFrom4([4]byte{10, byte(tr.lab.n), byte(16 + seq>>8&0x7f), byte(seq)})
	tr.note(tr.sent[arp], seq&0x7fff, Now())
	_ = unix.Sendto(fd, frameTo(tr.lab.peerMAC, broadcast, etherARP, arpFrom(tr.lab.peerMAC, 1, sender, tr.lab.vip)), 0, &unix.SockaddrLinklayer{Ifindex: tr.lab.peerDev, Halen: 6})
}

func (tr *traffic) receiveARP(fd int) {
	defer unix.Close(fd)
	var b [128]byte
	for {
		select {
		case <-tr.stop:
			return
		default:
		}
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		if err != nil || n < 42 || b[21] != 2 || netip.AddrFrom4([4]byte(b[28:32])) != tr.lab.vip {
			continue
		}
		seq := uint64(b[40]-16)<<8 | uint64(b[41])
		tr.mu.Lock()
		tr.passed[arp][seq] = tr.sent[arp][seq]
		tr.mu.Unlock()
	}
}

func (tr *traffic) note(in map[uint64]Word, seq uint64, at Word) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	in[seq] = at
}

// count tells how many of a kind passed that were sent at or after from.
func (tr *traffic) count(k kind, from Word) int { return tr.counted(tr.passed[k], from) }

// tried tells how many of a kind were sent at or after from.
func (tr *traffic) tried(k kind, from Word) int { return tr.counted(tr.sent[k], from) }

func (tr *traffic) counted(in map[uint64]Word, from Word) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for _, at := range in {
		if at >= from {
			n++
		}
	}
	return n
}

// flows waits until n more of each kind have passed.
func (tr *traffic) flows(n int) {
	tr.t.Helper()
	from := Now()
	for k := range kinds {
		eventually(tr.t, k.String()+" to pass", func() bool { return tr.count(k, from) >= n })
	}
}

// silentSince waits until n more of each kind were tried, and fails if any that was sent at or after from has passed.
func (tr *traffic) silentSince(from Word, n int) {
	tr.t.Helper()
	now := Now()
	for k := range kinds {
		eventually(tr.t, k.String()+" to be tried", func() bool { return tr.tried(k, max(from, now)) >= n })
	}
	for k := range kinds {
		if leaked := tr.count(k, from); leaked > 0 {
			tr.t.Errorf("%d %ss passed that were sent after the gate had closed, the last %v after", leaked, k, time.Duration(tr.last(k)-from))
		}
	}
}

// last is when the last of a kind that passed was sent.
func (tr *traffic) last(k kind) Word {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var last Word
	for _, at := range tr.passed[k] {
		last = max(last, at)
	}
	return last
}

// missing lists the datagrams of a kind, sent in [from, to), that did not pass.
func (tr *traffic) missing(k kind, from, to Word) []uint64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var lost []uint64
	for seq, at := range tr.sent[k] {
		if _, ok := tr.passed[k][seq]; !ok && at >= from && at < to {
			lost = append(lost, seq)
		}
	}
	slices.Sort(lost)
	return lost
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// packetSocket opens an AF_PACKET socket on an interface; ns -1 is the box.
func (l *lab) packetSocket(ns, index int, protocol uint16) int {
	l.t.Helper()
	fd := -1
	open := func() (err error) {
		proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: index})
	}
	if ns < 0 {
		l.must(open())
	} else {
		inside(l.t, ns, open)
	}
	return fd
}

// frameTo is an Ethernet frame.
func frameTo(src, dst net.HardwareAddr, etherType uint16, payload []byte) []byte {
	f := ether(etherType, payload)
	copy(f, dst)
	copy(f[6:], src)
	return f
}

// arpFrom is an ARP packet with a hardware address that receivers believe.
func arpFrom(mac net.HardwareAddr, op byte, sender, target netip.Addr) []byte {
	p := arpFrame(op, sender, target)
	copy(p[8:], mac)
	return p
}
