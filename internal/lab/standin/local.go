package standin

import (
	"fmt"
	"strings"
)

// local answers what Mycat answers by itself, without any backend; it says whether it did. `select 1` is among it, which is why that
// is no health signal. Session statements (SET, BEGIN, USE) are local also behind a hint; queries are not.
func (s *session) local(st statement) bool {
	switch st.verb {
	case "":
		s.refuse(mycatError(erParse, "Empty SQL"))
	case "begin":
		s.inTx = true
		s.ok()
	case "start":
		s.inTx = true
		s.ok()
	case "commit":
		s.commit()
	case "rollback":
		s.endTransaction("ROLLBACK")
	case "use":
		s.use(strings.Trim(strings.TrimSpace(st.body[3:]), "`"))
	case "set":
		s.set(st)
	case "explain":
		s.explain(st)
	default:
		return st.hint == "" && st.badTag == "" && s.localQuery(st.plain())
	}
	return true
}

// set takes what Mycat brings over to backends: autocommit, the charset and the isolation level. All other variables it acknowledges
// and forgets.
func (s *session) set(st statement) {
	value := func(i int) string {
		if i < len(st.tokens) {
			return st.tokens[i].lower
		}
		return ""
	}
	i := 1
	for st.is(i, "session") || st.is(i, "@@session") || st.is(i, ".") {
		i++
	}
	switch name := strings.TrimPrefix(value(i), "@@"); {
	case name == "names" && charsetRE.MatchString(value(i+1)):
		s.charset = value(i + 1)
	case name == "autocommit":
		s.autocommit = value(i+2) == "1" || value(i+2) == "on"
		if s.autocommit && len(s.pinned) > 0 {
			s.commit()
			return
		}
	case name == "transaction" && value(i+1) == "isolation":
		var words []string
		for j := i + 3; j < len(st.tokens); j++ {
			words = append(words, strings.ToUpper(value(j)))
		}
		if level := strings.Join(words, " "); isolations[level] {
			s.isolation = level
		}
	}
	s.ok()
}

var isolations = map[string]bool{"READ UNCOMMITTED": true, "READ COMMITTED": true, "REPEATABLE READ": true, "SERIALIZABLE": true}

// explain shows where a statement would go: Mycat's `explain`.
func (s *session) explain(st statement) {
	if s.schema == "" {
		s.refuse(mycatError(erNoSchema, "No MyCAT Database selected"))
		return
	}
	targets, e := s.srv.route(parseStatement(strings.TrimSpace(st.body[len("explain"):])), s.schema)
	if e != nil {
		s.refuse(e)
		return
	}
	rs := newResult("DATA_NODE:S", "SQL:S")
	for _, t := range targets {
		rs.add(t.node.cfg.Name, t.sql)
	}
	s.results(rs)
}

func (s *session) results(rs *resultSet) {
	for _, p := range rs.packets() {
		s.reply(p)
	}
}

func single(column string, value any) *resultSet {
	rs := newResult(column)
	rs.add(value)
	return rs
}

// localQuery answers a query by its text in lower case.
func (s *session) localQuery(plain string) bool {
	offline := s.srv.offline.Load()
	switch plain {
	case "select 1", "select 1 from dual":
		s.results(single("1:S", "1"))
	case "select user()", "select connection_id()":
		if offline {
			s.refuse(mycatError(erServerShutdown, "The server has been shutdown"))
			return true
		}
		if plain == "select user()" {
			s.results(single("USER():S", fmt.Sprintf("%s@%s", s.user.Name, s.peerHost())))
		} else {
			s.results(single("CONNECTION_ID():L", int64(s.id)))
		}
	case "select database()":
		s.results(single("DATABASE():S", orNull(s.schema)))
	case "select version()":
		s.results(single("VERSION():S", version))
	case "select @@version_comment", "select @@version_comment limit 1":
		s.results(single("@@VERSION_COMMENT:S", "MyCat Server (OpenCloudDB)"))
	case "select @@max_allowed_packet":
		s.results(single("@@max_allowed_packet:L", int64(maxStatement)))
	case "show databases":
		rs := newResult("DATABASE:S")
		for _, schema := range s.srv.cfg.Schemas {
			if s.srv.checkSchema(s.user, schema.Name) == nil {
				rs.add(schema.Name)
			}
		}
		s.results(rs)
	case "show tables":
		rs := newResult("Tables_in_" + s.schema + ":S")
		for _, t := range s.srv.cfg.Tables {
			rs.add(t.Name)
		}
		s.results(rs)
	default:
		return false
	}
	return true
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
