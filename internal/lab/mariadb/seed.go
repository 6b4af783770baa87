// Package mariadb starts real MariaDB servers for the laboratory, from a data directory that is baked once.
//
// It decides nothing: who is writable and who replicates is said by its caller.
package mariadb

import (
	"context"
	"crypto/sha256"
	_ "embed" // server.cnf and seed.sql
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed server.cnf
var serverConf string

//go:embed seed.sql
var seedSQL string

// Passwords of the accounts that the seed creates, by account. They protect nothing: no box has a route out.
var Passwords = map[string]string{"baton_probe": "probe", "baton_admin": "admin", "repl": "repl", "mycat": "mycat"}

const bakeBudget = 60 * time.Second // 1-3 s on an idle machine

// Seed is a baked data directory. It is only read: servers run on copies.
type Seed struct {
	Dir     string
	Version string // "mariadb 10.11.19"
}

// Bake returns the seed for the installed server from the cache directory, baking it first when it is not there. The seed is keyed
// by the server's version and by what goes into it, and appears under its name only when it is complete.
func Bake(ctx context.Context, cache string) (Seed, error) {
	version, err := serverVersion(ctx)
	if err != nil {
		return Seed{}, err
	}
	sum := sha256.Sum256([]byte(version + serverConf + seedSQL))
	seed := Seed{Dir: filepath.Join(cache, fmt.Sprintf("seed-%x", sum[:8])), Version: version}
	if _, err := os.Stat(seed.Dir); err == nil {
		return seed, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Seed{}, fmt.Errorf("make the seed's cache: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, "baking-")
	if err != nil {
		return Seed{}, fmt.Errorf("make the seed's directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // after the rename, what is left is the configuration only
	ctx, cancel := context.WithTimeoutCause(ctx, bakeBudget, errors.New("baking the seed took too long"))
	defer cancel()
	if err := bake(ctx, tmp); err != nil {
		return Seed{}, fmt.Errorf("bake a data directory for %s: %w", version, err)
	}
	if err := os.Rename(filepath.Join(tmp, "data"), seed.Dir); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return Seed{}, fmt.Errorf("keep the seed: %w", err) // another run baked it meanwhile: as good
	}
	return seed, nil
}

func serverVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "mariadbd", "--no-defaults", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask mariadbd for its version (is mariadb-server-core installed? make setup): %w", err)
	}
	_, rest, _ := strings.Cut(string(out), "Ver ")
	number, _, _ := strings.Cut(rest, "-")
	return "mariadb " + number, nil
}

// bake runs without a binary log, so that every copy starts with an empty GTID state: source and replica need no coordinates.
func bake(ctx context.Context, dir string) error {
	data, conf := filepath.Join(dir, "data"), filepath.Join(dir, "my.cnf")
	paths := fmt.Sprintf("user=root\ndatadir=%s\nsocket=%s/sock\npid-file=%s/pid\nskip-log-bin\nskip-networking\nread-only=OFF\n", data, dir, dir)
	if err := os.WriteFile(conf, []byte(serverConf+paths), 0o644); err != nil {
		return err
	}
	install := exec.CommandContext(ctx, "mariadb-install-db", "--defaults-file="+conf, "--auth-root-authentication-method=socket", "--skip-test-db")
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("install the system tables: %w: %s", err, out)
	}
	// --bootstrap reads statements from stdin, without accounts and without a server on a socket.
	boot := exec.CommandContext(ctx, "mariadbd", "--defaults-file="+conf, "--bootstrap")
	boot.Stdin = strings.NewReader("USE mysql;\nFLUSH PRIVILEGES;\n" + statements(seedSQL))
	if out, err := boot.CombinedOutput(); err != nil {
		return fmt.Errorf("create accounts and tables: %w: %s", err, out)
	}
	return nil
}

// statements puts each statement on a line of its own, as --bootstrap wants it.
func statements(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--") {
			continue
		}
		b.WriteString(line)
		if strings.HasSuffix(line, ";") {
			b.WriteByte('\n')
		} else {
			b.WriteByte(' ')
		}
	}
	return b.String()
}
