package standin

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shards starts n real servers and a stand-in before them.
func shards(t testing.TB, cfg Config, n int) (*running, []*server) {
	t.Helper()
	servers := make([]*server, n)
	table := Table{Name: "ledger"}
	for i := range n {
		servers[i] = startServer(t, 13301+i)
		name := fmt.Sprint(i + 1)
		cfg.DataHosts = append(cfg.DataHosts, DataHost{
			Name: "dh" + name, MaxCon: 5, SwitchType: -1, NotSwitch: true,
			WriteHosts: []WriteHost{{Name: "host" + name, Addr: fmt.Sprintf("127.0.0.1:%d", servers[i].port), User: "mycat", Password: "mycat"}},
		})
		cfg.DataNodes = append(cfg.DataNodes, DataNode{Name: "dn" + name, Host: "dh" + name, Database: "bank"})
		table.Nodes = append(table.Nodes, "dn"+name)
	}
	cfg.Tables = []Table{table}
	return serve(t, cfg), servers
}

// direct is a handle on a backend itself.
func (s *server) direct(t testing.TB) *sql.DB {
	t.Helper()
	return open(t, fmt.Sprintf("mycat:mycat@tcp(127.0.0.1:%d)/bank?interpolateParams=true", s.port))
}

func same(t *testing.T, db *sql.DB, query string, want ...string) {
	t.Helper()
	got, err := ask(t.Context(), db, query)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %q, %v, want %q", query, got, err, want)
	}
}

func do(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, want string,
) int64 {
	t.Helper()
	result, err := db.ExecContext(t.Context(), query)
	wants(t, err, want)
	if err != nil {
		return 0
	}
	n, err := result.RowsAffected()
	wants(t, err, "ok")
	return n
}

// TestRoutedSQL writes and reads by key, by hint and without a key through four real servers, and looks at each itself.
func TestRoutedSQL(t *testing.T) {
	r, servers := shards(t, Config{}, 4)
	db := r.client(t)
	for id := range 8 {
		do(t, db, fmt.Sprintf("insert into ledger (id, writer) values (%d, 'w')", id), "ok")
	}
	for i, s := range servers {
		same(t, s.direct(t), "select id, server_id from ledger", fmt.Sprintf("%d %d", i, s.port), fmt.Sprintf("%d %d", i+4, s.port))
	}
	same(t, db, "select id from ledger where id = 6", "6")
	same(t, db, "select id from ledger where writer = 'w'", "0", "1", "2", "3", "4", "5", "6", "7")
	same(t, db, "select count(*), sum(id), sum(id + 0.5) from ledger", "8 28 32")
	same(t, db, "/*!mycat:datanode=dn3*/select id, @@port from ledger", "2 13303", "6 13303")
	if n := do(t, db, "update ledger set at_us = 1", "ok"); n != 8 {
		t.Errorf("%d rows affected, want 8", n)
	}
	if n := do(t, db, "update ledger set at_us = 1 where id = 3", "ok"); n != 1 {
		t.Errorf("%d rows affected, want 1: Mycat counts found rows", n)
	}
	do(t, db, "insert into ledger (id) values (10), (11), (14)", "ok")
	same(t, servers[2].direct(t), "select id from ledger", "10", "14", "2", "6")
	do(t, db, "replace into nothere (id) values (1)", "1064 can't find table define in schema NOTHERE schema:bank")
	do(t, db, "/*!mycat:datanode=dn1*/replace into baton.heartbeat values ('o', 1, 1)", "ok")
	do(t, db, "insert into ledger (id) values (1)", "1062 Duplicate entry '1' for key 'PRIMARY'")
	do(t, db, "delete from ledger", "ok")
	same(t, db, "select count(*) from ledger", "0")
	admin := open(t, fmt.Sprintf("baton_admin:admin@tcp(127.0.0.1:%d)/", servers[1].port))
	do(t, admin, "set global read_only=1", "ok")
	const readOnly = "1290 The MariaDB server is running with the --read-only option so it cannot execute this statement"
	do(t, db, "insert into ledger (id) values (1)", readOnly)
	do(t, db, "insert into ledger (id) values (2)", "ok")
	var big strings.Builder
	for range 300_000 {
		big.WriteString("0123456789")
	}
	same(t, db, "/*!mycat:datanode=dn1*/select length('"+big.String()+"'), repeat('ab', 2), null", "3000000 abab NULL")
}

