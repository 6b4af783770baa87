package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/netns"
	"github.com/baton-ha/baton/internal/lab/record"
	"github.com/baton-ha/baton/internal/lab/script"
)

// undo takes a fault back. It is kept before the fault strikes, so that nothing is left whatever comes between.
type undo struct {
	what string
	do   func(context.Context) error
}

func (l *Lab) later(what string, do func(context.Context) error) {
	l.undo = append(l.undo, undo{what, do})
}

// undoAll takes back what is left of the faults, newest first, and says what could not be.
func (l *Lab) undoAll(ctx context.Context) error {
	var errs []error
	for _, u := range slices.Backward(l.undo) {
		if err := u.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo: %s: %w", u.what, err))
		}
	}
	l.undo = nil
	if l.net == nil {
		return errors.Join(errs...)
	}
	left, err := l.net.Clean(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("faults are left: %s", strings.Join(left, "; "))
	}
	return errors.Join(append(errs, err)...)
}

// signals of the verbs.
var signals = map[script.Verb]unix.Signal{script.Kill: unix.SIGKILL, script.Freeze: unix.SIGSTOP, script.Thaw: unix.SIGCONT}

// strike does one step that touches the laboratory.
func (l *Lab) strike(ctx context.Context, step script.Step) error {
	switch step.Verb {
	case script.Kill, script.Freeze, script.Thaw:
		return l.signal(ctx, step)
	case script.Start, script.Restart:
		return l.start(ctx, step)
	case script.Cut:
		return l.cut(ctx, step)
	case script.Mend:
		return l.mend(ctx)
	case script.Flap:
		return l.flap(ctx, step)
	case script.Switchover:
		return l.switchTo(ctx, step.Site, "scenario")
	default:
		return fmt.Errorf("%s is no fault", step.Verb)
	}
}

// processes are what the step names.
func (l *Lab) processes(ctx context.Context, step script.Step) ([]*netns.Process, error) {
	switch step.Kind {
	case script.MySQL:
		return l.serversOf(step)
	case script.Mycat:
		if p, ok := l.mycat[step.Site]; ok {
			return []*netns.Process{p}, nil
		}
		_, err := siteOf(step.Site)
		return nil, err
	case script.Daemon:
		node, err := l.nodeName(step.Host)
		if err != nil {
			return nil, err
		}
		return l.daemonOf(node)
	case script.Etcd:
		node, err := l.etcdLeader(ctx)
		if err != nil {
			return nil, err
		}
		l.time.Add("lab", "etcd's leader is %s", node)
		return l.daemonOf(node)
	default:
		return nil, fmt.Errorf("%s is no process", step.Kind)
	}
}

func (l *Lab) daemonOf(node string) ([]*netns.Process, error) {
	if p, ok := l.daemon[node]; ok {
		return []*netns.Process{p}, nil
	}
	return nil, fmt.Errorf("there is no daemon on %q: there are %v, or none at all without baton", node, nodes)
}

func (l *Lab) serversOf(step script.Step) ([]*netns.Process, error) {
	s, err := siteOf(step.Site)
	if err != nil {
		return nil, err
	}
	var list []*netns.Process
	for shard := range shardCount {
		if step.Shard == script.All || step.Shard == shardName(shard) {
			list = append(list, &l.mysql[s.dbHost(shard)].Process)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("shard %q does not exist: there are s1 to s%d, and all", step.Shard, shardCount)
	}
	return list, nil
}

func (l *Lab) signal(ctx context.Context, step script.Step) error {
	sig := signals[step.Verb]
	if step.Kind == script.Keepalived {
		return l.signalKeepalived(step.Host, sig)
	}
	list, err := l.processes(ctx, step)
	if err != nil {
		return err
	}
	for _, p := range list {
		if sig == unix.SIGSTOP {
			l.later("thaw "+p.Name+" on "+p.Host.Name, func(context.Context) error { return thaw(p) })
		}
		l.killed[p] = l.killed[p] || sig == unix.SIGKILL
		if err := p.Signal(sig); err != nil {
			return err
		}
	}
	return nil
}

// died names the programs that ended though nobody killed them.
func (l *Lab) died() []string {
	var names []string
	look := func(p *netns.Process) {
		if !p.Alive() && !l.killed[p] {
			names = append(names, fmt.Sprintf("%s on %s", p.Name, p.Host.Name))
		}
	}
	for _, in := range l.mysql {
		look(&in.Process)
	}
	for _, p := range l.mycat {
		look(p)
	}
	for _, p := range l.daemon {
		look(p)
	}
	slices.Sort(names)
	return names
}

func thaw(p *netns.Process) error {
	if !p.Alive() {
		return nil
	}
	return p.Signal(unix.SIGCONT)
}

// signalKeepalived strikes every keepalived process of a host at once: of the parent alone, the child would clean up; of the child
// alone, the parent would start another.
func (l *Lab) signalKeepalived(name string, sig unix.Signal) error {
	node, err := l.nodeName(name)
	if err != nil {
		return err
	}
	pids, err := l.pidsOf(node, "keepalived")
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("no keepalived runs on %s", node)
	}
	if sig == unix.SIGSTOP {
		l.later("thaw keepalived on "+node, func(context.Context) error { return killAll(pids, unix.SIGCONT) })
	}
	return killAll(pids, sig)
}

