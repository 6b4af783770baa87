package record

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

var (
	vip   = netip.MustParseAddr("10.77.0.100")
	other = netip.MustParseAddr("10.77.0.11")
)

func arpFrame(sender netip.Addr, op uint16) []byte {
	f := make([]byte, 60)
	binary.BigEndian.PutUint16(f[etherTypeAt:], etherARP)
	binary.BigEndian.PutUint16(f[etherPayload+6:], op)
	copy(f[arpSenderAt:], sender.AsSlice())
	return f
}

func ipFrame(source netip.Addr, proto, flags byte, options int) []byte {
	f := make([]byte, etherPayload+ipHeaderLeast+options+20)
	binary.BigEndian.PutUint16(f[etherTypeAt:], etherIPv4)
	f[etherPayload] = 0x40 | byte((ipHeaderLeast+options)/4)
	f[ipProtocolAt] = proto
	copy(f[ipSourceAt:], source.AsSlice())
	f[etherPayload+ipHeaderLeast+options+tcpFlagsAt] = flags
	return f
}

func TestKind(t *testing.T) {
	const syn, ack = 0x02, 0x10
	tests := []struct {
		name  string
		frame []byte
		want  string
	}{
		{"arp reply", arpFrame(vip, 2), "arp"},
		{"gratuitous request", arpFrame(vip, 1), "arp"},
		{"RFC 5227 probe: no sender", arpFrame(netip.IPv4Unspecified(), 1), ""},
		{"arp of another", arpFrame(other, 2), ""},
		{"syn-ack", ipFrame(vip, protoTCP, syn|ack, 0), "ip"},
		{"reset", ipFrame(vip, protoTCP, tcpRST, 0), ""},
		{"reset with IP options", ipFrame(vip, protoTCP, tcpRST|ack, 8), ""},
		{"ack with IP options", ipFrame(vip, protoTCP, ack, 8), "ip"},
		{"udp", ipFrame(vip, 17, tcpRST, 0), "ip"},
		{"ping answer", ipFrame(vip, 1, 0, 0), "ip"},
		{"of another", ipFrame(other, protoTCP, ack, 0), ""},
		{"cut short", arpFrame(vip, 2)[:30], ""},
		{"empty", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Kind(tt.frame, vip); got != tt.want {
				t.Errorf("Kind = %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzKind(f *testing.F) {
	f.Add(arpFrame(vip, 2))
	f.Add(ipFrame(vip, protoTCP, tcpRST, 40)) // the flags lie beyond what a short capture holds
	f.Fuzz(func(t *testing.T, frame []byte) {
		if k := Kind(frame, vip); k != "" && len(frame) < etherPayload+ipHeaderLeast {
			t.Errorf("%d bytes cannot answer, got %q", len(frame), k)
		}
	})
}
