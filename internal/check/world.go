package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/mycat"
)

// callTimeout bounds one call of a look, so that what hangs leaves time for the rest of the look.
const callTimeout = 1500 * time.Millisecond

// outside is the World that the process really lives in.
type outside struct {
	cfg config.Config
	log *slog.Logger
}

// Outside is the World of this host. Its namespaces are those of the process.
func Outside(cfg config.Config, log *slog.Logger) World { return outside{cfg: cfg, log: log} }

// Dial connects and closes.
func (outside) Dial(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no answer within %s", callTimeout))
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	return conn.Close()
}

// Instance asks by the admin account, and logs in by the probe account. A step of a switch or of a rejoin kills every other session of the
// admin account: one that was cut off is begun anew, once, and is no finding.
func (o outside) Instance(ctx context.Context, at cluster.Instance) Instance {
	x, err := o.instance(ctx, at)
	if cause, _ := mysql.Classify(ctx, err); err != nil && (cause == health.Reset || cause == health.Protocol) {
		x, _ = o.instance(ctx, at) // what is wrong then stands in x
	}
	return x
}

// instance is one try; the error is the first that the admin account met.
func (o outside) instance(ctx context.Context, at cluster.Instance) (x Instance, first error) {
	server := mysql.Server{Addr: at.Addr, Account: account(o.cfg.MySQL.Admin), Timeout: callTimeout}
	sent := time.Now()
	conn, err := server.Connect(ctx)
	x.Took = time.Since(sent)
	if err != nil {
		cause, _ := mysql.Classify(ctx, err)
		x.Err, x.Login, x.Foreign = err, cause == health.Config, errors.Is(err, mysql.ErrUnsupported)
		return x, err
	}
	defer conn.Close()
	in, err := conn.Inspect(ctx)
	if err != nil {
		x.Err = err
		return x, err
	}
	x.fill(in)
	gap := func(err error) {
		if err != nil {
			x.Gaps, first = append(x.Gaps, err), cmp.Or(first, err)
		}
	}
	x.Admin.Name, err = conn.Account(ctx)
	gap(err)
	rights, err := conn.Rights(ctx)
	gap(err)
	x.Lacks = rights.Lacks
	for _, name := range rights.Passing {
		if strings.HasPrefix(name, "'") { // an account or a role; else it says why there is no list
			x.Passes = append(x.Passes, name)
		} else {
			x.Gaps = append(x.Gaps, fmt.Errorf("list the accounts that pass read_only: %s", name))
		}
	}
	server.Account = account(o.cfg.MySQL.Probe)
	x.Probe = probeAccount(ctx, server)
	return x, first
}

func account(a config.Account) mysql.Account {
	return mysql.Account{User: a.User, Password: a.Password.Reveal()}
}

func probeAccount(ctx context.Context, server mysql.Server) Account {
	conn, err := server.Connect(ctx)
	if err != nil {
		return Account{Name: server.Account.User, Err: err}
	}
	defer conn.Close()
	name, err := conn.Account(ctx)
	return Account{Name: name, Err: err}
}

// fill takes over what the server said.
func (x *Instance) fill(in mysql.Inspection) {
	x.Version = Version{Text: in.Version, MariaDB: in.Family == mysql.MariaDB, Major: in.Major, Minor: in.Minor}
	x.Vars, x.Acks, x.Schema, x.Gaps = in.Vars, in.ReplicaIDs, in.NoTables, in.Gaps
	x.Origin = map[string]Origin{}
	for name, origin := range in.Origins {
		x.Origin[name] = Origin(origin)
	}
	for _, e := range in.Events {
		x.Events = append(x.Events, Event(e))
	}
	for _, c := range in.Channels {
		ch := Channel{
			Name: c.Name, Source: c.Source, SourceText: c.SourceHost, SourceServer: c.SourceID, IO: c.IO, SQL: c.SQL,
			IOErr: c.IOError, SQLErr: c.SQLError, GTID: c.GTID, Delay: c.Delay, Filters: c.Filters,
		}
		if c.Lag != nil {
			ch.Lag, ch.LagKnown = *c.Lag, true
		}
		x.Sources = append(x.Sources, ch)
	}
}

// Mycat logs in to both ports, and asks each shard who it is.
func (o outside) Mycat(ctx context.Context, site cluster.Site) Mycat {
	var m Mycat
	client, err := mycat.New(mycat.Config{
		SQL: site.Mycat.SQL, Admin: site.Mycat.Admin, Schema: site.Mycat.Schema,
		User: o.cfg.Mycat.User, Password: o.cfg.Mycat.Password.Reveal(), Timeout: callTimeout,
	})
	if err != nil {
		m.SQL, m.Admin = err, err
		return m
	}
	m.SQL = askShards(ctx, client, site, &m)
	m.Admin = askTables(ctx, client, &m)
	return m
}

// askShards looks at each shard through the proxy, on a connection each: one that hangs says nothing of the next.
func askShards(ctx context.Context, client *mycat.Client, site cluster.Site, m *Mycat) error {
	for _, in := range site.Instances {
		conn, err := client.Dial(ctx)
		if err != nil {
			return err
		}
		dn := site.Mycat.DataNodes[in.Shard]
		r := Routed{Shard: in.Shard, DataNode: dn}
		rows, err := conn.Hinted(ctx, dn, "select @@server_id, @@hostname, @@port, current_user()")
		if err == nil {
			err = r.fill(rows)
		}
		r.Err = err
		_ = conn.Close()
		m.Shards = append(m.Shards, r)
	}
	return nil
}

