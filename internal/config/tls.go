package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// ErrNoCertificate says that a file of an authority holds none.
var ErrNoCertificate = errors.New("config: no certificate in the file")

// Client loads the files for connections to etcd; nil when the file asks for plain text.
func (t TLS) Client() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("read authority of etcd: %w", err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read authority of etcd from %s: %w: it should begin with -----BEGIN CERTIFICATE-----", t.CA, ErrNoCertificate)
	}
	if t.Cert == "" {
		return c, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("read client certificate of etcd from %s and %s: %w", t.Cert, t.Key, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}
