package gate

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyAResetLeavesWhileClosed sends frames as keepalived, arping and a resetter do, by AF_PACKET.
func TestOnlyAResetLeavesWhileClosed(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			l := newLab(t)
			l.installed(l.config(m, false), 0)
			wire := l.packetSocket(l.peerNS, l.peerDev, unix.ETH_P_ALL)
			defer unix.Close(wire)
			host := l.packetSocket(-1, l.index, 0)
			defer unix.Close(host)
			tcp := func(flags byte) []byte {
				return frameTo(l.hostMAC, l.peerMAC, etherIPv4, ipv4Frame(l.vip, l.peer, protoTCP, flags, 0, 0))
			}
			frames := []struct {
				name  string
				data  []byte
				leave bool
			}{
				{"handshake", tcp(0x12), false},
				{"data", tcp(0x18), false},
				{"announcement, request", frameTo(l.hostMAC, broadcast, etherARP, arpFrom(l.hostMAC, 1, l.vip, l.vip)), false},
				{"announcement, reply", frameTo(l.hostMAC, broadcast, etherARP, arpFrom(l.hostMAC, 2, l.vip, l.vip)), false},
				{"poke", frameTo(l.hostMAC, broadcast, etherARP, arpFrom(l.hostMAC, 1, l.vip, l.peer)), false},
				{"reset", tcp(0x04), true},
				{"reset with acknowledgement", tcp(0x14), true},
				{"the host's own ARP", frameTo(l.hostMAC, broadcast, etherARP, arpFrom(l.hostMAC, 1, otherAddr(l.vip), l.peer)), true},
			}
			for _, f := range frames {
				err := unix.Sendto(host, f.data, 0, &unix.SockaddrLinklayer{Ifindex: l.index, Halen: 6})
				switch {
				case f.leave && err != nil:
					t.Errorf("%s: %v", f.name, err)
				case !f.leave && !errors.Is(err, unix.ENOBUFS):
					t.Errorf("%s: %v, want ENOBUFS", f.name, err)
				}
			}
			// The last frame that leaves has arrived: so all before it have, or never will.
			var seen [][]byte
			eventually(t, "the last frame", func() bool {
				seen = append(seen, receiveAll(wire)...)
				return contains(seen, frames[len(frames)-1].data)
			})
			for _, f := range frames {
				if got := contains(seen, f.data); got != f.leave {
					t.Errorf("%s: left = %v", f.name, got)
				}
			}
		})
	}
}

// TestAnnouncementOfTheNewOwnerArrivesWhileClosed: it must reach a socket behind the gate (bound to ARP; one bound to everything taps in front of it).
func TestAnnouncementOfTheNewOwnerArrivesWhileClosed(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			l := newLab(t)
			l.installed(l.config(m, false), 0)
			host := l.packetSocket(-1, l.index, unix.ETH_P_ARP)
			defer unix.Close(host)
			wire := l.packetSocket(l.peerNS, l.peerDev, unix.ETH_P_ARP)
			defer unix.Close(wire)
			question := frameTo(l.peerMAC, broadcast, etherARP, arpFrom(l.peerMAC, 1, l.peer, l.vip))
			announce := frameTo(l.peerMAC, broadcast, etherARP, arpFrom(l.peerMAC, 1, l.vip, l.vip))
			for _, f := range [][]byte{question, announce} {
				l.must(unix.Sendto(wire, f, 0, &unix.SockaddrLinklayer{Ifindex: l.peerDev, Halen: 6}))
			}
			var seen [][]byte
			eventually(t, "the announcement", func() bool {
				seen = append(seen, receiveAll(host)...)
				return contains(seen, announce)
			})
			if contains(seen, question) {
				t.Error("a question for the VIP came through")
			}
			if answers := receiveAll(wire); len(answers) > 0 {
				t.Errorf("the closed host answered: %x", answers)
			}
		})
	}
}

// receiveAll reads what has come to an AF_PACKET socket, until its timeout.
func receiveAll(fd int) (frames [][]byte) {
	for {
		b := make([]byte, 256)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return frames
		}
		frames = append(frames, b[:n])
	}
}

func contains(frames [][]byte, f []byte) bool {
	for _, got := range frames {
		if bytes.HasPrefix(got, f) {
			return true
		}
	}
	return false
}
