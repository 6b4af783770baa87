package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/guard"
	"github.com/baton-ha/baton/vip"
	"github.com/baton-ha/baton/vip/keepalived"
)

// newBinder is what the configuration asks for; what is missing is an error, never a silent other way.
func newBinder(cfg config.Config, site cluster.Site, addr *vip.Address, log *slog.Logger) (guard.Binder, error) {
	if cfg.Bind == config.BindNetlink {
		return netlinkBinder{addr, vip.NewNetlink(addr)}, nil
	}
	k, err := keepalived.New(keepalived.Config{
		VIP: cfg.Cluster.VIP.Addr, Interface: site.Interface, RouterID: cfg.RouterIDOf(site.Name),
		StateDir: filepath.Join(cfg.StateDir, "keepalived"), Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("bind: keepalived: %w", err)
	}
	return keepalivedBinder{addr, k}, nil
}

// keepalivedBinder is `bind: keepalived`: the real program, as Baton's own instance.
type keepalivedBinder struct {
	addr *vip.Address
	k    *keepalived.Binder
}

func (b keepalivedBinder) Bind(ctx context.Context, lifetime time.Duration) (guard.Facts, error) {
	if err := b.k.Bind(ctx, lifetime); err != nil {
		return nil, err
	}
	return withMAC(ctx, b.addr, guard.Facts{"binder": "keepalived"})
}

func (b keepalivedBinder) Unbind(ctx context.Context) (guard.Facts, error) {
	return guard.Facts{"binder": "keepalived"}, b.k.Unbind(ctx)
}

// Extend gives the address the new lifetime, and says when keepalived is not there any more: the address alone would go on serving,
// and nobody would take it off by SIGTERM. An address that went with a dying keepalived is put back at once, in 0.2 ms: clients must
// not wait for the 30 ms that a new keepalived takes.
func (b keepalivedBinder) Extend(ctx context.Context, lifetime time.Duration) error {
	absent := b.addr.Extend(ctx, lifetime)
	if absent != nil && !errors.Is(absent, vip.ErrAbsent) {
		return absent
	}
	if absent != nil {
		if err := b.addr.Add(ctx, lifetime); err != nil {
			return errors.Join(absent, err)
		}
	}
	s, err := b.k.State(ctx)
	if err != nil {
		return err
	}
	if cause := errors.Join(absent, s.Cause); cause != nil {
		return fmt.Errorf("%w: %w", guard.ErrBinderLost, cause)
	}
	return nil
}

func (b keepalivedBinder) Held(ctx context.Context) (bool, error) {
	s, err := b.addr.State(ctx)
	return s.Present, err
}

// clientTLS reads the client's certificates for etcd; nil without any.
func clientTLS(t config.TLS) (*tls.Config, error) {
	if t == (config.TLS{}) {
		return nil, nil //nolint:nilnil // plain TCP is a configuration
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read etcd's CA: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read etcd's CA: %s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("read etcd's client certificate: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
