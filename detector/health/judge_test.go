package health

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const beat = 100 * time.Millisecond

// config is an active site of two shards under 3 failures in 1 s.
func config(change ...func(*JudgeConfig)) JudgeConfig {
	c := JudgeConfig{
		Site: "a", Shards: []cluster.ShardName{"s1", "s2"}, Writer: map[cluster.ShardName]bool{"s1": true, "s2": true}, Active: true,
		Rule: accumulator.Fast(), Scope: ScopeTarget, MySQLFailures: 1, Interval: beat, Stall: StallFast, Expire: 5 * beat,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func standby(c *JudgeConfig)   { c.Writer, c.Active = nil, false }
func allShards(c *JudgeConfig) { c.MySQLFailures = 2 }
func bySite(c *JudgeConfig)    { c.Scope = ScopeSite }
func graced(c *JudgeConfig)    { c.Grace = time.Second }

// world feeds a judge beat by beat: every key answers OK unless the beat's faults say otherwise.
type world struct {
	t   *testing.T
	j   *Judge
	now time.Time
}

func newWorld(t *testing.T, cfg JudgeConfig) *world {
	t.Helper()
	j, err := NewJudge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, j: j, now: epoch}
}

// faults maps a key's name, "mysql a/s1 port", or a part of names that ends in *, to what it shows.
type faults map[string]Cause

func (f faults) of(name string) (Cause, bool) {
	if c, ok := f[name]; ok {
		return c, true
	}
	for pattern, c := range f {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, prefix) {
			return c, true
		}
	}
	return OK, false
}

func (w *world) beats(n int, f faults) {
	w.t.Helper()
	used := map[string]bool{}
	for range n {
		w.now = w.now.Add(beat)
		for _, k := range w.j.keys {
			c, hit := f.of(k.name())
			used[k.name()] = hit
			w.j.Observe(Sample{Target: k.target, Factor: k.factor, Cause: c, At: w.now})
		}
	}
	if len(f) > 0 && !slices.Contains(slices.Collect(maps.Values(used)), true) {
		w.t.Fatalf("faults %v hit nothing", f)
	}
}

func (w *world) want(state State, words string) {
	w.t.Helper()
	v := w.j.Verdict(w.now)
	if v.State != state || !strings.Contains(v.Reason, words) {
		w.t.Fatalf("verdict is %s (%s), want %s with %q", v.State, v.Reason, state, words)
	}
}

