package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// ErrOlderTerm means: the request is of a term that has been succeeded. The first refusal ends the whole procedure of the one refused.
var ErrOlderTerm = errors.New("guard: request of an older term")

// ErrRefused means: an instance may not be given back, and nothing was changed there.
var ErrRefused = errors.New("guard: refused, and nothing was changed")

// Check is asked right before every statement that changes anything: term, switch and fence are still current (PROTOCOL 4).
type Check func() error

// Databases opens connections for steps. One connection, no retry; it is opened before its check.
type Databases interface {
	Open(ctx context.Context, in cluster.Instance) (Database, error)
}

// Database is a step's connection to one MySQL. GTID sets are the server's own text.
type Database interface {
	// KillOlder ends all of Baton's other step connections on this server.
	KillOlder(ctx context.Context, check Check) error
	// FenceWrites makes the server write-proof and returns its executed set, read twice and stable.
	FenceWrites(ctx context.Context, check Check) (executed string, err error)
	// Cut stops the replica's IO thread, so that it acknowledges nothing more, and returns what was received.
	Cut(ctx context.Context, check Check) (received string, err error)
	// CatchUp waits until all of upTo (empty: all that was received) is executed.
	CatchUp(ctx context.Context, check Check, upTo string) (executed string, err error)
	// Missing is what of a set another replica has received and this one has not; empty when nothing is.
	Missing(ctx context.Context, received string) (missing string, err error)
	// Obtain fetches what only that other replica has received, all of upTo, and is cut again at the end.
	Obtain(ctx context.Context, check Check, from cluster.Instance, upTo string) (executed string, err error)
	// Quiesce does the part of a promotion that no client notices: replica stopped, nothing that writes or waits by itself.
	Quiesce(ctx context.Context, check Check) error
	// Prepare says whether a quiesced server may be promoted under that epoch; it changes no data.
	Prepare(ctx context.Context, check Check, e Epoch) error
	// Mark writes the epoch into a prepared server, which is still read-only.
	Mark(ctx context.Context, check Check, e Epoch) error
	// Open makes a marked server writable.
	Open(ctx context.Context, check Check) (executed string, err error)
	// Resume lets the replica run again: the undo of Cut.
	Resume(ctx context.Context, check Check) error
	// Demote makes it read-only again and lets its replica run: the undo of Cut and Promote.
	Demote(ctx context.Context, check Check) error
	// Restore makes a fenced or restarted source writable again; it refuses (ErrRefused) when its epoch is newer, when a replica has what it
	// lacks, or when it replicates and cannot be made to stand alone.
	Restore(ctx context.Context, check Check, e Epoch) error
	// Rejoin makes the server a read-only replica of source; errant transactions are refused and named.
	Rejoin(ctx context.Context, check Check, source cluster.Instance) (facts map[string]string, err error)
	// Arm switches lossless semi-sync on at a source whose replica runs, and waits until it is in force.
	Arm(ctx context.Context, check Check) error
	// Relax switches the source half of semi-sync off, recorded as degraded before.
	Relax(ctx context.Context, check Check) error
	Close() error
}

// Epoch is what promote writes into baton.epoch, so that it travels with the data.
type Epoch struct {
	Epoch  int64
	Switch string
	Site   cluster.SiteName
}

// ExecutorConfig is one executor.
type ExecutorConfig struct {
	Cluster   cluster.Cluster
	Node      cluster.NodeName
	Keys      dcs.Keys
	Store     Store
	Databases Databases
	Fresh     time.Duration // a view of etcd older than this refuses every statement
	Log       *slog.Logger
}

// Executor runs the steps of requests to its node, one request at a time, the newest term only.
type Executor struct {
	ExecutorConfig
	latest  atomic.Pointer[dcs.State]
	wake    chan struct{}
	highest int64  // term
	done    string // id of the newest request that was taken
}

// NewExecutor returns an executor. Nothing is touched before Run.
func NewExecutor(c ExecutorConfig) *Executor {
	return &Executor{ExecutorConfig: c, wake: make(chan struct{}, 1)}
}

