package lab

import (
	"context"
	"errors"
	"fmt"
	"net"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const etcdPort = 2379

// etcdLeader asks the members, from the client's host, which of them leads.
func (l *Lab) etcdLeader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cliBudget, errors.New("etcd did not answer"))
	defer cancel()
	app, err := l.net.Host(appHost)
	if err != nil {
		return "", err
	}
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return app.DialContext(ctx, "tcp4", addr) }
	errs := []error{errors.New("no member of etcd says that it leads")}
	for _, node := range nodes {
		host, err := l.net.Host(node)
		if err != nil {
			return "", err
		}
		endpoint := fmt.Sprintf("%s:%d", host.Addr, etcdPort)
		leads, err := leads(ctx, endpoint, dial)
		if leads {
			return node, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func leads(ctx context.Context, endpoint string, dial func(context.Context, string) (net.Conn, error)) (bool, error) {
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
	if err != nil {
		return false, fmt.Errorf("reach etcd at %s: %w", endpoint, err)
	}
	defer func() { _ = client.Close() }()
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return false, fmt.Errorf("ask etcd at %s for its leader: %w", endpoint, err)
	}
	return status.Leader == status.Header.MemberId, nil
}
