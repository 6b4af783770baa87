package health

// Cause is what a probe found. It is classified once, in the adapter that saw the error; nothing above parses error strings.
type Cause uint8

// The causes, after the code table of the field (MySQL error numbers, errno). The class decides what a cause does to the score.
const (
	OK            Cause = iota
	Refused             // ECONNREFUSED on dial
	Reset               // RST or EOF on an established connection
	Shutdown            // server error 1053
	Timeout             // no answer in the budget, of dial, greeting or statement
	NoGreeting          // connected, and no greeting in the budget
	Unreachable         // EHOSTUNREACH: nobody answers ARP
	Pending             // the previous probe of this target and factor is still unanswered at this beat
	WriteStall          // reads fine, the write hangs or waits for a lock (1205)
	Overload            // 1040 1041 1135 1203 1226 3024 1317: the server answers, it has no room
	Config              // 1044 1045 1049 1129 1130 1142 1698 3118 4151 TLS: our account, TLS or schema is wrong
	Role                // 1290 1792 1836 3032: read-only where a writer is expected
	WrongAnswer         // the business SQL answered something else than expected
	Data                // 1030 1034 1194 1812 1932 1146: a table is broken
	Stale               // the replicated heartbeat row, or the holder's renewal, is too old
	BackendDown         // Mycat answers: its backend is down (1184 refused, 1023, 1152)
	PoolExhausted       // Mycat answers: its pool is exhausted
	Protocol            // accept then close, or not MySQL's greeting
	Self                // our own fault: no route, no fds, no ports, late tick
	Cancelled           // the daemon is stopping
)

// Class groups causes by what they do.
type Class uint8

// The classes of faults.md 1.2.
const (
	ClassOK      Class = iota
	ClassHard          // process or host gone; probes run at the confirm spacing
	ClassSoft          // counts as one failure
	ClassStall         // its own slower rule
	ClassBusy          // answers, no room: alarm, never moves a writer
	ClassConfig        // never counts; freezes automatic switching for that probe
	ClassRole          // counts on the active site; repair or alarm
	ClassIgnored       // void: our own fault
)

type causeInfo struct {
	name  string
	class Class
}

var causes = [...]causeInfo{
	OK: {"ok", ClassOK}, Refused: {"refused", ClassHard}, Reset: {"reset", ClassHard}, Shutdown: {"shutdown", ClassHard},
	Timeout: {"timeout", ClassSoft}, NoGreeting: {"no-greeting", ClassSoft}, Unreachable: {"unreachable", ClassSoft},
	Pending: {"pending", ClassSoft}, WriteStall: {"write-stall", ClassStall}, Overload: {"overload", ClassBusy},
	Config: {"config", ClassConfig}, Role: {"role", ClassRole}, WrongAnswer: {"wrong-answer", ClassSoft}, Data: {"data", ClassSoft},
	Stale: {"stale", ClassSoft}, BackendDown: {"backend-down", ClassSoft}, PoolExhausted: {"pool-exhausted", ClassBusy},
	Protocol: {"protocol", ClassSoft}, Self: {"self", ClassIgnored}, Cancelled: {"cancelled", ClassIgnored},
}

// String is the cause's stable name in logs, JSON and metrics.
func (c Cause) String() string {
	if int(c) >= len(causes) {
		return "invalid"
	}
	return causes[c].name
}

// Class says what the cause does to the score.
func (c Cause) Class() Class {
	if int(c) >= len(causes) {
		return ClassIgnored
	}
	return causes[c].class
}

// MarshalText writes the stable name.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the stable name; an unknown one (a newer daemon's) is Self, so that it never counts.
func (c *Cause) UnmarshalText(b []byte) error {
	*c = Self
	for i, info := range causes {
		if info.name == string(b) {
			*c = Cause(i)
		}
	}
	return nil
}
