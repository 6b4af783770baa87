package probe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-ha/baton/detector/health"
)

// Statements that hang use up Mycat's pool: after the first few they are sent at growing distances. What is said meanwhile is what hung:
// a stall of writes stays under its own, slower rule.
func TestBackoff(t *testing.T) {
	for _, tc := range []struct{ hang, said health.Cause }{{health.Timeout, health.Pending}, {health.WriteStall, health.WriteStall}} {
		synctest.Test(t, func(t *testing.T) {
			var b backoff
			for n := range hungFree {
				if s, held := b.hold(); held {
					t.Errorf("held after %d hangs: %+v", n, s)
				}
				b.note(tc.hang)
			}
			if s, held := b.hold(); !held || s.Cause != tc.said {
				t.Errorf("after %d of %s: held %t, %s", hungFree, tc.hang, held, s.Cause)
			}
			<-time.After(time.Second)
			if _, held := b.hold(); held {
				t.Error("held for longer than a second the first time")
			}
			for range 9 {
				b.note(tc.hang)
			}
			<-time.After(hungMost - time.Millisecond)
			if _, held := b.hold(); !held {
				t.Error("the distance does not grow to its most")
			}
			b.note(health.OK)
			if _, held := b.hold(); held {
				t.Error("held after a good answer")
			}
		})
	}
}
