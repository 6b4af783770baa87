package gate

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The two verdicts. pass lets the programs and filters behind ours see the frame: TC_ACT_UNSPEC, which is TCX_NEXT (linux/pkt_cls.h, linux/bpf.h).
const (
	pass = -1
	shot = 2 // TC_ACT_SHOT
)

// direction says which way frames go past a hook.
type direction uint8

const (
	in direction = iota
	out
)

// String is part of pin and filter names, by which a successor finds the gates of its predecessor: it must stay.
func (d direction) String() string { return [...]string{in: "in", out: "out"}[d] }

// Offsets into a frame: Ethernet II and IEEE 802.1Q, RFC 791, RFC 826, RFC 9293.
const (
	etherTypeAt    = 12
	etherHeader    = 14
	tagLength      = 4
	ipv4Header     = 20
	ipv4FragAt     = 6
	ipv4ProtoAt    = 9
	ipv4SrcAt      = 12
	ipv4DstAt      = 16
	arpSenderAt    = 14 // sender's protocol address
	arpTargetAt    = 24 // target's protocol address
	tcpFlagsAt     = 13
	tcpReset       = 0x04
	protoTCP       = 6
	fragmentOrMF   = 0x3fff // the offset and "more fragments"
	etherIPv4      = 0x0800
	etherARP       = 0x0806
	etherVLAN      = 0x8100
	etherVLANOuter = 0x88a8
)

// Where the program keeps things on its stack.
const (
	stackKey    = -4  // key 0 of the maps
	stackSmall  = -8  // an EtherType, an address of ARP, the flags of TCP
	stackHeader = -32 // the header of IPv4
)

// asRead returns the number that the program reads where v stands in network order.
func asRead(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// newProgram loads the program of one direction. vip is baked into it; word and drops are the maps that it uses.
func newProgram(dir direction, vip netip.Addr, word, drops *ebpf.Map) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "baton_gate_" + dir.String(),
		Type:         ebpf.SchedCLS,
		License:      "Dual MIT/GPL",
		Instructions: instructions(dir, vip, word.FD(), drops.FD()),
	})
}

// instructions assembles the program.
//
// R6 is the frame, R7 the offset of its network header, R8 what was read last, R9 the VIP and later whether the frame is IPv4.
// Only instructions of the first eBPF (no 32-bit jumps, no BTF), so that old kernels load it. Both sides of a comparison of addresses are 64 bits wide
// because an immediate of a jump is sign-extended: addresses with the top bit set would never match.
func instructions(dir direction, vip netip.Addr, word, drops int) asm.Instructions {
	addr := vip.As4()
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R7, etherHeader),
		asm.LoadImm(asm.R9, int64(binary.NativeEndian.Uint32(addr[:])), asm.DWord),
		asm.Mov.Imm(asm.R2, etherTypeAt),
	}
	ins = append(ins, loadEtherType()...)
	ins = append(ins, skipTag("tag1", "tag2")...)
	ins = append(ins, skipTag("tag2", "network")...)
	ins = append(ins,
		asm.JEq.Imm(asm.R8, asRead(etherIPv4), "ipv4").WithSymbol("network"),
		asm.JEq.Imm(asm.R8, asRead(etherARP), "arp"),
		asm.Ja.Label("pass"),
	)
	ins = append(ins, matchIPv4(dir)...)
	ins = append(ins, matchARP(dir)...)
	ins = append(ins, compareTime(word)...)
	if dir == out {
		ins = append(ins, passReset()...)
	}
	ins = append(ins, drop(drops)...)
	return append(ins,
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	)
}

// load reads size bytes at the offset in R2 to the stack. A frame too short for that jumps to miss.
func load(stack, size int32, miss string) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stack),
		asm.Mov.Imm(asm.R4, size),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, miss),
	}
}

// loadEtherType reads the EtherType at the offset in R2 into R8.
func loadEtherType() asm.Instructions {
	return append(load(stackSmall, 2, "pass"), asm.LoadMem(asm.R8, asm.RFP, stackSmall, asm.Half))
}

// skipTag steps over one tag of 802.1Q or 802.1ad that stands inline, or goes to next. (The kernel strips the outer tag of received frames itself.)
func skipTag(label, next string) asm.Instructions {
	ins := asm.Instructions{
		asm.JEq.Imm(asm.R8, asRead(etherVLAN), label+"_skip").WithSymbol(label),
		asm.JNE.Imm(asm.R8, asRead(etherVLANOuter), next),
		asm.Mov.Reg(asm.R2, asm.R7).WithSymbol(label + "_skip"),
		asm.Add.Imm(asm.R2, tagLength-2),
		asm.Add.Imm(asm.R7, tagLength),
	}
	return append(ins, loadEtherType()...)
}

