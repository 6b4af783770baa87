package gate

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What can be wrong with a gate that was installed.
var (
	ErrDetached    = errors.New("gate: not attached")                       // our program is gone: the VIP is open there
	ErrNotOurs     = errors.New("gate: replaced by another process")        // another gate of this VIP stands there: stop, and do not repair
	ErrShadowed    = errors.New("gate: another program stands in front")    // it may pass frames that ours would drop
	ErrUnpinned    = errors.New("gate: pin removed")                        // the gate would vanish, that is open, with this process
	ErrLeftover    = errors.New("gate: an older gate of this VIP is there") // safe, but it drops once its own word has passed
	ErrNoInterface = errors.New("gate: no such interface")
	ErrNotEthernet = errors.New("gate: not an Ethernet interface") // frames without an Ethernet header would never match, that is pass
)

// place is one direction of one interface.
type place struct {
	name  string
	index int
	dir   direction
}

// String names the place for people: "eth0 in".
func (p place) String() string { return p.name + " " + p.dir.String() }

// hook is our program at a place. Each has a program of its own: one program cannot stand twice in one chain, and to get ahead of
// a foreign one, or of a predecessor's, ours is put at the head a second time before the older one is taken away. So no frame ever passes an empty place.
type hook struct {
	place
	prog   *ebpf.Program
	id     ebpf.ProgramID
	link   link.Link // tcx
	pin    string    // tcx
	handle uint32    // clsact
}

// close gives up our file descriptors and leaves in force what the kernel holds.
func (h *hook) close() error {
	var err error
	if h.link != nil {
		err = h.link.Close()
		h.link = nil
	}
	if h.prog != nil {
		err = errors.Join(err, h.prog.Close())
		h.prog = nil
	}
	return err
}

// chain is one way to stand in the path of frames. What attach puts there is in force, and first, when it returns.
type chain interface {
	attach(h *hook) error
	// survey lists the pins that there are, once for a look at all hooks: a host of containers has hundreds of interfaces.
	survey() ([]string, error)
	inspect(h *hook, pins []string) error // nil, or every finding about the hook: ErrDetached, ErrNotOurs, ErrShadowed, ErrUnpinned, ErrLeftover
	detach(h *hook) error
	// sweep takes away every gate of this VIP at the place but keep, whoever put it there; keep nil means all.
	sweep(p place, keep *hook) error
}

// findInterface looks an interface up and refuses one without Ethernet headers.
func findInterface(nl *netlink.Handle, name string) (int, error) {
	l, err := nl.LinkByName(name)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return 0, fmt.Errorf("find interface %s: %w", name, ErrNoInterface)
	case err != nil:
		return 0, fmt.Errorf("find interface %s: %w", name, err)
	case l.Attrs().EncapType != "ether":
		return 0, fmt.Errorf("gate interface %s (%s): %w: keep routes to the VIP off it", name, l.Attrs().EncapType, ErrNotEthernet)
	}
	return l.Attrs().Index, nil
}

// vanished names the kernel's word for an index that no interface has any more.
func vanished(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", ErrNoInterface, err)
	}
	return err
}

// tcxPrograms lists the tcx programs at a place, the first one first; none where the kernel has no tcx.
func tcxPrograms(p place) ([]link.AttachedProgram, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: p.index, Attach: tcxType(p.dir)})
	switch {
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list tcx programs of %v: %w", p, vanished(err))
	}
	return res.Programs, nil
}

func tcxType(d direction) ebpf.AttachType {
	if d == in {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}
