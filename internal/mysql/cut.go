package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// Cut is the evidence that an acker acknowledges nothing any more.
type Cut struct {
	Received gtid.Set // all that it may have acknowledged
	Took     time.Duration
}

// Cut stops the replica's IO thread and proves it, which is the fence under lossless semi-sync when the old source answers nobody: from
// here on this acker acknowledges nothing. It starts an applier that stands without an error first, while that is still harmless (see
// CatchUp). It is idempotent.
func (c *Conn) Cut(ctx context.Context, check Check) (Cut, error) {
	start := time.Now()
	received, err := c.cut(ctx, check)
	if err != nil {
		return Cut{}, fmt.Errorf("cut replication of %s: %w", c.server.Addr, err)
	}
	return Cut{Received: received, Took: time.Since(start)}, nil
}

func (c *Conn) cut(ctx context.Context, check Check) (gtid.Set, error) {
	p, list, err := c.look(ctx)
	if err != nil {
		return gtid.Set{}, err
	}
	r, err := p.soleReplica()
	if err != nil {
		return gtid.Set{}, err
	}
	if r.IORunning == "No" {
		return p.received, nil
	}
	if r.SQLRunning != "Yes" && r.SQLError == "" {
		if _, err := c.change(ctx, check, c.dialect.startApplierSQL(r.Channel)); err != nil {
			return gtid.Set{}, fmt.Errorf("start the applier: %w", err)
		}
	}
	if p, err = c.killIO(ctx, check, p, list); err != nil {
		return gtid.Set{}, err
	}
	if p.replica.IORunning != "No" {
		if _, err := c.change(ctx, check, c.dialect.stopIOSQL(r.Channel)); err != nil {
			return gtid.Set{}, fmt.Errorf("stop the IO thread: %w", err)
		}
		if p, err = c.progress(ctx); err != nil { // after the cut: this is all that was acknowledged
			return gtid.Set{}, err
		}
	}
	if r, err = p.soleReplica(); err != nil {
		return gtid.Set{}, err
	}
	if r.IORunning != "No" {
		return gtid.Set{}, seen(ErrReplica, "the IO thread was stopped and is %q: something starts it again; find out what", r.IORunning)
	}
	return p.received, nil
}

// killGrace is how long a killed IO thread is waited for: several times what it takes with a live source. After it the thread surely waits
// for its frozen source, and STOP wakes it by a signal; a STOP that comes earlier can miss that wait, and then takes 2 s.
const killGrace = 20 * time.Millisecond

// killIO kills the IO thread where the dialect does, which shuts its socket before KILL returns, and gives it a little time to end.
func (c *Conn) killIO(ctx context.Context, check Check, p progress, list []session) (progress, error) {
	io := ids(list, func(s session) bool { return s.command == c.dialect.ioCommand() })
	if len(io) == 0 {
		return p, nil
	}
	if err := c.sendKills(ctx, check, io); err != nil {
		return p, fmt.Errorf("kill the IO thread: %w", err)
	}
	grace, cancel := context.WithTimeoutCause(ctx, killGrace, errLingers)
	defer cancel()
	err := until(grace, func() (bool, error) {
		var err error
		if p, err = c.progress(ctx); err != nil {
			return false, err
		}
		r, err := p.soleReplica()
		return err == nil && r.IORunning == "No", err
	})
	if errors.Is(err, errLingers) {
		return p, nil
	}
	return p, err
}

var errLingers = errors.New("the killed IO thread lingers")

// Obtain fetches from another replica of the same source what only that one has received: all of upTo, which that one has executed. The
// replica, which has been cut, applies its own relay log first, for pointing it elsewhere deletes it; it is cut again at the end, and its
// configuration names the other replica from then on. ErrBehind when upTo does not arrive.
func (c *Conn) Obtain(ctx context.Context, check Check, from Replication, upTo gtid.Set) (gtid.Set, error) {
	executed, err := c.obtain(ctx, check, from, upTo)
	if err != nil {
		return gtid.Set{}, fmt.Errorf("obtain what %s has received for %s: %w", from.Addr, c.server.Addr, err)
	}
	return executed, nil
}

func (c *Conn) obtain(ctx context.Context, check Check, from Replication, upTo gtid.Set) (gtid.Set, error) {
	p, err := c.progress(ctx)
	if err != nil {
		return gtid.Set{}, err
	}
	if err := c.follow(ctx, check, p, from, gtid.Set{}); err != nil {
		return gtid.Set{}, err
	}
	if err := c.RestartIO(ctx, check); err != nil {
		return gtid.Set{}, err
	}
	executed, err := c.CatchUp(ctx, check, upTo)
	if err != nil {
		return gtid.Set{}, err
	}
	_, err = c.Cut(ctx, check)
	return executed, err
}

// waitSlice bounds one wait in the server, after which the applier is looked at again: one that has stopped wakes no waiter.
const waitSlice = 250 * time.Millisecond

