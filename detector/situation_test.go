package detector

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
)

func TestRecheck(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", health.Refused)
		l.until("a", health.Down)

		l.set(func() { l.anew = map[string]int{} })
		l.d.Recheck("n1")
		l.pass(10 * time.Millisecond)
		if r := l.last(); r.Nonce != "n1" || r.Verdicts["a"].State != health.Down {
			l.t.Errorf("the answer to n1 is %q, %s", r.Nonce, r.Verdicts["a"].State)
		}
		l.set(func() {
			if l.anew["mysql a/s1 sql"] == 0 || l.anew["mysql a/s2 sql"] != 0 {
				l.t.Errorf("looked anew at %v: want what made the site down, and nothing else while that is confirmed", l.anew)
			}
			l.sit.Nonce = "n1"
		})

		// It is back: by hysteresis still down, but no vote to act on.
		l.fault("mysql a/s1", health.OK)
		l.set(func() { l.sit.Nonce = "n2" })
		l.pass(30 * time.Millisecond)
		if r := l.last(); r.Nonce != "n2" || r.Verdicts["a"].State != health.Suspect {
			l.t.Errorf("the answer to n2 is %q, %s", r.Nonce, r.Verdicts["a"].State)
		}
		l.set(func() {
			if l.anew["mysql a/s2 sql"] == 0 || l.anew["mysql b/s2 sql"] != 0 {
				l.t.Errorf("looked anew at %v: want all of the active site, none of the standby", l.anew)
			}
		})
	})
}

func TestRecheckDoesNotWaitForAHang(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", hang)
		l.until("a", health.Down)
		asked := time.Now()
		l.d.Recheck("n1")
		for l.last().Nonce != "n1" {
			l.pass(time.Millisecond)
		}
		if took := time.Since(asked); took > 60*time.Millisecond {
			l.t.Errorf("the answer took %v, want half an interval", took)
		}
		if s := l.last().Verdicts["a"].State; s != health.Down {
			l.t.Errorf("the answer is %s", s)
		}
	})
}

// What is refused since the nonce is enough: the answer does not wait for something else that hangs.
func TestRecheckIsAnsweredAsSoonAsItIsConfirmed(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", health.Refused)
		l.until("a", health.Down)
		l.fault("mysql a/s2", hang)
		l.d.Recheck("n1")
		l.pass(10 * time.Millisecond) // of the 50 that a hang is waited for
		if r := l.last(); r.Nonce != "n1" || r.Verdicts["a"].State != health.Down {
			l.t.Errorf("after 10 ms the answer to n1 is %q, %s", r.Nonce, r.Verdicts["a"].State)
		}
	})
}

func TestAnotherAssignmentVoidsWhatWasSeen(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("mysql a/s1", hang)
		l.until("a", health.Down)
		fenced := serving(2, "a")
		fenced.Phase = cluster.Switching
		l.set(func() { l.sit.Assignment = fenced; l.wrote = map[string]int{} })
		l.pass(time.Second)
		l.want("a", health.Unknown, "void while the assignment is switching")
		l.want("b", health.Unknown, "void")
		l.set(func() {
			if len(l.wrote) != 0 {
				l.t.Errorf("wrote %v while switching", l.wrote)
			}
			l.sit.Assignment, l.sit.Holder.Site = serving(3, "b"), "b"
		})
		l.pass(time.Second)
		l.want("b", health.Up, "")
		l.want("a", health.Down, "mysql a/s1")
		l.set(func() {
			if l.wrote["mysql b/s1 heartbeat"] == 0 || l.wrote["mysql a/s2 heartbeat"] != 0 {
				l.t.Errorf("wrote %v after the commit", l.wrote)
			}
		})
		if r := l.last(); r.Epoch != 3 {
			l.t.Errorf("report speaks of epoch %d", r.Epoch)
		}
	})
}

func TestNoHeartbeatOnAnOldRead(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.set(func() { l.sit.ReadAt = time.Now() })
		l.pass(150 * time.Millisecond)
		l.set(func() { l.wrote, l.looks = map[string]int{}, map[string]int{} })
		l.pass(3 * time.Second)
		l.set(func() {
			if len(l.wrote) != 0 || l.looks["mysql a/s1 heartbeat"] != 0 {
				l.t.Errorf("wrote %v, %d heartbeats", l.wrote, l.looks["mysql a/s1 heartbeat"])
			}
		})
		l.want("a", health.Up, "") // etcd's loss alone says nothing of the site
	})
}

