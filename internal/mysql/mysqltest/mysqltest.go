// Package mysqltest starts real MariaDB servers for tests: a data directory is baked once, and copied for each instance; one is ready in
// about 0.3 s. It listens on loopback only, and its servers die with the test binary. No product code imports it.
package mysqltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// settings are those of the laboratory: small, durable, GTID-strict, lossless when semi-sync is on, read-only from the start.
var settings = []string{
	"--no-defaults", "--user=root", "--skip-name-resolve", "--log-bin=binlog", "--log-slave-updates", "--binlog-format=ROW",
	"--relay-log=relay", "--gtid-strict-mode=ON", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1",
	"--innodb-buffer-pool-size=8M", "--innodb-log-buffer-size=2M", "--innodb-temp-data-file-path=ibtmp1:4M:autoextend",
	"--innodb-buffer-pool-dump-at-shutdown=OFF", "--innodb-buffer-pool-load-at-startup=OFF", "--innodb-read-io-threads=1",
	"--innodb-write-io-threads=1", "--innodb-purge-threads=1", "--aria-pagecache-buffer-size=1M", "--key-buffer-size=1M",
	"--query-cache-size=0", "--query-cache-type=0", "--table-open-cache=64", "--max-connections=64", "--performance-schema=OFF",
	"--skip-slave-start", "--read-only=ON", "--rpl-semi-sync-master-wait-point=AFTER_SYNC", "--rpl-semi-sync-master-timeout=4294967295",
}

// layout must be the same when baking and when starting.
var layout = []string{"--innodb-data-file-path=ibdata1:5M:autoextend", "--innodb-autoextend-increment=1", "--innodb-log-file-size=4M"}

// Seed is a baked data directory.
type Seed struct{ dir string }

// Bake installs a server's data directory below dir and runs the statements in it, without a binlog: they have no GTID and are on every
// copy.
func Bake(ctx context.Context, dir string, statements ...string) (*Seed, error) {
	s := &Seed{dir: filepath.Join(dir, "seed")}
	args := append([]string{"--no-defaults", "--user=root", "--datadir=" + s.dir, "--auth-root-authentication-method=normal", "--skip-test-db"}, layout...)
	if out, err := exec.CommandContext(ctx, "mariadb-install-db", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("install data directory: %w: %s", err, out)
	}
	boot := exec.CommandContext(ctx, "mariadbd", append([]string{"--no-defaults", "--user=root", "--datadir=" + s.dir, "--bootstrap"}, layout...)...)
	boot.Stdin = strings.NewReader("FLUSH PRIVILEGES;\n" + strings.Join(statements, ";\n") + ";\n") // one statement a line
	if out, err := boot.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("prepare data directory: %w: %s", err, out)
	}
	return s, nil
}

// Instance is one server.
type Instance struct {
	Addr netip.AddrPort // on loopback
	Dir  string         // its data, and log beside it

	args []string
	proc *os.Process
	done chan struct{} // closed when the process has ended
}

// Start copies the seed to dir, which must not exist, and starts a server on it with that id; extra options go last.
func (s *Seed) Start(ctx context.Context, dir string, id int, extra ...string) (*Instance, error) {
	if out, err := exec.CommandContext(ctx, "cp", "-a", "--sparse=always", s.dir, dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy seed: %w: %s", err, out)
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	i := &Instance{Addr: addr, Dir: dir}
	i.args = append(append(append([]string{}, settings...), layout...),
		"--datadir="+dir, "--socket="+filepath.Join(dir, "sock"), "--pid-file="+filepath.Join(dir, "pid"),
		fmt.Sprintf("--server-id=%d", id), "--bind-address="+addr.Addr().String(), fmt.Sprintf("--port=%d", addr.Port()))
	i.args = append(i.args, extra...)
	return i, i.Run(ctx)
}

// freePort asks the kernel for a port that is free now.
func freePort() (netip.AddrPort, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// Run starts the server again on the same data and port, and waits until it greets.
func (i *Instance) Run(ctx context.Context) error {
	log, err := os.OpenFile(i.Dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("mariadbd", i.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	i.done = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal of the parent's death is that of the thread which forked
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		i.proc = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		close(i.done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start mariadbd: %w", err)
	}
	return i.ready(ctx)
}

func (i *Instance) ready(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !i.greets() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the greeting of %s: %w", i.Addr, context.Cause(ctx))
		case <-i.done:
			tail, _ := os.ReadFile(i.Dir + ".log")
			return fmt.Errorf("mariadbd ended: %s", tail[max(0, len(tail)-2000):])
		case <-tick.C:
		}
	}
	return nil
}

// greets says whether the server's first packet comes within 100 ms.
func (i *Instance) greets() bool {
	conn, err := net.DialTimeout("tcp", i.Addr.String(), 100*time.Millisecond)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	b := make([]byte, 16)
	n, err := conn.Read(b)
	return err == nil && bytes.ContainsRune(b[:n], 10) // protocol version 10
}

// Freeze stops every thread of the server, and returns when all stand: the kernel stops them one by one. The port stays open.
func (i *Instance) Freeze(ctx context.Context) error {
	if err := i.proc.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze mariadbd %d: %w", i.proc.Pid, err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !i.stands() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("freeze mariadbd %d: %w", i.proc.Pid, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

// stands says whether every thread is in state T.
func (i *Instance) stands() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", i.proc.Pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		// The state follows the name in parentheses, which may hold anything.
		if end := bytes.LastIndexByte(stat, ')'); err != nil || end < 0 || !bytes.HasPrefix(stat[end:], []byte(") T")) {
			return false
		}
	}
	return true
}

// Thaw lets a frozen server go on.
func (i *Instance) Thaw() error { return i.proc.Signal(syscall.SIGCONT) }

// Kill ends the server as a crash does, and waits for its end.
func (i *Instance) Kill() error { return i.end(syscall.SIGKILL) }

// Stop shuts the server down in order, and waits for its end.
func (i *Instance) Stop() error { return i.end(syscall.SIGTERM) }

func (i *Instance) end(sig syscall.Signal) error {
	if err := i.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end mariadbd %d: %w", i.proc.Pid, err)
	}
	<-i.done
	return nil
}
