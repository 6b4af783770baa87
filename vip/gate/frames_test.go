package gate

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// naive says in plain Go which frames are the gate's, as the package comment and README promise: whether it belongs to the VIP, and whether it is a reset that may leave.
func naive(vip netip.Addr, dir direction, f []byte) (gated bool) {
	v := vip.As4()
	at := 12
	for range 2 {
		if len(f) >= at+2 && (slices.Equal(f[at:at+2], []byte{0x81, 0}) || slices.Equal(f[at:at+2], []byte{0x88, 0xa8})) {
			at += 4
		}
	}
	if len(f) < at+2 {
		return false
	}
	etherType, p := f[at:at+2], f[at+2:]
	switch {
	case slices.Equal(etherType, []byte{0x08, 0x06}):
		sender, target := len(p) >= 18 && slices.Equal(p[14:18], v[:]), len(p) >= 28 && slices.Equal(p[24:28], v[:])
		if dir == in {
			return target && !sender
		}
		return sender
	case !slices.Equal(etherType, []byte{0x08, 0x00}) || len(p) < 20:
		return false
	case dir == in:
		return slices.Equal(p[16:20], v[:])
	case !slices.Equal(p[12:16], v[:]):
		return false
	}
	header := int(p[0]&15) * 4
	reset := p[9] == 6 && p[6]&0x3f == 0 && p[7] == 0 && header >= 20 && len(p) > header+13 && p[header+13]&4 != 0
	return !reset
}

// programs are both programs with a word of their own, attached nowhere.
func programs(t *testing.T, vip netip.Addr) ([]*hook, *cell) {
	t.Helper()
	word, err := newCell(true)
	if err != nil {
		t.Fatal(err)
	}
	drops, err := newDrops()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { word.close(); drops.Close() })
	var hooks []*hook
	for _, d := range []direction{in, out} {
		prog, err := newProgram(d, vip, word.m, drops)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { prog.Close() })
		hooks = append(hooks, &hook{place: place{dir: d}, prog: prog})
	}
	return hooks, word
}

func TestSelfTestAgreesWithTheNaiveGate(t *testing.T) {
	for _, vip := range []string{"10.77.0.100", "255.254.253.252", "1.2.3.4", "192.168.255.129"} {
		addr := netip.MustParseAddr(vip)
		hooks, word := programs(t, addr)
		if err := selfTest(addr, hooks, word); err != nil {
			t.Error(err)
		}
		for _, f := range testFrames(addr) {
			if naive(addr, f.dir, f.data) != f.gated {
				t.Errorf("%s (%s): the self-test says gated = %v", f.name, f.dir, f.gated)
			}
		}
	}
}

func TestSelfTestFindsAWrongProgram(t *testing.T) {
	vip := netip.MustParseAddr("10.77.0.100")
	hooks, word := programs(t, netip.MustParseAddr("10.77.0.102")) // of another VIP
	if err := selfTest(vip, hooks, word); !errors.Is(err, ErrSelfTest) {
		t.Errorf("self-test with programs of another VIP: %v", err)
	}
	if err := selfTest(vip, []*hook{{place: place{dir: out}, prog: hooks[0].prog}}, word); !errors.Is(err, ErrSelfTest) {
		t.Errorf("self-test with the program of the other direction: %v", err)
	}
}

// TestRandomFramesAgreeWithTheNaiveGate changes bytes of the self-test's frames, and cuts them, and compares the kernel's verdict with the naive one.
func TestRandomFramesAgreeWithTheNaiveGate(t *testing.T) {
	vip := netip.MustParseAddr("10.77.200.129")
	hooks, word := programs(t, vip)
	rnd := rand.New(rand.NewPCG(1, 2))
	frames := testFrames(vip)
	gatedSeen := 0
	for range 30000 {
		f := slices.Clone(frames[rnd.IntN(len(frames))].data)
		for range rnd.IntN(4) {
			f[12+rnd.IntN(len(f)-12)] = interesting[rnd.IntN(len(interesting))]
		}
		f = f[:min(len(f), max(len(f)-rnd.IntN(12)*rnd.IntN(2), etherHeader+ipv4Header))] // the kernel refuses to test shorter ones
		open := rnd.IntN(4) == 0
		w := Word(1)
		if open {
			w = Now().Add(time.Hour)
		}
		if err := word.store(w); err != nil {
			t.Fatal(err)
		}
		h := hooks[rnd.IntN(2)]
		got, err := h.prog.Run(&ebpf.RunOptions{Data: f})
		if errors.Is(err, unix.EINVAL) {
			continue // a frame that the test runner itself refuses
		}
		if err != nil {
			t.Fatal(err)
		}
		gated := naive(vip, h.dir, f)
		if gated {
			gatedSeen++
		}
		want := int32(pass)
		if gated && !open {
			want = int32(shot)
		}
		if int32(got) != want {
			t.Fatalf("%x (%s, open %v): verdict %d, gated %v", f, h.dir, open, int32(got), gated)
		}
	}
	if gatedSeen < 1000 {
		t.Errorf("only %d frames of the VIP among the random ones", gatedSeen)
	}
}

// interesting are the bytes that steer the program.
var interesting = []byte{0x00, 0x04, 0x06, 0x08, 0x0a, 0x14, 0x20, 0x40, 0x44, 0x45, 0x4f, 0x4d, 0x81, 0x88, 0xa8, 0xc8, 0xff, 129, 128}

func TestProgramWithoutItsWordDrops(t *testing.T) {
	vip := netip.MustParseAddr("10.77.0.100")
	word, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1}) // an empty hash, where an array always has its value
	if err != nil {
		t.Fatal(err)
	}
	defer word.Close()
	drops, err := newDrops()
	if err != nil {
		t.Fatal(err)
	}
	defer drops.Close()
	for _, d := range []direction{in, out} {
		prog, err := newProgram(d, vip, word, drops)
		if err != nil {
			t.Fatal(err)
		}
		defer prog.Close()
		for _, f := range testFrames(vip) {
			if f.dir == d {
				f.gated = f.gated || d == out && strings.HasPrefix(f.name, "reset") // the exception too: without a word nothing is known
				if err := judge(prog, f, false); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// okProgram is a foreign program that ends the chain with "pass" (TC_ACT_OK, TCX_PASS), as CNI plugins do.
func okProgram(t testing.TB) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}
