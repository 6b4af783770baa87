package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoBPFFS is the lack of a BPF filesystem whose pins outlive the daemon, without which a tcx link dies, and opens, with the process.
var ErrNoBPFFS = errors.New("gate: no lasting BPF filesystem")

// sysBPFFS is where systemd mounts one for everybody.
const sysBPFFS = "/sys/fs/bpf"

// initialPIDNamespace is the inode of the machine's own PID namespace (PROC_PID_INIT_INO in the kernel's proc_ns.h), the same since Linux 3.8.
const initialPIDNamespace = 0xeffffffc

// pinRoots are the directories that may hold pins of this host's gates, the one to use first. All are searched for those of a predecessor.
func (g *Gate) pinRoots() []string {
	if g.cfg.BPFFS != "" {
		return []string{g.cfg.BPFFS}
	}
	return []string{g.ownBPFFS(), sysBPFFS}
}

func (g *Gate) ownBPFFS() string { return filepath.Join(g.cfg.StateDir, "bpf") }

// pinRoot returns a BPF filesystem that outlives the daemon, and mounts one of its own when there is none.
func (g *Gate) pinRoot() (string, error) {
	if dir := g.cfg.BPFFS; dir != "" {
		if !isBPFFS(dir) {
			return "", fmt.Errorf("use %s for pins: %w: it is not a BPF filesystem: mount one there (mount -t bpf bpf %s)", dir, ErrNoBPFFS, dir)
		}
		return dir, nil
	}
	for _, dir := range g.pinRoots() {
		if isBPFFS(dir) && g.lasting(dir) && unix.Access(dir, unix.W_OK) == nil {
			return dir, nil
		}
	}
	return g.mountOwn()
}

// mountOwn mounts a BPF filesystem under the state directory, and takes it away again when it would die with the daemon.
func (g *Gate) mountOwn() (string, error) {
	dir := g.ownBPFFS()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoBPFFS, err)
	}
	if isBPFFS(dir) {
		return "", fmt.Errorf("%w: the one at %s lies in a mount namespace that ends with the daemon", ErrNoBPFFS, dir)
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return "", fmt.Errorf("%w: mount one at %s: %w", ErrNoBPFFS, dir, err)
	}
	if !g.lasting(dir) {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		return "", fmt.Errorf("%w: this process has a mount namespace of its own, and what it mounts ends with it", ErrNoBPFFS)
	}
	return dir, nil
}

// inForceAfterUs reports whether what is mounted at dir stays when every process of ours is gone: the machine's first process sees the same filesystem there.
// Containers and units with a mount namespace of their own (PrivateTmp=, ProtectSystem=, ip netns exec) fail this: their mounts, and with them the pins, end with them.
func inForceAfterUs(dir string) bool {
	var ns, ours, first unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &ns) != nil || ns.Ino != initialPIDNamespace {
		return false
	}
	if unix.Stat(dir, &ours) != nil || unix.Stat(filepath.Join("/proc/1/root", dir), &first) != nil {
		return false
	}
	return ours.Dev == first.Dev
}

func isBPFFS(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.BPF_FS_MAGIC
}

// pinDir is where the links of this VIP in this network namespace are pinned under root. The namespace's inode is part of the name
// because interface indexes are not unique across namespaces, and a successor takes away what it finds under its own.
func (g *Gate) pinDir(root string) (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return "", fmt.Errorf("identify network namespace: %w", err)
	}
	vip := g.cfg.VIP.As4()
	return filepath.Join(root, "baton", fmt.Sprintf("%d_%x", ns.Ino, vip[:])), nil // no dots: a BPF filesystem refuses them
}
