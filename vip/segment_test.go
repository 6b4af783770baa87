package vip

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
)

// naiveSum is the checksum of RFC 1071 done the slow way, in 64 bits and reduced once. Over a packet with its checksum it is 0xffff.
func naiveSum(words ...[]byte) uint16 {
	var sum uint64
	for _, b := range words {
		for i := 0; i < len(b); i += 2 {
			sum += uint64(b[i])<<8 | uint64(b[i+1])
		}
	}
	if sum %= 0xffff; sum == 0 {
		return 0xffff
	}
	return uint16(sum)
}

func TestMarshalledChecksums(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		s := segment{src: randomAddr(rnd), dst: randomAddr(rnd), seq: rnd.Uint32(), ack: rnd.Uint32(), flags: uint8(rnd.Uint32()) & 0x17}
		b := s.marshal()
		if got := naiveSum(b[:20]); got != 0xffff {
			t.Fatalf("IP checksum of %+v: %#x", s, got)
		}
		if got := naiveSum(b[12:20], []byte{0, 6, 0, 20}, b[20:]); got != 0xffff {
			t.Fatalf("TCP checksum of %+v: %#x", s, got)
		}
		back, ok := parseSegment(b)
		want := s
		if s.flags&flagSYN != 0 {
			want.length++
		}
		if s.flags&flagFIN != 0 {
			want.length++
		}
		if !ok || back != want {
			t.Fatalf("parsed %+v, want %+v", back, want)
		}
	}
}

func randomAddr(rnd *rand.Rand) netip.AddrPort {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], rnd.Uint32())
	return netip.AddrPortFrom(netip.AddrFrom4(b), uint16(rnd.Uint32()))
}

func TestResetFollowsRFC9293(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    segment
		flags uint8 // 0: no answer
		seq   uint32
		ack   uint32
	}{
		{"SYN", segment{flags: flagSYN, seq: 100, length: 1}, flagRST | flagACK, 0, 101},
		{"SYN with data (fast open)", segment{flags: flagSYN, seq: 100, length: 11}, flagRST | flagACK, 0, 111},
		{"SYN at the end of the sequence space", segment{flags: flagSYN, seq: 0xffffffff, length: 1}, flagRST | flagACK, 0, 0},
		{"ACK", segment{flags: flagACK, seq: 5, ack: 700}, flagRST, 700, 0},
		{"data", segment{flags: flagACK, seq: 5, ack: 700, length: 40}, flagRST, 700, 0},
		{"FIN", segment{flags: flagACK | flagFIN, seq: 5, ack: 700, length: 1}, flagRST, 700, 0},
		{"SYN ACK", segment{flags: flagACK | flagSYN, seq: 5, ack: 700, length: 1}, flagRST, 700, 0},
		{"nothing set", segment{seq: 9, length: 3}, flagRST | flagACK, 0, 12},
		{"RST", segment{flags: flagRST, seq: 5}, 0, 0, 0},
		{"RST ACK", segment{flags: flagRST | flagACK, seq: 5}, 0, 0, 0},
	} {
		c.in.src, c.in.dst = netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")
		got, ok := c.in.reset()
		if ok != (c.flags != 0) {
			t.Errorf("%s: answered %v", c.name, ok)
			continue
		}
		if want := (segment{src: c.in.dst, dst: c.in.src, flags: c.flags, seq: c.seq, ack: c.ack}); ok && got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}

// FuzzParseSegment looks for inputs that crash the parser, or whose reset could be answered by a reset again.
func FuzzParseSegment(f *testing.F) {
	syn := segment{src: netip.MustParseAddrPort("10.0.0.1:1"), dst: netip.MustParseAddrPort("10.0.0.2:2"), flags: flagSYN}
	f.Add(syn.marshal())
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseSegment(b)
		if !ok {
			return
		}
		r, ok := s.reset()
		if !ok {
			return
		}
		again, ok := parseSegment(r.marshal())
		if !ok || again.src != s.dst || again.dst != s.src {
			t.Fatalf("the reset of %+v reads as %+v", s, again)
		}
		if _, ok := again.reset(); ok {
			t.Fatalf("a reset is answered: %+v", again)
		}
	})
}

func TestFilterOfRefusableSegments(t *testing.T) {
	frame := func(change func(f []byte)) []byte {
		s := segment{src: netip.MustParseAddrPort("10.77.0.21:4000"), dst: netip.AddrPortFrom(testVIP, 8066), flags: flagSYN}
		f := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}, s.marshal()...)
		if change != nil {
			change(f)
		}
		return f
	}
	raw, err := refusable(testVIP)
	check(t, err)
	prog, _ := bpf.Disassemble(raw)
	prog = prog[2:] // the packet type is known to the kernel alone; the rest of the program is relative and stands by itself
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(f []byte)
		pass   bool
	}{
		{"SYN", nil, true},
		{"data", func(f []byte) { f[14+33] = flagACK | 8 }, true},
		{"RST", func(f []byte) { f[14+33] = flagRST | flagACK }, false},
		{"to another address", func(f []byte) { f[14+19]++ }, false},
		{"UDP", func(f []byte) { f[14+9] = 17 }, false},
		{"ARP", func(f []byte) { f[13] = 6 }, false},
		{"a later fragment", func(f []byte) { f[14+7] = 1 }, false},
		{"don't fragment", func(f []byte) { f[14+6] = 0x40 }, true},
	} {
		n, err := vm.Run(frame(c.change))
		check(t, err)
		if (n > 0) != c.pass {
			t.Errorf("%s: the filter keeps %d bytes", c.name, n)
		}
	}
	withOptions := func(flags byte) []byte { // 4 bytes of IP options move the TCP header
		f := frame(func(f []byte) { f[14] = 0x46; f[14+33] = flags })
		return append(append(append([]byte{}, f[:34]...), 1, 1, 1, 1), f[34:]...)
	}
	for flags, pass := range map[byte]bool{flagSYN: true, flagRST: false} {
		if n, _ := vm.Run(withOptions(flags)); (n > 0) != pass {
			t.Errorf("with IP options, flags %#x: the filter keeps %d bytes", flags, n)
		}
	}
}