func TestVerdicts(t *testing.T) {
	tests := []struct {
		name  string
		cfg   JudgeConfig
		f     faults
		beats int
		want  State
		words string
	}{
		{"all well", config(), nil, 5, Up, "all targets answer"},
		{"one blip", config(), faults{"mysql a/s2 port": Refused}, 1, Suspect, "mysql a/s2 port: refused, 1 of 3 in 1s"},
		{"one instance killed", config(), faults{"mysql a/s2*": Refused}, 3, Down, "mysql a/s2 port: refused, 3 of 3 in 1s, and 2 more"},
		{"one of two is not enough", config(allShards), faults{"mysql a/s2*": Refused}, 9, Suspect, "mysql a/s2 port"},
		{"two of two", config(allShards), faults{"mysql a*": Refused}, 3, Down, "and 5 more"},
		{"one shard through mycat is that shard", config(allShards), faults{"mycat a/s1 sql": BackendDown}, 9, Suspect, "backend-down"},
		{"the shards add up", config(allShards), faults{"mycat a/s1 sql": BackendDown, "mysql a/s2*": Timeout}, 3, Down, ""},
		{"every shard through mycat is mycat", config(allShards), faults{"mycat a/*": Timeout}, 3, Down, "mycat a/s1 sql: timeout"},
		{"mycat killed", config(allShards), faults{"mycat a port": Refused}, 3, Down, "mycat a port: refused"},
		{"mycat's opinion alone", config(), faults{"mycat a heartbeat": BackendDown}, 90, Up, ""},
		{"mycat's opinion is no excuse", config(), faults{"mysql a/s1 sql": Timeout}, 3, Down, ""},
		{"lease", config(), faults{"site a lease": Stale}, 3, Down, "site a lease: stale"},
		{"vip", config(), faults{"site a/*": Timeout}, 3, Down, "site a/s1 vip: timeout"},
		{"one shard through the vip", config(allShards), faults{"site a/s1 vip": BackendDown}, 9, Suspect, ""},
		{"full house", config(), faults{"mysql a/s1 sql": Overload}, 90, Busy, "it answers and has no room"},
		{"mycat's pool", config(), faults{"mycat a/s1 sql": PoolExhausted}, 90, Busy, ""},
		{"wrong password", config(), faults{"mysql a/s1 sql": Config, "mysql a/s1 heartbeat": Config}, 90, Up, ""},
		{"wrong password everywhere", config(), faults{"mysql a*": Config}, 90, Unknown, "no valid sample of mysql a/s1"},
		{"our own fault", config(), faults{"mysql a*": Self}, 9, Unknown, "no valid sample"},
		{"stopping", config(), faults{"*": Cancelled}, 9, Unknown, ""},
		{"read-only where writes belong", config(), faults{"mysql a/s1 heartbeat": Role}, 3, Down, "role"},
		{"read-only standby", config(standby), faults{"mysql a/s1 heartbeat": Role}, 9, Up, ""},
		{"standby behind", config(standby), faults{"mysql a/s1 heartbeat": Stale}, 9, Up, ""},
		{"standby killed", config(standby), faults{"mysql a/s1*": Refused}, 3, Down, ""},
		{"writes hang for a moment", config(), faults{"mysql a/s1 heartbeat": WriteStall}, 20, Suspect, "write-stall, no good write for 1.9s, reads are fine"},
		{"writes hang unanswered", config(), faults{"mysql a/s1 heartbeat": Pending}, 20, Suspect, "reads are fine"},
		{"writes hang for too long", config(), faults{"mysql a/s1 heartbeat": Timeout}, 31, Down, "no good write for 3s"},
		{"writes through mycat hang for a moment", config(), faults{"mycat a/s1 sql": WriteStall}, 20, Suspect, ""},
		{"mysql frozen: the ordinary rule", config(), faults{"mysql a/s1 port": NoGreeting, "mysql a/s1 sql": Pending, "mysql a/s1 heartbeat": Pending}, 3, Down, ""},
		{"H decides", config(bySite), faults{"mysql a/s1 port": Timeout}, 3, Down, "H of the site is 3 of 3 in 1s: mysql a/s1 port: timeout"},
		{"H leaves stalls to their rule", config(bySite), faults{"mysql a/s1 heartbeat": WriteStall}, 20, Suspect, ""},
		{"stall by scope site", config(bySite), faults{"mysql a/s1 heartbeat": WriteStall}, 31, Down, ""},
		{"restart within the grace", config(graced), faults{"mysql a/s1*": Refused}, 9, Suspect, ""},
		{"gone for longer than the grace", config(graced), faults{"mysql a/s1*": Refused}, 11, Down, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.cfg)
			w.beats(tt.beats, tt.f)
			w.want(tt.want, tt.words)
		})
	}
}

func TestTheSiteComesAndGoes(t *testing.T) {
	w := newWorld(t, config())
	w.want(Unknown, "no valid sample of mycat a")
	w.beats(3, nil)
	w.want(Up, "")
	good := w.now
	w.beats(1, faults{"mysql a/s1 port": Refused})
	firstBad := w.now
	w.beats(2, faults{"mysql a/s1 port": Refused})
	w.want(Down, "")
	down := w.now
	w.beats(4, nil)
	v := w.j.Verdict(w.now)
	if v.State != Down || !v.Since.Equal(down) || !v.LastGood.Equal(w.now.Add(-beat)) && !v.LastGood.Equal(good) || !v.FirstBad.Equal(firstBad) {
		t.Errorf("after 4 good samples: %s since %v, last good %v, first bad %v", v.State, v.Since, v.LastGood, v.FirstBad)
	}
	w.beats(8, nil)
	w.want(Up, "")
	if v := w.j.Verdict(w.now); !v.FirstBad.IsZero() || v.H != 0 {
		t.Errorf("trouble is over: first bad %v, H %d", v.FirstBad, v.H)
	}
	w.j.Reset()
	w.want(Unknown, "no valid sample")
}

