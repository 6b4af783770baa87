package standin

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// command is one command of the management port: its first words, and what answers it. The argument is the rest, in its own case.
type command struct {
	words string
	run   func(*session, string)
}

// commands is searched from the top, so a longer command stands before the one that it begins with.
func commands() []command {
	show := func(words string, rows func(*Server, string) *resultSet) command {
		return command{words, func(s *session, arg string) { s.results(rows(s.srv, arg)) }}
	}
	return []command{
		show("show @@version", showVersion),
		show("show @@heartbeat.detail", showHeartbeatDetail),
		show("show @@heartbeat", showHeartbeat),
		{"show @@datasource.synstatus", func(s *session, _ string) {
			s.refuse(mycatError(erUncaughtException, "Could not initialize class io.mycat.manager.response.ShowDatasourceSyn"))
		}},
		show("show @@datasource.syndetail", showSyncDetail),
		show("show @@datasource", showDataSource),
		show("show @@datanode", showDataNode),
		show("show @@backend.old", showBackendOld),
		show("show @@backend", showBackend),
		show("show @@connection.sql", showConnectionSQL),
		show("show @@connection", showConnection),
		show("show @@server", showServer),
		show("show @@threadpool", showThreadPool),
		show("show @@processor", showProcessor),
		show("show @@sql.slow", showSlow),
		show("show @@sql", showSQL),
		show("show @@session", showSession),
		show("show @@database", showDatabase),
		show("show @@time.current", showTime),
		show("show @@time.startup", showStartup),
		show("show @@command", showCommand),
		show("show @@directmemory=1", showMemory),
		show("show @@sysparam", showSysParam),
		show("show @@help", showHelp),
		{"kill @@connection", (*session).killConnections},
		{"stop @@heartbeat", (*session).stopHeartbeat},
		{"switch @@datasource", (*session).switchDataSource},
		{"offline", func(s *session, _ string) { s.setOffline(true) }},
		{"online", func(s *session, _ string) { s.setOffline(false) }},
		{"reload @@config_all", func(s *session, _ string) { s.reload(true) }},
		{"reload @@config", func(s *session, _ string) { s.reload(false) }},
		{"reload @@sqlslow", func(s *session, _ string) { s.affected(1, "") }},
		{"reload @@user_stat", func(s *session, _ string) { s.affected(1, "") }},
		{"rollback @@config", func(s *session, _ string) { s.refuse(mycatError(erYes, "Rollback config failure")) }},
		show("select @@version_comment", func(*Server, string) *resultSet {
			return single("@@VERSION_COMMENT:S", "MyCat Server (monitor)")
		}),
		{"set ", func(s *session, _ string) { s.ok() }},
	}
}

var commentRE = regexp.MustCompile(`/\*.*?\*/`)

// manage runs one statement of the management port. It knows no SQL: `select 1` is unsupported, and so is a leading newline or tab.
func (s *session) manage(sql string) {
	line := strings.Trim(commentRE.ReplaceAllString(sql, ""), " ")
	if line != "" && line[0] != '\n' && line[0] != '\t' {
		line = strings.TrimRight(strings.Join(strings.Fields(line), " "), "; ")
		lower := strings.ToLower(line)
		for _, c := range s.srv.commands {
			if rest, ok := strings.CutPrefix(lower, c.words); ok && (strings.HasSuffix(c.words, " ") || ends(rest)) {
				c.run(s, strings.TrimSpace(line[len(c.words):]))
				return
			}
		}
	}
	s.refuse(mycatError(erYes, "Unsupported statement"))
}

// ends says whether a command's words end before the rest of the line: "show @@heartbeat" is not the beginning of "show @@heartbeats".
func ends(rest string) bool { return rest == "" || !isWord(rest[0]) && rest[0] != '.' }

func (s *session) affected(n int, info string) {
	s.reply(okPacket(uint64(n), s.status(), info))
}

// killConnections closes clients by id. Unknown ids and words are passed over without an error; backends are never touched by id.
func (s *session) killConnections(list string) {
	killed := 0
	for _, word := range strings.Split(list, ",") {
		id, err := strconv.ParseUint(strings.TrimSpace(word), 10, 32)
		if err != nil {
			continue
		}
		s.srv.mu.Lock()
		victim := s.srv.sessions[uint32(id)]
		s.srv.mu.Unlock()
		if victim != nil {
			killed++
			_ = victim.conn.Close()
		}
	}
	s.affected(killed, "")
}

// hostArgument reads `dataHost:number`.
func (srv *Server) hostArgument(arg string) (*dataHost, int, bool) {
	name, value, found := strings.Cut(arg, ":")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	h := srv.hosts[strings.TrimSpace(name)]
	return h, n, found && err == nil && h != nil
}

// stopHeartbeat pauses the beats of a data host's writeHost in use for some seconds.
func (s *session) stopHeartbeat(arg string) {
	h, seconds, ok := s.srv.hostArgument(arg)
	if !ok {
		s.affected(0, "")
		return
	}
	h.hearts[h.index()].pause(time.Now().Add(time.Duration(seconds) * time.Second))
	s.affected(1, "")
}

// switchDataSource puts another writeHost in use. An unknown host, the index in use and one that is not there are no error, 0 rows.
func (s *session) switchDataSource(arg string) {
	switched := 0
	for _, one := range strings.Split(arg, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(one), ":")
		h := s.srv.hosts[name]
		if h == nil {
			continue
		}
		index := (h.index() + 1) % len(h.pools)
		if found {
			var err error
			if index, err = strconv.Atoi(value); err != nil {
				s.refuse(mycatError(erUncaughtException, "For input string: %q", value))
				return
			}
		}
		switched += b2i(s.srv.switchHost(h, index))
	}
	s.affected(switched, "")
}

// setOffline is `offline`: it stops COM_PING on the SQL port, and no SQL.
func (s *session) setOffline(off bool) {
	s.srv.offline.Store(off)
	s.affected(1, "")
}

// reload acknowledges; the stand-in reads its configuration once. With all it first connects to every backend, as Mycat does.
func (s *session) reload(all bool) {
	if all {
		for _, h := range s.srv.hostOrder {
			if h.initialise(h.index(), s.srv.databaseOf(h), s.srv.initLimit()) != nil {
				s.refuse(mycatError(erYes, "Reload config failure"))
				return
			}
		}
	}
	s.srv.reloaded.Store(time.Now().UnixMilli())
	s.affected(1, "Reload config success")
}

// whereRE is `where name = x`, without quotes as Mycat wants it, or `where datanode = x`.
var whereRE = regexp.MustCompile(`(?i)^where\s+\w+\s*=\s*(\S+)$`)

// where is the value of a command's only condition; empty: there is none.
func where(arg string) string {
	if m := whereRE.FindStringSubmatch(arg); m != nil {
		return m[1]
	}
	return ""
}

// sortedSessions are the clients that have logged in, by id.
func (srv *Server) sortedSessions() []*session {
	all := slices.DeleteFunc(srv.allSessions(), func(s *session) bool { return s.lastRead.Load() == 0 })
	slices.SortFunc(all, func(a, b *session) int { return int(a.id) - int(b.id) })
	return all
}
