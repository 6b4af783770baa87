package mysql

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// Family is a server's kin: its words and its GTIDs.
type Family string

// The families.
const (
	MariaDB Family = "mariadb"
	MySQL   Family = "mysql"
)

// Status is what one instance says of itself, all that a plan, a readiness check or `baton check` asks.
type Status struct {
	Family   Family
	Version  string
	ServerID uint32
	UUID     string // server_uuid, or MariaDB's server_uid

	ReadOnly      bool
	SuperReadOnly bool // MySQL only

	Executed    gtid.Set // MariaDB: gtid_current_pos; MySQL: gtid_executed
	BinlogState gtid.Set // MariaDB: gtid_binlog_state, the set for errant checks; MySQL: gtid_executed again
	Received    gtid.Set // what the replica's IO thread has queued: Gtid_IO_Pos; MySQL: Retrieved_Gtid_Set
	Replica     *Replica // nil: no replication is configured
	Channels    int      // replication channels; steps work with at most one

	SemiSync          SemiSync
	LogReplicaUpdates bool
	GTIDStrict        bool // MariaDB: gtid_strict_mode; MySQL: gtid_mode = ON and enforce_gtid_consistency
	SyncBinlog        int
	FlushLog          int // innodb_flush_log_at_trx_commit
	SkipNameResolve   bool
	EventScheduler    string // ON, OFF, DISABLED
	AutoIncrement     AutoIncrement
	Uptime            time.Duration

	Epoch        *EpochRow // nil: the instance has no baton.epoch row, or the account may not read it
	ReplicaHosts []uint32  // server ids of the ackers that are connected now; nil when the account may not see them
}

// Replica is the state of the one replication channel.
type Replica struct {
	Channel    string
	Source     netip.AddrPort // zero when the source is configured by name
	SourceHost string
	IORunning  string // Yes, No, Connecting, Preparing
	SQLRunning string // Yes, No
	IOError    string // "1236 Got fatal error ...", empty: none
	SQLError   string
	Lag        *time.Duration // nil: unknown; the server says 0 also when a hung source sends nothing
	UsingGTID  bool
}

// SemiSync is the state of both halves of semi-synchronous replication.
type SemiSync struct {
	SourceEnabled bool // the variable
	SourceOn      bool // the status: commits wait now
	WaitPoint     string
	Timeout       time.Duration // how long a commit waits before it goes on without an acknowledgement
	WaitNoReplica bool
	WaitCount     int // acknowledgements that a commit needs; always 1 on MariaDB
	Clients       int
	Waiting       int // sessions that wait for an acknowledgement now

	ReplicaEnabled bool
	ReplicaOn      bool
}

// Lossless says whether a commit that was acknowledged to a client is on a replica: AFTER_SYNC, on, and a timeout that nobody
// outlives (PROTOCOL 6).
func (s SemiSync) Lossless() bool {
	return s.SourceEnabled && s.SourceOn && s.WaitPoint == "AFTER_SYNC" && s.WaitNoReplica && s.Timeout >= maxSemiSync
}

// maxSemiSync is the longest semi-sync timeout that both families take: 2^32-1 ms, 49 days.
const maxSemiSync = 4294967295 * time.Millisecond

// AutoIncrement are the two settings that keep the keys of a dual-master pair apart.
type AutoIncrement struct {
	Increment, Offset int
}

// EpochRow is the row of baton.epoch: the last assignment that this instance's data has seen. It travels by replication.
type EpochRow Epoch

// Status reads the whole state in three round trips. What the account may not see (epoch, ackers) stays empty; anything else that
// cannot be read is an error. Every query has Server.Timeout: one that blocks is evidence by itself.
func (c *Conn) Status(ctx context.Context) (Status, error) {
	sets, err := c.exchange(ctx, c.dialect.statusSQL())
	if err != nil {
		return Status{}, fmt.Errorf("read status of %s: %w", c.server.Addr, err)
	}
	st, err := c.dialect.readStatus(sets)
	if err != nil {
		return Status{}, fmt.Errorf("read status of %s: %w", c.server.Addr, err)
	}
	st.Version = c.version.text
	if st.Epoch, err = c.epoch(ctx); err != nil {
		return Status{}, err
	}
	sets, err = c.exchange(ctx, c.dialect.ackersSQL())
	if err != nil && serverNumber(err) != errPrivilege {
		return Status{}, fmt.Errorf("read replicas of %s: %w", c.server.Addr, err)
	}
	for _, set := range sets {
		for _, r := range set {
			id, err := strconv.ParseUint(r["Server_id"]+r["Server_Id"], 10, 32)
			if err != nil {
				return Status{}, fmt.Errorf("read replicas of %s: %w", c.server.Addr, err)
			}
			st.ReplicaHosts = append(st.ReplicaHosts, uint32(id))
		}
	}
	return st, nil
}

