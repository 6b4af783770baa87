package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// when it is over, its statement is proven gone, what holds it up is killed (see clear), and it is tried again, until ctx ends. It
// never touches semi-sync. It is idempotent. Its errors: ErrStillWritable, ErrNotStable, ErrStaleStep, ErrUnproven.
func (c *Conn) FenceWrites(ctx context.Context, check Check) (Fenced, error) {
	start := time.Now()
	var f Fenced
	err := c.fence(ctx, check, &f)
	if err == nil {
		f.Passing, err = c.passing(ctx)
	}
	if err != nil {
		return f, fmt.Errorf("fence writes of %s: %w", c.server.Addr, err)
	}
	f.Took = time.Since(start)
	return f, nil
}

func (c *Conn) fence(ctx context.Context, check Check, f *Fenced) error {
	earlier, err := c.tryReadOnly(ctx, check)
	for errors.Is(err, errBlocked) {
		earlier, err = c.clear(ctx, check, earlier, f)
	}
	if err != nil {
		return err
	}
	p, list, err := c.look(ctx)
	if err != nil {
		return seen(ErrNotStable, "it is read-only; %w", err)
	}
	clients := slices.DeleteFunc(list, func(s session) bool { return !c.isClient(s) })
	f.Killed += len(clients)
	return c.settle(ctx, check, p, clients, f)
}

// errBlocked: something holds the read-only statement up.
var errBlocked = errors.New("read-only waits behind running commits or statements")

// tryBound is how long one try may hold new writes up: longer than a commit takes, a fraction of the step's budget.
const tryBound = 200 * time.Millisecond

// bound is the time for the next try: a third of what remains.
func bound(ctx context.Context) (time.Duration, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return tryBound, nil
	}
	left := time.Until(deadline)
	if left <= 0 {
		return 0, seen(ErrStillWritable, "no time left: %w", context.Cause(ctx))
	}
	return min(tryBound, left/3), nil
}

// tryReadOnly sends the statement once. Nothing of it is left when it returns errBlocked, with the sessions that were there before it.
func (c *Conn) tryReadOnly(ctx context.Context, check Check) ([]session, error) {
	limit, err := bound(ctx)
	if err != nil {
		return nil, err
	}
	if err := check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	sets, err := c.readOnly(ctx, limit, listSQL+"; ")
	if err == nil {
		return nil, nil
	}
	if len(sets) == 0 || !errors.Is(err, errBlocked) {
		return nil, c.unblock(ctx, check, c, err)
	}
	earlier, lerr := readSessions(sets[0])
	return earlier, errors.Join(err, lerr)
}

// readOnly runs the read-only statement, after what is to run before it, for as long as limit.
func (c *Conn) readOnly(ctx context.Context, limit time.Duration, before string) ([][]row, error) {
	sql, bounded := c.dialect.readOnlySQL(limit)
	patience := limit
	if bounded {
		patience = 2 * limit // the server's own answer comes first
	}
	inner, cancel := context.WithTimeoutCause(ctx, patience, errBlocked)
	defer cancel()
	sets, err := c.query(inner, before+sql)
	switch number := serverNumber(err); {
	case err == nil:
		return sets, nil
	case number == errMaxStatement || number == errLockWait:
		return sets, fmt.Errorf("%w: %w", errBlocked, err)
	case number == 0 && inner.Err() != nil:
		return nil, errSilent
	}
	return nil, seen(ErrStillWritable, "%w", err)
}

// errSilent: the read-only statement got no answer; it may still wait in the server.
var errSilent = errors.New("the read-only statement got no answer")

// unblock turns a silent statement of who into a blocked one: its connection is killed and proven gone.
func (c *Conn) unblock(ctx context.Context, check Check, who *Conn, err error) error {
	if !errors.Is(err, errSilent) {
		return err
	}
	var kerr error
	if who == c {
		kerr = c.replace(ctx, check)
	} else if kerr = c.kill(ctx, check, []uint64{who.id}); kerr != nil {
		kerr = errors.Join(ErrUnproven, kerr)
	}
	if kerr != nil {
		return seen(ErrStillWritable, "%w, and then: %w", err, kerr)
	}
	return fmt.Errorf("%w: %w; its connection is killed and gone", errBlocked, err)
}

// clear tries again on a second connection, and while that holds every new write up, kills what it waits for.
//
// The order of killing decides whether acknowledged data is lost. Commits go in groups, and one session waits for the acknowledgement of
// its whole group: when it is killed, the *other clients of the group are told "committed"* (measured, 10.11.19: one KILL, five
// clients). So those that wait are killed last, when all others are dead and can be told nothing; and only when the same ones waited
// before: while acknowledgements still come, commits end by themselves, and none of them is killed. Nobody new can join a group, for
// the pending statement lets no write begin.
func (c *Conn) clear(ctx context.Context, check Check, earlier []session, f *Fenced) (now []session, err error) {
	limit, err := bound(ctx)
	if err != nil {
		return nil, err
	}
	holder, err := c.server.Connect(ctx)
	if err != nil {
		return nil, seen(ErrStillWritable, "%w", err)
	}
	defer holder.Close()
	if err := check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	done := make(chan struct{})
	var herr error
	go func() {
		defer close(done)
		_, herr = holder.readOnly(ctx, limit, "")
	}()
	now, kerr := c.killBlockers(ctx, check, holder.id, done, earlier, f)
	<-done // it ends by its own bound
	err = c.unblock(ctx, check, holder, herr)
	if err != nil && kerr != nil {
		return nil, seen(ErrStillWritable, "%w; %w", err, kerr)
	}
	return now, err
}