// A restart that was over within the grace must not become a failure when the grace's end passes with a good server.
// The failures leave the window while too few good answers have come: what is still called down shows what it took, and not "0 of 3".
func TestDownShowsWhatItTook(t *testing.T) {
	w := newWorld(t, config())
	w.beats(3, faults{"mysql a/s2*": Refused})
	w.now = w.now.Add(450 * time.Millisecond)
	w.want(Down, "3 of 3")
	w.beats(1, faults{"mysql a/s2*": Refused})
	for range 12 { // bad once in a while: the window empties, the state stands
		w.beats(1, nil)
		if v := w.j.Verdict(w.now); v.State == Down && !strings.Contains(v.Reason, " of 3") {
			t.Fatalf("reason %q", v.Reason)
		} else if v.State == Down && !strings.Contains(v.Reason, "3 of 3") && !strings.Contains(v.Reason, "4 of 3") {
			t.Fatalf("called down by %q", v.Reason)
		}
	}
}

func TestGraceIsNotAFuse(t *testing.T) {
	w := newWorld(t, config(graced))
	w.beats(3, nil)
	w.beats(5, faults{"mysql a/s1*": Refused})
	for range 30 {
		w.beats(1, nil)
		if v := w.j.Verdict(w.now); v.State == Down {
			t.Fatalf("down at %v after a restart of 500 ms", w.now.Sub(epoch))
		}
	}
	w.want(Up, "")
}

// Φ is 1 once a beat, however many factors fail; H is its sum, and is computed whatever the scope.
func TestPhiAndH(t *testing.T) {
	w := newWorld(t, config(allShards))
	w.beats(3, nil)
	w.beats(2, faults{"mysql a/s1*": Refused})
	if v := w.j.Verdict(w.now); v.Phi != 1 || v.H != 2 || v.HTrip != 3 {
		t.Errorf("phi %d, H %d of %d, want 1, 2 of 3", v.Phi, v.H, v.HTrip)
	}
	w.beats(1, nil)
	if v := w.j.Verdict(w.now); v.Phi != 0 || v.H != 2 {
		t.Errorf("phi %d, H %d, want 0 and 2", v.Phi, v.H)
	}
}

// A look that times out is booked after the pending beats that it was unanswered at, with an earlier time: it must trip as they do.
func TestLateTimeoutTrips(t *testing.T) {
	w := newWorld(t, config())
	port := Sample{Target: Target{Site: "a", Kind: MySQL, Shard: "s1"}, Factor: Port, Cause: Pending}
	w.beats(1, nil)
	sent := w.now
	for range 2 {
		w.now = w.now.Add(beat)
		port.At = w.now
		w.j.Observe(port)
	}
	nonce := w.now
	port.Cause, port.At = Timeout, sent
	w.j.Observe(port)
	w.want(Down, "mysql a/s1 port: timeout, 3 of 3 in 1s")
	if v := w.j.VerdictSince(w.now, nonce); v.State != Down {
		t.Errorf("pending at the nonce, then timed out: %s, want down", v.State)
	}
}

func TestFrozenProbeIsLoudAndNeverCounts(t *testing.T) {
	w := newWorld(t, config())
	sql := Target{Site: "a", Kind: MySQL, Shard: "s1"}
	w.beats(2, nil)
	w.j.Observe(Sample{Target: sql, Factor: SQL, Cause: Config, Number: 1045, Detail: "access denied", At: w.now})
	for range 5 { // as long as a sample is believed
		w.now = w.now.Add(beat)
		w.j.Observe(Sample{Target: sql, Factor: SQL, Cause: Timeout, At: w.now})
	}
	v := w.j.Verdict(w.now)
	if v.State == Down || len(v.Frozen) != 1 || v.Frozen[0] != "mysql a/s1 sql: config 1045 (access denied)" {
		t.Errorf("verdict %s, frozen %q", v.State, v.Frozen)
	}
	w.beats(1, nil)
	if v := w.j.Verdict(w.now); len(v.Frozen) != 0 {
		t.Errorf("still frozen after it answered: %q", v.Frozen)
	}
}

