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
//
// A promotion has four steps, in this order: Quiesce, Prepare, Mark, Open. The replica is stopped (never reset: its configuration is the way
// back), the event scheduler and the source half of semi-sync are off (else the first commit would wait for a replica that is not there;
// the caller has written sync/ = degraded before), the user's verification has passed, baton.epoch is in the data, and last of all it is
// writable: no client can write before the epoch is there, for the admin account passes the fence and clients do not. Shards can quiesce
// and prepare side by side while they are opened in their order. Each step is idempotent.
type Promoted struct {
	Executed gtid.Set // when it became writable, the epoch's row included
	State    gtid.Set // the same for errant checks
	Took     time.Duration
}

// Quiesce does the part of a promotion that no client can notice: the replica stopped, event scheduler and source half of semi-sync off.
// ErrBehind when the relay log holds what is not applied.
func (c *Conn) Quiesce(ctx context.Context, check Check) error {
	if err := c.quiesce(ctx, check); err != nil {
		return fmt.Errorf("quiesce %s: %w", c.server.Addr, err)
	}
	return nil
}

func (c *Conn) quiesce(ctx context.Context, check Check) error {
	p, err := c.progress(ctx)
	if err != nil {
		return err
	}
	if p.channels > 0 {
		if err := c.stopReplica(ctx, check, p); err != nil {
			return err
		}
	}
	return c.quiet(ctx, check)
}

// Prepare says whether a quiesced instance may be promoted, and changes no data. ErrReplica when it replicates: it was not quiesced, or
// somebody has started it since. ErrVerify when the user's verification does not hold; ErrEpoch when the data has seen a newer epoch, or
// this one by another switch.
func (c *Conn) Prepare(ctx context.Context, check Check, epoch Epoch, verify []Verification) error {
	if err := c.prepare(ctx, check, epoch, verify); err != nil {
		return fmt.Errorf("prepare the promotion of %s: %w", c.server.Addr, err)
	}
	return nil
}

func (c *Conn) prepare(ctx context.Context, check Check, epoch Epoch, verify []Verification) error {
	p, err := c.progress(ctx)
	if err != nil {
		return err
	}
	if err := p.stands(); err != nil {
		return err
	}
	if err := c.verify(ctx, verify); err != nil {
		return err
	}
	if door := c.dialect.epochDoorSQL(); door != "" && p.readOnly {
		if _, err := c.change(ctx, check, door); err != nil {
			return fmt.Errorf("let the epoch in: %w", err)
		}
	}
	return c.admits(ctx, epoch)
}

// Mark writes the epoch of a prepared instance. It is errant if the promotion is undone: all shards are prepared before one is marked.
func (c *Conn) Mark(ctx context.Context, check Check, epoch Epoch) error {
	if err := c.writeEpoch(ctx, check, epoch); err != nil {
		return fmt.Errorf("mark %s: %w", c.server.Addr, err)
	}
	return nil
}

// stands refuses an instance whose replica runs.
func (p progress) stands() error {
	if r := p.replica; r != nil && (r.IORunning != "No" || r.SQLRunning != "No") {
		return seen(ErrReplica, "IO thread %s, applier %s: quiesce it first; if that was done, something has started them: find out what", r.IORunning, r.SQLRunning)
	}
	return nil
}

// Open makes a prepared instance writable, and looks. ErrReplica when somebody has started its replica.
func (c *Conn) Open(ctx context.Context, check Check) (Promoted, error) {
	start := time.Now()
	p, err := c.open(ctx, check)
	if err != nil {
		return Promoted{}, fmt.Errorf("open %s for writes: %w", c.server.Addr, err)
	}
	return Promoted{Executed: p.executed, State: p.state, Took: time.Since(start)}, nil
}

func (c *Conn) open(ctx context.Context, check Check) (progress, error) {
	p, err := c.writable(ctx, check)
	switch {
	case err != nil:
		return p, err
	case p.readOnly:
		return p, errors.New("it is still read-only: somebody else switches it; find out who")
	}
	return p, p.stands()
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
	return p.stands()
}

// quiet turns off what would write or wait by itself: the event scheduler, and the source half of semi-sync.
func (c *Conn) quiet(ctx context.Context, check Check) error {
	sets, err := c.exchange(ctx, c.dialect.quietSQL())
	if err != nil {
		return fmt.Errorf("read event scheduler and semi-sync: %w", err)
	}
	r := sets[0][0]
	if r["events"] == "ON" {
		if _, err := c.change(ctx, check, "SET GLOBAL event_scheduler=OFF"); err != nil {
			return fmt.Errorf("stop the event scheduler: %w", err)
		}
	}
	if r.on("source_half") {
		return c.sourceHalfOff(ctx, check)
	}
	return nil
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
