package check

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

var etcdChecks = []func(input) []Finding{checkStore, checkMembers, checkEtcdVersions, checkLease, checkDocuments}

var (
	etcdUnavailable = declare("ETCD_UNAVAILABLE", Critical,
		"Without etcd's quorum nothing can be decided: no switch starts, and a lease that ends is not renewed.",
		"Start the missing members, or open their ports; the text names what each endpoint answered.")
	etcdNotStarted = declare("ETCD_NOT_STARTED", Warning,
		"etcd runs inside the daemons, and no daemon runs. Before the first start that is as it should be; later it means that nobody decides and no lease is renewed.",
		"Start the daemons, then check again.")
	etcdMemberDown = declare("ETCD_MEMBER_DOWN", Warning,
		"The quorum holds without it. With one more member gone it may not.",
		"Start the member, or replace it.")
	etcdVersion = declare("ETCD_VERSION", Warning,
		"This version has known faults with leases or watches. Baton's safety rests on neither, but a watch that hangs makes it slow.",
		"Update to 3.4.38, 3.5.23, 3.6.5 or later.")
	etcdAlarm = declare("ETCD_ALARM", Critical,
		"etcd refuses writes or doubts its own data while an alarm stands, so no lease is renewed.",
		"NOSPACE: compact, defragment, then etcdctl alarm disarm. CORRUPT: replace the member.")
	etcdSlow = declare("ETCD_SLOW", Warning,
		"A renewal has D/8 for its answer and goes to the next endpoint after that; this endpoint was slower than half of it.",
		"Look at the member's disk (fsync) and at the network; do not stretch etcd over distances of more than a few milliseconds.")
	etcdLease = declare("ETCD_LEASE_TOO_SHORT", Critical,
		"The lease has to outlast a change of etcd's leader: D must be at least 1.2 times the gap in writes plus a renewal. Otherwise each change of leader silences the VIP.",
		"Use profile: steady, or embedded etcd, whose ticks follow the profile.")
	etcdTicks = declare("ETCD_TICKS_UNKNOWN", Info,
		"An existing etcd does not tell its election timeout. The profile steady outlasts etcd's defaults (heartbeat 100 ms, election 1 s).",
		"If its --election-timeout is longer than 1 s, lower it.")
	etcdDocument = declare("ETCD_BAD_DOCUMENT", Critical,
		"A key of this cluster holds what no version of Baton wrote, or a newer one did. It counts as absent.",
		"Find out who wrote it: another cluster of the same name, or a newer daemon. Do not delete it while a switch runs.")
	etcdUnread = declare("ETCD_UNREADABLE", Critical,
		"etcd answers, and the keys of this cluster cannot be read.",
		"Look at the user's roles and at the certificates.")
	etcdNobody = declare("ETCD_NO_ASSIGNMENT", Info,
		"Nobody serves yet.",
		"When the checks are clean, name the first site: baton switch --to SITE.")
)

func checkStore(in input) []Finding {
	e := in.facts.Etcd
	switch {
	case e.Err == nil:
		return nil
	case in.cfg.Etcd.Embedded != nil && allRefused(e.Members):
		return []Finding{etcdNotStarted.at("etcd", e.Err.Error())}
	}
	return []Finding{etcdUnavailable.at("etcd", e.Err.Error())}
}

// allRefused: every host of a member answers, and none has a member. A host that is silent is another matter.
func allRefused(members []Member) bool {
	for _, m := range members {
		if !m.Refused {
			return false
		}
	}
	return len(members) > 0
}

// checkMembers: a renewal has D/8 for its answer (PROTOCOL 2.4); half of it leaves room for a bad moment.
func checkMembers(in input) []Finding {
	var fs []Finding
	limit := in.cfg.Profile.Lease / 16
	for _, m := range in.facts.Etcd.Members {
		place := "etcd " + m.Endpoint
		if m.Err != nil {
			if in.facts.Etcd.Err == nil {
				fs = append(fs, etcdMemberDown.at(place, m.Err.Error()))
			}
			continue
		}
		if m.Took > limit {
			fs = append(fs, etcdSlow.at(place, fmt.Sprintf("answered after %s; half of D/8 is %s", ms(m.Took), ms(limit))))
		}
		for _, a := range m.Alarms {
			fs = append(fs, etcdAlarm.at(place, a))
		}
	}
	return fs
}

// good is the first release of each line without the faults (DESIGN 6).
var good = map[string]int{"3.4": 38, "3.5": 23, "3.6": 5}

func checkEtcdVersions(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Etcd.Members {
		if m.Err == nil && faultyEtcd(m.Version) {
			fs = append(fs, etcdVersion.at("etcd "+m.Endpoint, "version "+m.Version))
		}
	}
	return fs
}

// faultyEtcd: lines before the oldest one named are all faulty, lines after the newest are not.
func faultyEtcd(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	number, _, _ := strings.Cut(parts[2], "-")
	patch, err3 := strconv.Atoi(number)
	if err1 != nil || err2 != nil || err3 != nil {
		return false
	}
	if first, ok := good[parts[0]+"."+parts[1]]; ok {
		return patch < first
	}
	return major < 3 || major == 3 && minor < 4
}

// gapFactor is how many election timeouts a change of leader stops writes: 633 ms at most were measured with 300 ms (PROTOCOL 2.5).
const gapFactor = 2.2

// defaultElection is etcd's --election-timeout when nobody sets it.
const defaultElection = time.Second

func checkLease(in input) []Finding {
	e, d := in.cfg.Etcd, in.cfg.Profile.Lease
	election, whose := e.Election, "embedded etcd"
	if e.Embedded == nil {
		election, whose = defaultElection, "etcd with its default"
	}
	gap := time.Duration(gapFactor * float64(election))
	need := time.Duration(1.2 * float64(gap+d/10))
	var fs []Finding
	if d < need {
		f := etcdLease.at(in.cfg.Path, fmt.Sprintf("D is %s (profile %s); %s election timeout of %s stops writes for up to %s, so D must be at least %s", d, in.cfg.Profile.Name, whose, election, ms(gap), ms(need)))
		if e.Embedded == nil {
			f = f.as(Warning) // its ticks are not known
		}
		fs = append(fs, f)
	} else if e.Embedded == nil {
		fs = append(fs, etcdTicks.at("etcd", fmt.Sprintf("%d endpoints of an existing cluster", len(e.Endpoints))))
	}
	return fs
}

func checkDocuments(in input) []Finding {
	e := in.facts.Etcd
	if e.Err != nil {
		return nil
	}
	if e.ReadErr != nil {
		return []Finding{etcdUnread.at("etcd", e.ReadErr.Error())}
	}
	var fs []Finding
	for _, b := range e.Bad {
		fs = append(fs, etcdDocument.at("etcd", b))
	}
	if e.Assignment == nil {
		fs = append(fs, etcdNobody.at("etcd", "there is no assignment"))
	}
	return fs
}
