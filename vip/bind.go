package vip

import (
	"context"
	"sync"
	"time"
)

// Netlink is the binder "netlink": it puts the address on the interface itself, in some 0.2 ms.
// Its twin is the binder "keepalived" of vip/keepalived; both have Bind, Unbind and Last.
type Netlink struct {
	addr *Address
	mu   sync.Mutex
	last BindTimes
}

// BindTimes says how long the last Bind and the last Unbind took; 0 when there was none.
type BindTimes struct {
	Bind   time.Duration // from the call to the address on the interface
	Unbind time.Duration // from the call to the address gone
}

// NewNetlink returns a binder of the address and touches nothing.
func NewNetlink(addr *Address) *Netlink { return &Netlink{addr: addr} }

// Bind puts the address on the interface for the lifetime. Again is no error: it renews the lifetime.
func (n *Netlink) Bind(ctx context.Context, lifetime time.Duration) error {
	start := time.Now()
	if err := n.addr.Add(ctx, lifetime); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last.Bind = time.Since(start)
	return nil
}

// Unbind removes the address wherever it is. Again is no error.
func (n *Netlink) Unbind(ctx context.Context) error {
	start := time.Now()
	if err := n.addr.Remove(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last.Unbind = time.Since(start)
	return nil
}

// Last returns the times of the last Bind and Unbind, for the narration of a switch.
func (n *Netlink) Last() BindTimes {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}
