package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netlinkPatience bounds one request to the kernel. Answers take some 20 µs; a second is a kernel in trouble.
const netlinkPatience = time.Second

// kernel is a netlink handle that opens at the first use and stays open: opening one costs more than the request.
type kernel struct {
	family int
	mu     sync.Mutex
	handle *netlink.Handle
}

// open returns the handle, opened by the calling goroutine when it is the first.
func (k *kernel) open(ctx context.Context) (*netlink.Handle, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle != nil {
		return k.handle, nil
	}
	h, err := netlink.NewHandle(k.family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(netlinkPatience); err != nil {
		h.Close()
		return nil, fmt.Errorf("bound the netlink socket: %w", err)
	}
	k.handle = h
	return h, nil
}

// close ends the handle; the next use opens another.
func (k *kernel) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle != nil {
		k.handle.Close()
		k.handle = nil
	}
}

// link is what the VIP needs to know of an interface.
type link struct {
	name  string
	index int
	mac   net.HardwareAddr
	up    bool // up and with carrier
}

// linkOf reads the interface afresh: its MAC and index change under bonds and hot plugging.
func linkOf(h *netlink.Handle, name string) (link, error) {
	l, err := h.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return link{name: name}, fmt.Errorf("look for interface %s: %w", name, ErrNoInterface)
	}
	if err != nil {
		return link{name: name}, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return fromAttrs(l.Attrs()), nil
}

func fromAttrs(a *netlink.LinkAttrs) link {
	const both = unix.IFF_UP | unix.IFF_LOWER_UP // LOWER_UP is the carrier; RUNNING lags behind it
	return link{name: a.Name, index: a.Index, mac: a.HardwareAddr, up: a.RawFlags&both == both}
}
