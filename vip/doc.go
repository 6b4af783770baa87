// Package vip puts a virtual IPv4 address on an interface and takes it away, tells the network where it went, finds out who else
// answers for it, and ends the connections that a move leaves behind.
//
// It is an adapter over rtnetlink, packet sockets and sock_diag of the network namespace of the process. It decides nothing: who may
// hold the address is the lease's matter, and what keeps a late holder silent is the gate (vip/gate). It never runs a program, never
// writes a sysctl and never touches an address other than the VIP.
//
// Every socket is opened by the goroutine that calls, so that a caller which has locked its thread into a namespace stays in it.
package vip

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
)

// The named errors of the package.
var (
	// ErrNoLifetime refuses an address without an end: to the kernel a lifetime of 0 in a replace means for ever.
	ErrNoLifetime = errors.New("vip: an address needs a lifetime of more than 0 and less than 68 years")
	// ErrAbsent says that the VIP is not on the interface.
	ErrAbsent = errors.New("vip: the address is not on the interface")
	// ErrNoInterface says that the namespace has no interface of that name.
	ErrNoInterface = errors.New("vip: no such interface")
	// ErrIPv4Only refuses an address that is not IPv4.
	ErrIPv4Only = errors.New("vip: only IPv4 addresses are supported")
	// ErrGateClosed says that the kernel dropped our own frame (ENOBUFS): the gate is closed.
	ErrGateClosed = errors.New("vip: the frame was dropped on its way out: the gate is closed")
	// ErrLinkDown says that the interface has no carrier or is down, so that nothing sent or heard there proves anything.
	ErrLinkDown = errors.New("vip: the link is down")
	// ErrSilent says that nobody answered an ARP probe.
	ErrSilent = errors.New("vip: nobody answers for the address")
	// ErrNotProbing says that no probe left lately: the prober does not run, or was stalled.
	ErrNotProbing = errors.New("vip: no probe left lately")
)

// checkIPv4 refuses what the frames of this package cannot carry.
func checkIPv4(vip netip.Addr) error {
	if !vip.Is4() || vip.IsUnspecified() || vip.IsMulticast() || vip.IsLoopback() {
		return fmt.Errorf("use %s as a VIP: %w", vip, ErrIPv4Only)
	}
	return nil
}

// orDiscard lets a caller leave the logger out.
func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
