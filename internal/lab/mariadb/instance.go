package mariadb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/baton-ha/baton/internal/lab/netns"
)

// Port is where every server listens.
const Port = 3306

const (
	readyBudget = 30 * time.Second // half a second on an idle machine
	readyPoll   = 10 * time.Millisecond
)

// Instance is one server on one host.
type Instance struct {
	netns.Process
	ServerID uint32

	dir string
}

// NewInstance copies the seed into dir (a directory in memory; holes stay holes) and writes the server's configuration.
//
// The source half of semi-sync goes into the configuration of the first site only: on a replica it makes the SQL thread itself
// wait for an acknowledgement that nobody sends, and nothing is applied any more.
func NewInstance(ctx context.Context, seed Seed, host *netns.Host, dir string, serverID uint32, source bool) (*Instance, error) {
	in := &Instance{ServerID: serverID, dir: dir}
	in.Process = netns.Process{Name: "mysqld", Host: host, Args: []string{"mariadbd", "--defaults-file=" + in.path("my.cnf")}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of %s: %w", host.Name, err)
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", "--sparse=always", seed.Dir, in.path("data")).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the seed for %s: %w: %s", host.Name, err, out)
	}
	half := map[bool]string{true: "ON", false: "OFF"}[source]
	conf := fmt.Sprintf("user=root\ndatadir=%s\nsocket=%s\npid-file=%s\nport=%d\nserver-id=%d\nreport-host=%s\nrpl_semi_sync_master_enabled=%s\n",
		in.path("data"), in.path("sock"), in.path("pid"), Port, serverID, host.Addr, half)
	if err := os.WriteFile(in.path("my.cnf"), []byte(serverConf+conf), 0o644); err != nil {
		return nil, fmt.Errorf("write configuration of %s: %w", host.Name, err)
	}
	return in, nil
}

func (in *Instance) path(name string) string { return filepath.Join(in.dir, name) }

// Start starts the server, on the data that is there, and waits until it answers.
func (in *Instance) Start(ctx context.Context) error {
	if err := in.Process.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyBudget, errors.New("the server did not become ready"))
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		_, err := in.Query(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-in.Dead():
			return fmt.Errorf("server of %s ended while starting: its log says why: %s", in.Host.Name, in.LogPath())
		case <-ctx.Done():
			return fmt.Errorf("wait for server of %s: %w: %w", in.Host.Name, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// Addr is where clients find the server.
func (in *Instance) Addr() netip.AddrPort { return netip.AddrPortFrom(in.Host.Addr, Port) }

// Exec runs a statement as root through the server's socket, past every fault of the network.
func (in *Instance) Exec(ctx context.Context, statement string) error {
	_, err := in.Query(ctx, statement)
	return err
}

// Query runs a statement as root through the server's socket and returns its rows as text.
func (in *Instance) Query(ctx context.Context, statement string) ([][]string, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "unix", in.path("sock")
	cfg.MaxAllowedPacket, cfg.Logger = 1<<24, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to server of %s: %w", in.Host.Name, err)
	}
	defer func() { _ = conn.Close() }()
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, fmt.Errorf("run %q on server of %s: %w", statement, in.Host.Name, err)
	}
	defer func() { _ = rows.Close() }()
	return text(rows)
}

func text(rows driver.Rows) ([][]string, error) {
	var all [][]string
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		line := make([]string, len(values))
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				line[i] = string(b)
			} else if v != nil {
				line[i] = fmt.Sprint(v)
			}
		}
		all = append(all, line)
	}
}

// Replicate makes the server a replica of source by GTID and starts it.
func (in *Instance) Replicate(ctx context.Context, source *Instance) error {
	change := fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='%s', MASTER_PORT=%d, MASTER_USER='repl', MASTER_PASSWORD='%s', "+
		"MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1", source.Host.Addr, Port, Passwords["repl"])
	if err := in.Exec(ctx, change); err != nil {
		return err
	}
	return in.Exec(ctx, "START SLAVE")
}
