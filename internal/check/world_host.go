package check

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/gate"
	"github.com/baton-ha/baton/vip/keepalived"
)

// Host looks at the kernel, the interfaces and the programs of this host.
func (o outside) Host(ctx context.Context, iface string) Host {
	h := Host{Sysctl: map[string]string{}}
	note := func(err error) {
		if err != nil {
			h.Errs = append(h.Errs, err)
		}
	}
	var err error
	h.Missing, err = missingCapabilities("/proc/self/status")
	note(err)
	h.TimeOffset, err = timeOffset("/proc/self/timens_offsets")
	note(err)
	h.Clock = clockRate("/proc", "/etc/chrony/chrony.conf", "/etc/chrony.conf")
	if iface == "" {
		return h // a witness: it binds nothing
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"} {
		text, err := os.ReadFile("/proc/sys/" + name)
		note(err)
		h.Sysctl[name] = strings.TrimSpace(string(text))
	}
	h.Interface, h.Others, err = interfaces(iface)
	note(err)
	h.Keepalived.Version, h.Keepalived.Err = keepalived.Version(ctx, "keepalived")
	h.Keepalived.Others = otherBinders("/proc", o.cfg.Cluster.VIP.Addr, o.cfg.StateDir)
	method, err := gate.Probe(ctx)
	h.GateMethod, h.GateErr = string(method), err
	h.VIP = o.vip(ctx, iface)
	h.VIP.Files = naming(networkFiles, o.cfg.Cluster.VIP.Addr)
	return h
}

// vip asks the kernel and the network who has the address. The question is an ARP probe, which changes no neighbour's entry.
func (o outside) vip(ctx context.Context, iface string) VIP {
	addr, err := vip.NewAddress(vip.AddressConfig{VIP: o.cfg.Cluster.VIP.Addr, Interface: iface, Log: o.log})
	if err != nil {
		return VIP{Err: err}
	}
	defer addr.Close()
	state, err := addr.State(ctx)
	v := VIP{Here: state.Present, Forever: state.Forever, Err: err}
	prober, err := vip.NewProber(vip.ProberConfig{VIP: o.cfg.Cluster.VIP.Addr, Interface: iface, Log: o.log})
	if err != nil {
		v.Err = errors.Join(v.Err, err)
		return v
	}
	defer prober.Close()
	mac, err := prober.Resolve(ctx, time.Second)
	switch {
	case err == nil:
		v.MAC = mac.String()
	case !errors.Is(err, vip.ErrSilent):
		v.Err = errors.Join(v.Err, err)
	}
	return v
}

// needed is what the daemon does beyond an ordinary process, by the number of the capability (linux/capability.h). Before Linux 5.8
// SYS_ADMIN stood for BPF.
var needed = []struct {
	name     string
	bit, alt uint
}{{"CAP_KILL", 5, 5}, {"CAP_NET_ADMIN", 12, 12}, {"CAP_NET_RAW", 13, 13}, {"CAP_BPF", 39, 21}}

func missingCapabilities(status string) ([]string, error) {
	text, err := os.ReadFile(status)
	if err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	_, rest, found := strings.Cut(string(text), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil || !found {
		return nil, fmt.Errorf("read capabilities: no CapEff in %s", status)
	}
	var missing []string
	for _, c := range needed {
		if mask>>c.bit&1 == 0 && mask>>c.alt&1 == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing, nil
}

// timeOffset reads the shifts of the process's time namespace. A kernel without time namespaces has no such file.
func timeOffset(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read time namespace: %w", err)
	}
	var shifted []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && (f[1] != "0" || f[2] != "0") {
			shifted = append(shifted, fmt.Sprintf("%s is shifted by %s s %s ns", f[0], f[1], f[2]))
		}
	}
	return strings.Join(shifted, ", "), nil
}

// The rate that the guarantees allow is 1 %; chronyd slews by 8.3 % unless it is told otherwise.
const (
	allowedSlew = 10_000 // parts per million
	chronySlew  = 83_333.333
)

