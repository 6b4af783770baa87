package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lab/load"
	"github.com/baton-ha/baton/internal/lab/mariadb"
	"github.com/baton-ha/baton/internal/lab/netns"
	"github.com/baton-ha/baton/internal/lab/record"
)

const (
	dbDir        = "/dev/shm/db"   // of the box: memory
	hostsDir     = "/run/batonlab" // of the box
	upBudget     = 60 * time.Second
	worksBudget  = 15 * time.Second
	readyBudget  = 60 * time.Second
	writeEvery   = time.Millisecond
	writeTimeout = 50 * time.Millisecond
)

// Options say what laboratory is built.
type Options struct {
	Cache   string // directory of the baked seed
	Self    string // this program, which is also the stand-in
	Baton   string // the daemon's program; empty: no daemons, site a serves by the laboratory's own hand
	Bind    string // "keepalived" or "netlink"
	Profile string // "fast" or "steady"
	Time    *Timeline
}

// Lab is a running laboratory. One goroutine uses it.
type Lab struct {
	opt      Options
	time     *Timeline
	net      *netns.Network
	mysql    map[string]*mariadb.Instance // by host
	mycat    map[string]*netns.Process    // by site
	daemon   map[string]*netns.Process    // by node
	recorder *record.Recorder
	writer   *load.Writer
	seed     mariadb.Seed
	undo     []undo
	known    map[string]bool         // ids of the switches that history has shown
	killed   map[*netns.Process]bool // on purpose, and not started again

	stall atomic.Int64 // nanoseconds

	loops *errgroup.Group // recorder, followers of logs: until ctx ends
	ctx   context.Context // of the loops, which outlive Up
	stop  context.CancelFunc
	load  *errgroup.Group // the writer
	idle  context.CancelFunc
}

// Up builds the laboratory and returns when every shard takes writes through the VIP. Close it also after an error.
func Up(ctx context.Context, opt Options) (*Lab, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, upBudget, fmt.Errorf("the laboratory was not ready within %v", upBudget))
	defer cancel()
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Lab{
		opt: opt, time: opt.Time, ctx: run, stop: stop, loops: new(errgroup.Group), known: make(map[string]bool), killed: make(map[*netns.Process]bool),
		mysql: make(map[string]*mariadb.Instance), mycat: make(map[string]*netns.Process), daemon: make(map[string]*netns.Process),
	}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"network", l.network},
		{"servers", l.servers},
		{"proxies", l.proxies},
		{"daemons", l.daemons}, // last: observers that find nothing running yet probe at their fastest
		{"capture", l.capture},
		{"service", l.service},
	}
	for _, s := range steps {
		began := time.Now()
		if err := s.do(ctx); err != nil {
			return l, fmt.Errorf("build the laboratory: %s: %w", s.name, err)
		}
		l.time.Add("lab", "%s up in %d ms", s.name, time.Since(began).Milliseconds())
	}
	return l, nil
}

func (l *Lab) network(context.Context) error {
	if err := os.MkdirAll(hostsDir, 0o755); err != nil {
		return err
	}
	n, err := netns.New(hostsDir, specs())
	if err != nil {
		return err
	}
	l.net = n
	return writeHosts(n)
}

func (l *Lab) daemons(context.Context) error {
	if l.opt.Baton == "" {
		return nil
	}
	for _, node := range nodes {
		host, err := l.net.Host(node)
		if err != nil {
			return err
		}
		if err := writeBaton(host, l.opt.Bind, l.opt.Profile); err != nil {
			return err
		}
		p := &netns.Process{Name: "baton", Host: host, Args: []string{l.opt.Baton, "-c", ConfigPath, "run", "--log-format", "json"}}
		if err := p.Start(); err != nil {
			return err
		}
		l.daemon[node] = p
		l.follow(node, p.LogPath())
	}
	return nil
}

func (l *Lab) servers(ctx context.Context) error {
	seed, err := mariadb.Bake(ctx, l.opt.Cache)
	if err != nil {
		return err
	}
	l.seed = seed
	g, gctx := errgroup.WithContext(ctx)
	made := make(chan *mariadb.Instance, len(sites)*shardCount)
	for i, s := range sites {
		for shard := range shardCount {
			g.Go(func() error {
				name := s.dbHost(shard)
				host, err := l.net.Host(name)
				if err != nil {
					return err
				}
				in, err := mariadb.NewInstance(gctx, seed, host, filepath.Join(dbDir, name), s.serverID(shard), i == 0)
				if err != nil {
					return err
				}
				made <- in
				return in.Start(gctx)
			})
		}
	}
	err = g.Wait()
	close(made)
	for in := range made {
		l.mysql[in.Host.Name] = in
	}
	if err != nil {
		return err
	}
	return l.replicate(ctx)
}

