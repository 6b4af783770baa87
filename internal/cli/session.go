package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/daemon"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
)

// session is a command's connection to the cluster.
type session struct {
	cfg   config.Config
	kv    *dcs.Etcd
	store *dcs.Store
	out   io.Writer
}

func open(c *cli.Context) (*session, error) {
	cfg, err := load(c)
	if err != nil {
		return nil, err
	}
	kv, err := daemon.Connect(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &session{cfg: cfg, kv: kv, store: dcs.NewStore(kv, cfg.Cluster.Name), out: c.App.Writer}, nil
}

func (s *session) close() { _ = s.kv.Close() } // nothing is in flight any more

// readTimeout is how long a command waits for etcd before it says that there is no quorum.
const readTimeout = 3 * time.Second

func (s *session) read(ctx context.Context) (dcs.State, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errors.New("no answer within 3 s"))
	defer cancel()
	st, err := s.store.Read(ctx)
	if err != nil {
		return st, fmt.Errorf("etcd does not answer at %v: are the daemons running, and has etcd its quorum? %w", s.cfg.Etcd.Endpoints, err)
	}
	return st, nil
}

func (s *session) print(v any) error {
	enc := json.NewEncoder(s.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// readiness decodes what the controller published last.
func readiness(st dcs.State) (switcher.Readiness, error) {
	var r switcher.Readiness
	if st.Readiness.Mod == 0 {
		return r, nil
	}
	if err := json.Unmarshal(st.Readiness.Value, &r); err != nil {
		return r, fmt.Errorf("read readiness: %w", err)
	}
	if r.Epoch != st.Assignment.Value.Epoch { // it shows the roles before the last switch: as the present ones they would call a good end a disaster
		return switcher.Readiness{}, nil
	}
	return r, nil
}
