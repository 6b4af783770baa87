package check

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/switcher/policy"
)

var hostChecks = []func(input) []Finding{
	checkUnseen, checkClock, checkCapabilities, checkInterface, checkKeepalived, checkGate, checkVIP, checkSysctl,
}

var (
	hostUnseen = declare("HOST_UNSEEN", Warning,
		"A part of this host could not be looked at, so nothing is known about it.",
		"Run the check as root on the host itself.")
	hostTimeNamespace = declare("HOST_TIME_NAMESPACE", Critical,
		"The kernel compares the gate's deadline with another clock than this process reads: every deadline would be wrong by the difference, and the VIP would be served too long.",
		"Start the daemon outside of a time namespace (no unshare -T; /proc/self/timens_offsets all zero).")
	hostClockRate = declare("HOST_CLOCK_RATE", Warning,
		"The guarantees hold while clocks run at rates within 1 % of each other. A clock that is slewed faster than that shortens or stretches the lease.",
		"Set maxslewrate 10000 or less (parts per million) in chrony.conf; step a clock that is far off, before the daemon starts.")
	hostCapabilities = declare("HOST_CAPABILITIES", Critical,
		"The daemon cannot bind the VIP, announce it or install the gate.",
		"Run it as root, or give its unit AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_KILL.")
	hostInterface = declare("HOST_INTERFACE", Critical,
		"The VIP cannot be bound or announced there.",
		"Bring the interface up, or name the one of the VIP's network in baton.yaml.")
	hostSubnet = declare("HOST_VIP_SUBNET", Critical,
		"The VIP would be bound and announced, and no neighbour would ever ask for it.",
		"Choose a VIP in the interface's network, or name another interface.")
	hostKeepalived = declare("HOST_KEEPALIVED", Critical,
		"bind: keepalived is configured, and what is missing is an error, never a silent other way.",
		"Install keepalived 2.0 or later, or write bind: netlink.")
	hostBinder = declare("HOST_SECOND_BINDER", Critical,
		"A keepalived that is not Baton's holds the VIP in its configuration: it would bind the address behind Baton's back.",
		"Take the VIP out of that file, or disable that service; Baton never changes it.")
	hostGate = declare("HOST_NO_GATE", Critical,
		"Nothing in the kernel silences the VIP when the daemon is frozen. Mode automatic refuses to start; the address's own lifetime alone is up to 1.1 s late and stops no announcement.",
		"Use Linux 5.8 or later with CAP_BPF and CAP_NET_ADMIN, modules sch_ingress and cls_bpf, and no kernel lockdown that forbids BPF.")
	hostClsact = declare("HOST_GATE_CLSACT", Info,
		"The gate hangs on the interface's clsact queueing discipline. It holds, but tools that replace it (tc qdisc del, some network managers) take it away, and it opens until the next look.",
		"Linux 6.6 or later has tcx, which such tools do not touch.")
	hostVIPStatic = declare("HOST_VIP_STATIC", Critical,
		"Something else than Baton puts the VIP on this host. An address of the host's own network configuration is back after each boot, before any gate.",
		"Take it out of ifcfg, netplan or keepalived.conf. The first `baton switch --to SITE` then binds it under the lease.")
	hostVIPHeld = declare("HOST_VIP_HELD", Critical,
		"Somebody who is not the holder of the lease answers for the VIP: two hosts would serve it.",
		"Find the host by its MAC and take the address from it.")
	hostVIPServed = declare("HOST_VIP_SERVED", Info,
		"Somebody answers for the VIP and nobody holds a lease: the service runs without Baton.",
		"Start with mode: advise. Take the address off its present binder, and at once give `baton switch --to SITE`: the service pauses in between.")
	hostForward = declare("HOST_IP_FORWARD", Warning,
		"A host that forwards packets passes those for the VIP on to the new holder after a move: clients seem to work through the dead way, until that host is gone.",
		"sysctl -w net.ipv4.ip_forward=0, unless this host is a router or runs containers.")
	hostARP = declare("HOST_ARP", Warning,
		"With several interfaces in one network the kernel answers ARP for the VIP on any of them, or announces the wrong address.",
		"sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
	hostOther = declare("HOST_INTERFACE_WITHOUT_ETHERNET", Info,
		"Frames of this interface have no Ethernet header, and the gate cannot look into them.",
		"Make sure that no route leads to the VIP through it.")
)

func (in input) here() string { return "node " + string(in.cfg.Node) }

// serving says whether this host can hold the VIP at all; a witness cannot.
func (in input) serving() bool {
	_, ok := in.cfg.Site()
	return ok
}

func checkUnseen(in input) []Finding {
	var fs []Finding
	for _, err := range in.facts.Host.Errs {
		fs = append(fs, hostUnseen.at(in.here(), err.Error()))
	}
	return fs
}

func checkClock(in input) []Finding {
	var fs []Finding
	if o := in.facts.Host.TimeOffset; o != "" {
		fs = append(fs, hostTimeNamespace.at(in.here(), o))
	}
	if c := in.facts.Host.Clock; c != "" {
		fs = append(fs, hostClockRate.at(in.here(), c))
	}
	return fs
}

func checkCapabilities(in input) []Finding {
	if m := in.facts.Host.Missing; len(m) > 0 && in.serving() {
		return []Finding{hostCapabilities.at(in.here(), "this process lacks "+strings.Join(m, ", "))}
	}
	return nil
}

func checkInterface(in input) []Finding {
	if !in.serving() {
		return nil
	}
	h := in.facts.Host
	var fs []Finding
	place := in.here() + " " + h.Interface.Name
	switch {
	case h.Interface.Err != nil:
		fs = append(fs, hostInterface.at(place, h.Interface.Err.Error()))
	case !h.Interface.Up:
		fs = append(fs, hostInterface.at(place, "the interface is down or has no carrier"))
	case !h.Interface.Ethernet:
		fs = append(fs, hostInterface.at(place, "the interface has no Ethernet header, so there is no ARP"))
	case h.Interface.Name != "":
		if err := cluster.SubnetProblem(in.cfg.Cluster.VIP.Addr, h.Interface.Prefixes); err != nil {
			fs = append(fs, hostSubnet.at(place, err.Error()))
		}
	}
	for _, o := range h.Others {
		if !o.Ethernet {
			fs = append(fs, hostOther.at(in.here()+" "+o.Name, o.Name+" is up"))
		}
	}
	return fs
}

func checkKeepalived(in input) []Finding {
	if !in.serving() {
		return nil
	}
	k := in.facts.Host.Keepalived
	var fs []Finding
	if in.cfg.Bind == config.BindKeepalived {
		switch {
		case k.Err != nil:
			fs = append(fs, hostKeepalived.at(in.here(), k.Err.Error()))
		case strings.HasPrefix(k.Version, "1."):
			fs = append(fs, hostKeepalived.at(in.here(), "keepalived "+k.Version+", which does not know no_track"))
		}
	}
	for _, file := range k.Others {
		fs = append(fs, hostBinder.at(in.here()+" "+file, file+" names the VIP "+in.cfg.Cluster.VIP.Addr.String()))
	}
	return fs
}

// checkGate: without a gate nothing is wrong as long as nobody is to switch by himself.
func checkGate(in input) []Finding {
	h := in.facts.Host
	switch {
	case !in.serving():
		return nil
	case h.GateErr != nil:
		f := hostGate.at(in.here(), h.GateErr.Error())
		if in.cfg.Mode != policy.Automatic {
			f = f.as(Warning)
		}
		return []Finding{f}
	case h.GateMethod == "clsact":
		return []Finding{hostClsact.at(in.here(), "this kernel refuses tcx, the gate uses clsact")}
	}
	return nil
}

// checkVIP: who has the address, against who should.
func checkVIP(in input) []Finding {
	if !in.serving() {
		return nil
	}
	v, e := in.facts.Host.VIP, in.facts.Etcd
	place := in.here() + " " + in.cfg.Cluster.VIP.Addr.String()
	var fs []Finding
	if v.Err != nil {
		fs = append(fs, hostUnseen.at(place, v.Err.Error()))
	}
	if v.Here && v.Forever {
		fs = append(fs, hostVIPStatic.at(place, "the address is on this host and its lifetime has no end"))
	}
	for _, file := range v.Files {
		fs = append(fs, hostVIPStatic.at(in.here()+" "+file, file+" names the VIP"))
	}
	switch holder := e.Holder; {
	case v.MAC == "" || e.Err != nil || e.ReadErr != nil: // nobody answers, or nobody knows who should
	case v.Here:
		fs = append(fs, hostVIPHeld.at(place, fmt.Sprintf("the address is here, and %s answers for it too", v.MAC)))
	case e.Assignment == nil:
		fs = append(fs, hostVIPServed.at(place, v.MAC+" answers for the VIP"))
	case holder == nil || holder.MAC != "" && !strings.EqualFold(holder.MAC, v.MAC):
		fs = append(fs, hostVIPHeld.at(place, fmt.Sprintf("%s answers for the VIP, %s", v.MAC, holderText(holder))))
	}
	return fs
}

func holderText(h *cluster.Holder) string {
	if h == nil {
		return "and nobody holds the lease"
	}
	return fmt.Sprintf("the lease's holder is %s with %s", h.Node, h.MAC)
}

func checkSysctl(in input) []Finding {
	if !in.serving() {
		return nil
	}
	h := in.facts.Host
	var fs []Finding
	if h.Sysctl["net/ipv4/ip_forward"] == "1" {
		fs = append(fs, hostForward.at(in.here(), "net.ipv4.ip_forward = 1"))
	}
	ignore, announce := h.Sysctl["net/ipv4/conf/all/arp_ignore"], h.Sysctl["net/ipv4/conf/all/arp_announce"]
	if sharesNetwork(h) && (ignore == "0" || announce == "0" || announce == "1") {
		fs = append(fs, hostARP.at(in.here(), fmt.Sprintf("arp_ignore = %s, arp_announce = %s, and more than one interface is in the VIP's network", ignore, announce)))
	}
	return fs
}

// sharesNetwork says whether another interface has an address in a network of the VIP's interface.
func sharesNetwork(h Host) bool {
	overlap := func(a, b netip.Prefix) bool { return a.Bits() < a.Addr().BitLen() && a.Overlaps(b) }
	for _, p := range h.Interface.Prefixes {
		for _, o := range h.Others {
			for _, q := range o.Prefixes {
				if overlap(p, q) {
					return true
				}
			}
		}
	}
	return false
}
