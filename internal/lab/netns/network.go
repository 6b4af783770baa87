package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	bridgeName = "br0"
	portPrefix = "v-"
	faultTable = "faults" // nft table of the bridge family at the switch

	carrierBudget = 20 * time.Second
)

// Spec names a host and its address.
type Spec struct {
	Name string
	Addr netip.Prefix
}

// Network is a switch with hosts on it. Its methods are not safe for concurrent use, except Host.
type Network struct {
	Switch *Host
	hosts  map[string]*Host
	ports  map[int]string // interface index at the switch → host
	link   *netlink.Handle
	rules  bool // the table of faults exists
}

// New builds the network; dir holds a directory for each host. An error leaves nothing behind once the box ends.
func New(dir string, specs []Spec) (*Network, error) {
	sw, err := newHost("switch", "")
	if err != nil {
		return nil, err
	}
	n := &Network{Switch: sw, hosts: make(map[string]*Host, len(specs)), ports: make(map[int]string, len(specs))}
	if err := n.bridge(); err != nil {
		return nil, fmt.Errorf("build the bridge: %w", err)
	}
	for _, s := range specs {
		if err := n.attach(dir, s); err != nil {
			return nil, fmt.Errorf("attach host %s: %w", s.Name, err)
		}
	}
	return n, nil
}

func (n *Network) bridge() error {
	return n.Switch.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		n.link = h
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridgeName
		snooping := false // no querier here: a snooping bridge would drop the multicast it has not learned
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
			return err
		}
		return up(h, bridgeName)
	})
}

func (n *Network) attach(dir string, s Spec) error {
	host, err := newHost(s.Name, filepath.Join(dir, s.Name))
	if err != nil {
		return err
	}
	a := s.Addr.Addr().As4()
	host.Addr, host.MAC = s.Addr.Addr(), net.HardwareAddr{0x02, 0x4d, a[0], a[1], a[2], a[3]} // readable in a capture
	n.hosts[s.Name] = host
	attrs := netlink.NewLinkAttrs()
	attrs.Name = portPrefix + s.Name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerHardwareAddr = Interface, netlink.NsFd(host.net.Fd()), host.MAC
	if err := n.link.LinkAdd(veth); err != nil {
		return err
	}
	port, err := n.link.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	n.ports[port.Attrs().Index] = s.Name
	bridge, err := n.link.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	if err := n.link.LinkSetMaster(port, bridge); err != nil {
		return err
	}
	if err := host.address(s.Addr); err != nil {
		return err
	}
	return n.plug(s.Name)
}

// plug sets the host's port up and waits until both ends of the cable send. The kernel gives an end that gets its carrier later a
// queue that drops everything until a machine-wide job has run, up to ten seconds on a busy machine; asking for one single link
// runs that job for it at once.
func (n *Network) plug(name string) error {
	host, err := n.Host(name)
	if err != nil {
		return err
	}
	if err := up(n.link, portPrefix+name); err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(carrierBudget)
	for {
		port, err := n.link.LinkByName(portPrefix + name)
		if err != nil {
			return err
		}
		eth, err := host.link.LinkByName(Interface)
		if err != nil {
			return err
		}
		if port.Attrs().OperState == netlink.OperUp && eth.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("the cable of %s has no carrier after %v", name, carrierBudget)
		}
	}
}

func (h *Host) address(addr netip.Prefix) error {
	if err := h.Do(func() (err error) { h.link, err = netlink.NewHandle(unix.NETLINK_ROUTE); return }); err != nil {
		return err
	}
	eth, err := h.link.LinkByName(Interface)
	if err != nil {
		return err
	}
	ip := &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), addr.Addr().BitLen())}
	if err := h.link.AddrAdd(eth, &netlink.Addr{IPNet: ip}); err != nil {
		return err
	}
	return errors.Join(up(h.link, "lo"), up(h.link, Interface))
}

func up(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return h.LinkSetUp(link)
}

// Host returns the host with that name, or an error that lists the hosts.
func (n *Network) Host(name string) (*Host, error) {
	if h, ok := n.hosts[name]; ok {
		return h, nil
	}
	names := make([]string, 0, len(n.hosts))
	for known := range n.hosts {
		names = append(names, known)
	}
	return nil, fmt.Errorf("host %q does not exist: there are %s", name, strings.Join(names, ", "))
}

// Port says which host sends into the switch's interface with that index.
func (n *Network) Port(index int) (string, bool) {
	name, ok := n.ports[index]
	return name, ok
}

// Cut pulls the host's cable at the switch: its addresses stay, its carrier goes.
func (n *Network) Cut(name string) error {
	if _, err := n.Host(name); err != nil {
		return err
	}
	port, err := n.link.LinkByName(portPrefix + name)
	if err != nil {
		return fmt.Errorf("find the port of %s: %w", name, err)
	}
	if err := n.link.LinkSetDown(port); err != nil {
		return fmt.Errorf("cut the cable of %s: %w", name, err)
	}
	return nil
}

// Mend plugs the cable in again.
func (n *Network) Mend(name string) error {
	if err := n.plug(name); err != nil {
		return fmt.Errorf("mend the cable of %s: %w", name, err)
	}
	return nil
}

// Block drops, silently and at the switch, what one host sends to another. The other direction stays open.
func (n *Network) Block(ctx context.Context, from, to string) error {
	for _, name := range []string{from, to} {
		if _, err := n.Host(name); err != nil {
			return err
		}
	}
	rule := fmt.Sprintf("add table bridge %[1]s\nadd chain bridge %[1]s forward { type filter hook forward priority 0; }\n"+
		"add rule bridge %[1]s forward iifname %[2]q oifname %[3]q drop\n", faultTable, portPrefix+from, portPrefix+to)
	n.rules = true
	return n.nft(ctx, rule)
}

// Unblock removes every rule that Block made.
func (n *Network) Unblock(ctx context.Context) error {
	if !n.rules {
		return nil
	}
	if err := n.nft(ctx, "delete table bridge "+faultTable+"\n"); err != nil {
		return err
	}
	n.rules = false
	return nil
}

func (n *Network) nft(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	_, err := n.Switch.Output(cmd)
	return err
}

// Clean says what of the faults is left at the switch: ports that are down, rules that drop. Empty means none.
func (n *Network) Clean(ctx context.Context) ([]string, error) {
	var left []string
	for index, name := range n.ports {
		port, err := n.link.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("find the port of %s: %w", name, err)
		}
		if port.Attrs().Flags&net.FlagUp == 0 {
			left = append(left, "port of "+name+" is down")
		}
	}
	out, err := n.Switch.Output(exec.CommandContext(ctx, "nft", "list", "ruleset"))
	if err != nil {
		return nil, err
	}
	if rules := strings.TrimSpace(string(out)); rules != "" {
		left = append(left, "rules at the switch: "+rules)
	}
	return left, nil
}

// Close ends the hosts' threads.
func (n *Network) Close() error {
	var errs []error
	for _, h := range n.hosts {
		errs = append(errs, h.close())
	}
	n.link.Close()
	return errors.Join(append(errs, n.Switch.close())...)
}
