package script

import "slices"

// verbList is for the message about an unknown word.
const verbList = "pause, baseline, kill, freeze, thaw, start, restart, cut, mend, flap, switchover, wait, expect"

// verbs reads what follows each verb.
var verbs = map[Verb]func(*reader, *Step){
	Pause:      func(r *reader, s *Step) { s.For = r.length("how long") },
	Baseline:   func(r *reader, s *Step) { s.For = r.length("how long") },
	Kill:       things(MySQL, Mycat, Daemon, Keepalived, Etcd),
	Freeze:     things(MySQL, Mycat, Daemon, Keepalived, Etcd),
	Thaw:       things(MySQL, Mycat, Daemon, Keepalived, Etcd),
	Start:      things(MySQL, Mycat, Daemon, Etcd),
	Restart:    things(Daemon),
	Cut:        things(Host, Link),
	Mend:       func(*reader, *Step) {},
	Flap:       flap,
	Switchover: func(r *reader, s *Step) { r.need("to"); s.Site = r.next("the site") },
	Wait:       wait,
	Expect:     expect,
}

// things reads one thing of the given kinds.
func things(kinds ...Kind) func(*reader, *Step) {
	return func(r *reader, s *Step) {
		s.Kind = Kind(r.next("what to strike"))
		if r.err == nil && !slices.Contains(kinds, s.Kind) {
			r.fail("%s cannot be struck so: one of %v can", s.Kind, kinds)
		}
		switch s.Kind {
		case MySQL:
			s.Site, s.Shard = r.next("the site"), r.next("the shard, or all")
		case Mycat:
			s.Site = r.next("the site")
		case Daemon, Keepalived, Host:
			s.Host = r.next("the host")
		case Etcd:
			r.need("leader")
		case Link:
			s.Host = r.next("the sender")
			s.Both = !r.accept("to")
			s.Peer = r.next("the receiver")
		}
	}
}

// flap: "flap mysql a s2 down 1beats every 10beats for 5s".
func flap(r *reader, s *Step) {
	things(MySQL, Mycat)(r, s)
	r.need("down")
	s.Down = r.length("how long it is down")
	r.need("every")
	s.Every = r.length("how often")
	r.need("for")
	s.For = r.length("how long")
	if r.err == nil && s.Down.Fixed >= s.Every.Fixed && s.Down.Beats >= s.Every.Beats {
		r.fail("it is never up: down must be shorter than every")
	}
}

func wait(r *reader, s *Step) {
	switch {
	case r.accept("switched", "to"):
		s.Cond, s.Site = SwitchedTo, r.next("the site")
	case r.accept("repaired"):
		s.Cond = Repaired
	case r.accept("ready"):
		s.Cond = Ready
	default:
		r.fail("waits for: switched to SITE, repaired, ready")
	}
	r.need("within")
	s.Within = r.length("a limit")
}

func expect(r *reader, s *Step) {
	switch {
	case r.accept("switched", "to"):
		s.Cond, s.Site = SwitchedTo, r.next("the site")
	case r.accept("no", "switch"):
		s.Cond = NoSwitch
		if r.accept("for") {
			s.For = r.length("how long")
		}
	case r.accept("no", "interruption"):
		s.Cond = NoInterruption
	default:
		s.Cond = Condition(r.next("what to expect"))
		if r.err == nil && !slices.Contains([]Condition{Lost, Duplicated, Refused, Unknown, DoubleHolder}, s.Cond) {
			r.fail("expects: switched to SITE, no switch, no interruption, lost N, duplicated N, refused N, unknown N, double_holder N")
		}
		s.Number = r.number()
	}
}
