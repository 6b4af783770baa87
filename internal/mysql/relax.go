package mysql

import (
	"context"
	"fmt"
)

// RelaxSemiSync turns the source half of semi-sync off at a source that serves and has no replica left to acknowledge its commits:
// sessions that wait are let go with what only this server has. The caller has recorded it as degraded before (PROTOCOL 6), and never
// calls it on a deposed source: there it would acknowledge what the new one lacks.
func (c *Conn) RelaxSemiSync(ctx context.Context, check Check) error {
	if _, err := c.change(ctx, check, c.dialect.semiSyncSourceOffSQL()); err != nil {
		return fmt.Errorf("relax semi-sync of %s: %w", c.server.Addr, err)
	}
	return nil
}

// MariaDB says whether the server is of that family: its GTID texts are positions, not intervals.
func (c *Conn) MariaDB() bool { return c.version.family == MariaDB }