func (l *Lab) replicate(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for shard := range shardCount {
		source, replica := l.mysql[sites[0].dbHost(shard)], l.mysql[sites[1].dbHost(shard)]
		g.Go(func() error {
			if err := replica.Replicate(ctx, source); err != nil {
				return err
			}
			return acked(ctx, source)
		})
	}
	return g.Wait()
}

// acked waits until the source has its replica: under lossless semi-sync every write before that hangs.
func acked(ctx context.Context, source *mariadb.Instance) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		text, err := source.Query(ctx, "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")
		if err != nil {
			return err
		}
		if text[0][1] == "1" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the replica of %s: %w", source.Host.Name, context.Cause(ctx))
		}
	}
}

func (l *Lab) proxies(context.Context) error {
	for _, s := range sites {
		host, err := l.net.Host(s.node)
		if err != nil {
			return err
		}
		path, err := writeMycat(host, s)
		if err != nil {
			return err
		}
		p := &netns.Process{Name: "mycat", Host: host, Args: []string{l.opt.Self, "standin", "-c", path}}
		if err := p.Start(); err != nil {
			return err
		}
		l.mycat[s.name] = p
	}
	return nil
}

func (l *Lab) capture(context.Context) error {
	r, err := record.New(l.net, VIP)
	if err != nil {
		return err
	}
	l.recorder = r
	l.loops.Go(func() error { return r.Run(l.ctx) })
	return nil
}

// service makes site a serve and starts the writer.
func (l *Lab) service(ctx context.Context) error {
	first := l.firstStart
	if l.opt.Baton == "" {
		first = l.byHand
	}
	if err := first(ctx); err != nil {
		return err
	}
	l.loops.Go(func() error { l.watchStalls(); return nil })
	return l.startWriter(ctx)
}

// watchStalls keeps the longest time by which the laboratory's own process was late: on a machine that cannot even run it, times
// say nothing about Baton.
func (l *Lab) watchStalls() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-tick.C:
			if late := time.Since(last) - watchEvery; late > time.Duration(l.stall.Load()) {
				l.stall.Store(int64(late))
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// beat is the profile's probe interval.
func (l *Lab) beat() time.Duration {
	if l.opt.Profile == cluster.Steady().Name {
		return cluster.Steady().Interval
	}
	return cluster.Fast().Interval
}

// byHand is a service without Baton: site a writable, the VIP on its host.
func (l *Lab) byHand(ctx context.Context) error {
	for shard := range shardCount {
		if err := l.mysql[sites[0].dbHost(shard)].Exec(ctx, "SET GLOBAL read_only=OFF"); err != nil {
			return err
		}
	}
	host, err := l.net.Host(sites[0].node)
	if err != nil {
		return err
	}
	_, err = host.Output(exec.CommandContext(ctx, "ip", "address", "add", vipText+"/32", "dev", netns.Interface))
	return err
}

func (l *Lab) startWriter(ctx context.Context) error {
	host, err := l.net.Host(appHost)
	if err != nil {
		return err
	}
	l.writer, err = load.New(load.Config{
		Dial: host.DialContext, Addr: fmt.Sprintf("%s:%d", vipText, sqlPort), User: appUser, Password: appPassword, Schema: schema,
		Shards: shardCount, Every: writeEvery, Timeout: writeTimeout,
	})
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.idle, l.load = cancel, new(errgroup.Group)
	l.load.Go(func() error { return l.writer.Run(run) })
	return l.works(ctx)
}

// works waits until every shard takes a write through the VIP.
func (l *Lab) works(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, worksBudget, fmt.Errorf("the service did not work within %v", worksBudget))
	defer cancel()
	return l.writer.Works(ctx)
}

// stopWriter ends the load; the writes stay.
func (l *Lab) stopWriter() error {
	if l.idle == nil {
		return nil
	}
	l.idle()
	l.idle = nil
	return l.load.Wait()
}

// Close ends the load, undoes what faults are left, and ends the capture. The box's end takes the processes.
func (l *Lab) Close(ctx context.Context) error {
	errs := []error{l.stopWriter(), l.undoAll(ctx)}
	l.stop()
	errs = append(errs, l.loops.Wait())
	if l.net != nil {
		errs = append(errs, l.net.Close())
	}
	return errors.Join(errs...)
}
