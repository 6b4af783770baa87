package dcs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// watching is one watch at one endpoint. It speaks the watch protocol itself (etcd's rpc.proto): the client library's watcher
// hides a broken stream behind endless retries, and buffers between the network and the receiver's clock.
type watching struct {
	p       *endpoint
	prefix  string
	after   int64
	silence time.Duration
	fn      func(Batch)

	stream pb.Watch_WatchClient
	start  time.Time
	heard  atomic.Int64 // nanoseconds since start: the last message, or the end of fn
}

// Watch implements KV at the preferred endpoint; the next call goes to another one if this one was lost.
// When nothing changes for half of silence it asks the same member for a linearizable read and then for the watch's progress:
// a member that is cut off from its leader cannot answer, so a stale watch falls silent, and a quiet one does not.
func (e *Etcd) Watch(ctx context.Context, prefix string, after int64, silence time.Duration, fn func(Batch)) error {
	i, p := e.preferred()
	w := &watching{p: p, prefix: prefix, after: after, silence: silence, fn: fn, start: time.Now()}
	err := w.run(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = fmt.Errorf("watch %s at %s: %w", prefix, p.url, err)
	if errors.Is(err, ErrWatchLost) {
		e.missed(i, err)
	}
	return err
}

func (w *watching) run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	late := time.AfterFunc(w.p.cfg.AttemptTimeout, func() { cancel(fmt.Errorf("not opened within %v", w.p.cfg.AttemptTimeout)) })
	defer late.Stop()
	if err := w.open(ctx); err != nil {
		return lost(ctx, w.p.explain(err, false))
	}
	w.hear()
	for opened := false; ; {
		resp, err := w.stream.Recv()
		if err != nil {
			return lost(ctx, err)
		}
		received := time.Now()
		if err := cancelled(resp); err != nil {
			return err
		}
		if !opened && late.Stop() {
			opened = true
			if w.silence > 0 {
				asking.Go(func() { w.listen(ctx, cancel) })
			}
		}
		w.deliver(resp, received)
	}
}

// open starts one revision early: a member answers questions about progress only once its store has reached the first revision
// that the watch wants, which it has not when nothing was written since. deliver drops what is not asked for.
func (w *watching) open(ctx context.Context) error {
	client, err := w.p.conn(ctx)
	if err != nil {
		return err
	}
	marked := clientv3.WithRequireLeader(ctx)
	w.stream, err = pb.NewWatchClient(client.ActiveConnection()).Watch(marked, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return err
	}
	key, end := w.prefix, clientv3.GetPrefixRangeEnd(w.prefix)
	if key == "" {
		key, end = "\x00", "\x00" // etcd's words for: all keys
	}
	create := &pb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end), StartRevision: max(w.after, 1)}
	return w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

func (w *watching) deliver(resp *pb.WatchResponse, received time.Time) {
	w.hear()
	batch := Batch{Revision: resp.Header.GetRevision(), Received: received}
	for _, ev := range resp.Events {
		if ev.Kv.ModRevision > w.after {
			deleted := ev.Type == mvccpb.Event_DELETE
			batch.Items = append(batch.Items, Item{Key: string(ev.Kv.Key), Value: ev.Kv.Value, Mod: ev.Kv.ModRevision, Deleted: deleted})
		}
	}
	if len(batch.Items) > 0 || len(resp.Events) == 0 && !resp.Created {
		w.fn(batch)
		w.hear() // the time that fn took is not the stream's silence
	}
}

func (w *watching) hear() { w.heard.Store(int64(time.Since(w.start))) }

// listen ends the watch when nothing is heard for the silence, and asks when half of it has passed.
func (w *watching) listen(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(max(w.silence/8, time.Millisecond))
	defer ticker.Stop()
	asked := int64(-1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		heard := w.heard.Load()
		quiet := time.Since(w.start) - time.Duration(heard)
		if quiet >= w.silence {
			cancel(fmt.Errorf("nothing heard for %v", quiet.Round(time.Millisecond)))
			return
		}
		if quiet >= w.silence/2 && heard != asked {
			asked = heard
			w.ask(ctx, w.silence-quiet)
		}
	}
}

// ask lets the member prove that it is in touch with its leader, and then asks for the watch's progress. Failing, it leaves the silence to speak.
func (w *watching) ask(ctx context.Context, limit time.Duration) {
	reading, cancel := context.WithTimeoutCause(ctx, limit, errors.New("no linearizable read within the watch's silence"))
	defer cancel()
	key := w.prefix
	if key == "" {
		key = "\x00"
	}
	if _, _, err := w.p.attempt(reading, txn{then: []Op{{Kind: Get, Key: key}}}); err != nil {
		return
	}
	// A stream that cannot send any more fails its next Recv, which is where the reason is reported.
	_ = w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

// lost names the reason for which the stream broke: our own limits before what grpc makes of them.
func lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if _, sentinel := judge(err, false); errors.Is(sentinel, ErrDenied) {
		return fmt.Errorf("%w: %w: %w", ErrWatchLost, ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", ErrWatchLost, err)
}

// cancelled turns a message that ends the watch into an error.
func cancelled(resp *pb.WatchResponse) error {
	switch {
	case resp.CompactRevision != 0, resp.Canceled && resp.CancelReason == rpctypes.ErrCompacted.Error():
		return fmt.Errorf("%w: the oldest kept is %d", ErrCompacted, resp.CompactRevision)
	case resp.Canceled && resp.CancelReason == rpctypes.ErrGRPCPermissionDenied.Error():
		return fmt.Errorf("%w: %w: %s", ErrWatchLost, ErrDenied, resp.CancelReason)
	case resp.Canceled:
		return fmt.Errorf("%w: cancelled by etcd: %s", ErrWatchLost, resp.CancelReason)
	}
	return nil
}
