package mysql

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Inspection is what a preflight asks beyond Status: the settings and where they come from, every replication channel, and what runs by
// itself. It is slower than Status (it reads every variable) and is not for a beat.
type Inspection struct {
	Family       Family
	Version      string
	Major, Minor int
	Vars         map[string]string // global variables and the status of semi-sync, names in lower case
	Origins      map[string]Origin // of read_only and super_read_only
	Channels     []Channel         // every replication channel
	ReplicaIDs   []uint32          // server ids of the replicas that are connected now
	Events       []Event           // enabled ones
	NoTables     error             // why baton.epoch or baton.heartbeat cannot be read; nil: both are there
	Gaps         []error           // what else the account could not read
}

// Origin says where a variable has its value from.
type Origin string

// The origins. A value that was set at run time hides what the option file says.
const (
	FromNowhere   Origin = "compiled" // no option file and no command line names it
	FromFile      Origin = "file"     // an option file, the command line, or persisted by the server
	FromStatement Origin = "runtime"  // SET GLOBAL since the start
)

// Channel is one replication channel from its replica's side.
type Channel struct {
	Name       string
	Source     netip.AddrPort // zero when the source is configured by name
	SourceHost string
	SourceID   uint32 // server id of the source; 0: it never connected
	IO, SQL    bool   // the threads run; a connecting IO thread does not
	IOError    string
	SQLError   string
	GTID       bool
	Lag        *time.Duration // nil: unknown
	Delay      time.Duration  // on purpose
	Filters    []string       // the filters that are set, by their name
}

// Event is one event of the event scheduler.
type Event struct {
	Name    string // "bank.nightly"
	Definer string // as the grants have it, "'root'@'%'"
}

// Inspect reads everything that a preflight asks. It changes nothing. What the account may not read stands in Gaps; only a lost
// connection is an error.
func (c *Conn) Inspect(ctx context.Context) (Inspection, error) {
	in := Inspection{Family: c.version.family, Version: c.version.text, Major: c.version.major, Minor: c.version.minor}
	for _, part := range []struct {
		what string
		sql  string
		read func(sets [][]row) error
	}{
		{"variables", "SHOW GLOBAL VARIABLES; SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync%'", in.readVars},
		{"origins", c.originSQL(), in.readOrigins},
		{"replication", c.channelSQL(), in.readChannels},
		{"replicas", c.connectedSQL(), in.readReplicas},
		{"events", c.eventSQL(), in.readEvents},
	} {
		sets, err := c.exchange(ctx, part.sql)
		if err != nil && serverNumber(err) == 0 { // what was not read must not look as if it were empty
			return in, fmt.Errorf("inspect %s of %s: %w", part.what, c.server.Addr, err)
		}
		if err == nil {
			err = part.read(sets)
		}
		if err != nil {
			in.Gaps = append(in.Gaps, fmt.Errorf("read %s: %w", part.what, err))
		}
	}
	_, in.NoTables = c.exchange(ctx, "SELECT epoch FROM baton.epoch LIMIT 1; SELECT at_us FROM baton.heartbeat LIMIT 1")
	return in, nil
}

// Account is the account of this connection as the server knows it, "'baton_admin'@'10.77.%'": the one whose grants it has.
func (c *Conn) Account(ctx context.Context) (string, error) {
	sets, err := c.exchange(ctx, "SELECT CURRENT_USER() AS user")
	if err != nil || len(sets) != 1 || len(sets[0]) != 1 {
		return "", fmt.Errorf("read account on %s: %d result sets: %w", c.server.Addr, len(sets), err)
	}
	return quoteAccount(sets[0][0]["user"]), nil
}

// originSQL asks the server where read_only has its value from. MySQL 5.7 cannot say.
func (c *Conn) originSQL() string {
	if c.version.family == MariaDB {
		return "SELECT VARIABLE_NAME AS name, GLOBAL_VALUE_ORIGIN AS origin FROM information_schema.system_variables WHERE VARIABLE_NAME = 'READ_ONLY'"
	}
	return "SELECT VARIABLE_NAME AS name, VARIABLE_SOURCE AS origin FROM performance_schema.variables_info WHERE VARIABLE_NAME IN ('read_only', 'super_read_only')"
}

func (c *Conn) channelSQL() string {
	switch {
	case c.version.family == MariaDB:
		return "SHOW ALL SLAVES STATUS"
	case c.version.atLeast(8, 0, 22):
		return "SHOW REPLICA STATUS"
	}
	return "SHOW SLAVE STATUS"
}

