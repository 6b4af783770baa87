package record

import (
	"encoding/binary"
	"net/netip"
)

// Offsets and numbers of Ethernet, ARP (RFC 826), IPv4 (RFC 791) and TCP (RFC 9293).
const (
	etherTypeAt   = 12
	etherPayload  = 14
	etherIPv4     = 0x0800
	etherARP      = 0x0806
	arpSenderAt   = etherPayload + 14
	arpLength     = etherPayload + 28
	ipProtocolAt  = etherPayload + 9
	ipSourceAt    = etherPayload + 12
	ipHeaderLeast = 20
	protoTCP      = 6
	tcpFlagsAt    = 13
	tcpRST        = 0x04
)

// Kind says how a frame answers for the VIP: "arp" when it claims the address (any ARP frame with the VIP as sender: a request
// updates the hearer's table as well as a reply), "ip" for IPv4 from the VIP. Empty: it does not answer. A TCP reset refuses and
// does not serve, so it is no answer.
func Kind(frame []byte, vip netip.Addr) string {
	if len(frame) < etherPayload+ipHeaderLeast {
		return ""
	}
	switch binary.BigEndian.Uint16(frame[etherTypeAt:]) {
	case etherARP:
		if len(frame) >= arpLength && netip.AddrFrom4([4]byte(frame[arpSenderAt:])) == vip {
			return "arp"
		}
	case etherIPv4:
		if netip.AddrFrom4([4]byte(frame[ipSourceAt:])) == vip && !reset(frame) {
			return "ip"
		}
	}
	return ""
}

func reset(frame []byte) bool {
	if frame[ipProtocolAt] != protoTCP {
		return false
	}
	flags := etherPayload + int(frame[etherPayload]&0x0f)*4 + tcpFlagsAt
	return flags < len(frame) && frame[flags]&tcpRST != 0
}