// killBlockers waits until the holder's statement pends (or is done), and kills in two rounds.
func (c *Conn) killBlockers(ctx context.Context, check Check, holder uint64, done <-chan struct{}, earlier []session, f *Fenced) ([]session, error) {
	var list []session
	pending := false
	err := until(ctx, func() (bool, error) {
		select {
		case <-done:
			return true, nil
		default:
		}
		var err error
		list, err = c.sessions(ctx)
		pending = slices.ContainsFunc(list, func(s session) bool { return s.id == holder && strings.HasPrefix(s.state, "Waiting") })
		return pending, err
	})
	if err != nil || !pending {
		return list, err
	}
	flows := slices.ContainsFunc(list, func(s session) bool { return s.awaits() && !slices.Contains(earlier, s) })
	first := ids(list, func(s session) bool { return c.isClient(s) && !s.awaits() && !(flows && s.commits()) })
	f.Killed += len(first)
	if err := c.sendKills(ctx, check, first); err != nil || flows {
		return list, err
	}
	if list, err = c.sessions(ctx); err != nil {
		return list, err
	}
	alive := ids(list, func(s session) bool { return c.isClient(s) && !s.awaits() && s.commits() && s.command != "Killed" })
	if len(alive) > 0 {
		return list, nil // an acknowledgement came after all; look again
	}
	last := ids(list, func(s session) bool { return c.isClient(s) && s.awaits() })
	f.Killed += len(last)
	return list, c.sendKills(ctx, check, last)
}

// settle kills the clients that were there when the instance became read-only (later ones are bound from their start), and looks until they
// are gone and two looks in a row agree on what is executed. The first look is before.
func (c *Conn) settle(ctx context.Context, check Check, before progress, clients []session, f *Fenced) error {
	all := func(session) bool { return true }
	if err := c.sendKills(ctx, check, ids(clients, all)); err != nil {
		return seen(ErrNotStable, "it is read-only; kill the sessions that were there: %w", err)
	}
	var left []session
	moved := false
	err := until(ctx, func() (bool, error) {
		now, list, err := c.look(ctx)
		if err != nil {
			return false, err
		}
		if !now.readOnly {
			return false, seen(ErrStillWritable, "read_only was on and is off again: somebody else switches it; find out who")
		}
		left = remaining(list, ids(clients, all))
		moved = !now.executed.Equal(before.executed) || !now.state.Equal(before.state)
		before = now
		return len(left) == 0 && !moved, nil
	})
	f.Executed, f.State = before.executed, before.state
	switch {
	case err == nil || errors.Is(err, ErrStillWritable):
		return err
	case moved:
		return seen(ErrNotStable, "executed GTIDs moved to %s although read-only: a privileged account or a replication channel writes; %w", before.executed, err)
	}
	return seen(ErrNotStable, "it is read-only; %w", stillThere(err, left))
}

// passing lists the accounts that read_only does not bind, as the server names them; the admin account is not among them. Without the
// right to see other accounts it says so in their place.
func (c *Conn) passing(ctx context.Context) ([]string, error) {
	sql := c.dialect.passingSQL()
	if sql == "" {
		return nil, nil
	}
	sets, err := c.exchange(ctx, "SELECT 1 FROM mysql.user LIMIT 1; "+sql)
	switch serverNumber(err) {
	case errTableDenied, errSchemaDenied:
		return []string{"unknown: no SELECT on mysql.*"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list accounts that pass read_only on %s: %w", c.server.Addr, err)
	}
	var out []string
	for _, r := range sets[len(sets)-1] {
		if !strings.HasPrefix(r["grantee"], quote(c.user)+"@") {
			out = append(out, r["grantee"])
		}
	}
	return out, nil
}

// Unfence makes the instance writable and reads it back: undo of a fence, or a repair under a current epoch.
func (c *Conn) Unfence(ctx context.Context, check Check) error {
	p, err := c.writable(ctx, check)
	if err == nil && p.readOnly {
		err = errors.New("it is still read-only: somebody else switches it; find out who")
	}
	if err != nil {
		return fmt.Errorf("make %s writable: %w", c.server.Addr, err)
	}
	return nil
}

// writable opens the instance for writes and looks, in one round trip.
func (c *Conn) writable(ctx context.Context, check Check) (progress, error) {
	sets, err := c.change(ctx, check, c.dialect.writableSQL()+"; "+listSQL+"; "+c.dialect.progressSQL())
	if err != nil {
		return progress{}, err
	}
	p, _, err := c.readLook(sets)
	return p, err
}
