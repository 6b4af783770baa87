package standin

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// routed is a server with four nodes that never runs.
func routed(t *testing.T) *Server {
	t.Helper()
	cfg := Config{Users: []User{{Name: "root"}}, Schemas: []Schema{{Name: "bank"}, {Name: "other", DataNode: "dn2"}}}
	for _, n := range []string{"1", "2", "3", "4"} {
		cfg.DataHosts = append(cfg.DataHosts, DataHost{Name: "dh" + n, WriteHosts: []WriteHost{{Name: "host" + n, Addr: "127.0.0.1:1"}}})
		cfg.DataNodes = append(cfg.DataNodes, DataNode{Name: "dn" + n, Host: "dh" + n, Database: "bank"})
	}
	cfg.Tables = []Table{{Name: "ledger", Nodes: []string{"dn1", "dn2", "dn3", "dn4"}}, {Name: "Single", Nodes: []string{"dn3"}}}
	srv, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return srv
}

func TestRoute(t *testing.T) {
	srv := routed(t)
	for _, tt := range []struct{ sql, schema, want string }{
		{"/*!mycat:datanode=dn3*/select 1", "bank", "dn3:select 1"},
		{"  /*#mycat: datanode = dn4 */ replace into hb values (1)", "bank", "dn4:replace into hb values (1)"},
		{"/*!mycat:datanode=dn9*/select 1", "bank", "1064 can't find hint datanode:dn9"},
		{"/*!mycat:sql=select 1 from t*/select 1", "bank", "1064 the stand-in knows no hint but datanode: sql"},
		{"select * from ledger where id = 6", "bank", "dn3:select * from ledger where id = 6"},
		{"SELECT id FROM `ledger` WHERE writer='x' AND `id`='7' ORDER BY id;", "bank", "dn4:SELECT id FROM `ledger` WHERE writer='x' AND `id`='7' ORDER BY id"},
		{"select * from bank.ledger l where l.id in (1, 5)", "bank", "dn2:select * from bank.ledger l where l.id in (1, 5)"},
		{"delete from ledger where id in (1,2)", "bank", "dn2:delete from ledger where id in (1,2) | dn3:delete from ledger where id in (1,2)"},
		{"update ledger set at_us=1 where id=4", "bank", "dn1:update ledger set at_us=1 where id=4"},
		{"update ledger set at_us=1 where id=4 or at_us=2", "bank", "dn1 dn2 dn3 dn4"},
		{"select 'where id = 1' from ledger", "bank", "dn1 dn2 dn3 dn4"},
		{"select count(*) from ledger /* where id = 1 */", "bank", "dn1 dn2 dn3 dn4"},
		{"insert into ledger (writer, id) values ('a,(b', 9)", "bank", "dn2:insert into ledger (writer, id) values ('a,(b', 9)"},
		{"insert ignore into ledger(id, at_us) values (-3, now())", "bank", "dn4:insert ignore into ledger(id, at_us) values (-3, now())"},
		{"insert into ledger set writer='x', id=6", "bank", "dn3:insert into ledger set writer='x', id=6"},
		{
			"insert into ledger (id) values (1),(2),(5) on duplicate key update at_us=1", "bank",
			"dn2:insert into ledger (id) values (1),(5) on duplicate key update at_us=1 | dn3:insert into ledger (id) values (2) on duplicate key update at_us=1",
		},
		{"insert into ledger values (1)", "bank", "1064 partition table, insert must provide ColumnList"},
		{"insert into ledger (writer) values ('a')", "bank", "1064 bad insert sql (sharding column:ID not provided,insert into ledger (writer) values ('a')"},
		{"select * from SINGLE where x=1", "bank", "dn3:select * from SINGLE where x=1"},
		{"create table if not exists ledger (id int)", "bank", "dn1 dn2 dn3 dn4"},
		{"select * from nothere", "bank", "1064 can't find table define in schema NOTHERE schema:bank"},
		{"select * from nothere", "other", "dn2:select * from nothere"},
		{"select 1+0", "bank", "dn?"},
	} {
		st := parseStatement(tt.sql)
		targets, e := srv.route(st, tt.schema)
		got := ""
		var names, whole []string
		for _, target := range targets {
			names = append(names, target.node.cfg.Name)
			whole = append(whole, target.node.cfg.Name+":"+target.sql)
		}
		switch {
		case e != nil:
			got = fmt.Sprintf("%d %s", e.number, e.text)
		case tt.want == "dn?":
			if len(targets) == 1 {
				got = tt.want
			}
		case strings.Contains(tt.want, ":"):
			got = strings.Join(whole, " | ")
		default:
			got = strings.Join(names, " ")
		}
		if got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.sql, got, tt.want)
		}
	}
}

func TestSums(t *testing.T) {
	for sql, want := range map[string]bool{
		"select count(*) from ledger":                     true,
		"select count(*), sum(id) s from ledger":          true,
		"select count(*), id from ledger":                 false,
		"select count(*) from ledger group by writer":     false,
		"select id from ledger":                           false,
		"delete from ledger":                              false,
		"select count(distinct (id)) from ledger where 1": true,
	} {
		if got := parseStatement(sql).sums(); got != want {
			t.Errorf("%s: %v, want %v", sql, got, want)
		}
	}
}

// FuzzRoute: no statement makes routing panic, and every part that it cuts out lies in the statement.
func FuzzRoute(f *testing.F) {
	for _, s := range []string{
		"select * from ledger where id in (1,", "insert into ledger (id) values (1),(", "/*!mycat:datanode=dn1*/", "'", "`", "/*", "--",
		"insert into ledger (id) values (1)(2", "replace into ledger set id", "select", "update ledger where id=", "explain", "use", "set",
	} {
		f.Add(s)
	}
	srv := &Server{nodes: map[string]*dataNode{}, tables: map[string]*Table{"ledger": {Name: "ledger", Key: "id", Nodes: []string{"dn1", "dn2"}}}}
	for _, n := range []string{"dn1", "dn2"} {
		srv.nodes[n] = &dataNode{cfg: DataNode{Name: n}}
		srv.nodeOrder = append(srv.nodeOrder, srv.nodes[n])
	}
	f.Fuzz(func(t *testing.T, sql string) {
		st := parseStatement(sql)
		for _, tok := range st.tokens {
			if tok.start < 0 || tok.end > len(st.body) || tok.start >= tok.end {
				t.Fatalf("token %+v outside %q", tok, st.body)
			}
		}
		st.sums()
		_ = st.plain()
		targets, e := srv.route(st, "bank")
		if (e == nil) != (len(targets) > 0) {
			t.Fatalf("%q: %d targets with error %v", sql, len(targets), e)
		}
	})
}
