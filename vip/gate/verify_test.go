package gate

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// foreignTCX attaches a program that passes everything in front of all others, in both directions.
func foreignTCX(l *lab) (links []link.Link) {
	l.t.Helper()
	for _, d := range []direction{in, out} {
		k, err := link.AttachTCX(link.TCXOptions{Interface: l.index, Program: okProgram(l.t), Attach: tcxType(d), Anchor: link.Head()})
		l.must(err)
		l.t.Cleanup(func() { k.Close() })
		links = append(links, k)
	}
	return links
}

// foreignFilter adds a filter that passes everything, of our own priority, in both directions.
func foreignFilter(l *lab, protocol uint16) {
	l.t.Helper()
	for _, d := range []direction{in, out} {
		f := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.index, Parent: filterParent(d), Handle: 1, Protocol: protocol, Priority: clsactPriority},
			Fd:          okProgram(l.t).FD(), Name: "foreign", DirectAction: true,
		}
		l.must(netlink.FilterAdd(f))
	}
}

func clsactOf(l *lab) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

// TestWhatStandsInFrontIsSeenAndOvertaken: a foreign program in front opens the gate; Verify tells, and Cover puts ours in front again.
func TestWhatStandsInFrontIsSeenAndOvertaken(t *testing.T) {
	tests := map[string]struct {
		method  Method
		foreign func(*lab)
	}{
		"tcx": {TCX, func(l *lab) { foreignTCX(l) }}, "clsact": {Clsact, func(l *lab) { foreignFilter(l, unix.ETH_P_ALL) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			g := l.installed(l.config(tt.method, false), 0)
			tr.silentSince(Now(), 20)
			tt.foreign(l)
			tr.flows(5) // the bypass is real
			l.wantErr(g.Verify(t.Context()), ErrShadowed)
			word := g.Word()
			l.must(g.Cover(t.Context(), []string{l.dev}))
			closed := Now()
			l.must(g.Verify(t.Context()))
			tr.silentSince(closed, 50)
			if g.Word() != word {
				t.Errorf("the repair changed the word from %v to %v", word, g.Word())
			}
			if got := g.Swap(word, Now().Add(time.Hour)); got != Swapped {
				t.Fatal(got)
			}
			tr.flows(5)
		})
	}
}

func TestForeignProgramsThatWereThereBeforeStayBehind(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			if m == TCX {
				foreignTCX(l)
			} else {
				l.must(netlink.QdiscAdd(clsactOf(l)))
				foreignFilter(l, unix.ETH_P_ALL)
			}
			g := l.installed(l.config(m, false), 0)
			closed := Now()
			tr.silentSince(closed, 50)
			l.must(g.Verify(t.Context()))
		})
	}
}

func TestTCXProgramOverridesAClsactGate(t *testing.T) {
	l := newLab(t)
	tr := newTraffic(l)
	g := l.installed(l.config(Clsact, false), 0)
	foreign := foreignTCX(l)
	tr.flows(5)
	l.wantErr(g.Verify(t.Context()), ErrShadowed)
	l.wantErr(g.Cover(t.Context(), []string{l.dev}), ErrShadowed)
	for _, k := range foreign {
		l.must(k.Close())
	}
	l.must(g.Verify(t.Context()))
	tr.silentSince(Now(), 20)
}

func TestWhatWasTakenAwayIsSeenAndPutBack(t *testing.T) {
	tests := map[string]struct {
		method Method
		damage func(*lab, *Gate)
		want   error
		open   bool
	}{
		"qdisc deleted": {Clsact, func(l *lab, _ *Gate) { l.must(netlink.QdiscDel(clsactOf(l))) }, ErrDetached, true},
		"link detached": {TCX, func(l *lab, g *Gate) {
			for _, h := range g.hooks {
				l.must(h.link.Detach())
			}
		}, ErrDetached, true},
		"pins removed": {TCX, func(l *lab, g *Gate) {
			for _, h := range g.hooks {
				l.must(os.Remove(h.pin))
			}
		}, ErrUnpinned, false},
		"interface created anew, tcx":    {TCX, recreate, ErrDetached, true},
		"interface created anew, clsact": {Clsact, recreate, ErrDetached, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			g := l.installed(l.config(tt.method, false), 0)
			tt.damage(l, g)
			tr := newTraffic(l)
			if tt.open {
				tr.flows(5)
			} else {
				tr.silentSince(Now(), 20)
				l.wantErr(g.Release(), ErrUnpinned)
			}
			l.wantErr(g.Verify(t.Context()), tt.want)
			l.must(g.Cover(t.Context(), []string{l.dev}))
			closed := Now()
			l.must(g.Verify(t.Context()))
			tr.silentSince(closed, 30)
			l.must(g.Release())
			tr.silentSince(closed, 30)
		})
	}
}

func recreate(l *lab, _ *Gate) {
	dev, err := netlink.LinkByName(l.dev)
	l.must(err)
	l.must(netlink.LinkDel(dev))
	l.addPair()
}