// CatchUp waits until all that the replica received, and upTo (the old source's executed GTIDs where it answered; else the zero Set), is
// executed here, and returns what is. ErrBehind names what is missing and why it will not come, or that the time is up.
//
// It changes nothing, but for starting an applier that stands without an error, and that only where it is harmless: on MariaDB, starting
// the applier while the IO thread stands too deletes the relay log and fetches it again from the source; what a dead source has
// acknowledged would be gone. There it refuses.
func (c *Conn) CatchUp(ctx context.Context, check Check, upTo gtid.Set) (gtid.Set, error) {
	for {
		p, err := c.progress(ctx)
		if err != nil {
			return gtid.Set{}, fmt.Errorf("catch up %s: %w", c.server.Addr, err)
		}
		missing, done := p.missing(upTo)
		if done {
			return p.of(upTo), nil
		}
		if err := c.wait(ctx, check, p, missing); err != nil {
			return p.executed, fmt.Errorf("catch up %s: %w", c.server.Addr, err)
		}
	}
}

// of is the executed set of the kind that upTo has.
func (p progress) of(upTo gtid.Set) gtid.Set {
	if upTo.Kind() == p.state.Kind() {
		return p.state
	}
	return p.executed
}

// missing is what must still be executed: of what was received, else of upTo.
func (p progress) missing(upTo gtid.Set) (gtid.Set, bool) {
	if left := p.received.Subtract(p.executed); !left.Empty() {
		return left, false
	}
	return upTo.Subtract(p.of(upTo)), p.of(upTo).Contains(upTo)
}

// wait waits for one slice, or says why waiting is in vain.
func (c *Conn) wait(ctx context.Context, check Check, p progress, missing gtid.Set) error {
	r, err := p.soleReplica()
	if err != nil {
		return err
	}
	if r.SQLRunning != "Yes" {
		if err := c.startApplier(ctx, check, p, r); err != nil {
			return err
		}
	}
	if p.executed.Contains(p.received) && r.IORunning == "No" {
		return seen(ErrBehind, "all that was received is applied, %s was never received, and the IO thread stands: it is lost here unless its source returns", missing)
	}
	slice := waitSlice
	if deadline, ok := ctx.Deadline(); ok {
		slice = min(slice, time.Until(deadline)*3/4) // the answer must come before ctx ends, or the connection is lost
	}
	if slice <= 0 {
		return seen(ErrBehind, "%s is not applied within the time given", missing)
	}
	if missing.Kind() == gtid.MariaDBState {
		return until(ctx, func() (bool, error) { // the server waits for positions only
			now, err := c.progress(ctx)
			return !now.state.Equal(p.state) || !now.received.Equal(p.received), err
		})
	}
	if _, err := c.query(ctx, c.dialect.waitSQL(missing, slice)); err != nil {
		return seen(ErrBehind, "%s is not applied: %w", missing, err)
	}
	return nil
}

// startApplier starts a standing applier where that cannot lose the relay log.
func (c *Conn) startApplier(ctx context.Context, check Check, p progress, r *Replica) error {
	left := p.received.Subtract(p.executed)
	switch {
	case r.SQLError != "":
		return seen(ErrBehind, "the applier stopped with error %s; %s is not applied; mend the replica, its relay log is untouched", r.SQLError, left)
	case c.dialect.purgesOnStart() && r.IORunning == "No" && !left.Empty():
		return seen(ErrBehind, "both replica threads stand and %s is in the relay log only; starting them would delete it; if the old source lives, start the replica by hand; else apply the relay log by hand", left)
	}
	if _, err := c.change(ctx, check, c.dialect.startApplierSQL(r.Channel)); err != nil {
		return fmt.Errorf("start the applier: %w", err)
	}
	return nil
}

// RestartIO starts replication again after a cut or a promotion that is undone, and waits until the IO thread runs. ErrReplica with the
// server's words when it does not before ctx ends.
func (c *Conn) RestartIO(ctx context.Context, check Check) error {
	if err := c.restart(ctx, check); err != nil {
		return fmt.Errorf("restart replication of %s: %w", c.server.Addr, err)
	}
	return nil
}

func (c *Conn) restart(ctx context.Context, check Check) error {
	var r *Replica
	started := false
	err := until(ctx, func() (bool, error) {
		p, list, err := c.look(ctx)
		if err != nil {
			return false, err
		}
		if r, err = p.soleReplica(); err != nil {
			return false, err
		}
		switch {
		case r.IORunning == "Yes" && r.SQLRunning == "Yes":
			return c.ioLives(list), nil
		case r.IORunning != "No" && r.SQLRunning == "Yes":
			return false, nil // it connects
		case started && (r.IOError != "" || r.SQLError != ""):
			return false, errStands
		case c.dialect.purgesOnStart() && r.IORunning == "No" && r.SQLRunning == "No" && !p.executed.Contains(p.received):
			return false, seen(ErrReplica, "both threads stand and %s is in the relay log only; starting them would delete it", p.received.Subtract(p.executed))
		}
		started = true
		_, err = c.change(ctx, check, c.dialect.startSQL(r.Channel))
		return false, err
	})
	if err == nil || r == nil || errors.Is(err, ErrReplica) || errors.Is(err, ErrStaleStep) {
		return err
	}
	return seen(ErrReplica, "IO thread: %s %s; applier: %s %s; %w", r.IORunning, r.IOError, r.SQLRunning, r.SQLError, err)
}

var errStands = errors.New("it was started and stands again")

// ioLives tells a running IO thread from one that is killed and not yet gone, which the server still calls running.
func (c *Conn) ioLives(list []session) bool {
	word := c.dialect.ioCommand()
	return word == "" || len(ids(list, func(s session) bool { return s.command == word })) > 0
}
