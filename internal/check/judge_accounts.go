package check

import (
	"slices"
	"strings"

	"github.com/baton-ha/baton/internal/cluster"
)

var accountChecks = []func(input) []Finding{checkProbeAccount, checkAdminAccount, checkBackendAccounts, checkOtherAccounts, checkEvents, checkGaps}

var (
	probeTooStrong = declare("MYSQL_PROBE_TOO_STRONG", Critical,
		"read_only does not stop the probe account: its heartbeat would write on an instance that a switch has just fenced, and make it errant.",
		"REVOKE SUPER and READ ONLY ADMIN from it, also where it has them by a role; docs/accounts.md has the few privileges that it needs.")
	adminTooWeak = declare("MYSQL_ADMIN_GRANTS", Critical,
		"The admin account cannot do its part of a switch. It would be found out in the middle of one.",
		"GRANT what is missing ON *.* to the account; docs/accounts.md has all statements.")
	backendPasses = declare("MYSQL_BACKEND_PASSES_READ_ONLY", Critical,
		"Mycat writes with an account that read_only does not stop. A fenced instance would go on taking writes through the old Mycat.",
		"REVOKE SUPER and READ ONLY ADMIN from the account; Mycat needs neither.")
	othersPass = declare("MYSQL_ACCOUNT_PASSES_READ_ONLY", Warning,
		"An application or a tool with this account can write on a fenced instance. That there is never a second writer is claimed only for accounts that read_only stops.",
		"REVOKE SUPER and READ ONLY ADMIN where an application uses the account; keep them for people only.")
	eventPasses = declare("MYSQL_EVENT_PASSES_READ_ONLY", Critical,
		"The event runs by itself as a definer that read_only does not stop: a fenced instance would write by its own clock.",
		"ALTER EVENT with a DEFINER that has neither SUPER nor READ ONLY ADMIN.")
	mysqlUnread = declare("MYSQL_UNREAD", Warning,
		"The admin account may not read this, so nothing is known about it.",
		"GRANT what docs/accounts.md has for the admin account; SELECT ON mysql.* is what lists the accounts that pass read_only.")
)

func checkProbeAccount(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		if x.Probe.Err == nil && slices.Contains(x.Passes, x.Probe.Name) {
			fs = append(fs, probeTooStrong.at(mysqlPlace(x), x.Probe.Name+" passes read_only"))
		}
	}
	return fs
}

func checkAdminAccount(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		if len(x.Lacks) > 0 {
			fs = append(fs, adminTooWeak.at(mysqlPlace(x), x.Admin.Name+" lacks "+strings.Join(x.Lacks, "; ")))
		}
	}
	return fs
}

// backends are the accounts that the proxies use, by site and shard, as the servers themselves told through them.
func (in input) backends() map[cluster.SiteName]map[cluster.ShardName]string {
	users := map[cluster.SiteName]map[cluster.ShardName]string{}
	for _, m := range in.facts.Mycats {
		users[m.Site] = map[cluster.ShardName]string{}
		for _, r := range m.Shards {
			if r.Err == nil {
				users[m.Site][r.Shard] = r.User
			}
		}
	}
	return users
}

// sameAccount compares "mycat@10.77.%", as current_user() gives it, with "'mycat'@'10.77.%'", as the grants have it.
func sameAccount(current, account string) bool {
	return current != "" && strings.ReplaceAll(account, "'", "") == current
}

func checkBackendAccounts(in input) []Finding {
	var fs []Finding
	users := in.backends()
	for _, x := range in.answered() {
		for _, a := range x.Passes {
			if sameAccount(users[x.Site][x.Shard], a) {
				fs = append(fs, backendPasses.at(mysqlPlace(x), a+" passes read_only, and the site's Mycat uses it"))
			}
		}
	}
	return fs
}

// checkOtherAccounts leaves out what only people at the server use: an account that is bound to its own host.
func checkOtherAccounts(in input) []Finding {
	var fs []Finding
	users := in.backends()
	for _, x := range in.answered() {
		for _, a := range x.Passes {
			local := strings.HasSuffix(a, "@'localhost'") || strings.HasSuffix(a, "@'127.0.0.1'") || strings.HasSuffix(a, "@'::1'")
			if !local && a != x.Admin.Name && a != x.Probe.Name && !sameAccount(users[x.Site][x.Shard], a) {
				fs = append(fs, othersPass.at(mysqlPlace(x), a+" passes read_only"))
			}
		}
	}
	return fs
}

func checkEvents(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		for _, e := range x.Events {
			if slices.Contains(x.Passes, e.Definer) {
				fs = append(fs, eventPasses.at(mysqlPlace(x), "event "+e.Name+" of "+e.Definer))
			}
		}
	}
	return fs
}

func checkGaps(in input) []Finding {
	var fs []Finding
	for _, x := range in.answered() {
		for _, gap := range x.Gaps {
			fs = append(fs, mysqlUnread.at(mysqlPlace(x), gap.Error()))
		}
	}
	return fs
}
