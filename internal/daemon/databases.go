package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/guard"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/gtid"
)

// databases opens step connections with the admin account.
type databases struct {
	cfg  config.Config
	warm warm
}

func newDatabases(cfg config.Config) *databases {
	return &databases{cfg: cfg, warm: warm{conns: map[netip.AddrPort]*warming{}}}
}

// stepTimeout bounds a step's connecting and its status queries where its own context does not: a busy server answers late, and a
// plan undone for that would cost more than the wait.
const stepTimeout = 3 * time.Second

// Open implements guard.Databases.
func (d *databases) Open(ctx context.Context, in cluster.Instance) (guard.Database, error) {
	c := d.warm.get(ctx, in.Addr)
	if c == nil {
		var err error
		if c, err = d.server(in.Addr).Connect(ctx); err != nil {
			return nil, err
		}
	}
	return &database{cfg: d.cfg, addr: in.Addr, c: c}, nil
}

func (d *databases) server(addr netip.AddrPort) mysql.Server {
	s := serverOf(d.cfg, addr)
	s.Timeout = stepTimeout
	return s
}

// database is one step connection. GTID sets cross this border as the server's own text.
type database struct {
	cfg  config.Config
	addr netip.AddrPort
	c    *mysql.Conn
}

func (d *database) Close() error {
	d.c.Close()
	return nil
}

func (d *database) KillOlder(ctx context.Context, check guard.Check) error {
	_, err := d.c.KillSteps(ctx, mysql.Check(check))
	return err
}

func (d *database) FenceWrites(ctx context.Context, check guard.Check) (string, error) {
	f, err := d.c.FenceWrites(ctx, mysql.Check(check))
	return f.Executed.String(), err
}

func (d *database) Cut(ctx context.Context, check guard.Check) (string, error) {
	c, err := d.c.Cut(ctx, mysql.Check(check))
	return c.Received.String(), err
}

func (d *database) CatchUp(ctx context.Context, check guard.Check, upTo string) (string, error) {
	set, err := d.parse(ctx, upTo)
	if err != nil {
		return "", err
	}
	got, err := d.c.CatchUp(ctx, mysql.Check(check), set)
	return got.String(), err
}

func (d *database) Missing(ctx context.Context, received string) (string, error) {
	set, err := d.parse(ctx, received)
	if err != nil {
		return "", err
	}
	st, err := d.c.Status(ctx)
	if err != nil {
		return "", err
	}
	return set.Subtract(st.Executed).Subtract(st.Received).String(), nil
}

func (d *database) Obtain(ctx context.Context, check guard.Check, from cluster.Instance, upTo string) (string, error) {
	set, err := d.parse(ctx, upTo)
	if err != nil {
		return "", err
	}
	got, err := d.c.Obtain(ctx, mysql.Check(check), d.replication(from), set)
	return got.String(), err
}

func (d *database) replication(from cluster.Instance) mysql.Replication {
	r := d.cfg.MySQL.Replication
	return mysql.Replication{Addr: from.Addr, Account: mysql.Account{User: r.User, Password: r.Password.Reveal()}}
}

// parse reads a set that an instance of the same family gave.
func (d *database) parse(_ context.Context, text string) (gtid.Set, error) {
	if text == "" {
		return gtid.Set{}, nil
	}
	kind := gtid.MySQL
	if d.c.MariaDB() {
		kind = gtid.MariaDBPos
	}
	set, err := gtid.Parse(kind, text)
	if err != nil {
		return gtid.Set{}, fmt.Errorf("read GTIDs of the old instance: %w", err)
	}
	return set, nil
}

func (d *database) Quiesce(ctx context.Context, check guard.Check) error {
	return d.c.Quiesce(ctx, mysql.Check(check))
}

func (d *database) Prepare(ctx context.Context, check guard.Check, e guard.Epoch) error {
	return d.c.Prepare(ctx, mysql.Check(check), epochOf(e), nil)
}

func (d *database) Mark(ctx context.Context, check guard.Check, e guard.Epoch) error {
	return d.c.Mark(ctx, mysql.Check(check), epochOf(e))
}

func (d *database) Open(ctx context.Context, check guard.Check) (string, error) {
	p, err := d.c.Open(ctx, mysql.Check(check))
	return p.Executed.String(), err
}

func epochOf(e guard.Epoch) mysql.Epoch {
	return mysql.Epoch{Epoch: e.Epoch, Switch: e.Switch, Site: string(e.Site)}
}