// clockRate says why the clock may run too fast or too slow; empty: no reason is known. (ntpd and the kernel's own discipline stay
// within 0.05 %.)
func clockRate(proc string, confs ...string) string {
	if !slices.ContainsFunc(processes(proc), func(p process) bool { return p.name == "chronyd" }) {
		return ""
	}
	slew, from := float64(chronySlew), "its default"
	for _, conf := range confs {
		text, err := os.ReadFile(conf)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && strings.EqualFold(f[0], "maxslewrate") {
				if n, err := strconv.ParseFloat(f[1], 64); err == nil {
					slew, from = n, conf
				}
			}
		}
		break
	}
	if slew <= allowedSlew {
		return ""
	}
	return fmt.Sprintf("chronyd runs and may slew the clock by %.1f %% (maxslewrate %.0f, %s)", slew/10_000, slew, from)
}

// process is one of this host's.
type process struct {
	name string
	args []string
}

// processes reads /proc. One that ends meanwhile is left out.
func processes(proc string) []process {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var ps []process
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		name, err1 := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		args, err2 := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err1 == nil && err2 == nil {
			ps = append(ps, process{strings.TrimSpace(string(name)), strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")})
		}
	}
	return ps
}

// keepalivedConf is where keepalived reads its configuration unless it is told otherwise.
const keepalivedConf = "/etc/keepalived/keepalived.conf"

// otherBinders finds configurations of keepalived that name the VIP and are not Baton's: those of running instances, and the one that
// the next boot would use.
func otherBinders(proc string, address netip.Addr, stateDir string) []string {
	files := []string{keepalivedConf}
	for _, p := range processes(proc) {
		if p.name != "keepalived" {
			continue
		}
		for i, arg := range p.args {
			file, found := strings.CutPrefix(arg, "--use-file=")
			if arg == "-f" && i+1 < len(p.args) {
				file, found = p.args[i+1], true
			}
			if found && !strings.HasPrefix(file, stateDir+"/") && !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return slices.DeleteFunc(files, func(file string) bool { return !names(file, address) })
}

// networkFiles is where the distributions keep addresses that come at boot.
var networkFiles = []string{
	"/etc/network/interfaces", "/etc/network/interfaces.d/*", "/etc/netplan/*.yaml", "/etc/sysconfig/network-scripts/ifcfg-*",
	"/etc/sysconfig/network/ifcfg-*", "/etc/NetworkManager/system-connections/*", "/etc/systemd/network/*.network",
}

// naming gives the files that name the address.
func naming(patterns []string, address netip.Addr) []string {
	var found []string
	for _, pattern := range patterns {
		files, _ := filepath.Glob(pattern) // only a bad pattern is an error
		for _, file := range files {
			if names(file, address) {
				found = append(found, file)
			}
		}
	}
	return found
}

// names says whether a configuration has the address outside of a comment.
func names(file string, address netip.Addr) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	whole := regexp.MustCompile(`(^|[^0-9.])` + regexp.QuoteMeta(address.String()) + `($|[^0-9.])`)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line, _, _ = strings.Cut(line, "!")
		if whole.MatchString(line) {
			return true
		}
	}
	return false
}

// interfaces gives the VIP's interface, and every other that is up but lo.
func interfaces(name string) (Interface, []Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return Interface{Name: name, Err: err}, nil, fmt.Errorf("list interfaces: %w", err)
	}
	own := Interface{Name: name, Err: fmt.Errorf("there is no interface %q", name)}
	var others []Interface
	for _, i := range all {
		face := Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0, Ethernet: len(i.HardwareAddr) == 6}
		addrs, err := i.Addrs()
		face.Err = err
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				face.Prefixes = append(face.Prefixes, p)
			}
		}
		switch {
		case i.Name == name:
			own = face
		case face.Up && i.Flags&net.FlagLoopback == 0:
			others = append(others, face)
		}
	}
	return own, others, nil
}
