// Package guard changes one site, and alone: it binds the VIP only while its lease lets it, and answers a fence when its gate is shut.
//
// It never decides who serves: it follows the assignment. It never trusts a watch event for serving, only the answer to its own
// renewal, which compares the assignment. Its outside (kernel, etcd, MySQL) is interfaces, so that the simulation runs this code.
package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
)

// ErrReplaced means: another incarnation of this host's daemon holds the lease. This process touches nothing any more and ends.
var ErrReplaced = errors.New("guard: a newer daemon of this host has taken the lease over")

// Gate is the kernel's packet filter of the VIP: it lets traffic through until an absolute instant.
type Gate interface {
	// Install puts the gate in force with that deadline (0: shut), replacing whatever a predecessor left, without an open moment.
	Install(ctx context.Context, preload lease.Boot) error
	// Word is the gate's word now: a deadline, or a counter that no deadline can equal when shut.
	Word() uint64
	// Swap opens until the deadline if the word is still old; ErrOvertaken when somebody has shut the gate meanwhile.
	Swap(old uint64, deadline lease.Boot) error
	// Shut closes the gate, by a new word also when it was shut, and reads back that the attached gate is ours and shut.
	Shut(ctx context.Context) error
	// Verify reads back that the attached gate is ours and stands first.
	Verify(ctx context.Context) error
}

// ErrOvertaken means: the gate's word changed between a renewal's send and its answer, so somebody shut it: stop (PROTOCOL 2.3).
var ErrOvertaken = errors.New("guard: the gate was shut while the renewal was under way")

// Facts are evidence for the journal, by name.
type Facts map[string]string

// Binder puts the VIP on the host and takes it off.
type Binder interface {
	Bind(ctx context.Context, lifetime time.Duration) (Facts, error)
	Unbind(ctx context.Context) (Facts, error)
	// Extend gives the address its next lifetime. ErrBinderLost: that is done, but what bound it runs no more.
	Extend(ctx context.Context, lifetime time.Duration) error
	// Held says whether the address is on this host, and repairs nothing.
	Held(ctx context.Context) (bool, error)
}

// ErrBinderLost means: the address is on the host and lives on, but the program that put it there does not run: it serves, and the
// program must be started again.
var ErrBinderLost = errors.New("guard: what bound the VIP runs no more")

// Silence is what ARP probes have found since they run.
type Silence struct {
	Since  time.Time // nobody has answered since then; zero: no probe was sent yet
	Probes int       // sent since then
	MAC    net.HardwareAddr
	At     time.Time // of the last answer
}

// Wire is what the guard says and hears on the network for the VIP.
type Wire interface {
	// Announce sends gratuitous ARP until ctx ends, asking owned before each frame; first is called after the first frame.
	Announce(ctx context.Context, owned func() error, first func(mac net.HardwareAddr)) error
	// Probe asks who has the VIP until ctx ends.
	Probe(ctx context.Context) error
	// Silence is what Probe has found so far.
	Silence() Silence
	// Refuse answers clients of the VIP by RST until ctx ends, so that nobody waits for a lost SYN.
	Refuse(ctx context.Context) error
	// Clients lists who is connected to the VIP.
	Clients(ctx context.Context) ([]netip.AddrPort, error)
	// Destroy ends the host's sockets on the VIP, by RST while the address is there.
	Destroy(ctx context.Context) (int, error)
	// Tickle makes clients of a dead holder notice at once.
	Tickle(ctx context.Context, clients []netip.AddrPort) (int, error)
}

// Data is the site's MySQL as the guard needs it when its lease ends by itself.
type Data interface {
	// Fence sets the site's instances read-only, best effort.
	Fence(ctx context.Context, check func() error) error
	// Unfence makes writable what Fence set read-only, under a serving assignment of that epoch.
	Unfence(ctx context.Context, check func() error, epoch int64) error
}

// Store is the lease's part of etcd.
type Store interface {
	Read(ctx context.Context) (dcs.State, error)
	Renew(ctx context.Context, assignmentMod, holderMod int64, h cluster.Holder) (dcs.Renewed, error)
	Do(ctx context.Context, what string, cmps []dcs.Cmp, ops ...dcs.Op) (dcs.Result, error)
}

// Memory keeps the highest epoch and revision that this host has seen, over restarts, so that a restored backup of etcd is noticed.
type Memory interface {
	// Admit records the pair, or refuses one that is older than what was seen (ErrOld).
	Admit(epoch, revision int64) error
}

// ErrOld means: etcd's state is older than what this host has seen: a restored backup or a hand edit (PROTOCOL 1).
var ErrOld = errors.New("guard: etcd holds an older state than this host has seen; nothing is served until an operator accepts it")