// A server that dies after it has refused our account is dead: at once where nobody listens any more, and when it hangs for as long as the
// refusal is believed. Else one wrong answer would hold every later failover back for good.
func TestFrozenProbeThaws(t *testing.T) {
	sql := Target{Site: "a", Kind: MySQL, Shard: "s1"}
	for _, tc := range []struct {
		cause Cause
		beats int // until it is down
	}{{Refused, 3}, {Timeout, 8}} {
		w := newWorld(t, config())
		w.beats(2, nil)
		w.j.Observe(Sample{Target: sql, Factor: SQL, Cause: Config, Number: 1045, At: w.now})
		n := 0
		for ; n < 20 && w.j.Verdict(w.now).State != Down; n++ {
			w.now = w.now.Add(beat)
			w.j.Observe(Sample{Target: sql, Factor: SQL, Cause: tc.cause, At: w.now})
		}
		if v := w.j.Verdict(w.now); n != tc.beats || len(v.Frozen) != 0 {
			t.Errorf("%s: %s after %d beats, frozen %q", tc.cause, v.State, n, v.Frozen)
		}
	}
}

// Mycat's own opinion is never a reason not to act.
func TestAdvisoryProbeFreezesNothing(t *testing.T) {
	w := newWorld(t, config())
	w.beats(2, nil)
	for _, target := range []Target{{Site: "a", Kind: Mycat}, {Site: "a", Kind: MySQL, Shard: "s1"}} {
		w.j.Observe(Sample{Target: target, Factor: Heartbeat, Cause: Config, Number: 1045, At: w.now})
	}
	if v := w.j.Verdict(w.now); len(v.Frozen) != 1 || !strings.HasPrefix(v.Frozen[0], "mysql a/s1") {
		t.Errorf("frozen %q", v.Frozen)
	}
}

func TestConfirmSpacingEndsWithTheRule(t *testing.T) {
	w := newWorld(t, config())
	port := Target{Site: "a", Kind: MySQL, Shard: "s1"}
	look := func(c Cause) bool {
		w.now = w.now.Add(15 * time.Millisecond)
		return w.j.Observe(Sample{Target: port, Factor: Port, Cause: c, At: w.now})
	}
	for i, tt := range []struct {
		cause Cause
		want  bool
	}{{Refused, true}, {Timeout, false}, {Refused, false}, {Refused, false}} {
		if got := look(tt.cause); got != tt.want {
			t.Errorf("look %d, %s: confirm is %v, want %v", i, tt.cause, got, tt.want)
		}
	}
	if w.j.Observe(Sample{Target: Target{Site: "b", Kind: Mycat}, Factor: Port, Cause: Refused, At: w.now}) {
		t.Error("a target of another site is none of ours")
	}
}

// A recheck that finds the target well must not be outvoted by the hysteresis.
func TestRecheckNeedsNewEvidence(t *testing.T) {
	for _, cfg := range []JudgeConfig{config(), config(bySite)} {
		w := newWorld(t, cfg)
		w.beats(5, faults{"mysql a/s1*": Refused})
		nonce := w.now.Add(beat / 2)
		w.want(Down, "")
		if v := w.j.VerdictSince(w.now, nonce); v.State != Suspect {
			t.Errorf("%s: no sample since the nonce gives %s, want suspect", cfg.Scope, v.State)
		}
		w.beats(1, faults{"mysql a/s1*": Refused})
		if v := w.j.VerdictSince(w.now, nonce); v.State != Down {
			t.Errorf("%s: bad samples since the nonce give %s, want down", cfg.Scope, v.State)
		}
		w.beats(1, nil)
		w.want(Down, "")
		if v := w.j.VerdictSince(w.now, nonce); v.State != Suspect {
			t.Errorf("%s: good samples since the nonce give %s, want suspect", cfg.Scope, v.State)
		}
	}
}

func TestConfigNamesEveryMistake(t *testing.T) {
	_, err := NewJudge(JudgeConfig{Grace: -1})
	if !errors.Is(err, ErrConfig) || !errors.Is(err, accumulator.ErrConfig) {
		t.Fatalf("error is %v", err)
	}
	for _, word := range []string{"no site", "scope", "mysql failures", "interval", "grace", "stall", "expire"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error does not speak of %s: %v", word, err)
		}
	}
}

