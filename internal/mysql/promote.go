package mysql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// Epoch is what promote writes into baton.epoch: the fencing token of the assignment under way.
type Epoch struct {
	Epoch  int64
	Switch string
	Site   string
}

// Verification is one read-only statement of the user with the answer it must give, asked before the instance becomes writable.
type Verification struct {
	SQL  string
	Want string // the only value of its only row; empty: any row will do
}

// Promoted is the evidence of a promotion.
type Promoted struct {
	Executed      gtid.Set // when it became writable, the epoch's row included
	State         gtid.Set // the same for errant checks
	EventsStopped bool     // the event scheduler was on and is off now
	Took          time.Duration
}

// Promote makes a replica that has caught up the writable instance of its shard. In this order: replica stopped (never reset: its
// configuration is the way back), event scheduler off, source half of semi-sync off (else the first commit would wait for a replica
// that is not there; the caller has written sync/ = degraded before), the user's verification, baton.epoch, and last of all writable. No
// client can write before the epoch is in the data: the admin account passes the fence, clients do not.
//
// It is idempotent for the same epoch and switch. ErrEpoch when the instance has seen a newer epoch; ErrBehind when the relay log holds
// what is not applied; ErrVerify.
func (c *Conn) Promote(ctx context.Context, check Check, epoch Epoch, verify []Verification) (Promoted, error) {
	start := time.Now()
	p, err := c.promote(ctx, check, epoch, verify)
	if err != nil {
		return Promoted{}, fmt.Errorf("promote %s: %w", c.server.Addr, err)
	}
	p.Took = time.Since(start)
	return p, nil
}

// Quiesce does the part of a promotion that no client can notice: the replica stopped, event scheduler and source half of semi-sync off.
// Shards can quiesce side by side while their promotions keep their order. It is idempotent, and Promote does it where it was not done.
func (c *Conn) Quiesce(ctx context.Context, check Check) error {
	if _, _, err := c.quiesce(ctx, check); err != nil {
		return fmt.Errorf("quiesce %s: %w", c.server.Addr, err)
	}
	return nil
}

func (c *Conn) quiesce(ctx context.Context, check Check) (p progress, eventsStopped bool, err error) {
	if p, err = c.progress(ctx); err != nil {
		return p, false, err
	}
	if p.channels > 0 {
		if err := c.stopReplica(ctx, check, p); err != nil {
			return p, false, err
		}
	}
	eventsStopped, err = c.quiet(ctx, check)
	return p, eventsStopped, err
}

func (c *Conn) promote(ctx context.Context, check Check, epoch Epoch, verify []Verification) (Promoted, error) {
	var out Promoted
	p, stopped, err := c.quiesce(ctx, check)
	if err != nil {
		return out, err
	}
	out.EventsStopped = stopped
	if err := c.verify(ctx, verify); err != nil {
		return out, err
	}
	if door := c.dialect.epochDoorSQL(); door != "" && p.readOnly {
		if _, err := c.change(ctx, check, door); err != nil {
			return out, fmt.Errorf("let the epoch in: %w", err)
		}
	}
	if err := c.writeEpoch(ctx, check, epoch); err != nil {
		return out, err
	}
	if p, err = c.writable(ctx, check); err != nil {
		return out, fmt.Errorf("make it writable: %w", err)
	}
	if p.readOnly {
		return out, errors.New("it is still read-only: somebody else switches it; find out who")
	}
	out.Executed, out.State = p.executed, p.state
	return out, nil
}

// stopReplica stops both threads, after a last look that nothing received is left: on MariaDB a relay log does not outlive the next start.
func (c *Conn) stopReplica(ctx context.Context, check Check, p progress) error {
	r, err := p.soleReplica()
	if err != nil {
		return err
	}
	if left := p.received.Subtract(p.executed); !left.Empty() {
		return seen(ErrBehind, "%s is received and not applied; catch up first", left)
	}
	if r.IORunning != "No" {
		return seen(ErrReplica, "the IO thread is %q; cut it first: what it still receives would be lost or be applied after the promotion", r.IORunning)
	}
	if r.SQLRunning == "No" {
		return nil
	}
	sets, err := c.change(ctx, check, c.dialect.stopSQL(r.Channel)+"; "+listSQL+"; "+c.dialect.progressSQL())
	if err != nil {
		return fmt.Errorf("stop the replica: %w", err)
	}
	if p, _, err = c.readLook(sets); err != nil {
		return err
	}
	if r, err = p.soleReplica(); err != nil {
		return err
	}
	if r.IORunning != "No" || r.SQLRunning != "No" {
		return seen(ErrReplica, "stopped, and IO thread %s, applier %s: something starts them again; find out what", r.IORunning, r.SQLRunning)
	}
	return nil
}

// quiet turns off what would write or wait by itself: the event scheduler, and the source half of semi-sync.
func (c *Conn) quiet(ctx context.Context, check Check) (eventsStopped bool, err error) {
	sets, err := c.exchange(ctx, c.dialect.quietSQL())
	if err != nil {
		return false, fmt.Errorf("read event scheduler and semi-sync: %w", err)
	}
	r := sets[0][0]
	if r["events"] == "ON" {
		if _, err := c.change(ctx, check, "SET GLOBAL event_scheduler=OFF"); err != nil {
			return false, fmt.Errorf("stop the event scheduler: %w", err)
		}
		eventsStopped = true
	}
	if r.on("source_half") {
		err = c.sourceHalfOff(ctx, check)
	}
	return eventsStopped, err
}

// sourceHalfOff disables the source half of semi-sync, but never while a session waits for an acknowledgement: it would be told
// "committed" of what no replica has. Two public data losses came of that.
func (c *Conn) sourceHalfOff(ctx context.Context, check Check) error {
	sets, err := c.exchange(ctx, c.dialect.waitingSQL())
	if err != nil {
		return fmt.Errorf("count sessions that wait for an acknowledgement: %w", err)
	}
	if len(sets[0]) != 1 || sets[0][0]["n"] != "0" {
		return seen(ErrSemiSync, "sessions wait for an acknowledgement (%v); turning semi-sync off would acknowledge what no replica has: fence writes first", sets[0])
	}
	if _, err := c.change(ctx, check, c.dialect.semiSyncSourceOffSQL()); err != nil {
		return fmt.Errorf("turn the source half of semi-sync off: %w", err)
	}
	return nil
}

// verify asks the user's statements in a read-only transaction.
func (c *Conn) verify(ctx context.Context, list []Verification) (err error) {
	if len(list) == 0 {
		return nil
	}
	if _, err := c.exchange(ctx, "START TRANSACTION READ ONLY"); err != nil {
		return fmt.Errorf("begin verification: %w", err)
	}
	defer func() {
		if _, rerr := c.exchange(ctx, "ROLLBACK"); rerr != nil && err == nil {
			err = fmt.Errorf("end verification: %w", rerr)
		}
	}()
	for _, v := range list {
		sets, err := c.query(ctx, v.SQL)
		if err != nil {
			return seen(ErrVerify, "%q: %w", v.SQL, err)
		}
		if len(sets) == 0 || len(sets[0]) == 0 {
			return seen(ErrVerify, "%q answered no row", v.SQL)
		}
		if got := sets[0][0].only(); v.Want != "" && got != v.Want {
			return seen(ErrVerify, "%q answered %q, want %q", v.SQL, got, v.Want)
		}
	}
	return nil
}

// only is the value of a row of one column; NULL and rows of several columns read as empty.
func (r row) only() string {
	if len(r) != 1 {
		return ""
	}
	for _, v := range r {
		return v
	}
	return ""
}