// TestHugeRow relays a row over 16 MB, which comes in two packets; the second begins with what would be an EOF by itself.
func TestHugeRow(t *testing.T) {
	r, _ := shards(t, Config{}, 1)
	var row sql.RawBytes
	rows, err := r.client(t).QueryContext(t.Context(), "/*!mycat:datanode=dn1*/select repeat(0xfe, 17000000)")
	wants(t, err, "ok")
	defer func() { _ = rows.Close() }()
	if !rows.Next() || rows.Scan(&row) != nil || len(row) != 17000000 || row[16999999] != 0xfe {
		t.Errorf("%d bytes, want 17000000", len(row))
	}
	if rows.Next() || rows.Err() != nil {
		t.Errorf("another row, or %v", rows.Err())
	}
}

// TestTransactions: statements stay on one connection per dataNode; ROLLBACK, COMMIT, autocommit=0 and a client that goes away.
func TestTransactions(t *testing.T) {
	r, _ := shards(t, Config{}, 2)
	db, other := r.client(t), r.client(t)
	count := func(want string) {
		t.Helper()
		same(t, other, "select count(*) from ledger", want)
	}
	do(t, db, "begin", "ok")
	do(t, db, "insert into ledger (id) values (1)", "ok")
	do(t, db, "insert into ledger (id) values (2)", "ok")
	same(t, db, "select count(*) from ledger", "2")
	count("0")
	do(t, db, "rollback", "ok")
	count("0")
	do(t, db, "set autocommit=0", "ok")
	do(t, db, "insert into ledger (id) values (1), (2)", "ok")
	count("0")
	do(t, db, "commit", "ok")
	count("2")
	do(t, db, "insert into ledger (id) values (3)", "ok")
	do(t, db, "set autocommit=1", "ok") // commits
	count("3")

	do(t, db, "start transaction", "ok")
	do(t, db, "insert into ledger (id) values (3)", "1062 Duplicate entry '3' for key 'PRIMARY'")
	do(t, db, "insert into ledger (id) values (4)", "1003 Transaction error, need to rollback. errno:1062 Duplicate entry '3' for key 'PRIMARY'")
	do(t, db, "commit", "1105 Transaction error, need to rollback. errno:1062 Duplicate entry '3' for key 'PRIMARY'")
	do(t, db, "insert into ledger (id) values (4)", "ok")

	do(t, db, "begin", "ok")
	do(t, db, "insert into ledger (id) values (6)", "ok")
	_ = db.Close()
	eventually(t, "rolled back when its client is away: the row can be written", func() bool {
		_, err := other.ExecContext(t.Context(), "insert into ledger (id) values (6)")
		return err == nil
	})
}

// TestKilledBackend is the first row of mycat.md's table: kill -9 of one server gives one 1023, then 1184 at once, on its dataNode only;
// after its restart everything is well without a restart of Mycat.
func TestKilledBackend(t *testing.T) {
	r, servers := shards(t, Config{Periods: Periods{Check: Duration(budget)}}, 2)
	db := r.client(t)
	for _, q := range []string{onDN1, onDN2} {
		same(t, db, q, "1")
	}
	servers[0].kill(t)
	_, err := ask(t.Context(), db, onDN1)
	wants(t, err, "1023 "+textReset)
	for range 20 { // more than maxCon: a refused connect keeps no place
		_, err = ask(t.Context(), db, onDN1)
		wants(t, err, "1184 java.net.ConnectException: Connection refused")
	}
	same(t, db, onDN2, "1")
	_, err = ask(t.Context(), db, "select count(*) from ledger")
	if got := said(err); got != "1105 Backend connect Error, Connection{DataHost[127.0.0.1:13301],Schema[bank]} refused" &&
		got != "1152 Backend connect Error, Connection{DataHost[127.0.0.1:13301],Schema[bank]} refused" {
		t.Errorf("one shard of two down: %q", got)
	}
	servers[0].start(t)
	same(t, db, onDN1, "1")
	same(t, db, "select count(*) from ledger", "0")
}

