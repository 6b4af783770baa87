package mysql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
// that ran anything, executed GTIDs equal at two looks with the killing between them. Idle
// sessions without a transaction stay: a proxy whose whole pool dies spends the time of the switch on filling it again. Those with one die:
// a plain COMMIT would be refused, the second phase of an XA transaction would not.
//
// Making it read-only waits behind every commit that waits for a semi-sync acknowledgement, perhaps for ever. So each try has a bound;
// when the first is over, its statement is proven gone; the second lasts until ctx ends, and what holds it up is killed (see clear). It
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
	p, busy, waiting, err := c.tryReadOnly(ctx, check)
	if errors.Is(err, errBlocked) {
		if err := c.clear(ctx, check, waiting, f); err != nil {
			return err
		}
		var sets [][]row
		if sets, err = c.exchange(ctx, c.lookAtWorkSQL()); err == nil {
			p, busy, err = c.readWork(sets)
		}
	}
	if err != nil {
		return err
	}
	f.Killed += len(busy)
	return c.settle(ctx, check, p, busy, f)
}

// transactionsSQL names the sessions that have begun one in InnoDB, XA ones included.
const transactionsSQL = "SELECT trx_mysql_thread_id AS id FROM information_schema.innodb_trx"

// lookAtWorkSQL reads who is there before who has a transaction: read-only is on by then, and nobody begins one in between.
func (c *Conn) lookAtWorkSQL() string {
	return listSQL + "; " + c.dialect.progressSQL() + "; " + transactionsSQL
}

// readWork reads the state, and the clients that run something or have begun a transaction.
func (c *Conn) readWork(sets [][]row) (progress, []session, error) {
	last := len(sets) - 1
	if last < 1 {
		return progress{}, nil, seen(ErrUnsupported, "%d result sets for a look at who is at work", len(sets))
	}
	p, list, err := c.readLook(sets[:last])
	open := map[string]bool{}
	for _, r := range sets[last] {
		open[r["id"]] = true
	}
	return p, slices.DeleteFunc(list, func(s session) bool {
		return !c.isClient(s) || s.idle() && !open[strconv.FormatUint(s.id, 10)]
	}), err
}

// errBlocked: something holds the read-only statement up.
var errBlocked = errors.New("read-only waits behind running commits or statements")

// tryBound is how long the first try may hold new writes up: longer than a commit takes, a fraction of the step's budget.
const tryBound = 200 * time.Millisecond

// tryReadOnly sends the statement once, with a third of the remaining time at most, and looks. Nothing of it is left when it returns
// errBlocked, with the sessions that waited for an acknowledgement before it.
func (c *Conn) tryReadOnly(ctx context.Context, check Check) (p progress, busy []session, waiting waits, err error) {
	limit := tryBound
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/3)
	}
	if limit <= 0 {
		return p, nil, nil, seen(ErrStillWritable, "no time left: %w", context.Cause(ctx))
	}
	if err := check(); err != nil {
		return p, nil, nil, fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	sql, bounded := c.dialect.readOnlySQL(limit)
	patience := limit
	if bounded {
		patience = 2 * limit // the server's own answer comes first
	}
	inner, cancel := context.WithTimeoutCause(ctx, patience, errBlocked)
	defer cancel()
	sent := time.Now()
	sets, err := c.query(inner, listSQL+"; "+sql+"; "+c.lookAtWorkSQL())
	if err == nil {
		p, busy, err = c.readWork(sets[1:])
		return p, busy, nil, err
	}
	waiting = waits{}
	if err = blocked(inner, err); errors.Is(err, errSilent) {
		if rerr := c.replace(ctx, check); rerr != nil {
			return p, nil, nil, seen(ErrStillWritable, "%w, and then: %w", err, rerr)
		}
		return p, nil, waiting, fmt.Errorf("%w; %w", errBlocked, err)
	}
	if len(sets) > 0 {
		before, lerr := readSessions(sets[0])
		waiting.note(before, sent)
		err = errors.Join(err, lerr)
	}
	return p, nil, waiting, err
}

// errSilent: the read-only statement got no answer; it may still wait in the server.
var errSilent = errors.New("the read-only statement got no answer")

// blocked tells what kept the statement from being done.
func blocked(ctx context.Context, err error) error {
	switch number := serverNumber(err); {
	case number == errMaxStatement || number == errLockWait:
		return fmt.Errorf("%w: %w", errBlocked, err)
	case number == 0 && ctx.Err() != nil:
		return errSilent
	}
	return seen(ErrStillWritable, "%w", err)
}

// waits are the sessions that wait for an acknowledgement, with when they were first seen to.
type waits map[session]time.Time

// note keeps those that wait now, and says whether there are any and all have waited for hungAfter: nobody acknowledges.
func (w waits) note(list []session, now time.Time) (hung bool) {
	maps.DeleteFunc(w, func(s session, _ time.Time) bool { return !slices.Contains(list, s) })
	hung = true
	for _, s := range list {
		if !s.awaits() {
			continue
		}
		if _, known := w[s]; !known {
			w[s] = now
		}
		hung = hung && now.Sub(w[s]) >= hungAfter
	}
	return hung && len(w) > 0
}

