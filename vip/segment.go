package vip

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags (RFC 9293 section 3.1).
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

const (
	ipHeader  = 20
	tcpHeader = 20
	protoTCP  = 6
)

// segment is a TCP segment without data, as much as is needed to end a connection.
type segment struct {
	src, dst netip.AddrPort
	seq, ack uint32
	flags    uint8
	length   uint32 // in sequence space: data, and 1 each for SYN and FIN; only of segments that were read
}

// parseSegment reads an IPv4 packet that may be cut off after the TCP header. Fragments have no header worth reading.
func parseSegment(b []byte) (segment, bool) {
	var s segment
	if len(b) < ipHeader || b[0]>>4 != 4 || b[9] != protoTCP || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return s, false
	}
	ihl := int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	if ihl < ipHeader || len(b) < ihl+tcpHeader {
		return s, false
	}
	t := b[ihl:]
	offset := int(t[12]>>4) * 4
	if offset < tcpHeader || total < ihl+offset {
		return s, false
	}
	src, _ := netip.AddrFromSlice(b[12:16])
	dst, _ := netip.AddrFromSlice(b[16:20])
	s = segment{
		src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(t[0:])), dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(t[2:])),
		seq: binary.BigEndian.Uint32(t[4:]), ack: binary.BigEndian.Uint32(t[8:]), flags: t[13],
		length: uint32(total - ihl - offset),
	}
	if s.flags&flagSYN != 0 {
		s.length++
	}
	if s.flags&flagFIN != 0 {
		s.length++
	}
	return s, true
}

// reset answers a segment for a connection that does not exist (RFC 9293 section 3.10.7.1). A reset is never answered.
func (s segment) reset() (segment, bool) {
	r := segment{src: s.dst, dst: s.src}
	switch {
	case s.flags&flagRST != 0:
		return r, false
	case s.flags&flagACK != 0:
		r.seq, r.flags = s.ack, flagRST
	default:
		r.ack, r.flags = s.seq+s.length, flagRST|flagACK
	}
	return r, true
}

// marshal builds the IPv4 packet with both checksums.
func (s segment) marshal() []byte {
	b := make([]byte, ipHeader+tcpHeader)
	src, dst := s.src.Addr().As4(), s.dst.Addr().As4()
	b[0] = 4<<4 | ipHeader/4
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[6:], 1<<14) // don't fragment: then the identification may be 0 (RFC 6864)
	b[8], b[9] = 64, protoTCP
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], ^onesSum(0, b[:ipHeader]))
	t := b[ipHeader:]
	binary.BigEndian.PutUint16(t[0:], s.src.Port())
	binary.BigEndian.PutUint16(t[2:], s.dst.Port())
	binary.BigEndian.PutUint32(t[4:], s.seq)
	binary.BigEndian.PutUint32(t[8:], s.ack)
	t[12], t[13] = tcpHeader/4<<4, s.flags
	if s.flags&flagRST == 0 {
		binary.BigEndian.PutUint16(t[14:], 1024) // a window of 0 would make the peer probe it
	}
	pseudo := onesSum(uint32(protoTCP)+tcpHeader, b[12:20]) // RFC 9293: addresses, protocol, length
	binary.BigEndian.PutUint16(t[16:], ^onesSum(uint32(pseudo), t))
	return b
}

// onesSum is the Internet checksum's sum (RFC 1071) of an even number of bytes, before the final complement.
func onesSum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