// Demote undoes a cut or a promotion: read-only first, then the replica runs again.
func (d *database) Demote(ctx context.Context, check guard.Check) error {
	if _, err := d.c.FenceWrites(ctx, mysql.Check(check)); err != nil {
		return err
	}
	if err := d.c.KillClients(ctx, mysql.Check(check)); err != nil {
		return err
	}
	return d.Resume(ctx, check)
}

// Resume lets a replica that was cut run again.
func (d *database) Resume(ctx context.Context, check guard.Check) error {
	st, err := d.c.Status(ctx)
	if err != nil || st.Replica == nil { // a first start that is undone: it followed nobody
		return err
	}
	inner, cancel := context.WithTimeoutCause(ctx, reconnect, fmt.Errorf("the source did not let the replica in within %s", reconnect))
	defer cancel()
	err = d.c.RestartIO(inner, mysql.Check(check))
	if err == nil || ctx.Err() != nil {
		return err
	}
	fresh, cerr := serverOf(d.cfg, d.addr).Connect(ctx) // the time may have ended in the middle of a query, and the connection with it
	if cerr != nil {
		return errors.Join(err, cerr)
	}
	defer fresh.Close()
	if st, serr := fresh.Status(ctx); serr != nil || !runsAlone(st) {
		return errors.Join(err, serr)
	}
	return nil
}

// reconnect is how long an undo waits until the replica has its source again: one try a second, and a bit. Nobody serves meanwhile.
const reconnect = 1500 * time.Millisecond

// runsAlone says whether a replica lacks nothing but its source. A dead one is why most failovers began: an undo that waited for it
// would last as long as it is dead, and the service with it.
func runsAlone(st mysql.Status) bool {
	r := st.Replica
	return r != nil && r.SQLRunning == "Yes" && (r.IORunning == "Connecting" || r.IORunning == "Preparing" || r.IORunning == "Yes") && st.ReadOnly
}

// Restore makes an instance writable under an epoch that its data has not passed, and only with all that its replicas have received: one
// that crashed may have lost what they have, and would write other transactions under the same GTIDs (PROTOCOL 5).
func (d *database) Restore(ctx context.Context, check guard.Check, e guard.Epoch) error {
	replicas := d.replicas(ctx) // before its own state is read: what they have by then it must have
	st, err := d.alone(ctx, check)
	if err != nil {
		return err
	}
	for addr, r := range replicas {
		if left := lost(st, r, d.addr); !left.Empty() {
			return fmt.Errorf("make %s writable: its replica %s has received %s and it has not: it came back without what it had acknowledged; fail over to that site: %w; %w", d.addr, addr, left, mysql.ErrBehind, guard.ErrRefused)
		}
	}
	if st.Epoch != nil && st.Epoch.Epoch > e.Epoch {
		return fmt.Errorf("make %s writable under epoch %d: its data has seen epoch %d: %w; %w", d.addr, e.Epoch, st.Epoch.Epoch, mysql.ErrEpoch, guard.ErrRefused)
	}
	return d.c.Unfence(ctx, mysql.Check(check))
}

// alone returns the instance's state once it follows nobody: a promoted one begins to replicate again by itself when it restarts.
func (d *database) alone(ctx context.Context, check guard.Check) (mysql.Status, error) {
	st, err := d.c.Status(ctx)
	if err != nil || st.Replica == nil || st.Replica.IORunning == "No" && st.Replica.SQLRunning != "Yes" {
		return st, err
	}
	err = d.c.StandAlone(ctx, mysql.Check(check))
	switch {
	case errors.Is(err, mysql.ErrBehind), errors.Is(err, mysql.ErrReplica):
		return st, fmt.Errorf("make %s writable: it replicates from %s: %w; %w", d.addr, st.Replica.SourceHost, err, guard.ErrRefused)
	case err != nil:
		return st, err
	}
	return d.c.Status(ctx)
}

