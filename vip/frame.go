package vip

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var (
	broadcast   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	nobody      = net.HardwareAddr{0, 0, 0, 0, 0, 0}
	unspecified = netip.IPv4Unspecified()
)

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// Offsets in an Ethernet frame, without a VLAN tag: the kernel hands tags over beside the frame.
const (
	offEtherType = 12
	offARPOp     = 20
	offARPSender = 28
	offARPTarget = 38
	etherHeader  = 14
)

// arpFrame is one ARP packet in an Ethernet frame from its sender to all.
func arpFrame(op arp.Operation, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr, tpa netip.Addr) ([]byte, error) {
	p, err := arp.NewPacket(op, sha, spa, tha, tpa)
	if err != nil {
		return nil, fmt.Errorf("build an ARP packet from %s %s: %w", sha, spa, err)
	}
	body, err := p.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("build an ARP packet from %s %s: %w", sha, spa, err)
	}
	f := ethernet.Frame{Destination: broadcast, Source: sha, EtherType: ethernet.EtherTypeARP, Payload: body}
	frame, err := f.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("build a frame from %s: %w", sha, err)
	}
	return frame, nil
}

// announcements are the two forms of a gratuitous ARP that between them every neighbour believes: a request with target ff (some
// devices ignore target 0) and a reply with target = sender (with target ff Linux ignores it for a second after an update).
func announcements(mac net.HardwareAddr, vip netip.Addr) ([2][]byte, error) {
	request, err := arpFrame(arp.OperationRequest, mac, vip, broadcast, vip)
	if err != nil {
		return [2][]byte{}, err
	}
	reply, err := arpFrame(arp.OperationReply, mac, vip, mac, vip)
	return [2][]byte{request, reply}, err
}

// parseARP reads the ARP packet of a frame.
func parseARP(frame []byte) (arp.Packet, bool) {
	var p arp.Packet
	if len(frame) < etherHeader || binary.BigEndian.Uint16(frame[offEtherType:]) != unix.ETH_P_ARP {
		return p, false
	}
	return p, p.UnmarshalBinary(frame[etherHeader:]) == nil
}

// condition is one test of a kernel filter: the loaded value, masked, must be val.
type condition struct {
	load []bpf.Instruction
	mask uint32 // 0: no mask
	val  uint32
}

func at(off, size int, val uint32) condition {
	return condition{load: []bpf.Instruction{bpf.LoadAbsolute{Off: uint32(off), Size: size}}, val: val}
}

// allOf assembles a classic BPF program that keeps the first snap bytes of the frames which meet every condition.
func allOf(snap uint32, conds ...condition) ([]bpf.RawInstruction, error) {
	prog := []bpf.Instruction{bpf.RetConstant{Val: snap}, bpf.RetConstant{Val: 0}}
	for i := len(conds) - 1; i >= 0; i-- {
		c := conds[i]
		head := append([]bpf.Instruction{}, c.load...)
		if c.mask != 0 {
			head = append(head, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
		}
		// The last instruction of prog is "drop": its distance from here is the rest of prog but itself.
		head = append(head, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.val, SkipFalse: uint8(len(prog) - 1)})
		prog = append(head, prog...)
	}
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return nil, fmt.Errorf("assemble a packet filter: %w", err)
	}
	return raw, nil
}

func addr32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// listen opens a packet socket on the link. Protocol 0 hears nothing and is for sending alone.
func listen(l link, protocol int, filter []bpf.RawInstruction) (*packet.Conn, error) {
	ifi := &net.Interface{Index: l.index, Name: l.name, HardwareAddr: l.mac}
	conn, err := packet.Listen(ifi, packet.Raw, protocol, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket on %s: %w", l.name, err)
	}
	return conn, nil
}

// closeLater closes a socket in the background: the kernel makes the closer of a packet socket wait for an RCU grace period, some 10 ms
// that no switch should pay. It does not hear or send any more from the caller's view; errors of closing a reader mean nothing.
func closeLater(conn *packet.Conn) { go func() { _ = conn.Close() }() }
