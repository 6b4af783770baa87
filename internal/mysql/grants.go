package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// adminPrivileges is what baton_admin needs, and for what, by family. MySQL: 8.0 and later; 5.7 has SUPER for all of them.
var adminPrivileges = map[Family][]privilege{
	MariaDB: {
		{"READ_ONLY ADMIN", "fence, and write the epoch while clients cannot"},
		{"CONNECTION ADMIN", "kill sessions; log in when connections are used up"},
		{"PROCESS", "see sessions"},
		{"REPLICATION SLAVE ADMIN", "stop, start, change the replica; its half of semi-sync"},
		{"REPLICATION MASTER ADMIN", "the source half of semi-sync; see who acknowledges"},
		{"SLAVE MONITOR", "see the replica's state"},
		{"RELOAD", "forget the configuration of a stopped replica"},
		{"SUPER", "stop the event scheduler; it does not pass read_only since 10.11"},
	},
	MySQL: {
		{"SYSTEM_VARIABLES_ADMIN", "fence, semi-sync, event scheduler"},
		{"CONNECTION_ADMIN", "kill sessions; pass read_only for the epoch; log in when connections are used up"},
		{"PROCESS", "see sessions"},
		{"REPLICATION_SLAVE_ADMIN", "stop, start, change the replica"},
		{"REPLICATION CLIENT", "see the replica's state"},
		{"REPLICATION SLAVE", "see who acknowledges"},
		{"RELOAD", "forget the configuration of a stopped replica"},
	},
}

type privilege struct{ name, purpose string }

// Grants returns the statements that create Baton's two accounts with what they need and no more, for the README and for `check`.
// Passwords are the caller's; host is the pattern of the hosts that Baton runs on, "10.0.0.%". SELECT on mysql.* is for `check`, which
// lists the accounts that pass read_only.
func Grants(family Family, host string, admin, probe Account) []string {
	at := func(a Account) string { return quote(a.User) + "@" + quote(host) }
	names := make([]string, 0, len(adminPrivileges[family]))
	for _, p := range adminPrivileges[family] {
		names = append(names, p.name)
	}
	monitor := "SLAVE MONITOR"
	if family == MySQL {
		monitor = "REPLICATION CLIENT"
	}
	return []string{
		"CREATE USER IF NOT EXISTS " + at(admin) + " IDENTIFIED BY " + quote(admin.Password),
		"GRANT " + strings.Join(names, ", ") + " ON *.* TO " + at(admin),
		"GRANT SELECT ON mysql.* TO " + at(admin),
		"GRANT CREATE, SELECT, INSERT, UPDATE ON baton.* TO " + at(admin),
		"CREATE USER IF NOT EXISTS " + at(probe) + " IDENTIFIED BY " + quote(probe.Password),
		"GRANT " + monitor + " ON *.* TO " + at(probe),
		"GRANT SELECT, INSERT, UPDATE ON baton.* TO " + at(probe),
	}
}

// Rights is what `check` asks of the accounts of an instance.
type Rights struct {
	Lacks   []string // what this connection's account lacks, each with its purpose
	Passing []string // accounts that read_only does not bind, as 'user'@'host'; roles are named too
}

// Rights reads what this connection's account (baton_admin) lacks, and who passes read_only.
func (c *Conn) Rights(ctx context.Context) (Rights, error) {
	sets, err := c.exchange(ctx, "SELECT PRIVILEGE_TYPE AS p FROM information_schema.user_privileges WHERE GRANTEE = "+
		"CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')")
	if err != nil {
		return Rights{}, fmt.Errorf("read privileges on %s: %w", c.server.Addr, err)
	}
	var have []string
	for _, r := range sets[0] {
		have = append(have, r["p"])
	}
	var out Rights
	for _, p := range adminPrivileges[c.version.family] {
		super := c.version.family == MySQL && slices.Contains(have, "SUPER") // before 8.0 it holds all the others
		if !slices.Contains(have, p.name) && !super {
			out.Lacks = append(out.Lacks, p.name+": "+p.purpose)
		}
	}
	out.Passing, err = c.passing(ctx)
	return out, err
}
