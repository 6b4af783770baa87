package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// Fenced is the evidence that an instance takes no more writes.
type Fenced struct {
	Executed gtid.Set      // what replication waits for
	State    gtid.Set      // the same for errant checks; on MySQL equal to Executed
	Killed   int           // client sessions
	Passing  []string      // accounts that read_only does not bind: with any of them S2 is not claimed
	Took     time.Duration // from the call
}

// FenceWrites makes the instance read-only so that nothing can still commit, and proves it: read-only, no client session left of those
// that were there, executed GTIDs equal at two looks with the killing between them.
//
// Making it read-only waits behind every commit that waits for a semi-sync acknowledgement, perhaps for ever. So each try has a bound;
// when it is over, the statement is proven gone, the client sessions are killed, which ends their waiting without an acknowledgement,
// and it is tried again, until ctx ends. It never touches semi-sync. It is idempotent. Its errors: ErrStillWritable, ErrNotStable,
// ErrStaleStep, ErrUnproven.
func (c *Conn) FenceWrites(ctx context.Context, check Check) (Fenced, error) {
	start := time.Now()
	var f Fenced
	for {
		err := c.tryReadOnly(ctx, check)
		if err == nil {
			break
		}
		if !errors.Is(err, errBlocked) {
			return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, err)
		}
		n, kerr := c.killSessions(ctx, check)
		f.Killed += n
		if kerr != nil {
			return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, seen(ErrStillWritable, "%v; then: %w", err, kerr))
		}
	}
	before, err := c.progress(ctx)
	if err != nil {
		return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, err)
	}
	n, err := c.killSessions(ctx, check)
	f.Killed += n
	if err != nil {
		return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, seen(ErrNotStable, "it is read-only, and sessions that were there before are not gone: %w", err))
	}
	after, err := c.settled(ctx, before)
	if err != nil {
		return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, err)
	}
	f.Executed, f.State = after.executed, after.state
	if f.Passing, err = c.passing(ctx); err != nil {
		return f, err
	}
	f.Took = time.Since(start)
	return f, nil
}

// errBlocked: something holds the read-only statement up.
var errBlocked = errors.New("read-only waits behind running commits or statements")

// tryBound is how long one try may hold new writes up: longer than a commit takes, a fraction of the step's budget.
const tryBound = 200 * time.Millisecond

// tryReadOnly sends the statement once, with a third of the remaining time at most. Nothing of it is left when it returns errBlocked.
func (c *Conn) tryReadOnly(ctx context.Context, check Check) error {
	if err := check(); err != nil {
		return fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	bound := tryBound
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline)/3)
	}
	if bound <= 0 {
		return seen(ErrStillWritable, "no time left: %w", context.Cause(ctx))
	}
	sql, bounded := c.dialect.readOnlySQL(bound)
	patience := bound
	if bounded {
		patience = 2 * bound // the server's own answer comes first
	}
	inner, cancel := context.WithTimeoutCause(ctx, patience, errBlocked)
	defer cancel()
	_, err := c.query(inner, sql)
	switch number := serverNumber(err); {
	case err == nil:
		return nil
	case number == errMaxStatement || number == errLockWait:
		return fmt.Errorf("%w: %w", errBlocked, err)
	case number != 0 || inner.Err() == nil:
		return seen(ErrStillWritable, "%w", err)
	}
	if err := c.replace(ctx, check); err != nil {
		return seen(ErrStillWritable, "no answer within %v, and then: %w", patience, err)
	}
	return fmt.Errorf("%w: no answer within %v; its connection is killed and gone", errBlocked, patience)
}

// session is one client session that could write.
type session struct {
	id          uint64
	user, doing string
}

// sessions lists those that are neither replication nor the server's own nor the admin account's.
func (c *Conn) sessions(ctx context.Context) ([]session, error) {
	sets, err := c.exchange(ctx, c.dialect.sessionsSQL(c.user))
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	var out []session
	for _, r := range sets[0] {
		id, err := strconv.ParseUint(r["id"], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("list sessions: %w", err)
		}
		out = append(out, session{id, r["user"], r["doing"]})
	}
	return out, nil
}

// killSessions kills the sessions that are there now and waits until those are gone. Later ones are bound by read_only from their start.
func (c *Conn) killSessions(ctx context.Context, check Check) (int, error) {
	list, err := c.sessions(ctx)
	if err != nil {
		return 0, err
	}
	ids := make([]uint64, len(list))
	for i, s := range list {
		ids[i] = s.id
	}
	n, err := c.kill(ctx, check, ids)
	if err != nil && len(list) > 0 {
		return n, fmt.Errorf("%d sessions, the first of %q (%s): %w", len(list), list[0].user, list[0].doing, err)
	}
	return n, err
}

// settled reads until two looks in a row agree; the first was taken before the sessions were killed.
func (c *Conn) settled(ctx context.Context, before progress) (progress, error) {
	after := before
	err := until(ctx, func() (bool, error) {
		now, err := c.progress(ctx)
		if err != nil {
			return false, err
		}
		if !now.readOnly {
			return false, seen(ErrStillWritable, "read_only was on and is off again: somebody else switches it; find out who")
		}
		same := now.executed.Equal(after.executed) && now.state.Equal(after.state)
		after = now
		return same, nil
	})
	if err != nil && !errors.Is(err, ErrStillWritable) {
		err = seen(ErrNotStable, "executed GTIDs moved to %s although read-only: a privileged account or a replication channel writes; %w", after.executed, err)
	}
	return after, err
}

// passing lists the accounts that read_only does not bind, as the server names them; the admin account is not among them.
func (c *Conn) passing(ctx context.Context) ([]string, error) {
	sql := c.dialect.passingSQL()
	if sql == "" {
		return nil, nil
	}
	sets, err := c.exchange(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("list accounts that pass read_only on %s: %w", c.server.Addr, err)
	}
	var out []string
	for _, r := range sets[0] {
		if !strings.HasPrefix(r["grantee"], quote(c.user)+"@") {
			out = append(out, r["grantee"])
		}
	}
	return out, nil
}

// Unfence makes the instance writable and reads it back: undo of a fence, or a repair under a current epoch.
func (c *Conn) Unfence(ctx context.Context, check Check) error {
	if _, err := c.change(ctx, check, c.dialect.writableSQL()); err != nil {
		return fmt.Errorf("make %s writable: %w", c.server.Addr, err)
	}
	p, err := c.progress(ctx)
	if err != nil {
		return err
	}
	if p.readOnly {
		return fmt.Errorf("make %s writable: it is still read-only: somebody else switches it; find out who", c.server.Addr)
	}
	return nil
}

// KillSteps kills every other session of this connection's account, and proves them gone: after it nothing of an older term is in flight
// on this instance (PROTOCOL 4). A step's connection is opened before its check, so that one that is opened later is refused by its
// check. It returns how many there were.
func (c *Conn) KillSteps(ctx context.Context, check Check) (int, error) {
	sets, err := c.exchange(ctx, "SELECT id AS id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = "+quote(c.user))
	if err != nil {
		return 0, fmt.Errorf("list step connections of %s: %w", c.server.Addr, err)
	}
	var ids []uint64
	for _, r := range sets[0] {
		id, err := strconv.ParseUint(r["id"], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("list step connections of %s: %w", c.server.Addr, err)
		}
		ids = append(ids, id)
	}
	n, err := c.kill(ctx, check, ids)
	if err != nil {
		return n, fmt.Errorf("kill step connections of %s: %w", c.server.Addr, err)
	}
	return n, nil
}