// naiveDown says from the whole history, without any state, whether the site is down: no grace, scope target, samples in order.
func naiveDown(cfg JudgeConfig, history []Sample) bool {
	shards, whole, through := map[cluster.ShardName]bool{}, false, map[TargetKind]map[cluster.ShardName]bool{}
	byKey := map[keyID][]Sample{}
	for _, s := range history {
		byKey[keyID{s.Target, s.Factor}] = append(byKey[keyID{s.Target, s.Factor}], s)
	}
	for id, samples := range byKey {
		if id.factor == Heartbeat { // advisory at a Mycat and a standby; the stall rule has tests of its own
			continue
		}
		acc, _ := accumulator.New(cfg.Rule)
		frozen, since := false, time.Time{}
		for _, s := range samples {
			c := s.Cause.Class()
			if c == ClassHard || (c == ClassSoft || c == ClassRole) && s.At.Sub(since) > cfg.Expire {
				frozen = false
			}
			switch {
			case c == ClassConfig:
				frozen, since = true, s.At
			case c == ClassOK:
				frozen = false
				acc.Add(s.At, false)
			case !frozen && (c == ClassHard || c == ClassSoft || c == ClassRole):
				acc.Add(s.At, true)
			}
		}
		if frozen || !acc.Tripped(history[len(history)-1].At) {
			continue
		}
		switch {
		case id.target.Shard == "":
			whole = true
		case id.target.Kind == MySQL:
			shards[id.target.Shard] = true
		default:
			shards[id.target.Shard] = true
			if through[id.target.Kind] == nil {
				through[id.target.Kind] = map[cluster.ShardName]bool{}
			}
			through[id.target.Kind][id.target.Shard] = true
			whole = whole || len(through[id.target.Kind]) == len(cfg.Shards)
		}
	}
	return whole || len(shards) >= cfg.MySQLFailures
}

func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(func(c *JudgeConfig) {
			c.Rule = accumulator.Config{Rule: accumulator.Cumulative, Failures: rapid.IntRange(1, 3).Draw(t, "failures"), Window: time.Second, Clear: 2}
			c.MySQLFailures = rapid.IntRange(1, 2).Draw(t, "mysql")
			c.Expire = time.Hour
		})
		j, err := NewJudge(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch
		var history []Sample
		causes := []Cause{OK, OK, OK, Refused, Timeout, Role, Overload, Config, Self}
		for range rapid.IntRange(1, 60).Draw(t, "samples") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "gap")) * beat / 2)
			k := rapid.SampledFrom(j.keys).Draw(t, "key")
			s := Sample{Target: k.target, Factor: k.factor, Cause: rapid.SampledFrom(causes).Draw(t, "cause"), At: now}
			if s.Cause == Role && (s.Factor == Heartbeat || s.Target == Target{Site: "a", Kind: Mycat}) {
				s.Cause = OK // Mycat itself has no role
			}
			if s.Factor == Heartbeat && s.Cause == Refused {
				s.Cause = Self
			}
			j.Observe(s)
			history = append(history, s)
			if got, want := j.Verdict(now).State == Down, naiveDown(cfg, history); got != want {
				t.Fatalf("down is %v, want %v after %v", got, want, history)
			}
		}
	})
}

// FuzzJudge: no stream of samples may panic, and down always has evidence that may count.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 1, 1, 0, 1, 1}, true)
	f.Add([]byte{3, 8, 200, 3, 4, 9}, false)
	f.Fuzz(func(t *testing.T, data []byte, active bool) {
		cfg := config()
		if !active {
			standby(&cfg)
		}
		j, err := NewJudge(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch
		for len(data) >= 3 {
			k := j.keys[int(data[0])%len(j.keys)]
			now = now.Add(time.Duration(data[2]) * 10 * time.Millisecond)
			j.Observe(Sample{Target: k.target, Factor: k.factor, Cause: Cause(data[1]), At: now.Add(-time.Duration(data[2]) * time.Millisecond)})
			data = data[3:]
			v := j.Verdict(now)
			counts := func(s Sample) bool {
				c := s.Cause.Class()
				return c == ClassHard || c == ClassSoft || c == ClassRole || c == ClassStall
			}
			if v.State == Down && !slices.ContainsFunc(v.Targets, func(ts TargetState) bool {
				return ts.State == Down && !ts.Advisory && ts.Frozen == "" && slices.ContainsFunc(ts.Bad, counts)
			}) {
				t.Fatalf("down without evidence: %+v", v)
			}
			if v.H > v.HTrip || v.Reason == "" {
				t.Fatalf("H %d of %d, reason %q", v.H, v.HTrip, v.Reason)
			}
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	j, err := NewJudge(config())
	if err != nil {
		b.Fatal(err)
	}
	now := epoch
	s := Sample{Target: Target{Site: "a", Kind: MySQL, Shard: "s1"}, Factor: SQL}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(beat)
		s.At = now
		j.Observe(s)
	}
}