// hungAfter is ten times what an acknowledgement takes on a busy machine.
const hungAfter = 50 * time.Millisecond

// holderExtra is how much longer than the step the server lets the second statement wait. It must outlast every delay between a look and
// the KILL that rests on it, and a process that is frozen for longer than this has lost its term.
const holderExtra = 10 * time.Second

// clear tries again on a second connection, and while that holds every new write up, kills what it waits for.
//
// The order of killing decides whether acknowledged data is lost. Commits go in groups, and one session waits for the acknowledgement of
// its whole group: when it is killed, the *other clients of the group are told "committed"* (measured, 10.11.19: one KILL, five
// clients). So those that wait are killed last, when all others are dead and can be told nothing; and only when nobody acknowledges:
// else commits end by themselves, and none is killed.
//
// All others are those of the first look at which the statement pends. Nobody who comes later can join a group, for the pending statement
// lets no write begin; and an application comes again at once, so that waiting for all to be dead would never end.
func (c *Conn) clear(ctx context.Context, check Check, waiting waits, f *Fenced) error {
	holder, err := c.server.Connect(ctx)
	if err != nil {
		return seen(ErrStillWritable, "%w", err)
	}
	defer holder.Close()
	if err := check(); err != nil {
		return fmt.Errorf("%w: %w", ErrStaleStep, err)
	}
	inner, cancel := keepBack(ctx)
	defer cancel()
	limit := holderExtra
	if deadline, ok := ctx.Deadline(); ok {
		limit += time.Until(deadline)
	}
	sql, _ := c.dialect.readOnlySQL(limit)
	done := make(chan struct{})
	var herr error
	go func() {
		defer close(done)
		_, herr = holder.query(inner, sql)
	}()
	b := blockers{holder: holder.id, waiting: waiting}
	kerr := until(inner, func() (bool, error) {
		select {
		case <-done:
			return true, nil
		default:
			return false, c.killBlockers(ctx, check, &b, f)
		}
	})
	cancel()
	<-done
	if herr == nil {
		return nil
	}
	// It got no answer in time, or killing failed: it must not take effect later.
	if _, err := c.kill(ctx, check, func(s session) bool { return s.id == holder.id }); err != nil {
		herr = errors.Join(herr, ErrUnproven, err)
	}
	return seen(ErrStillWritable, "%w; %w", herr, stillThere(kerr, b.alive))
}

// blockers are what a pending read-only statement may wait for.
type blockers struct {
	holder  uint64 // the statement's connection
	waiting waits
	first   []uint64  // the clients of the first look at which the statement pends, never nil after it
	alive   []session // those of first that were not yet killed at the last look
}

// see takes one look at the process list, and says whether the statement pends and whether commits hang.
func (b *blockers) see(list []session, isClient func(session) bool) (pends, hung bool) {
	hung = b.waiting.note(list, time.Now())
	pends = slices.ContainsFunc(list, func(s session) bool { return s.id == b.holder && strings.HasPrefix(s.state, "Waiting") })
	if pends && b.first == nil {
		b.first = append([]uint64{}, ids(list, isClient)...)
	}
	b.alive = slices.DeleteFunc(remaining(slices.Clone(list), b.first), func(s session) bool { return s.command == "Killed" })
	return pends, hung
}

// killBlockers looks once. When the holder's statement pends, it kills the clients that do not commit; when nobody acknowledges, those that
// commit, too; and when all these are dead, those that wait for an acknowledgement.
func (c *Conn) killBlockers(ctx context.Context, check Check, b *blockers, f *Fenced) error {
	list, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	pends, hung := b.see(list, c.isClient)
	if !pends {
		return nil
	}
	others := func(s session) bool { return !s.awaits() && (hung || !s.commits()) }
	alive := slices.DeleteFunc(list, func(s session) bool { return !c.isClient(s) || s.command == "Killed" })
	targets := ids(alive, others) // newcomers too: a read of theirs may hold the statement up
	if hung && len(ids(b.alive, others)) == 0 {
		targets = append(targets, ids(alive, session.awaits)...)
	}
	f.Killed += len(targets)
	return c.sendKills(ctx, check, targets)
}

// settle kills the clients that were running something when the instance became read-only (later ones are bound from their start), and
// looks until they are gone and two looks in a row agree on what is executed. The first look is before.
func (c *Conn) settle(ctx context.Context, check Check, before progress, busy []session, f *Fenced) error {
	all := func(session) bool { return true }
	if err := c.sendKills(ctx, check, ids(busy, all)); err != nil {
		return seen(ErrNotStable, "it is read-only; kill the sessions that were at work: %w", err)
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
		left = remaining(list, ids(busy, all))
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
	sets, err := c.exchange(ctx, sql)
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
