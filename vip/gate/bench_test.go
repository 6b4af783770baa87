package gate

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// BenchmarkRenewal is what a renewal costs here: reading the word, swapping it, verifying the place.
func BenchmarkRenewal(b *testing.B) {
	for _, v := range variants {
		l := newLab(b)
		g := l.installed(l.config(v.method, v.unmapped), Now().Add(time.Hour))
		b.Run("swap by "+v.name, func(b *testing.B) {
			for b.Loop() {
				w := g.Word()
				if got := g.Swap(w, w+1); got != Swapped {
					b.Fatal(got)
				}
			}
		})
		b.Run("verify by "+v.name, func(b *testing.B) {
			for b.Loop() {
				l.must(g.Verify(b.Context()))
			}
		})
	}
}

// BenchmarkFrame is what the program costs a frame, by BPF_PROG_TEST_RUN with all its own cost.
func BenchmarkFrame(b *testing.B) {
	l := newLab(b)
	g := l.installed(l.config(Clsact, false), Now().Add(time.Hour))
	for _, f := range testFrames(l.vip)[:6] {
		b.Run(f.name, func(b *testing.B) {
			prog := g.hooks[f.dir].prog
			if _, err := prog.Run(&ebpf.RunOptions{Data: f.data, Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkReplace is what a successor's Install takes, from the first look at the kernel to the verified gate.
func BenchmarkReplace(b *testing.B) {
	for _, m := range []Method{TCX, Clsact} {
		l := newLab(b)
		last := l.installed(l.config(m, false), 0)
		b.Run(string(m), func(b *testing.B) {
			for b.Loop() {
				next, err := New(l.config(m, false))
				l.must(err)
				l.must(next.Install(b.Context(), 0))
				l.must(last.Release())
				last = next
			}
		})
		l.must(last.Uninstall(b.Context()))
	}
}
