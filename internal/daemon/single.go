package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// single makes this process the only daemon of the host. A predecessor that is still there is killed, frozen or not: two daemons on
// one host would share a gate (PROTOCOL 2). It returns when the lock is held; the file is closed at the process's end.
func single(ctx context.Context, dir string, log *slog.Logger) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if err := kill(f, log); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: another daemon holds it and does not die: %w", path, context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), f.Close())
	}
	return f, nil
}

// kill ends the owner of the lock file. The number in it may be of long ago: a new owner writes his own only after he has the lock. So it
// is killed by a pidfd, and only if that process has the lock file open, asked after the pidfd was opened: a process that got the number
// later is never hit.
func kill(f *os.File, log *slog.Logger) error {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0) // a short file is one that its owner has not written yet: try again
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 1 || pid == os.Getpid() {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open predecessor %d: %w", pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	if !opened(pid, f) {
		return nil
	}
	log.Warn("a predecessor holds the lock: it is killed", slog.Int("pid", pid))
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill predecessor %d: %w", pid, err)
	}
	return nil
}

// opened says whether the process has the file open. One that has gone has nothing open.
func opened(pid int, f *os.File) bool {
	file, err := f.Stat()
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		other, err := os.Stat(filepath.Join(dir, fd.Name()))
		return err == nil && os.SameFile(file, other)
	})
}
