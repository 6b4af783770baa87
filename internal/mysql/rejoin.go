package mysql

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// Replication says whom a replica follows and as whom.
type Replication struct {
	Addr    netip.AddrPort
	Account Account
	TLS     bool
}

// Rejoined is the evidence of a rejoin.
type Rejoined struct {
	Executed gtid.Set // here, when replication ran
	Changed  bool     // the source was set; false: it was being followed already
	Took     time.Duration
}

// Rejoin makes an old source, or any instance that stands aside, a replica of source, whose executed GTIDs for errant checks are
// current (Status.BinlogState, read after the promotion). In this order: read-only and nothing in flight, errant transactions refused
// (*ErrantError names them), source half of semi-sync off and replica half on, replication from where its own data ends, both threads
// running. It never deletes a relay log that holds what is not applied. It is idempotent.
//
// On MariaDB "errant" compares per (domain, server) of gtid_binlog_state, old <= new (PROTOCOL 6). An instance that was seeded from a
// backup must have been given the backup's gtid_binlog_state, or its source looks errant to it later.
func (c *Conn) Rejoin(ctx context.Context, check Check, source Replication, current gtid.Set) (Rejoined, error) {
	start := time.Now()
	out, err := c.rejoin(ctx, check, source, current)
	if err != nil {
		return Rejoined{}, fmt.Errorf("rejoin %s to %s: %w", c.server.Addr, source.Addr, err)
	}
	out.Took = time.Since(start)
	return out, nil
}

func (c *Conn) rejoin(ctx context.Context, check Check, source Replication, current gtid.Set) (Rejoined, error) {
	var out Rejoined
	if _, err := c.FenceWrites(ctx, check); err != nil {
		return out, err
	}
	if err := c.KillClients(ctx, check); err != nil {
		return out, err
	}
	p, err := c.progress(ctx)
	if err != nil {
		return out, err
	}
	if p.channels > 1 {
		_, err := p.soleReplica()
		return out, err
	}
	if errant := gtid.Errant(p.state, current); !errant.Empty() {
		return out, &ErrantError{GTIDs: errant}
	}
	if err := c.replicaHalf(ctx, check); err != nil {
		return out, err
	}
	// A former source that stands has its position in its binlog only: it must be told, also when its source is configured already.
	if r := p.replica; r == nil || r.Source != source.Addr || !r.UsingGTID || r.IORunning == "No" && r.SQLRunning == "No" {
		if err := c.follow(ctx, check, p, source, current); err != nil {
			return out, err
		}
		out.Changed = true
	}
	if err := c.RestartIO(ctx, check); err != nil {
		return out, err
	}
	if p, err = c.progress(ctx); err != nil {
		return out, err
	}
	out.Executed = p.executed
	return out, nil
}

// replicaHalf turns the source half of semi-sync off and the replica half on.
func (c *Conn) replicaHalf(ctx context.Context, check Check) error {
	sets, err := c.exchange(ctx, c.dialect.quietSQL())
	if err != nil {
		return fmt.Errorf("read semi-sync: %w", err)
	}
	if sets[0][0].on("source_half") {
		if err := c.sourceHalfOff(ctx, check); err != nil {
			return err
		}
	}
	if _, err := c.change(ctx, check, c.dialect.semiSyncReplicaOnSQL()); err != nil {
		return fmt.Errorf("turn the replica half of semi-sync on: %w", err)
	}
	return nil
}

// follow points the replica at its new source, which deletes the relay log: what was received from the old one must be applied before,
// unless the new source has it.
func (c *Conn) follow(ctx context.Context, check Check, p progress, source Replication, current gtid.Set) error {
	name := ""
	if r := p.replica; r != nil {
		name = r.Channel
		cut, err := c.Cut(ctx, check)
		if err != nil {
			return err
		}
		if !current.Contains(cut.Received) {
			if _, err := c.CatchUp(ctx, check, gtid.Set{}); err != nil {
				return err
			}
		}
		if _, err := c.change(ctx, check, c.dialect.stopSQL(name)); err != nil {
			return fmt.Errorf("stop the replica: %w", err)
		}
	}
	if sql := c.dialect.adoptPositionSQL(); sql != "" {
		if _, err := c.change(ctx, check, sql); err != nil {
			return fmt.Errorf("adopt the position of its own binlog: %w", err)
		}
	}
	sql, args := c.dialect.changeSourceSQL(name, source)
	if _, err := c.change(ctx, check, sql, args...); err != nil {
		return fmt.Errorf("change the source: %w", err)
	}
	return nil
}

// StandAlone ends the replication that a source has begun by itself: one that was promoted keeps its replica configuration, as the way back,
// and without skip-slave-start it follows its old source again after a restart. What was received is applied first. Nothing is deleted.
// ErrBehind when the applier does not get there.
func (c *Conn) StandAlone(ctx context.Context, check Check) error {
	p, err := c.progress(ctx)
	if err != nil || p.channels == 0 {
		return err
	}
	r, err := p.soleReplica()
	if err != nil {
		return fmt.Errorf("end the replication of %s: %w", c.server.Addr, err)
	}
	if _, err := c.Cut(ctx, check); err != nil {
		return err
	}
	if _, err := c.CatchUp(ctx, check, gtid.Set{}); err != nil {
		return err
	}
	if _, err := c.change(ctx, check, c.dialect.stopSQL(r.Channel)); err != nil {
		return fmt.Errorf("end the replication of %s: stop the replica: %w", c.server.Addr, err)
	}
	return nil
}

// ArmSemiSync turns lossless semi-sync on at the source once clients replicas run: AFTER_SYNC, the longest timeout, no going on without
// a replica; and waits until the status is ON with that many clients. It refuses when fewer are connected: every commit would hang.
func (c *Conn) ArmSemiSync(ctx context.Context, check Check, clients int) error {
	if err := c.waitSemiSync(ctx, clients, false); err != nil {
		return fmt.Errorf("arm semi-sync of %s: %w", c.server.Addr, err)
	}
	if _, err := c.change(ctx, check, c.dialect.semiSyncSourceOnSQL()); err != nil {
		return fmt.Errorf("arm semi-sync of %s: %w", c.server.Addr, err)
	}
	return c.WaitSemiSyncOn(ctx, clients)
}

// WaitSemiSyncOn waits until commits of this source wait for an acknowledgement losslessly and clients replicas can give one.
func (c *Conn) WaitSemiSyncOn(ctx context.Context, clients int) error {
	if err := c.waitSemiSync(ctx, clients, true); err != nil {
		return fmt.Errorf("wait for semi-sync of %s: %w", c.server.Addr, err)
	}
	return nil
}

func (c *Conn) waitSemiSync(ctx context.Context, clients int, on bool) error {
	var last SemiSync
	err := until(ctx, func() (bool, error) {
		sets, err := c.exchange(ctx, c.dialect.statusSQL())
		if err != nil {
			return false, err
		}
		st, err := c.dialect.readStatus(sets)
		if err != nil {
			return false, err
		}
		last = st.SemiSync
		return last.Clients >= clients && (!on || last.Lossless()), nil
	})
	if err != nil && !errors.Is(err, ErrSemiSync) {
		return seen(ErrSemiSync, "%d of %d replicas acknowledge, enabled %t, status on %t, %s, timeout %v: see that the replicas run with their half enabled; %w",
			last.Clients, clients, last.SourceEnabled, last.SourceOn, last.WaitPoint, last.Timeout, err)
	}
	return err
}