// TestKilledInFlight: what is in flight when its server dies gets 1023, and poisons its transaction.
func TestKilledInFlight(t *testing.T) {
	r, servers := shards(t, Config{}, 1)
	db, direct := r.client(t), servers[0].direct(t)
	do(t, db, "begin", "ok")
	flying := make(chan error, 1)
	go func() {
		_, err := ask(context.Background(), db, "/*!mycat:datanode=dn1*/select sleep(60) from ledger l right join (select 1) o on 1")
		flying <- err
	}()
	eventually(t, "the statement runs", func() bool {
		rows, err := ask(t.Context(), direct, "select count(*) from information_schema.processlist where info like 'select sleep%'")
		return err == nil && rows[0] == "1"
	})
	servers[0].kill(t)
	if got := said(<-flying); got != "1023 "+textClosed && got != "1023 "+textReset {
		t.Errorf("in flight: %q", got)
	}
	_, err := ask(t.Context(), db, onDN1)
	if got := said(err); !strings.HasPrefix(got, "1003 Transaction error, need to rollback. errno:1023 ") {
		t.Errorf("after it: %q", got)
	}
	do(t, db, "rollback", "ok")
	eventually(t, "refused, when the kernel has closed the free connections too", func() bool {
		_, err := ask(t.Context(), db, onDN1)
		return said(err) == "1184 java.net.ConnectException: Connection refused"
	})
}

// TestStoppedBackend is TestFrozenBackend with a real server and SIGSTOP.
func TestStoppedBackend(t *testing.T) {
	r, servers := shards(t, Config{}, 2)
	same(t, r.client(t), onDN1, "1")
	servers[0].signal(t, unix.SIGSTOP)
	exhaust(t, r)
	same(t, r.client(t), onDN2, "1")
	servers[0].signal(t, unix.SIGCONT)
	eventually(t, "the dataNode is back", func() bool { _, err := ask(t.Context(), r.client(t), onDN1); return err == nil })
}

// TestManyClients hammers four shards from many clients while some leave in the middle; every acknowledged row must be there.
func TestManyClients(t *testing.T) {
	r, _ := shards(t, Config{}, 2)
	var wg sync.WaitGroup
	acked := make([]int, 3) // fewer than maxCon: nobody is refused
	for w := range acked {
		db := r.client(t)
		wg.Go(func() {
			for i := range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), budget)
				if i%10 == 9 {
					cancel()
					ctx, cancel = context.WithTimeout(context.Background(), 300*time.Microsecond) // before, in or after the statement
				}
				_, err := db.ExecContext(ctx, fmt.Sprintf("insert into ledger (id) values (%d)", w*1000+i))
				cancel()
				acked[w] += b2i(err == nil)
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range acked {
		total += n
	}
	var n int
	if err := r.client(t).QueryRowContext(t.Context(), "select count(*) from ledger").Scan(&n); err != nil || n < total || total < 3*36 {
		t.Errorf("%d rows, %v; %d acknowledged of 120", n, err, total)
	}
}

// TestCachingSHA2 logs in to a server that has only caching_sha2_password: its fast path, and the full one under the server's key.
func TestCachingSHA2(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	seed := []byte("abcdefghijklmnopqrst")
	for _, full := range []bool{false, true} {
		near, far := net.Pipe()
		b, srv := &backend{framed: newFramed(near)}, newFramed(far)
		got := make(chan string, 1)
		go func() {
			defer close(got)
			hello := greeting(7, seed, false)
			hello = append(hello[:len(hello)-len(nativePassword)-1], cachingSHA2+"\x00"...)
			_ = srv.send(hello)
			p, _ := srv.readPacket()
			login, err := parseLogin(p)
			if err != nil || login.plugin != cachingSHA2 || string(login.auth) != string(scrambleSHA256("secret", seed)) {
				return
			}
			if full {
				_ = srv.send([]byte{1, 4})
				_, _ = srv.readPacket() // asks for the key
				_ = srv.send(append([]byte{1}, public...))
				p, _ = srv.readPacket()
				plain, _ := rsa.DecryptOAEP(sha1.New(), nil, key, p, nil)
				for i := range plain {
					plain[i] ^= seed[i%len(seed)]
				}
				got <- string(plain)
			} else {
				_ = srv.send([]byte{1, 3})
				got <- "secret\x00"
			}
			_ = srv.send(okPacket(0, statusAutocommit, ""))
		}()
		if err := b.login(WriteHost{User: "root", Password: "secret"}, "bank"); err != nil {
			t.Errorf("full %v: %v", full, err)
		}
		if password := <-got; password != "secret\x00" {
			t.Errorf("full %v: the server got %q", full, password)
		}
		_ = near.Close()
	}
}

// BenchmarkHinted is one hinted statement on one connection, and the same straight to the backend.
func BenchmarkHinted(b *testing.B) {
	r, servers := shards(b, Config{}, 1)
	for statement, db := range map[string]*sql.DB{"/*!mycat:datanode=dn1*/do 1": r.client(b), "do 1": servers[0].direct(b)} {
		b.Run(statement, func(b *testing.B) {
			for b.Loop() {
				if _, err := db.ExecContext(b.Context(), statement); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
