package vip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/packet"
)

// deadliner is a socket whose reads end at a deadline.
type deadliner interface{ SetReadDeadline(time.Time) error }

// wakeable runs a read that blocks until the time (zero: without end) or the end of ctx. A read that succeeded counts, whatever the
// time. Else the error is the cause of ctx, os.ErrDeadlineExceeded when the time is up, or the socket's.
func wakeable(ctx context.Context, conn deadliner, until time.Time, read func() error) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := conn.SetReadDeadline(until); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }) // a closed socket needs no waking
		err := read()
		stop()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded) && (until.IsZero() || time.Now().Before(until)):
			continue // woken for the context of an earlier read, which ended at the same moment as that read
		default:
			return err
		}
	}
}

// readUntil reads one frame.
func readUntil(ctx context.Context, conn *packet.Conn, until time.Time) ([]byte, error) {
	buf := make([]byte, 256) // every filter of this package cuts shorter
	var n int
	err := wakeable(ctx, conn, until, func() (err error) {
		n, _, err = conn.ReadFrom(buf)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read a frame: %w", err)
	}
	return buf[:n], nil
}