func TestLease(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.set(func() { l.sit.Renewed = time.Now() })
		l.pass(1500 * time.Millisecond)
		l.want("a", health.Up, "")
		took := l.until("a", health.Down)
		if took > 500*time.Millisecond {
			l.t.Errorf("%v after the lease's end", took)
		}
		l.want("a", health.Down, "site a lease: stale (no renewal for")
		// A new holder gets its whole lease, however old the last renewal of the old one is.
		l.set(func() { l.sit.Assignment = serving(2, "b") })
		l.pass(1400 * time.Millisecond)
		l.want("b", health.Up, "")
		l.until("b", health.Down)
	})
}

func TestLeaseSaysNothingWhileWeCannotRead(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.set(func() { l.sit.Renewed, l.sit.ReadAt = time.Now(), time.Now() })
		l.pass(10 * time.Second)
		l.want("a", health.Up, "")
	})
}

func TestBlind(t *testing.T) {
	var down error
	anchors := func(c *Config) {
		c.Anchors = []Anchor{{"gateway", func(context.Context) error { return down }}, {"mc-b", func(context.Context) error { return down }}}
	}
	everything := func(l *lab, c health.Cause) {
		l.fault("mysql", c)
		l.fault("mycat", c)
		l.fault("site", c)
	}
	t.Run("own link", func(t *testing.T) {
		down = errors.New("no answer")
		run(t, func(l *lab) {
			l.pass(time.Second)
			everything(l, hang)
			for range 50 {
				l.pass(100 * time.Millisecond)
				if s := l.state("a"); s == health.Down {
					l.t.Fatal("down while blind")
				}
			}
			if r := l.last(); !strings.Contains(r.Blind, "gateway: no answer; mc-b: no answer") {
				l.t.Errorf("blind is %q", r.Blind)
			}
			everything(l, health.OK)
			l.until("a", health.Up)
			if r := l.last(); r.Blind != "" {
				l.t.Errorf("still blind: %s", r.Blind)
			}
		}, anchors)
	})
	t.Run("both sites", func(t *testing.T) {
		down = nil
		run(t, func(l *lab) {
			l.pass(time.Second)
			everything(l, hang)
			l.until("a", health.Down)
			l.until("b", health.Down)
		}, anchors)
	})
	t.Run("one site", func(t *testing.T) {
		down = errors.New("no answer")
		run(t, func(l *lab) {
			l.pass(time.Second)
			l.fault("mysql a", hang)
			l.fault("mycat a", hang)
			l.fault("site a", hang)
			if took := l.until("a", health.Down); took > 600*time.Millisecond {
				l.t.Errorf("took %v", took)
			}
		}, anchors)
	})
	t.Run("no anchors and no etcd", func(t *testing.T) {
		run(t, func(l *lab) {
			l.pass(time.Second)
			l.set(func() { l.sit.ReadAt = time.Now() })
			everything(l, hang)
			l.pass(5 * time.Second)
			if l.state("a") == health.Down || l.d.View().Blind == "" {
				l.t.Errorf("site a is %s, blind is %q", l.state("a"), l.d.View().Blind)
			}
		})
	})
}

// Between the commit and the bind the VIP refuses everybody. That is no reason to call the new site down; that it stays so is.
func TestVIPHasTimeToArrive(t *testing.T) {
	run(t, func(l *lab) {
		l.pass(time.Second)
		l.fault("site b/s1 vip", health.Refused)
		l.set(func() { l.sit.Assignment, l.sit.Holder.Site = serving(2, "b"), "b" })
		l.pass(time.Second) // less than a lease
		if s := l.state("b"); s == health.Down || s == health.Suspect {
			l.t.Errorf("site b is %s before its VIP can be there", s)
		}
		l.until("b", health.Down)

		l.fault("site b/s1 vip", health.OK)
		l.set(func() { l.sit.Assignment = serving(3, "b") })
		l.until("b", health.Up)
		l.fault("site b/s1 vip", health.Refused) // it has been seen to work: now a failure counts at once
		if took := l.until("b", health.Down); took > time.Second {
			l.t.Errorf("noticed after %s", took)
		}
	})
}