func TestInterfaceThatCameUpLaterIsCovered(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			first, second := newLab(t), newLab(t)
			second.vip, second.stateDir = first.vip, first.stateDir
			g := first.installed(first.config(m, false), 0)
			first.wantErr(g.Cover(t.Context(), []string{first.dev, "nosuch0"}), ErrNoInterface)
			first.must(g.Cover(t.Context(), []string{first.dev, second.dev}))
			first.must(g.Verify(t.Context()))
			for _, l := range []*lab{first, second} {
				for _, d := range []direction{in, out} {
					pins, err := g.chain.survey()
					first.must(err)
					if err := g.inspect(findHook(t, g, l.dev, d), pins); err != nil {
						t.Error(err)
					}
				}
			}
			dev, err := netlink.LinkByName(second.dev)
			first.must(err)
			first.must(netlink.LinkDel(dev))
			first.wantErr(g.Verify(t.Context()), ErrNoInterface)
			first.wantErr(g.Cover(t.Context(), []string{first.dev, second.dev}), ErrNoInterface)
			first.wantErr(g.Verify(t.Context()), ErrNoInterface) // it is still asked for
			first.must(g.Cover(t.Context(), []string{first.dev}))
			first.must(g.Verify(t.Context()))
			if pins, err := g.chain.survey(); err != nil || m == TCX && len(pins) != 2 {
				t.Errorf("the interface that is gone has left its pins: %v, %v", pins, err)
			}
		})
	}
}

func findHook(t *testing.T, g *Gate, dev string, d direction) *hook {
	t.Helper()
	for _, h := range g.hooks {
		if h.name == dev && h.dir == d {
			return h
		}
	}
	t.Fatalf("no hook at %s %s", dev, d)
	return nil
}

// TestFailedInstallLeavesThePredecessorInForce: the second interface refuses our filter, because another protocol has our priority there.
func TestFailedInstallLeavesThePredecessorInForce(t *testing.T) {
	l, other := newLab(t), newLab(t)
	tr := newTraffic(l)
	old := l.installed(l.config(Clsact, false), Now().Add(time.Hour))
	l.must(netlink.QdiscAdd(clsactOf(other)))
	foreignFilter(other, unix.ETH_P_IP)

	cfg := l.config(Clsact, false)
	cfg.Interfaces = []string{l.dev, other.dev}
	g, err := New(cfg)
	l.must(err)
	if err := g.Install(t.Context(), 0); err == nil {
		t.Fatal("installed over a filter of another protocol")
	} else {
		t.Log(err)
	}
	if g.Method() != "" || g.Word() != 0 {
		t.Errorf("after a failed install: method %q, word %v", g.Method(), g.Word())
	}
	l.must(old.Verify(t.Context()))
	tr.flows(20)
	_, err = old.Close()
	l.must(err)
	tr.silentSince(Now(), 30)

	cfg.Interfaces = []string{l.dev, "nosuch0"}
	g, err = New(cfg)
	l.must(err)
	l.wantErr(g.Install(t.Context(), 0), ErrNoInterface)
	cfg.Interfaces = []string{"lo"}
	g, err = New(cfg)
	l.must(err)
	l.wantErr(g.Install(t.Context(), 0), ErrNotEthernet)
	l.must(old.Verify(t.Context()))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("asked to stop")
	cancel(cause)
	l.wantErr(g.Install(ctx, 0), cause)
	l.wantErr(old.Verify(ctx), cause)
}

func TestUninstallTakesAwayWhatAnybodyLeft(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			l.must(l.installed(l.config(m, false), 0).Release())
			tr.silentSince(Now(), 20)
			disarm, err := New(l.config(m, false))
			l.must(err)
			l.must(disarm.Uninstall(t.Context()))
			tr.flows(20)
		})
	}
}

func TestWhereThePinsLie(t *testing.T) {
	l := newLab(t)
	cfg := l.config("", false)
	cfg.lasting = func(string) bool { return false }
	g := l.installed(cfg, 0)
	if g.Method() != Clsact {
		t.Errorf("method %s without a lasting BPF filesystem", g.Method())
	}
	if isBPFFS(filepath.Join(l.stateDir, "bpf")) {
		t.Error("a BPF filesystem that does not last was left mounted")
	}
	l.must(g.Verify(t.Context()))

	cfg.BPFFS = l.stateDir
	l.wantErr(l.gate(cfg).Install(t.Context(), 0), ErrNoBPFFS)
	cfg.BPFFS = t.TempDir()
	l.must(unix.Mount("bpf", cfg.BPFFS, "bpf", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(cfg.BPFFS, unix.MNT_DETACH) })
	named := l.installed(cfg, 0)
	if named.Method() != TCX {
		t.Errorf("method %s with a BPF filesystem that is named", named.Method())
	}
	l.wantErr(g.Verify(t.Context()), ErrDetached) // swept; a tcx gate has no filter with our name
	if inForceAfterUs(cfg.BPFFS) {
		t.Error("a mount in a container is taken for one that lasts")
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{VIP: netip.MustParseAddr("10.0.0.9"), Interfaces: []string{"eth0"}, StateDir: "/run/baton"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no VIP":       func(c *Config) { c.VIP = netip.Addr{} },
		"IPv6":         func(c *Config) { c.VIP = netip.MustParseAddr("fd00::1") },
		"multicast":    func(c *Config) { c.VIP = netip.MustParseAddr("224.0.0.18") },
		"loopback":     func(c *Config) { c.VIP = netip.MustParseAddr("127.0.0.1") },
		"unspecified":  func(c *Config) { c.VIP = netip.IPv4Unspecified() },
		"no interface": func(c *Config) { c.Interfaces = nil },
		"empty name":   func(c *Config) { c.Interfaces = []string{""} },
		"named twice":  func(c *Config) { c.Interfaces = []string{"eth0", "eth0"} },
		"no state":     func(c *Config) { c.StateDir = "" },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