// epoch reads baton.epoch; nil when there is no table, no row or no right.
func (c *Conn) epoch(ctx context.Context) (*EpochRow, error) {
	sets, err := c.exchange(ctx, "SELECT epoch, `switch`, site FROM baton.epoch WHERE id = 1")
	switch serverNumber(err) {
	case errNoSuchTable, errNoDatabase, errTableDenied, errSchemaDenied:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read epoch of %s: %w", c.server.Addr, err)
	}
	return epochRow(sets)
}

func epochRow(sets [][]row) (*EpochRow, error) {
	if len(sets) != 1 || len(sets[0]) == 0 {
		return nil, nil
	}
	r := sets[0][0]
	n, err := strconv.ParseInt(r["epoch"], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read epoch: %w", err)
	}
	return &EpochRow{Epoch: n, Switch: r["switch"], Site: r["site"]}, nil
}

// progress is the small part of the state that steps read again and again: one round trip, no counters of the whole server.
type progress struct {
	readOnly bool
	executed gtid.Set
	state    gtid.Set
	received gtid.Set
	replica  *Replica
	channels int
}

// look reads the progress and the process list in one round trip.
func (c *Conn) look(ctx context.Context) (progress, []session, error) {
	sets, err := c.exchange(ctx, listSQL+"; "+c.dialect.progressSQL())
	if err != nil {
		return progress{}, nil, fmt.Errorf("look at %s: %w", c.server.Addr, err)
	}
	return c.readLook(sets)
}

func (c *Conn) readLook(sets [][]row) (progress, []session, error) {
	if len(sets) < 2 {
		return progress{}, nil, fmt.Errorf("look at %s: %d result sets", c.server.Addr, len(sets))
	}
	list, err := readSessions(sets[0])
	if err != nil {
		return progress{}, nil, fmt.Errorf("look at %s: %w", c.server.Addr, err)
	}
	p, err := c.dialect.readProgress(sets[1:])
	if err != nil {
		return progress{}, nil, fmt.Errorf("look at %s: %w", c.server.Addr, err)
	}
	return p, list, nil
}

func (c *Conn) progress(ctx context.Context) (progress, error) {
	p, _, err := c.look(ctx)
	return p, err
}

// soleReplica refuses what the steps cannot handle: no replication, or several channels of which only one is the pair's.
func (p progress) soleReplica() (*Replica, error) {
	switch {
	case p.channels > 1:
		return nil, seen(ErrReplica, "%d replication channels are configured; Baton cannot tell which is the pair's: remove the others", p.channels)
	case p.replica == nil:
		return nil, seen(ErrReplica, "no replication is configured: this instance follows nobody; rejoin it first")
	}
	return p.replica, nil
}

// num reads a number of a row; an absent or odd one is an error, collected in err.
func (r row) num(name string, err *error) int {
	n, perr := strconv.ParseInt(r[name], 10, 64)
	if perr != nil && *err == nil {
		*err = fmt.Errorf("read %s %q: %w", name, r[name], perr)
	}
	return int(n)
}

// on reads a switch of a row: 1, ON, YES.
func (r row) on(name string) bool {
	switch r[name] {
	case "1", "ON", "YES", "Yes":
		return true
	}
	return false
}

// set reads a GTID set of a row.
func (r row) set(kind gtid.Kind, name string, err *error) gtid.Set {
	s, perr := gtid.Parse(kind, r[name])
	if perr != nil && *err == nil {
		*err = fmt.Errorf("read %s: %w", name, perr)
	}
	return s
}

// byName turns rows of (name, value) into one row.
func byName(set []row) row {
	out := row{}
	for _, r := range set {
		out[r["Variable_name"]] = r["Value"]
	}
	return out
}

// replicaRow reads the columns of SHOW ... STATUS; source and replica are the dialect's words for the two sides.
func replicaRow(r row, source, replica, channel string) *Replica {
	out := &Replica{
		Channel: r[channel], SourceHost: r[source+"_Host"],
		IORunning: r[replica+"_IO_Running"], SQLRunning: r[replica+"_SQL_Running"],
		IOError: numbered(r, "Last_IO_Err"), SQLError: numbered(r, "Last_SQL_Err"),
	}
	addr, err1 := netip.ParseAddr(r[source+"_Host"])
	port, err2 := strconv.ParseUint(r[source+"_Port"], 10, 16)
	if err1 == nil && err2 == nil {
		out.Source = netip.AddrPortFrom(addr, uint16(port))
	}
	if lag, err := strconv.ParseInt(r["Seconds_Behind_"+source], 10, 64); err == nil {
		d := time.Duration(lag) * time.Second
		out.Lag = &d
	}
	return out
}

// numbered joins Last_..._Errno and Last_..._Error.
func numbered(r row, stem string) string {
	if r[stem+"no"] == "0" || r[stem+"no"] == "" {
		return ""
	}
	return r[stem+"no"] + " " + r[stem+"or"]
}
