package dcs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// MemberStatus is what one endpoint says about itself.
type MemberStatus struct {
	Endpoint string
	ID       uint64 // of the member behind the endpoint
	Version  string // of the server, "3.7.3"
	Leader   bool   // it is the leader
	LeaderID uint64 // the leader that it follows; 0: it has none
	RaftTerm uint64 // grows with each election
	DBSize   int64  // bytes of the database file
	Alarms   []string
	Took     time.Duration // from request to answer
	Err      error         // it did not answer; all but Endpoint and Took is zero
}

// Health asks every endpoint for its status at the same time, each within AttemptTimeout, in the order of the configuration.
// The error is ErrUnavailable if none answered, or ErrNoQuorum if none of those that did knows a leader.
func (e *Etcd) Health(ctx context.Context) ([]MemberStatus, error) {
	members := make([]MemberStatus, len(e.endpoints))
	var asking sync.WaitGroup
	for i, p := range e.endpoints {
		asking.Go(func() { members[i] = p.status(ctx) })
	}
	asking.Wait()
	return members, verdict(members)
}

// noLeader stands among a member's errors, and is no alarm: LeaderID says it.
var noLeader = rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader)

func verdict(members []MemberStatus) error {
	answered := false
	var errs []error
	for _, m := range members {
		if m.LeaderID != 0 {
			return nil
		}
		answered = answered || m.Err == nil
		errs = append(errs, m.Err)
	}
	if answered {
		return fmt.Errorf("read status of etcd: %w: %w", ErrUnavailable, ErrNoQuorum)
	}
	return fmt.Errorf("read status of etcd: %w: %w", ErrUnavailable, errors.Join(errs...))
}

func (p *endpoint) status(ctx context.Context) MemberStatus {
	sent := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.AttemptTimeout, fmt.Errorf("no answer within %v", p.cfg.AttemptTimeout))
	defer cancel()
	m := MemberStatus{Endpoint: p.url}
	client, err := p.conn(ctx)
	var resp *pb.StatusResponse
	if err == nil {
		// The library's own Status opens a new connection for each call.
		resp, err = pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	}
	m.Took = time.Since(sent)
	if err != nil {
		_, sentinel := judge(p.explain(err, false), false)
		m.Err = fmt.Errorf("read status of %s: %w: %w", p.url, sentinel, p.explain(err, false))
		return m
	}
	m.ID, m.LeaderID = resp.Header.MemberId, resp.Leader
	m.Leader = m.LeaderID != 0 && m.LeaderID == m.ID
	m.Version, m.RaftTerm, m.DBSize = resp.Version, resp.RaftTerm, resp.DbSize
	m.Alarms = slices.DeleteFunc(resp.Errors, func(text string) bool { return text == noLeader })
	return m
}

// MoveLeader lets the leader hand over to the member with that ID, and returns when it has. Nothing is done if that member leads already.
func (e *Etcd) MoveLeader(ctx context.Context, to uint64) error {
	members, err := e.Health(ctx)
	if err != nil {
		return fmt.Errorf("move etcd's leader to %x: %w", to, err)
	}
	for i, m := range members {
		switch {
		case !m.Leader:
			continue
		case m.ID == to:
			return nil
		}
		client, err := e.endpoints[i].conn(ctx)
		if err == nil {
			_, err = client.MoveLeader(ctx, to)
		}
		if err != nil {
			return fmt.Errorf("move etcd's leader from %s to %x: %w", m.Endpoint, to, err)
		}
		return nil
	}
	return fmt.Errorf("move etcd's leader to %x: %w: no configured endpoint is the leader", to, ErrUnavailable)
}