func killAll(pids []int, sig unix.Signal) error {
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// pidsOf finds the processes of a program in the host's network namespace.
func (l *Lab) pidsOf(node, program string) ([]int, error) {
	host, err := l.net.Host(node)
	if err != nil {
		return nil, err
	}
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range comms {
		text, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(text)) != program {
			continue // it ended meanwhile, or is another
		}
		dir := filepath.Dir(path)
		if inode, err := box.NetInode(filepath.Join(dir, "ns/net")); err != nil || inode != host.Inode() {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// nodeName knows "active": the host that answered last for the VIP.
func (l *Lab) nodeName(name string) (string, error) {
	if name != "active" {
		return name, nil
	}
	if holds := l.recorder.Holds(); len(holds) > 0 {
		return slices.MaxFunc(holds, func(a, b record.Hold) int { return a.Last.Compare(b.Last) }).Host, nil
	}
	return "", errors.New("no host is active: none has answered for the VIP")
}

func (l *Lab) start(ctx context.Context, step script.Step) error {
	if step.Kind == script.MySQL {
		return l.startServers(ctx, step)
	}
	list, err := l.dead(ctx, step)
	if err != nil {
		return err
	}
	for _, p := range list {
		if step.Verb == script.Restart {
			if err := p.Stop(ctx); err != nil {
				return err
			}
		}
		if err := p.Start(); err != nil {
			return err
		}
		delete(l.killed, p)
	}
	return nil
}

// dead is what start names. The leader of etcd that was killed is the daemon that does not run.
func (l *Lab) dead(ctx context.Context, step script.Step) ([]*netns.Process, error) {
	if step.Kind != script.Etcd {
		return l.processes(ctx, step)
	}
	var list []*netns.Process
	for _, p := range l.daemon {
		if !p.Alive() {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("every member of etcd runs already")
	}
	return list, nil
}

func (l *Lab) startServers(ctx context.Context, step script.Step) error {
	list, err := l.serversOf(step)
	if err != nil {
		return err
	}
	for _, p := range list {
		if in := l.mysql[p.Host.Name]; !in.Alive() {
			if err := in.Start(ctx); err != nil {
				return err
			}
			delete(l.killed, p)
		}
	}
	return nil
}

func (l *Lab) cut(ctx context.Context, step script.Step) error {
	host, err := l.nodeName(step.Host)
	if err != nil {
		return err
	}
	if step.Kind == script.Host {
		l.later("mend host "+host, func(context.Context) error { return l.net.Mend(host) })
		return l.net.Cut(host)
	}
	l.later("mend links", l.net.Unblock)
	if err := l.net.Block(ctx, host, step.Peer); err != nil || !step.Both {
		return err
	}
	return l.net.Block(ctx, step.Peer, host)
}

// mend takes back every cut, and only those.
func (l *Lab) mend(ctx context.Context) error {
	errs := []error{l.net.Unblock(ctx)}
	for _, spec := range specs() {
		errs = append(errs, l.net.Mend(spec.Name))
	}
	return errors.Join(errs...)
}

func (l *Lab) flap(ctx context.Context, step script.Step) error {
	list, err := l.processes(ctx, step)
	if err != nil {
		return err
	}
	beat := l.beat()
	down, every := step.Down.Of(beat), step.Every.Of(beat)
	end := time.Now().Add(step.For.Of(beat))
	for _, p := range list {
		l.later("thaw "+p.Name+" on "+p.Host.Name, func(context.Context) error { return thaw(p) })
	}
	for time.Now().Before(end) {
		for _, half := range []struct {
			sig unix.Signal
			d   time.Duration
		}{{unix.SIGSTOP, down}, {unix.SIGCONT, every - down}} {
			for _, p := range list {
				if err := p.Signal(half.sig); err != nil {
					return err
				}
			}
			if err := pause(ctx, half.d); err != nil {
				return err
			}
		}
	}
	return nil
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
