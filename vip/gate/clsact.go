package gate

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// clsactPriority is the first that a filter can have. Among filters of one priority the kernel asks the newest first.
const clsactPriority = 1

// clsactChain stands in front by a direct-action filter at the clsact qdisc. Filters are recognised by their name, which carries VIP and direction.
type clsactChain struct {
	nl  *netlink.Handle
	vip string
}

func filterName(vip string, d direction) string { return "baton-gate-" + vip + "-" + d.String() }

// filterHandle is one that no other filter has: legacy agents replace handle 1 of priority 1 without looking. The program's id makes it unique among ours.
func filterHandle(id ebpf.ProgramID) uint32 { return 0xba<<24 | uint32(id)&0xffffff }

func filterParent(d direction) uint32 {
	if d == in {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func (c clsactChain) attach(h *hook) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: h.index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := c.nl.QdiscAdd(qdisc); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("add clsact qdisc to %s: %w", h.name, clsactRefusal(vanished(err)))
	}
	h.handle = filterHandle(h.id)
	filter := c.filter(h.place, h.handle)
	filter.Fd, filter.Name, filter.DirectAction = h.prog.FD(), filterName(c.vip, h.dir), true
	if err := c.nl.FilterAdd(filter); err != nil {
		return fmt.Errorf("add filter to %v: %w%s", h.place, clsactRefusal(vanished(err)), c.occupant(h.place))
	}
	return nil
}

func (c clsactChain) survey() ([]string, error) { return nil, nil }

func (c clsactChain) inspect(h *hook, _ []string) error {
	tcx, err := tcxPrograms(h.place)
	if err != nil {
		return err
	}
	filters, err := c.filters(h.place)
	if err != nil {
		return err
	}
	at, older := -1, 0
	for i, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		switch {
		case ok && bpf.Handle == h.handle && bpf.Priority == clsactPriority && bpf.Id == int(h.id):
			at = i
		case ok && bpf.Name == filterName(c.vip, h.dir):
			older++
		}
	}
	switch {
	case at < 0 && older > 0:
		return fmt.Errorf("%v: %w: a filter with our name has another program", h.place, ErrNotOurs)
	case at < 0:
		return fmt.Errorf("%v: %w: no filter has program %d", h.place, ErrDetached, h.id)
	}
	var found []error
	if len(tcx) > 0 {
		found = append(found, fmt.Errorf("%v: %w: tcx program %d comes before every filter", h.place, ErrShadowed, tcx[0].ID))
	}
	if at > 0 {
		found = append(found, fmt.Errorf("%v: %w: %s", h.place, ErrShadowed, describeFilter(filters[0])))
	}
	if older > 0 {
		found = append(found, fmt.Errorf("%v: %w: %d filters have our name", h.place, ErrLeftover, older))
	}
	return errors.Join(found...)
}

func (c clsactChain) detach(h *hook) error {
	if err := c.nl.FilterDel(c.filter(h.place, h.handle)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete filter of %v: %w", h.place, err)
	}
	return nil
}

func (c clsactChain) sweep(p place, keep *hook) error {
	filters, err := c.filters(p)
	if err != nil {
		return err
	}
	for _, f := range filters {
		bpf, ok := f.(*netlink.BpfFilter)
		if !ok || bpf.Name != filterName(c.vip, p.dir) || (keep != nil && bpf.Handle == keep.handle) {
			continue
		}
		if delErr := c.nl.FilterDel(c.filter(p, bpf.Handle)); delErr != nil && !errors.Is(delErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("delete older filter of %v: %w", p, delErr))
		}
	}
	return err
}

func (c clsactChain) filter(p place, handle uint32) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: p.index, Parent: filterParent(p.dir), Handle: handle, Protocol: unix.ETH_P_ALL, Priority: clsactPriority},
		Fd:          -1,
	}
}

// filters lists the filters of a place in the order in which the kernel asks them. Chains but the first are reached only from there.
func (c clsactChain) filters(p place) ([]netlink.Filter, error) {
	all, err := c.nl.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: p.index}}, filterParent(p.dir))
	if err != nil {
		return nil, fmt.Errorf("list filters of %v: %w", p, vanished(err))
	}
	var first []netlink.Filter
	for _, f := range all {
		if ch := f.Attrs().Chain; ch == nil || *ch == 0 {
			first = append(first, f)
		}
	}
	return first, nil
}

// occupant tells who has our priority, when the kernel refused to share it: it keeps one kind and protocol a priority.
func (c clsactChain) occupant(p place) string {
	filters, err := c.filters(p)
	if err != nil || len(filters) == 0 {
		return ""
	}
	return fmt.Sprintf(": %s is there: remove it, or give it a priority above %d", describeFilter(filters[0]), clsactPriority)
}

func describeFilter(f netlink.Filter) string {
	a := f.Attrs()
	s := fmt.Sprintf("%s filter of priority %d, handle %#x", f.Type(), a.Priority, a.Handle)
	if bpf, ok := f.(*netlink.BpfFilter); ok {
		s += fmt.Sprintf(", program %d %q", bpf.Id, bpf.Name)
	}
	return s
}

// clsactRefusal names the causes that an operator can do something about.
func clsactRefusal(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: give the daemon CAP_NET_ADMIN: %w", ErrNotPermitted, err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: load the modules sch_ingress and cls_bpf (a container cannot): %w", ErrUnsupported, err)
	}
	return err
}
