package mysql

import (
	"context"
	"fmt"
)

// schema is Baton's own database. heartbeat has one row per observer (one for all would make them wait for each other), epoch one row
// in all. Both are InnoDB: a heartbeat that no redo log has seen proves nothing.
var schema = []string{
	"CREATE DATABASE IF NOT EXISTS baton",
	`CREATE TABLE IF NOT EXISTS baton.heartbeat (observer VARCHAR(64) CHARACTER SET ascii NOT NULL PRIMARY KEY,
at_us BIGINT NOT NULL COMMENT 'microseconds since 1970 by the observer', seq BIGINT NOT NULL) ENGINE=InnoDB`,
	"CREATE TABLE IF NOT EXISTS baton.epoch (id TINYINT NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, `switch` VARCHAR(64) NOT NULL, " +
		"site VARCHAR(64) NOT NULL, at TIMESTAMP(6) NOT NULL) ENGINE=InnoDB",
}

// EnsureSchema creates the database baton and its tables where they are missing. It writes, so it belongs on the source alone: a replica
// gets them by replication, and one that makes its own has an errant transaction. It refuses one that replicates.
func EnsureSchema(ctx context.Context, c *Conn, check Check) error {
	p, err := c.progress(ctx)
	if err != nil {
		return err
	}
	if p.replica != nil && p.replica.SQLRunning == "Yes" {
		return fmt.Errorf("create schema baton on %s: %w", c.server.Addr, seen(ErrReplica, "it replicates from %s: create it there", p.replica.SourceHost))
	}
	return c.ensureSchema(ctx, check)
}

func (c *Conn) ensureSchema(ctx context.Context, check Check) error {
	for _, sql := range schema {
		if _, err := c.change(ctx, check, sql); err != nil {
			return fmt.Errorf("create schema baton on %s: %w", c.server.Addr, err)
		}
	}
	return nil
}

// writeEpoch raises baton.epoch to e, never lowers it, and reads it back. On the first instance of a cluster it creates the schema.
func (c *Conn) writeEpoch(ctx context.Context, check Check, e Epoch) error {
	err := c.putEpoch(ctx, check, e)
	if n := serverNumber(err); n == errNoSuchTable || n == errNoDatabase {
		if err := c.ensureSchema(ctx, check); err != nil {
			return err
		}
		err = c.putEpoch(ctx, check, e)
	}
	return err
}

// admits refuses an epoch that putEpoch would refuse, before anything is written. The schema may be missing: on the first instance of all.
func (c *Conn) admits(ctx context.Context, e Epoch) error {
	sets, err := c.exchange(ctx, "SELECT epoch, `switch`, site FROM baton.epoch WHERE id = 1")
	if n := serverNumber(err); n == errNoSuchTable || n == errNoDatabase {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read epoch: %w", err)
	}
	row, err := epochRow(sets)
	if err != nil || row == nil || row.Epoch < e.Epoch || *row == EpochRow(e) {
		return err
	}
	return refusedEpoch(row, e)
}

func refusedEpoch(row *EpochRow, e Epoch) error {
	return seen(ErrEpoch, "baton.epoch is %+v, this step's is %+v: the data has seen a later assignment; if a backup of etcd was restored, accept its state by hand", row, e)
}

func (c *Conn) putEpoch(ctx context.Context, check Check, e Epoch) error {
	// The assignments run from left to right: epoch must be the last, or the others would compare with the new one.
	sets, err := c.change(ctx, check, "INSERT INTO baton.epoch (id, epoch, `switch`, site, at) VALUES (1, ?, ?, ?, NOW(6)) "+
		"ON DUPLICATE KEY UPDATE `switch` = IF(epoch < VALUES(epoch), VALUES(`switch`), `switch`), "+
		"site = IF(epoch < VALUES(epoch), VALUES(site), site), at = IF(epoch < VALUES(epoch), VALUES(at), at), "+
		"epoch = GREATEST(epoch, VALUES(epoch)); SELECT epoch, `switch`, site FROM baton.epoch WHERE id = 1",
		e.Epoch, e.Switch, e.Site)
	if err != nil {
		return fmt.Errorf("write epoch: %w", err)
	}
	row, err := epochRow(sets)
	if err != nil {
		return err
	}
	if row == nil || *row != EpochRow(e) {
		return refusedEpoch(row, e)
	}
	return nil
}
