package mycat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Severity is how bad a finding is.
type Severity string

// The severities. With a critical finding automatic switching is not safe.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// Finding is one thing in Mycat's configuration files that works against a switch from outside.
type Finding struct {
	Code     string   // never changes: "MYCAT_SWITCH_TYPE"
	Severity Severity // of a switch made with it as it is
	Place    string   // "schema.xml dataHost dh1"
	Seen     string   // what the file says
	Means    string   // what follows from it
	Do       string   // what to change
}

// enoughExecutors is the least processorExecutor that is not remarked on: each statement to a dataHost that is not up holds one thread
// for up to 60 s, and the default of twice the cores was used up by one probe a second.
const enoughExecutors = 32

// Lint says what of schema.xml works against a switch from outside. The live tables of 9066 show writeHosts and INDEX, but neither
// switchType nor notSwitch: for those the file is the only source.
func (f SchemaFile) Lint() []Finding {
	var out []Finding
	names := map[string]string{}
	for _, dh := range f.DataHosts {
		place := "schema.xml dataHost " + dh.Name
		out = append(out, dh.lint(place)...)
		for _, w := range dh.WriteHosts {
			for _, h := range append([]HostFile{w}, w.ReadHosts...) {
				if other, twice := names[h.Name]; twice {
					out = append(out, Finding{
						"MYCAT_HOST_TWICE", Warning, place, fmt.Sprintf("host %q is also in dataHost %s", h.Name, other),
						"Mycat's heartbeat table knows hosts by name alone: the two cannot be told apart.",
						"Give every writeHost and readHost of the file a name of its own.",
					})
				}
				names[h.Name] = dh.Name
			}
		}
	}
	return out
}

func (dh DataHostFile) lint(place string) []Finding {
	var out []Finding
	add := func(code string, s Severity, seen, means, do string) {
		out = append(out, Finding{code, s, place, seen, means, do})
	}
	several := len(dh.WriteHosts) > 1
	worst := func() Severity { // what is only a trap with one writeHost is a second master with several
		if several {
			return Critical
		}
		return Warning
	}
	if len(dh.WriteHosts) != 1 {
		add("MYCAT_WRITE_HOSTS", Critical, fmt.Sprintf("%d writeHosts: %s", len(dh.WriteHosts), strings.Join(hostNames(dh.WriteHosts), ", ")),
			"Mycat may write to another server than the site's own, without fence or agreement.",
			"Leave exactly one writeHost: the site's own instance of the shard.")
	}
	switch dh.SwitchType {
	case "-1":
	case "":
		add("MYCAT_SWITCH_TYPE", Info, "switchType is not given", "Mycat's code takes -1 (never), its documentation says 1.",
			`Write switchType="-1".`)
	default:
		add("MYCAT_SWITCH_TYPE", worst(), fmt.Sprintf("switchType=%q", dh.SwitchType),
			"Mycat switches by itself: 26 to 149 s late, unfenced, and forgotten at a restart.", `Set switchType="-1".`)
	}
	if dh.NotSwitch != "1" {
		add("MYCAT_NOT_SWITCH", Warning, fmt.Sprintf("notSwitch=%q", dh.NotSwitch),
			"Only switchType stands between a false heartbeat and Mycat's own switch.", `Set notSwitch="1".`)
	}
	if dh.WriteType != "" && dh.WriteType != "0" {
		add("MYCAT_WRITE_TYPE", worst(), fmt.Sprintf("writeType=%q", dh.WriteType),
			"Mycat writes to a random writeHost (1), or to none (2).", `Set writeType="0".`)
	}
	return out
}

func hostNames(hosts []HostFile) []string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

// Lint says what of server.xml works against a switch from outside.
func (f ServerFile) Lint() []Finding {
	var out []Finding
	add := func(code string, s Severity, place, seen, means, do string) {
		out = append(out, Finding{code, s, "server.xml " + place, seen, means, do})
	}
	if ip := property(f.Properties, "bindIp"); ip != "" && ip != "0.0.0.0" {
		add("MYCAT_BIND", Critical, "bindIp", "bindIp = "+ip, "Mycat does not answer on the VIP when it comes.",
			"Set bindIp to 0.0.0.0, or remove it.")
	}
	if text := property(f.Properties, "processorExecutor"); text == "" {
		add("MYCAT_EXECUTOR", Warning, "processorExecutor", "processorExecutor is not given: twice the cores",
			"All SQL of both ports runs on these threads; one hanging shard can take them all.", "Set processorExecutor to 64 or more.")
	} else if n, err := strconv.Atoi(text); err != nil || n < enoughExecutors {
		add("MYCAT_EXECUTOR", Warning, "processorExecutor", "processorExecutor = "+text,
			"All SQL of both ports runs on these threads; one hanging shard can take them all.", "Set processorExecutor to 64 or more.")
	}
	if v := property(f.Properties, "useZKSwitch"); strings.EqualFold(v, "true") {
		add("MYCAT_ZK_SWITCH", Critical, "useZKSwitch", "useZKSwitch = "+v,
			"Mycat follows switches that are written to ZooKeeper: a second controller beside Baton.", "Set useZKSwitch to false.")
	}
	return out
}

// LintUser says whether server.xml lets Baton's own account do what its probes need: log in, see the schema, and write by hint.
func (f ServerFile) LintUser(user, schema string) []Finding {
	i := slices.IndexFunc(f.Users, func(u UserFile) bool { return u.Name == user })
	if i < 0 {
		return []Finding{{
			"MYCAT_USER", Critical, "server.xml user " + user, "there is no such user", "Baton's probes cannot log in.",
			"Add the user with the schema " + schema + ".",
		}}
	}
	var out []Finding
	place := "server.xml user " + user
	if v := property(f.Users[i].Properties, "readOnly"); strings.EqualFold(v, "true") {
		out = append(out, Finding{
			"MYCAT_USER_READ_ONLY", Critical, place, "readOnly = " + v, "The write probe gets 1495, and never sees a full disk or a lock.",
			"Remove readOnly from this user; it protects nothing on 9066.",
		})
	}
	schemas := strings.FieldsFunc(property(f.Users[i].Properties, "schemas"), func(r rune) bool { return r == ',' || r == ' ' })
	if !slices.Contains(schemas, schema) {
		out = append(out, Finding{
			"MYCAT_USER_SCHEMA", Critical, place, "schemas = " + strings.Join(schemas, ","), "The probe's login is refused (1044).",
			"Add " + schema + " to the user's schemas.",
		})
	}
	return out
}
