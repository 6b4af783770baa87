// Package lease is the arithmetic of deadlines: how long a guard may serve, and how long a controller waits before it believes
// that the old VIP is silent (PROTOCOL 2 and 3).
//
// It is pure. It never reads a clock: every instant comes in as an argument.
package lease

import (
	"fmt"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// Boot is an instant of CLOCK_BOOTTIME in nanoseconds, the clock that the kernel's gate compares with.
type Boot uint64

// Terms are the lengths of one lease.
type Terms struct {
	D      time.Duration // how long a renewal lets a site serve, counted from its send
	Margin time.Duration // taken off by the guard
}

// Deadline is when the gate must shut after a renewal sent at that instant: from the send, never from the answer.
// Counted from the answer, a late answer would let the old site serve after the controller has waited D (model: FROMANSWER).
func (t Terms) Deadline(sent Boot) Boot { return sent + Boot(t.D-t.Margin) }

// RenewEvery is the spacing of renewals: nine may be lost in a row before the gate shuts.
func (t Terms) RenewEvery() time.Duration { return t.D / 10 }

// AttemptTimeout bounds one renewal, so that a dead endpoint costs an eighth of the lease and not all of it.
func (t Terms) AttemptTimeout() time.Duration { return t.D / 8 }

// rate is the bound of relative clock rates that the guarantees assume: 1 % (DESIGN 2).
const rate = 100

// Span is D by the waiting side's clock: D·1.01, since its clock may run 1 % faster than the holder's.
func (t Terms) Span() time.Duration { return t.D + t.D/rate }

// Outlasting returns the terms that also cover a holder whose own lease is longer. Two daemons may have different configurations for a
// while, when the profile is changed one host after the other: counted by the shorter one, both sites would serve.
func (t Terms) Outlasting(h cluster.Holder) Terms {
	t.D = max(t.D, h.Lease)
	return t
}

// Renewal is the newest renewal of the holder that this process has seen as an event.
type Renewal struct {
	Revision int64     // mod revision of holder
	Received time.Time // when its event came, by this process's monotonic clock; zero if it was only read, never seen as an event
}

// Fence is the answer of the fence transaction, or of a resuming controller's read.
type Fence struct {
	HolderRevision int64             // mod revision of holder as that transaction read it; 0: nobody has ever held
	Received       time.Time         // when its answer came
	Level          cluster.GateLevel // what the holder's gate is made of
}

// Wait is how long the old VIP may still be heard.
type Wait struct {
	Until time.Time
	Why   string // for the journal: what was counted from
}

// WaitOut says when the old VIP is silent whatever its host does. Only a renewal whose own event was received here, and which is
// still the newest one, may be counted from its receipt; anything else counts from the receipt of the fence's answer (PROTOCOL 3).
func WaitOut(t Terms, seen Renewal, f Fence) Wait {
	from, why := f.Received, "the fence's answer"
	if !seen.Received.IsZero() && seen.Revision == f.HolderRevision && seen.Received.Before(f.Received) {
		from, why = seen.Received, "the last renewal"
	}
	return Wait{
		Until: from.Add(t.Span() + f.Level.Slack()),
		Why:   fmt.Sprintf("%s + %s of lease + %s of the gate (%s)", why, t.Span(), f.Level.Slack(), f.Level),
	}
}
