package dcs_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/dcs/member"
)

// authority issues certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, time.Hour)
	return a
}

// issue makes a certificate and writes NAME.pem and NAME.key.
func (a *authority) issue(name string, tmpl *x509.Certificate, lasts time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl.SerialNumber, tmpl.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(lasts)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", raw)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) write(file, kind string, der []byte) {
	a.t.Helper()
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(filepath.Join(a.dir, file), data, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) files(name string) member.TLS {
	return member.TLS{Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key"), CA: filepath.Join(a.dir, "ca.pem")}
}

// config is a client's TLS with the named certificate; none if the name is empty.
func (a *authority) config(name string, roots *x509.Certificate) *tls.Config {
	a.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(roots)
	cfg := &tls.Config{RootCAs: pool}
	if name != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

// TestTLS: with the right certificates all works, between members too; every other case is named as denied, not as a dead endpoint.
func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for name, a := range map[string]*authority{"good": ours, "foreign": theirs} {
		a.issue(name, &x509.Certificate{ExtKeyUsage: both, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, time.Hour)
	}
	ours.issue("expired", &x509.Certificate{ExtKeyUsage: both}, -time.Hour)
	c := prepare(t, 3)
	for _, n := range c.nodes {
		n.cfg.ClientTLS, n.cfg.PeerTLS = ours.files("good"), ours.files("good")
	}
	c.start()

	for name, tc := range map[string]struct {
		tls    *tls.Config
		denied bool
	}{
		"good":                {ours.config("good", ours.cert), false},
		"no certificate":      {ours.config("", ours.cert), true},
		"expired certificate": {ours.config("expired", ours.cert), true},
		"foreign certificate": {theirs.config("foreign", ours.cert), true},
		"untrusted server":    {ours.config("good", theirs.cert), true},
	} {
		t.Run(name, func(t *testing.T) {
			kv := connect(t, dcs.Config{Endpoints: c.endpoints(), TLS: tc.tls, AttemptTimeout: attempt})
			if !tc.denied {
				run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)
				return
			}
			_, err := kv.Txn(within(t, 2*attempt), nil, []dcs.Op{put("/a", "2")}, nil)
			denied(t, "write", err)
			denied(t, "watch", kv.Watch(within(t, generous), "/", 1, attempt, func(dcs.Batch) {}))
			members, _ := kv.Health(within(t, generous))
			denied(t, "status", members[0].Err)
		})
	}
}

func denied(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, dcs.ErrDenied) || errors.Is(err, dcs.ErrUnknownOutcome) {
		t.Errorf("%s: got %v, want ErrDenied", what, err)
	}
}

// TestUsers: user and password, what the user may not touch, and a token that the server has forgotten.
func TestUsers(t *testing.T) {
	c := startCluster(t, 1)
	admin, err := clientv3.New(clientv3.Config{Endpoints: c.endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	enableUsers(t, admin)
	user := func(name, password string) *dcs.Etcd {
		return connect(t, dcs.Config{Endpoints: c.endpoints(), Username: name, Password: password, AttemptTimeout: 5 * time.Second})
	}
	baton := user("baton", "secret")
	base := run(t, baton, nil, []dcs.Op{put("/baton/a", "1")}, nil).Revision
	equal(t, "watch", show(collect(t, baton, "/baton/", base-1, 1), base), "a=1@0")

	_, err = baton.Txn(within(t, generous), nil, []dcs.Op{put("/other", "1")}, nil)
	denied(t, "foreign key", err)
	denied(t, "foreign watch", baton.Watch(within(t, generous), "/other", 1, 0, func(dcs.Batch) {}))
	_, err = user("baton", "wrong").Txn(within(t, generous), nil, []dcs.Op{get("/baton/a")}, nil)
	denied(t, "wrong password", err)
	_, err = user("", "").Txn(within(t, generous), nil, []dcs.Op{get("/baton/a")}, nil)
	denied(t, "nobody", err)

	c.nodes[0].stop(t)
	receive(t, c.nodes[0].start(t), "the member is back, without its tokens")
	eventually(t, "a new token is fetched", func() bool {
		_, err := baton.Txn(within(t, generous), nil, []dcs.Op{put("/baton/a", "2")}, nil)
		return err == nil
	})
}

func enableUsers(t *testing.T, admin *clientv3.Client) {
	t.Helper()
	ctx := within(t, generous)
	for what, do := range map[string]func(ctx context.Context) error{
		"root": func(ctx context.Context) error { _, err := admin.UserAdd(ctx, "root", "root"); return err },
		"role": func(ctx context.Context) error { _, err := admin.RoleAdd(ctx, "baton"); return err },
		"user": func(ctx context.Context) error { _, err := admin.UserAdd(ctx, "baton", "secret"); return err },
	} {
		if err := do(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	all := clientv3.PermissionType(clientv3.PermReadWrite)
	if _, err := admin.RoleGrantPermission(ctx, "baton", "/baton/", clientv3.GetPrefixRangeEnd("/baton/"), all); err != nil {
		t.Fatal(err)
	}
	for user, role := range map[string]string{"root": "root", "baton": "baton"} {
		if _, err := admin.UserGrantRole(ctx, user, role); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
}
