package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
)

// ErrSelfTest is a program that the kernel accepted and that judges a synthetic frame wrongly.
var ErrSelfTest = errors.New("gate: self-test")

// testFrame is a synthetic frame and what the gate must do with it: pass it always, or only while open.
type testFrame struct {
	name  string
	dir   direction
	gated bool
	data  []byte
}

// testFrames are the frames of the self-test for vip: every branch of the program once.
func testFrames(vip netip.Addr) []testFrame {
	peer := otherAddr(vip)
	const udp, rst, rstAck, synAck = 17, tcpReset, tcpReset | 0x10, 0x12
	answer := func(proto, flags byte, frag uint16, options int) []byte {
		return ipv4Frame(vip, peer, proto, flags, frag, options)
	}
	return []testFrame{
		{"IPv4 to the VIP", in, true, ether(etherIPv4, ipv4Frame(peer, vip, udp, 0, 0, 0))},
		{"IPv4 to the VIP, one tag", in, true, ether(etherIPv4, ipv4Frame(peer, vip, udp, 0, 0, 0), etherVLAN)},
		{"IPv4 to the VIP, two tags", in, true, ether(etherIPv4, ipv4Frame(peer, vip, udp, 0, 0, 0), etherVLANOuter, etherVLAN)},
		{"reset to the VIP", in, true, ether(etherIPv4, ipv4Frame(peer, vip, protoTCP, rst, 0, 0))},
		{"IPv4 from the VIP's other owner", in, false, ether(etherIPv4, ipv4Frame(vip, peer, udp, 0, 0, 0))},
		{"IPv4 to another address", in, false, ether(etherIPv4, ipv4Frame(vip, peer, udp, 0, 0, 0))},
		{"ARP request for the VIP", in, true, ether(etherARP, arpFrame(1, peer, vip))},
		{"ARP probe for the VIP, tagged", in, true, ether(etherARP, arpFrame(1, netip.IPv4Unspecified(), vip), etherVLAN)},
		{"announcement by the VIP's other owner", in, false, ether(etherARP, arpFrame(1, vip, vip))},
		{"ARP request of the VIP's other owner", in, false, ether(etherARP, arpFrame(1, vip, peer))},
		{"ARP request for another address", in, false, ether(etherARP, arpFrame(1, peer, peer))},
		{"IPv6", in, false, ether(0x86dd, make([]byte, 40))},
		{"ARP cut short", in, false, ether(etherARP, make([]byte, 8))},

		{"IPv4 from the VIP", out, true, ether(etherIPv4, answer(udp, 0, 0, 0))},
		{"IPv4 from the VIP, two tags", out, true, ether(etherIPv4, answer(udp, 0, 0, 0), etherVLANOuter, etherVLAN)},
		{"handshake from the VIP", out, true, ether(etherIPv4, answer(protoTCP, synAck, 0, 0))},
		{"reset from the VIP", out, false, ether(etherIPv4, answer(protoTCP, rst, 0, 0))},
		{"reset with options of IPv4, tagged", out, false, ether(etherIPv4, answer(protoTCP, rstAck, 0, 8), etherVLAN)},
		{"fragment like a reset", out, true, ether(etherIPv4, answer(protoTCP, rst, 0x2000, 0))},
		{"datagram like a reset", out, true, ether(etherIPv4, answer(udp, rst, 0, 0))},
		{"segment without flags", out, true, ether(etherIPv4, answer(protoTCP, 0, 0, 0)[:ipv4Header+tcpFlagsAt])},
		{"IPv4 to the VIP's other owner", out, false, ether(etherIPv4, ipv4Frame(peer, vip, udp, 0, 0, 0))},
		{"ARP answer for the VIP", out, true, ether(etherARP, arpFrame(2, vip, peer))},
		{"announcement of the VIP", out, true, ether(etherARP, arpFrame(1, vip, vip))},
		{"ARP request for the VIP of another", out, false, ether(etherARP, arpFrame(1, peer, vip))},
		{"IPv6 out", out, false, ether(0x86dd, make([]byte, 40))},
	}
}

// selfTest runs the program of each hook with every frame of its direction, under a close, a passed deadline and one an hour ahead. The word ends closed.
// The programs must not be attached yet: for a moment the gate is open. Without a word only the frames that always pass are tried: for a copy that shares the word of a gate in force.
func selfTest(vip netip.Addr, hooks []*hook, word *cell) error {
	if word == nil {
		return judgeAll(vip, hooks, false, false)
	}
	states := []struct {
		word Word
		open bool
	}{{2, false}, {Now(), false}, {Now().Add(time.Hour), true}, {3, false}}
	for _, s := range states {
		if err := word.store(s.word); err != nil {
			return fmt.Errorf("self-test of gate: %w", err)
		}
		if err := judgeAll(vip, hooks, true, s.open); err != nil {
			return fmt.Errorf("word %v: %w", s.word, err)
		}
	}
	return nil
}

func judgeAll(vip netip.Addr, hooks []*hook, gated, open bool) error {
	for _, h := range hooks {
		for _, f := range testFrames(vip) {
			if f.dir != h.dir || (f.gated && !gated) {
				continue
			}
			if err := judge(h.prog, f, open); err != nil {
				return err
			}
		}
	}
	return nil
}

func judge(prog *ebpf.Program, f testFrame, open bool) error {
	want := uint32(shot)
	if open || !f.gated {
		want = ^uint32(0) // pass, as BPF_PROG_TEST_RUN returns it
	}
	got, err := prog.Run(&ebpf.RunOptions{Data: f.data})
	if err != nil {
		return fmt.Errorf("run program with %s (%s): %w", f.name, f.dir, err)
	}
	if got != want {
		return fmt.Errorf("%w: %s (%s): verdict %d, want %d: do not use this gate, and report the kernel's version", ErrSelfTest, f.name, f.dir, int32(got), int32(want))
	}
	return nil
}

// otherAddr is an address that differs from a in its last bit.
func otherAddr(a netip.Addr) netip.Addr {
	b := a.As4()
	b[3] ^= 1
	return netip.AddrFrom4(b)
}

// ether frames a payload, behind the tags given (their EtherTypes).
func ether(etherType uint16, payload []byte, tags ...uint16) []byte {
	f := append(make([]byte, 0, 64), 0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2)
	for _, t := range tags {
		f = binary.BigEndian.AppendUint16(f, t)
		f = binary.BigEndian.AppendUint16(f, 100) // the identifier, any
	}
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

// ipv4Frame is a packet with the flags where TCP has them, behind options bytes of options (a multiple of 4).
func ipv4Frame(src, dst netip.Addr, proto, flags byte, frag uint16, options int) []byte {
	p := make([]byte, ipv4Header+options+20)
	p[0] = 0x40 | byte((ipv4Header+options)/4)
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	binary.BigEndian.PutUint16(p[ipv4FragAt:], frag)
	p[8], p[ipv4ProtoAt] = 64, proto
	s, d := src.As4(), dst.As4()
	copy(p[ipv4SrcAt:], s[:])
	copy(p[ipv4DstAt:], d[:])
	p[ipv4Header+options+tcpFlagsAt] = flags
	return p
}

// arpFrame is a request (1) or an answer (2) for Ethernet and IPv4.
func arpFrame(op byte, sender, target netip.Addr) []byte {
	s, t := sender.As4(), target.As4()
	p := []byte{0, 1, 8, 0, 6, 4, 0, op, 0x02, 0, 0, 0, 0, 2}
	p = append(p, s[:]...)
	p = append(p, make([]byte, 6)...)
	return append(p, t[:]...)
}
