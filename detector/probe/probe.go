// Package probe looks at one target by one factor, once: MySQL's port, business SQL and heartbeat; Mycat's port, its SQL per dataNode
// and its own opinion; the business write through the VIP.
//
// It uses raw driver connections and never a pool: a pool retries by itself and hides every failure of connecting. It classifies what
// it sees and decides nothing: when to look, what counts and what follows is the detector's. It never touches replication, and it
// writes only its own row, and only when the caller says that the site may be written.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/mycat"
)

// Beats between looks. Every factor that can move a site looks at each beat; the others cost more than they tell.
const (
	freshEvery = 10 // a kept connection hides every failure of connecting; also resets the server's count of broken-off logins (1129)
	writeEvery = 10 // writes through Mycat: the instance's own heartbeat writes at each beat already
	adminEvery = 20 // Mycat's opinion is 27 s late and more
)

// Account is a user and its password.
type Account struct{ User, Password string }

// Statement is one business SQL.
type Statement struct {
	SQL  string // text without parameters: no prepare, one round trip
	Want string // first column of the first row; empty: any answer but an error
}

// Config says what to probe and how.
type Config struct {
	Cluster  cluster.Cluster
	Node     cluster.NodeName // this observer: the name of its heartbeat row
	MySQL    Account          // baton_probe: without SUPER and READ ONLY ADMIN, or it would write through read_only
	Mycat    Account
	Business map[cluster.ShardName][]Statement // a shard without one reads Baton's own table, which is InnoDB's
	Timeout  time.Duration                     // life of one look (cluster.Profile.ProbeTimeout); the caller's context carries it
	Stale    time.Duration                     // a standby's heartbeat row older than this is stale: advisory
	TLS      *tls.Config                       // of the MySQL accounts; nil: plain

	// Dial replaces the TCP dialer, for a source address or a test.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Mode says how to look this time.
type Mode struct {
	// Write says whether the shard's instance may be written here: this site is its data site under a serving assignment that was
	// read less than an interval ago. Elsewhere a heartbeat would be an errant transaction on a half-fenced instance.
	Write func(cluster.ShardName) bool
	// Anew is a recheck: no back-off, every shard, writes included.
	Anew bool
}

func (m Mode) write(shard cluster.ShardName) bool { return m.Write != nil && m.Write(shard) }

// Probe looks at its targets by one factor. One look at a time: Do is not safe for concurrent use, Pending is.
type Probe struct {
	Targets []health.Target // one; through the VIP one a shard, which one look answers in turn
	Factor  health.Factor
	Every   int // beats between looks
	Look    func(context.Context, Mode, *Stage) []health.Sample
	Close   func() // frees kept connections; nil: none

	stage Stage
}

// Stage is how far the look in flight has come: which target it is at, and whether that one has answered a read already and is being
// written. It tells a hang of writes from a hang.
type Stage struct{ v atomic.Uint32 }

// Reading says that the look waits for an answer of that target.
func (s *Stage) Reading(target int) { s.v.Store(uint32(target+1) << 1) }

// Writing says that the target has answered a read, and that the look waits for a write.
func (s *Stage) Writing(target int) { s.v.Store(uint32(target+1)<<1 | 1) }

// Do looks once. Samples are of the moment of sending; there is none of a target that the look did not come to. A panic is our own
// fault, and counts as nothing.
func (p *Probe) Do(ctx context.Context, m Mode) (samples []health.Sample) {
	sent := time.Now()
	defer func() {
		if r := recover(); r != nil {
			samples = all(p.Targets, health.Sample{Cause: health.Self, Detail: cut(fmt.Sprintf("panic: %v: %s", r, debug.Stack()))})
		}
		took := time.Since(sent)
		for i := range samples {
			samples[i].Factor, samples[i].At = p.Factor, sent
			if samples[i].Took == 0 {
				samples[i].Took = took
			}
		}
	}()
	p.stage.v.Store(0)
	return p.Look(ctx, m, &p.stage)
}

// Pending is what a beat counts that finds the look of the beat before still unanswered.
func (p *Probe) Pending(at time.Time, took time.Duration) []health.Sample {
	v := p.stage.v.Load()
	s := health.Sample{Factor: p.Factor, Cause: health.Pending, At: at, Took: took, Detail: "no answer for " + took.Round(time.Millisecond).String()}
	if v&1 == 1 {
		s.Cause = health.WriteStall
	}
	if i := int(v >> 1); i > 0 && i <= len(p.Targets) {
		return all(p.Targets[i-1:i], s)
	}
	return all(p.Targets, s)
}

// all is the sample for each of the targets.
func all(targets []health.Target, s health.Sample) []health.Sample {
	out := make([]health.Sample, len(targets))
	for i, t := range targets {
		out[i] = s
		out[i].Target = t
	}
	return out
}

// one is the only sample of a look at one target.
func one(t health.Target, s health.Sample) []health.Sample { return all([]health.Target{t}, s) }

// classifier is internal/mysql's or mycat's.
type classifier func(context.Context, error) (health.Cause, uint16)

// sample classifies an error; nil is OK.
func (classify classifier) sample(ctx context.Context, err error) health.Sample {
	if err == nil {
		return health.Sample{Cause: health.OK}
	}
	var w *wrongAnswer
	if errors.As(err, &w) {
		return health.Sample{Cause: health.WrongAnswer, Detail: cut(err.Error())}
	}
	cause, number := classify(ctx, err)
	text := err.Error()
	if me, ok := errors.AsType[*driver.MySQLError](err); ok {
		text = me.Message // the number has a field of its own
	}
	return health.Sample{Cause: cause, Number: number, Detail: cut(text)}
}

// stalled turns a hang into a stall of writes: the same session has just answered a read.
func stalled(s health.Sample) health.Sample {
	if s.Cause == health.Timeout {
		s.Cause = health.WriteStall
	}
	return s
}

// cut keeps a detail fit for a line of a log and for a report.
func cut(s string) string {
	const most = 160
	s = strings.ReplaceAll(s, "\n", " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// wrongAnswer is an answer that is not the expected one.
type wrongAnswer struct{ sql, want, got string }

func (w *wrongAnswer) Error() string {
	return fmt.Sprintf("%q answered %q, want %q", w.sql, w.got, w.want)
}

func (s Statement) check(got string) error {
	if s.Want == "" || s.Want == got {
		return nil
	}
	return &wrongAnswer{s.SQL, s.Want, got}
}

func (c Config) business(shard cluster.ShardName) []Statement {
	if b := c.Business[shard]; len(b) > 0 {
		return b
	}
	return []Statement{{SQL: "select count(*) from baton.heartbeat"}}
}

func (c Config) dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial(ctx, addr)
	}
	return dialer.DialContext(ctx, "tcp", addr.String()) // DialTCP binds first, and a bind searches for a free port: many times the cost
}

// dialer sets no keep-alive: every look has its own deadline, a tripwire has the looks beside it, and of a port probe's fifteen system
// calls it would be four.
var dialer = net.Dialer{KeepAlive: -1}

// All makes every probe and tripwire of the cluster, seen from this node. It dials nothing. A site's VIP is not probed from the host
// that binds it: those packets never leave the host, so that they pass a closed gate and see no other holder.
func All(cfg Config) ([]*Probe, []*Tripwire, error) {
	var (
		probes []*Probe
		wires  []*Tripwire
		errs   []error
	)
	for _, site := range cfg.Cluster.Sites {
		for i, in := range site.Instances {
			ps, w, err := cfg.instance(site, in, i)
			probes, wires, errs = append(probes, ps...), append(wires, w), append(errs, err)
		}
		ps, w, err := cfg.proxy(site)
		probes, wires, errs = append(probes, ps...), append(wires, w), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	return probes, wires, nil
}

// instance makes the probes of one MySQL instance, the nth of its site.
func (c Config) instance(site cluster.Site, in cluster.Instance, n int) ([]*Probe, *Tripwire, error) {
	t := health.Target{Site: site.Name, Kind: health.MySQL, Shard: in.Shard}
	sql, err := newSQLProbe(c, t, in, n)
	if err != nil {
		return nil, nil, fmt.Errorf("set up probes of %s: %w", t, err)
	}
	beat, err := newBeatProbe(c, t, in)
	if err != nil {
		return nil, nil, fmt.Errorf("set up probes of %s: %w", t, err)
	}
	// A day of idling: a server's short wait_timeout would trip the wire for nothing.
	idle, err := newSession(c, in.Addr, c.MySQL, "", "SET SESSION wait_timeout=86400")
	if err != nil {
		return nil, nil, fmt.Errorf("set up tripwire of %s: %w", t, err)
	}
	return []*Probe{
		c.port(t, in.Addr, mysql.Classify),
		{Targets: []health.Target{t}, Factor: health.SQL, Every: 1, Look: sql.look, Close: sql.close},
		{Targets: []health.Target{t}, Factor: health.Heartbeat, Every: 1, Look: beat.look, Close: beat.close},
	}, &Tripwire{Target: t, session: idle}, nil
}

// proxy makes the probes of one Mycat and of the VIP before it.
func (c Config) proxy(site cluster.Site) ([]*Probe, *Tripwire, error) {
	t := health.Target{Site: site.Name, Kind: health.Mycat}
	client, err := mycat.New(c.mycat(site, site.Mycat.SQL))
	if err != nil {
		return nil, nil, fmt.Errorf("set up probes of %s: %w", t, err)
	}
	idle, err := newSession(c, site.Mycat.SQL, c.Mycat, site.Mycat.Schema, "")
	if err != nil {
		return nil, nil, fmt.Errorf("set up tripwire of %s: %w", t, err)
	}
	probes := []*Probe{c.port(t, site.Mycat.SQL, mycat.Classify)}
	if site.Mycat.Admin.IsValid() {
		admin := &adminProbe{target: t, client: client}
		probes = append(probes, &Probe{Targets: []health.Target{t}, Factor: health.Heartbeat, Every: adminEvery, Look: admin.look, Close: admin.close})
	}
	path := &vipProbe{cfg: c, site: site}
	for n, in := range site.Instances {
		node := site.Mycat.DataNodes[in.Shard]
		s := &nodeProbe{cfg: c, client: client, target: health.Target{Site: site.Name, Kind: health.Mycat, Shard: in.Shard}, node: node, looks: n}
		probes = append(probes, &Probe{Targets: []health.Target{s.target}, Factor: health.SQL, Every: 1, Look: s.look, Close: s.close})
		path.wait = append(path.wait, backoff{})
		path.targets = append(path.targets, health.Target{Site: site.Name, Kind: health.Site, Shard: in.Shard})
	}
	if site.Node == c.Node || !c.Cluster.VIP.Addr.IsValid() {
		return probes, &Tripwire{Target: t, session: idle}, nil
	}
	path.client, err = mycat.New(c.mycat(site, netip.AddrPortFrom(c.Cluster.VIP.Addr, c.Cluster.VIP.Port)))
	if err != nil {
		return nil, nil, fmt.Errorf("set up probe of the VIP: %w", err)
	}
	return append(probes, &Probe{Targets: path.targets, Factor: health.VIP, Every: 1, Look: path.look}), &Tripwire{Target: t, session: idle}, nil
}

func (c Config) mycat(site cluster.Site, sql netip.AddrPort) mycat.Config {
	return mycat.Config{
		SQL: sql, Admin: site.Mycat.Admin, User: c.Mycat.User, Password: c.Mycat.Password, Schema: site.Mycat.Schema,
		Timeout: c.Timeout, DialFunc: c.Dial,
	}
}