// Rejoin implements guard.Database. One that follows the source already is left alone. Any other is still first, and only then the
// source's state is read: the other way round what it received in between would look errant.
func (d *database) Rejoin(ctx context.Context, check guard.Check, source cluster.Instance) (map[string]string, error) {
	mine, err := d.c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if follows(mine, source) {
		return map[string]string{"gtid": mine.Executed.String(), "how": "followed already"}, nil
	}
	if mine.Replica != nil && mine.Replica.IORunning != "No" {
		if _, err := d.c.Cut(ctx, mysql.Check(check)); err != nil {
			return nil, err
		}
	}
	state, err := d.stateOf(ctx, source)
	if err != nil {
		return nil, err
	}
	r, err := d.c.Rejoin(ctx, mysql.Check(check), d.replication(source), state)
	facts := map[string]string{}
	var errant *mysql.ErrantError
	if errors.As(err, &errant) {
		facts["errant"] = errant.GTIDs.String()
	}
	if err == nil {
		facts["gtid"] = r.Executed.String()
	}
	return facts, err
}

// replicas are the other sites' instances of the same shard, as far as they answer.
func (d *database) replicas(ctx context.Context) map[netip.AddrPort]mysql.Status {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errors.New("no answer within 600 ms"))
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[netip.AddrPort]mysql.Status{}
	for _, in := range peers(d.cfg.Cluster, d.addr) {
		wg.Go(func() {
			c, err := serverOf(d.cfg, in.Addr).Connect(ctx)
			if err != nil {
				return // who does not answer tells nothing
			}
			defer c.Close()
			if st, err := c.Status(ctx); err == nil {
				mu.Lock()
				defer mu.Unlock()
				out[in.Addr] = st
			}
		})
	}
	wg.Wait()
	return out
}

// peers are the instances of the same shard at the other sites.
func peers(c cluster.Cluster, addr netip.AddrPort) []cluster.Instance {
	var out []cluster.Instance
	for _, s := range c.Sites {
		for _, in := range s.Instances {
			if in.Addr != addr {
				continue
			}
			for _, other := range c.Others(s.Name) {
				if peer, ok := other.Instance(in.Shard); ok {
					out = append(out, peer)
				}
			}
		}
	}
	return out
}

// lost is what the replica has received from the source at addr and the source has not.
func lost(source, replica mysql.Status, addr netip.AddrPort) gtid.Set {
	if replica.Replica == nil || replica.Replica.Source != addr {
		return gtid.Set{}
	}
	return replica.Received.Subtract(source.Executed)
}

func follows(st mysql.Status, source cluster.Instance) bool {
	r := st.Replica
	return r != nil && r.Source == source.Addr && r.IORunning == "Yes" && r.SQLRunning == "Yes" && st.ReadOnly && st.SemiSync.ReplicaEnabled && !st.SemiSync.SourceEnabled
}

func (d *database) stateOf(ctx context.Context, in cluster.Instance) (gtid.Set, error) {
	c, err := serverOf(d.cfg, in.Addr).Connect(ctx)
	if err != nil {
		return gtid.Set{}, err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	return st.BinlogState, err
}

func (d *database) Arm(ctx context.Context, check guard.Check) error {
	return d.c.ArmSemiSync(ctx, mysql.Check(check), 1)
}

func (d *database) Relax(ctx context.Context, check guard.Check) error {
	return d.c.RelaxSemiSync(ctx, mysql.Check(check))
}

// selfFence is the guard's hold on its own site's MySQL when its lease ends by itself.
type selfFence struct {
	data *databases
	c    cluster.Cluster
	site cluster.Site
}

func (f selfFence) Fence(ctx context.Context, check func() error) error {
	return f.each(ctx, func(ctx context.Context, db guard.Database) error {
		_, err := db.FenceWrites(ctx, check)
		return err
	})
}

// Unfence first ends what is left of a fence: its statement may still wait behind a commit.
func (f selfFence) Unfence(ctx context.Context, check func() error, epoch int64) error {
	return f.each(ctx, func(ctx context.Context, db guard.Database) error {
		if err := db.KillOlder(ctx, check); err != nil {
			return err
		}
		return db.Restore(ctx, check, guard.Epoch{Epoch: epoch, Site: f.site.Name})
	})
}

// each goes over the site's instances side by side: one that hangs must not keep the others from being fenced.
func (f selfFence) each(ctx context.Context, fn func(context.Context, guard.Database) error) error {
	errs := make(chan error, len(f.site.Instances))
	for _, in := range f.site.Instances {
		go func() {
			db, err := f.data.Open(ctx, in)
			if err == nil {
				err = errors.Join(fn(ctx, db), db.Close())
			}
			if err != nil {
				err = fmt.Errorf("shard %s: %w", in.Shard, err)
			}
			errs <- err
		}()
	}
	var all error
	for range f.site.Instances {
		all = errors.Join(all, <-errs)
	}
	return all
}