// Observe hands the newest state over; it never blocks.
func (e *Executor) Observe(s dcs.State) {
	e.latest.Store(&s)
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// job is a request under way.
type job struct {
	req    plan.Request
	cancel context.CancelCauseFunc
	done   chan plan.Answer
}

// Run takes requests until ctx ends. It is serial: a newer request cancels the one under way and waits for its end.
func (e *Executor) Run(ctx context.Context) error {
	var now *job
	for {
		var done chan plan.Answer
		if now != nil {
			done = now.done
		}
		select {
		case <-ctx.Done():
			if now != nil {
				<-now.done
			}
			return nil
		case a := <-done:
			e.answer(ctx, now.req, a)
			now = nil
		case <-e.wake:
		}
		req, mod, ok := e.newest()
		if !ok {
			continue
		}
		if now != nil {
			now.cancel(fmt.Errorf("request %s takes its place", req.ID))
			e.answer(ctx, now.req, <-now.done)
		}
		now = e.begin(ctx, req, mod)
	}
}

// newest is the request for this node that has not been taken; only the newest term's counts.
func (e *Executor) newest() (plan.Request, int64, bool) {
	st := e.latest.Load()
	if st == nil {
		return plan.Request{}, 0, false
	}
	var best dcs.Versioned[plan.Request]
	for _, d := range st.Switches {
		if r, ok := d.Requests[e.Node]; ok && r.Mod > best.Mod {
			best = r
		}
	}
	if best.Mod == 0 || best.Value.ID == e.done {
		return plan.Request{}, 0, false
	}
	e.done = best.Value.ID
	return best.Value, best.Mod, true
}

func (e *Executor) begin(ctx context.Context, req plan.Request, mod int64) *job {
	if req.Fence == 0 {
		req.Fence = mod // it rode in the transaction that wrote the assignment: both have one revision
	}
	j := &job{req: req, done: make(chan plan.Answer, 1)}
	ctx, j.cancel = context.WithCancelCause(ctx)
	if req.Term < e.highest {
		j.done <- plan.Answer{Request: req.ID, Node: e.Node, Refused: ErrOlderTerm.Error()}
		return j
	}
	e.highest = req.Term
	w := &work{Executor: e, req: req, check: e.checker(req)}
	go func() {
		defer j.cancel(nil)
		j.done <- w.run(ctx)
	}()
	return j
}

// checker is the check before each statement of a request. The view must be fresh: a process that was frozen finds its view old
// before it finds anything else.
func (e *Executor) checker(req plan.Request) Check {
	return func() error {
		st := e.latest.Load()
		if age := time.Since(st.FreshAt); age > e.Fresh {
			return fmt.Errorf("view of etcd is %s old: %w", age.Round(time.Millisecond), dcs.ErrUnavailable)
		}
		return st.Current(req.Term, req.Fence)
	}
}

// answerAgain is the pause before an answer that etcd refused is written again: a full database refuses at once.
const answerAgain = 50 * time.Millisecond

// answer writes what was done, if the term is still the request's; a newer controller reads for himself.
func (e *Executor) answer(ctx context.Context, req plan.Request, a plan.Answer) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Fresh+2*time.Second, errors.New("answering took too long"))
	defer cancel()
	st := e.latest.Load()
	if st.Term.Value.N != req.Term {
		return
	}
	for {
		_, err := e.Store.Do(ctx, "answer request", []dcs.Cmp{{Key: e.Keys.Term(), Mod: st.Term.Mod}},
			dcs.Doc(e.Keys.Switch(req.Switch, "answer/"+string(e.Node)), a))
		if err == nil || errors.Is(err, dcs.ErrCompare) || ctx.Err() != nil {
			return
		}
		e.Log.Warn("answer request", slog.Any("err", err), slog.String("switch", req.Switch)) // idempotent: written again until ctx ends
		timer := time.NewTimer(answerAgain)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
