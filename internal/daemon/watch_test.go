package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/vip"
)

// brokenWatch tells its events and breaks, each time it is begun.
type brokenWatch struct {
	lives [][]vip.AddressEvent
	begun int
}

func (w *brokenWatch) Watch(ctx context.Context, fn func(vip.AddressEvent)) error {
	w.begun++
	if w.begun > len(w.lives) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for _, e := range w.lives[w.begun-1] {
		fn(e)
	}
	return errors.New("no buffer space available")
}

// A watch that breaks does not end the daemon, and what it missed is made up for; a link that is back or has another MAC is announced.
func TestWatchOfTheAddressIsBegunAnew(t *testing.T) {
	one, two := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	event := func(up bool, mac net.HardwareAddr) vip.AddressEvent {
		return vip.AddressEvent{Present: true, LinkUp: up, MAC: mac, At: time.Now()}
	}
	synctest.Test(t, func(t *testing.T) {
		w := &brokenWatch{lives: [][]vip.AddressEvent{
			{event(true, one), event(true, one), event(false, one)}, // as it was found; nothing new; down
			{event(true, one), event(true, two)},                    // up again while nobody watched; another MAC
		}}
		moved, announced := make(chan struct{}, 1), 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			watchAddress(ctx, w, moved, func() { announced++ }, slog.New(slog.DiscardHandler))
		}()
		<-time.After(3 * watchAgain)
		synctest.Wait()
		if w.begun != 3 || announced != 2 || len(moved) != 1 {
			t.Errorf("begun %d times, announced %d times, told the guard %d times; want 3, 2, 1", w.begun, announced, len(moved))
		}
		cancel()
		<-done
	})
}