// matchIPv4 goes to "gated" with R9 = 1 when the address that matters in this direction is the VIP, else to "pass".
func matchIPv4(dir direction) asm.Instructions {
	addrAt := int16(ipv4DstAt)
	if dir == out {
		addrAt = ipv4SrcAt
	}
	ins := asm.Instructions{asm.Mov.Reg(asm.R2, asm.R7).WithSymbol("ipv4")}
	ins = append(ins, load(stackHeader, ipv4Header, "pass")...)
	return append(ins,
		asm.LoadMem(asm.R8, asm.RFP, stackHeader+addrAt, asm.Word),
		asm.JNE.Reg(asm.R8, asm.R9, "pass"),
		asm.Mov.Imm(asm.R9, 1),
		asm.Ja.Label("gated"),
	)
}

// matchARP goes to "gated" with R9 = 0 when we are asked for the VIP (in) or speak as the VIP (out), else to "pass".
//
// Received frames whose sender is the VIP always pass: they are the announcement of the new owner, which our own conflict watch and neighbour table must see.
func matchARP(dir direction) asm.Instructions {
	sender := append(asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.R7).WithSymbol("arp"),
		asm.Add.Imm(asm.R2, arpSenderAt),
	}, load(stackSmall, 4, "pass")...)
	sender = append(sender, asm.LoadMem(asm.R8, asm.RFP, stackSmall, asm.Word))
	if dir == out {
		return append(sender,
			asm.JNE.Reg(asm.R8, asm.R9, "pass"),
			asm.Mov.Imm(asm.R9, 0),
		)
	}
	ins := append(slices.Clone(sender),
		asm.JEq.Reg(asm.R8, asm.R9, "pass"),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, arpTargetAt),
	)
	ins = append(ins, load(stackSmall, 4, "pass")...)
	return append(ins,
		asm.LoadMem(asm.R8, asm.RFP, stackSmall, asm.Word),
		asm.JNE.Reg(asm.R8, asm.R9, "pass"),
		asm.Mov.Imm(asm.R9, 0),
	)
}

// compareTime passes while the kernel's clock is before the word. No word drops.
func compareTime(word int) asm.Instructions {
	return append(lookup("gated", word, "drop"),
		asm.LoadMem(asm.R8, asm.R0, 0, asm.DWord),
		asm.FnKtimeGetBootNs.Call(),
		asm.JLT.Reg(asm.R0, asm.R8, "pass"),
	)
}

// passReset lets a whole TCP segment with the reset flag leave while closed: a resetter elsewhere on the host refuses clients at once, which else wait a second for a lost SYN.
// Fragments, and headers shorter than IPv4 allows, are no such segment.
func passReset() asm.Instructions {
	ins := asm.Instructions{
		asm.JEq.Imm(asm.R9, 0, "drop"),
		asm.LoadMem(asm.R8, asm.RFP, stackHeader+ipv4ProtoAt, asm.Byte),
		asm.JNE.Imm(asm.R8, protoTCP, "drop"),
		asm.LoadMem(asm.R8, asm.RFP, stackHeader+ipv4FragAt, asm.Half),
		asm.And.Imm(asm.R8, asRead(fragmentOrMF)),
		asm.JNE.Imm(asm.R8, 0, "drop"),
		asm.LoadMem(asm.R8, asm.RFP, stackHeader, asm.Byte),
		asm.And.Imm(asm.R8, 0x0f), // length of the header in words of 4 bytes
		asm.LSh.Imm(asm.R8, 2),
		asm.JLT.Imm(asm.R8, ipv4Header, "drop"),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Reg(asm.R2, asm.R8),
		asm.Add.Imm(asm.R2, tcpFlagsAt),
	}
	ins = append(ins, load(stackSmall, 1, "drop")...)
	return append(ins,
		asm.LoadMem(asm.R8, asm.RFP, stackSmall, asm.Byte),
		asm.And.Imm(asm.R8, tcpReset),
		asm.JNE.Imm(asm.R8, 0, "pass"),
	)
}

// drop counts the frame and drops it. The counter is per CPU and the hooks run with softirqs off, so a plain addition loses nothing.
func drop(drops int) asm.Instructions {
	return append(lookup("drop", drops, "shot"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("shot"),
		asm.Return(),
	)
}

// lookup, labelled, leaves the address of the only value of a map in R0, or goes to miss.
func lookup(label string, fd int, miss string) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, stackKey, 0, asm.Word).WithSymbol(label),
		asm.LoadMapPtr(asm.R1, fd),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, miss),
	}
}

// newDrops creates the map of the counter of dropped frames.
func newDrops() (*ebpf.Map, error) {
	return ebpf.NewMap(&ebpf.MapSpec{Name: "baton_drops", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
}

// clockInstructions stores the program's CLOCK_BOOTTIME into the only value of a map.
func clockInstructions(into int) asm.Instructions {
	return append(lookup("start", into, "end"),
		asm.Mov.Reg(asm.R6, asm.R0),
		asm.FnKtimeGetBootNs.Call(),
		asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	)
}
