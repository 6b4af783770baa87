// Package switcher is the controller: it holds the lock, decides by the policy, and carries a plan out step by step.
//
// It touches no MySQL and no address itself: guards do, on requests that name its term. Losing the lock ends everything that it
// does at the next transaction, for each one compares the term.
package switcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/internal/lease"
	"github.com/baton-ha/baton/switcher/policy"
)

// ErrDeposed means: somebody else holds the lock. Whatever was under way here is his to finish or undo.
var ErrDeposed = errors.New("switcher: another controller has taken the lock")

// Store is the controller's part of etcd.
type Store interface {
	Read(ctx context.Context) (dcs.State, error)
	TakeTerm(ctx context.Context, read dcs.Versioned[cluster.Term], node cluster.NodeName) (dcs.Versioned[cluster.Term], error)
	Do(ctx context.Context, what string, cmps []dcs.Cmp, ops ...dcs.Op) (dcs.Result, error)
}

// Looker reads every MySQL of the cluster and says which site could take over.
type Looker interface {
	Look(ctx context.Context, a cluster.Assignment, sync map[cluster.ShardName]cluster.SyncState) Readiness
	// Rest closes what Look keeps open: a switch begins, and its first step would have to kill those connections.
	Rest()
}

// Config is one controller.
type Config struct {
	Cluster cluster.Cluster
	Profile cluster.Profile
	Node    cluster.NodeName
	Mode    policy.Mode
	Limits  policy.Limits
	Terms   lease.Terms
	Keys    dcs.Keys
	Store   Store
	Looker  Looker
	Log     *slog.Logger
}

// Switcher competes for the lock and, while it holds it, decides and switches.
type Switcher struct {
	Config
	states chan dcs.State
	state  dcs.State // the newest; belongs to the goroutine of Run

	beatMod  int64     // of the beat last seen
	beatAt   time.Time // when it was seen to change, by the monotonic clock
	lastTry  time.Time
	lockedAt time.Time
	offered  map[cluster.NodeName]time.Time // when the lock was handed to that node last
	loose    bool                           // a transaction of ours has an unknown outcome: the term is raised at once, which kills it (PROTOCOL 1)
}

// New returns a switcher. Nothing is touched before Run.
func New(c Config) *Switcher {
	return &Switcher{Config: c, states: make(chan dcs.State, 1), offered: map[cluster.NodeName]time.Time{}}
}

// Observe hands the newest state over; it never blocks, and an unread older one is dropped.
func (s *Switcher) Observe(st dcs.State) {
	for {
		select {
		case s.states <- st:
			return
		default:
		}
		select {
		case <-s.states:
		default:
		}
	}
}

// Run competes for the lock until ctx ends. A node that observes only never takes it.
func (s *Switcher) Run(ctx context.Context) error {
	tick := time.NewTicker(s.Profile.LockPulse / 8)
	defer tick.Stop()
	s.beatAt = time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case st := <-s.states:
			s.take(st)
		case <-tick.C:
		}
		if !s.may(time.Now()) {
			continue
		}
		if err := s.compete(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("lock", slog.Any("err", err))
		}
	}
}

// take notes a newer state, and when the lock's pulse was seen to change.
func (s *Switcher) take(st dcs.State) {
	s.state = st
	if st.Beat.Mod != s.beatMod {
		s.beatMod, s.beatAt = st.Beat.Mod, time.Now()
	}
}

// may says whether this node may try for the lock now: it was handed over to it, or its pulse has not changed for L. Nodes wait a
// quarter of L more for each place in the order of preference, so that the witness comes first and they do not race.
func (s *Switcher) may(now time.Time) bool {
	if s.Mode == policy.Observe || s.state.Revision == 0 || now.Sub(s.state.FreshAt) > s.Limits.Fresh {
		return false
	}
	if s.state.Beat.Value.Next == s.Node || s.loose {
		return now.Sub(s.lastTry) > s.Profile.LockPulse/8
	}
	wait := s.Profile.LockPulse + time.Duration(rank(s.Cluster, s.state.Assignment.Value.Site, s.Node))*s.Profile.LockPulse/4
	return now.Sub(s.beatAt) > wait && now.Sub(s.lastTry) > s.Profile.LockPulse/4
}

// rank is the node's place in the order of preference for the lock: witness, standby, active (DESIGN 3), so that a host that
// vanishes takes the VIP or the controller along, and not both.
func rank(c cluster.Cluster, active cluster.SiteName, node cluster.NodeName) int {
	place := 0
	class := func(n cluster.NodeName) int {
		switch site, ok := c.SiteOf(n); {
		case !ok:
			return 0
		case site.Name != active:
			return 1
		}
		return 2
	}
	for _, n := range c.Nodes {
		if n.Name == node {
			break
		}
		if class(n.Name) == class(node) {
			place++
		}
	}
	for _, n := range c.Nodes {
		if class(n.Name) < class(node) {
			place++
		}
	}
	return place
}

// compete takes the lock and leads until it is lost, handed over, or ctx ends.
func (s *Switcher) compete(ctx context.Context) error {
	s.lastTry = time.Now()
	txn, cancel := context.WithTimeoutCause(ctx, s.Profile.LockPulse, errors.New("taking the lock took longer than L"))
	defer cancel()
	st, err := s.Store.Read(txn)
	if err != nil {
		return err
	}
	mine := s.loose && st.Term.Value.Node == s.Node // then the pulse is our own, and only our view of it lags
	s.loose = mine
	if st.Beat.Mod != s.beatMod && !mine {
		s.take(st) // somebody else was first
		return nil
	}
	term, err := s.Store.TakeTerm(txn, st.Term, s.Node)
	if errors.Is(err, dcs.ErrCompare) {
		return nil
	}
	if err != nil {
		s.loose = errors.Is(err, dcs.ErrUnknownOutcome)
		return err
	}
	s.lockedAt, s.loose = time.Now(), false
	s.Log.Info("lock taken", slog.Int64("term", term.Value.N), slog.String("before", string(st.Term.Value.Node)))
	err = newTenure(s, term, st).lead(ctx)
	s.beatAt = time.Now()
	s.Log.Info("lock given up", slog.Int64("term", term.Value.N), slog.Any("err", err))
	s.loose = errors.Is(err, dcs.ErrUnknownOutcome)
	return nil
}

// txn bounds one transaction: a controller that cannot reach etcd for L is about to be deposed anyway.
func (s *Switcher) txn(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.Profile.LockPulse, fmt.Errorf("%s took longer than L", what))
}
