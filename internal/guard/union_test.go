package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ha/baton/switcher/plan"
)

func lossless(r *plan.Request) { r.Lossless = true }

// dead makes the old site silent, and what else is given.
func dead(b *bench, more func(name, what string) error) {
	b.do = func(_ context.Context, name, what string) error {
		if strings.HasPrefix(name, "a/") {
			return errors.New("refused")
		}
		if more != nil {
			return more(name, what)
		}
		return nil
	}
}

// With three sites a third one's replicas are cut, too, before anything is fetched, and what they alone have comes to the new one.
func TestUnionOfAckers(t *testing.T) {
	benchedWith(t, three, func(b *bench) {
		dead(b, nil)
		b.alone = "received by c/s2"
		b.request("r1", forward, lossless)
		a := b.answer("r1")
		if got := phasesOf(a); got != "fence-writes:skipped cut:done catch-up:done promote:done" {
			t.Fatalf("answer %s %+v", got, a)
		}
		log := b.happened()
		before(t, log, "b/s1 cut", "b/s1 quiesce")
		before(t, log, "c/s1 cut", "b/s1 quiesce")
		before(t, log, "c/s2 cut", "c/s2 catch-up")
		before(t, log, "c/s2 catch-up", "b/s2 obtain 10.0.99.2:3306 executed by c/s2")
		before(t, log, "b/s2 obtain 10.0.99.2:3306 executed by c/s2", "b/s2 quiesce")
		if slices.ContainsFunc(log, func(s string) bool { return strings.HasPrefix(s, "b/s1 obtain") }) {
			t.Errorf("fetched what was there: %q", log)
		}
		if a.Entries[1].Facts["s2.obtained.c"] != "received by c/s2" {
			t.Errorf("facts %+v", a.Entries[1].Facts)
		}
	})
}

// An acker that cannot be cut, or whose data cannot be had, ends a switch that may lose nothing, before anything is promoted; one that may
// lose what it has goes on and says so.
func TestAckerThatCannotBeCut(t *testing.T) {
	for what, hit := range map[string]func(name, did string) bool{
		"unreachable":          func(name, did string) bool { return name == "c/s2" && did == "open" },
		"older steps not gone": func(name, did string) bool { return name == "c/s2" && did == "kill" },
		"cut fails":            func(name, did string) bool { return name == "c/s2" && did == "cut" },
		"its applier stands":   func(name, did string) bool { return name == "c/s2" && did == "catch-up" },
		"cannot be fetched":    func(name, did string) bool { return name == "b/s2" && strings.HasPrefix(did, "obtain") },
	} {
		for _, zero := range []bool{true, false} {
			t.Run(what, func(t *testing.T) {
				benchedWith(t, three, func(b *bench) {
					dead(b, func(name, did string) error {
						if hit(name, did) {
							return errors.New("no")
						}
						return nil
					})
					b.alone = "received by c/s2"
					b.request("r1", forward, func(r *plan.Request) { r.Lossless, r.KillOlder = zero, true })
					a := b.answer("r1")
					cut := a.Entries[1]
					switch {
					case zero && (cut.Phase != plan.Failed || !strings.Contains(cut.Err, "site c")):
						t.Errorf("cut %+v", cut)
					case !zero && (cut.Phase != plan.Done || cut.Facts["s2.left.c"] == "" || a.Entries[3].Phase != plan.Done):
						t.Errorf("answer %s, cut %+v", phasesOf(a), cut)
					}
					if promoted := slices.Contains(b.happened(), "b/s1 promote"); promoted == zero {
						t.Errorf("promoted %t: %q", promoted, b.happened())
					}
				})
			})
		}
	}
}

// Where the old side was fenced, all that it has is at the new one: the third site is left alone. An undo lets it run again.
func TestThirdSiteIsLeftAlone(t *testing.T) {
	benchedWith(t, three, func(b *bench) {
		b.request("r1", forward, lossless)
		b.answer("r1")
		if log := b.happened(); slices.ContainsFunc(log, func(s string) bool { return strings.HasPrefix(s, "c/") }) {
			t.Errorf("touched: %q", log)
		}
		b.request("r2", []plan.StepName{plan.UndoTarget, plan.UndoSource})
		b.answer("r2")
		before(t, b.happened(), "b/s1 demote", "c/s1 resume")
		before(t, b.happened(), "c/s2 resume", "a/s2 restore 8 a")
	})
}