// fill reads the one row by which a server says who it is.
func (r *Routed) fill(rows mycat.Rows) error {
	if len(rows.Values) != 1 || len(rows.Values[0]) != 4 {
		return fmt.Errorf("ask the server behind %s who it is: %d rows", r.DataNode, len(rows.Values))
	}
	v := rows.Values[0]
	id, err1 := strconv.ParseUint(fmt.Sprint(v[0]), 10, 32)
	port, err2 := strconv.ParseUint(fmt.Sprint(v[2]), 10, 16)
	r.ServerID, r.Hostname, r.Port, r.User = uint32(id), fmt.Sprint(v[1]), uint16(port), fmt.Sprint(v[3])
	return errors.Join(err1, err2)
}

// askTables reads what the management port knows of switches that Mycat may make by itself.
func askTables(ctx context.Context, client *mycat.Client, m *Mycat) error {
	admin, err := client.DialAdmin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	var errs []error
	if m.Version, err = admin.Version(ctx); err != nil {
		errs = append(errs, err)
	}
	params, err := admin.SysParams(ctx)
	errs = append(errs, err)
	m.Params = map[string]string{}
	for name, value := range params {
		m.Params[strings.TrimPrefix(strings.ToLower(name), "mycat_")] = value
	}
	nodes, err := admin.DataNodes(ctx)
	errs = append(errs, err)
	sources, err := admin.DataSources(ctx)
	errs = append(errs, err)
	for _, n := range nodes {
		d := DataSource{DataNode: n.Name, Index: n.Index}
		for _, s := range sources {
			if s.DataNode == n.Name && s.Access == "W" {
				d.WriteHosts = append(d.WriteHosts, s.Name)
			}
		}
		slices.Sort(d.WriteHosts) // Mycat lists them in the order of a hash
		m.Sources = append(m.Sources, d)
	}
	m.TableErr = errors.Join(errs...)
	return nil
}

// Etcd asks every member, and reads the cluster's keys twice: a report that does not change in between comes from nobody.
func (o outside) Etcd(ctx context.Context) Etcd {
	tls, err := o.cfg.Etcd.TLS.Client()
	if err != nil {
		return Etcd{Err: err}
	}
	kv, err := dcs.NewEtcd(dcs.Config{Endpoints: o.cfg.Etcd.Endpoints, TLS: tls, AttemptTimeout: callTimeout / 2, Log: o.log})
	if err != nil {
		return Etcd{Err: err}
	}
	defer func() { _ = kv.Close() }()
	if _, err := kv.Health(ctx); err != nil { // it connects; the second one is timed without that
		return Etcd{Err: err, Members: o.members(ctx, kv)}
	}
	e := Etcd{Members: o.members(ctx, kv)}
	store := dcs.NewStore(kv, o.cfg.Cluster.Name)
	first, err := store.Read(ctx)
	if err != nil {
		e.ReadErr = err
		return e
	}
	wait := time.NewTimer(3 * o.cfg.Profile.Interval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	second, err := store.Read(ctx)
	if err != nil {
		e.ReadErr = err
		return e
	}
	e.take(first, second)
	return e
}

func (o outside) members(ctx context.Context, kv *dcs.Etcd) []Member {
	statuses, _ := kv.Health(ctx) // each member's own error says more than the verdict on all
	var members []Member
	for _, s := range statuses {
		members = append(members, Member{
			Endpoint: s.Endpoint, Err: s.Err, Refused: s.Err != nil && o.answers(ctx, s.Endpoint),
			Version: s.Version, Leader: s.Leader, Alarms: s.Alarms, Took: s.Took,
		})
	}
	return members
}

// answers says whether the host behind an endpoint answers, though the member does not.
func (o outside) answers(ctx context.Context, endpoint string) bool {
	_, hostPort, found := strings.Cut(endpoint, "://")
	if !found {
		hostPort = endpoint
	}
	to, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout/2, fmt.Errorf("no answer within %s", callTimeout/2))
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// take keeps what the checks ask of the two views.
func (e *Etcd) take(first, second dcs.State) {
	e.Known, e.Bad = len(second.Reports) > 0, second.Bad
	for node, report := range second.Reports {
		if report.Mod != first.Reports[node].Mod {
			e.Reports = append(e.Reports, node)
		}
	}
	if second.Assignment.Mod != 0 {
		e.Assignment = &second.Assignment.Value
	}
	if second.Holder.Mod != 0 {
		e.Holder = &second.Holder.Value
	}
}

// Lint reads the files whose paths are configured. A witness has no Mycat, though it has the same configuration.
func (o outside) Lint(context.Context) []Finding {
	if _, serving := o.cfg.Site(); !serving {
		return nil
	}
	var remarks []mycat.Finding
	var fs []Finding
	if path := o.cfg.Mycat.SchemaXML; path != "" {
		file, err := parseFile(path, mycat.ParseSchema)
		if err != nil {
			fs = append(fs, mycatFile.at(path, err.Error()))
		}
		remarks = append(remarks, file.Lint()...)
	}
	if path := o.cfg.Mycat.ServerXML; path != "" {
		file, err := parseFile(path, mycat.ParseServer)
		if err != nil {
			fs = append(fs, mycatFile.at(path, err.Error()))
		} else {
			remarks = append(remarks, file.Lint()...)
			remarks = append(remarks, file.LintUser(o.cfg.Mycat.User, o.cfg.Cluster.Sites[0].Mycat.Schema)...)
		}
	}
	for _, r := range remarks {
		fs = append(fs, Finding{Code: r.Code, Severity: Severity(r.Severity), Place: o.here(r.Place), Seen: r.Seen, Means: r.Means, Do: r.Do})
	}
	return fs
}

func (o outside) here(place string) string { return "node " + string(o.cfg.Node) + " " + place }

func parseFile[T any](path string, parse func(io.Reader) (T, error)) (T, error) {
	file, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer func() { _ = file.Close() }()
	return parse(file)
}