// eventSQL reads the table behind information_schema.events, which hides the events of others from an account without EVENT. It
// matters on MariaDB alone: nobody passes super_read_only.
func (c *Conn) eventSQL() string {
	if c.version.family == MariaDB {
		return "SELECT db, name, definer FROM mysql.event WHERE status = 'ENABLED'"
	}
	return "SELECT 1 FROM DUAL WHERE FALSE"
}

func (c *Conn) connectedSQL() string {
	if c.version.family == MySQL && c.version.atLeast(8, 0, 22) {
		return "SHOW REPLICAS"
	}
	return "SHOW SLAVE HOSTS"
}

// quoteAccount writes user@host as the grants' tables do. A user's name may have an @, a host's cannot.
func quoteAccount(account string) string {
	i := strings.LastIndexByte(account, '@')
	if i < 0 {
		return "'" + account + "'"
	}
	return "'" + account[:i] + "'@'" + account[i+1:] + "'"
}

func (in *Inspection) readVars(sets [][]row) error {
	in.Vars = map[string]string{}
	for _, set := range sets {
		for name, value := range byName(set) {
			in.Vars[strings.ToLower(name)] = value
		}
	}
	return nil
}

// origins translates both families' words. A word that is not here tells nothing.
var origins = map[string]Origin{
	"COMPILE-TIME": FromNowhere, "COMPILED": FromNowhere,
	"CONFIG": FromFile, "COMMAND-LINE": FromFile, "GLOBAL": FromFile, "SERVER": FromFile, "EXPLICIT": FromFile, "EXTRA": FromFile,
	"USER": FromFile, "LOGIN": FromFile, "COMMAND_LINE": FromFile, "PERSISTED": FromFile,
	"SQL": FromStatement, "DYNAMIC": FromStatement,
}

func (in *Inspection) readOrigins(sets [][]row) error {
	in.Origins = map[string]Origin{}
	for _, r := range sets[0] {
		in.Origins[strings.ToLower(r["name"])] = origins[r["origin"]]
	}
	return nil
}

// filterColumns are the columns that say that not everything is replicated.
var filterColumns = []string{
	"Replicate_Do_DB", "Replicate_Ignore_DB", "Replicate_Do_Table", "Replicate_Ignore_Table",
	"Replicate_Wild_Do_Table", "Replicate_Wild_Ignore_Table", "Replicate_Do_Domain_Ids", "Replicate_Ignore_Domain_Ids",
}

func (in *Inspection) readChannels(sets [][]row) error {
	for _, r := range sets[0] {
		source, replica := "Master", "Slave"
		if _, modern := r["Source_Host"]; modern {
			source, replica = "Source", "Replica"
		}
		name := r["Connection_name"] + r["Channel_Name"]
		s := replicaRow(r, source, replica, "")
		ch := Channel{
			Name: name, Source: s.Source, SourceHost: s.SourceHost, IO: s.IORunning == "Yes", SQL: s.SQLRunning == "Yes",
			IOError: s.IOError, SQLError: s.SQLError, Lag: s.Lag,
			GTID: r["Auto_Position"] == "1" || r["Using_Gtid"] == "Slave_Pos" || r["Using_Gtid"] == "Current_Pos",
		}
		if id, err := strconv.ParseUint(r[source+"_Server_Id"], 10, 32); err == nil {
			ch.SourceID = uint32(id)
		}
		if delay, err := strconv.Atoi(r["SQL_Delay"]); err == nil {
			ch.Delay = time.Duration(delay) * time.Second
		}
		for _, column := range filterColumns {
			if r[column] != "" {
				ch.Filters = append(ch.Filters, column+" = "+r[column])
			}
		}
		in.Channels = append(in.Channels, ch)
	}
	return nil
}

func (in *Inspection) readReplicas(sets [][]row) error {
	for _, r := range sets[0] {
		id, err := strconv.ParseUint(r["Server_id"]+r["Server_Id"], 10, 32)
		if err != nil {
			return fmt.Errorf("read server id: %w", err)
		}
		in.ReplicaIDs = append(in.ReplicaIDs, uint32(id))
	}
	return nil
}

func (in *Inspection) readEvents(sets [][]row) error {
	for _, r := range sets[0] {
		in.Events = append(in.Events, Event{Name: r["db"] + "." + r["name"], Definer: quoteAccount(r["definer"])})
	}
	return nil
}
