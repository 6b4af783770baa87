package health

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/baton-ha/baton/accumulator"
	"github.com/baton-ha/baton/internal/cluster"
)

// ErrConfig is wrapped by every error of NewJudge.
var ErrConfig = errors.New("health: bad configuration")

// Scope says whose window decides that a site is down. The other one is computed and shown all the same.
type Scope string

// The scopes.
const (
	ScopeTarget Scope = "target" // the window of one factor of one target
	ScopeSite   Scope = "site"   // H(t) of the site, as in the paper: Φ, the OR of all factors, summed over the window
)

// JudgeConfig says how one observer judges one site. It holds for one assignment: another data site or VIP site makes another Judge.
type JudgeConfig struct {
	Site          cluster.SiteName
	Shards        []cluster.ShardName        // that have an instance on this site
	Writer        map[cluster.ShardName]bool // of them, those whose data site this is: there the heartbeat writes, and read-only is a failure
	Active        bool                       // the VIP's site: lease and vip are looked at
	Rule          accumulator.Config
	Scope         Scope
	MySQLFailures int           // how many shards must be down before the site is; 1 is the paper's "any"
	Interval      time.Duration // one beat, for Φ
	Grace         time.Duration // a failure shorter than this (a restart, a proxy's garbage collection) is never down
	Stall         time.Duration // writes that hang while reads are fine are down after this long without one good write
	Expire        time.Duration // a target without a valid sample for this long is unknown
}

// StallSteady and StallFast are the slower rule of write stalls. A full disk, a frozen volume, a global read lock, a metadata lock and
// a semi-sync wait look alike, and most pass by themselves or are the standby's fault: GitHub moved a master for a stall of moments in
// 2011 and paid twenty minutes. Below 10 s a backup's FLUSH TABLES WITH READ LOCK would move the site; fast gives up that safety.
const (
	StallSteady = 10 * time.Second
	StallFast   = 3 * time.Second
)

// Validate joins every mistake; each wraps ErrConfig or accumulator.ErrConfig.
func (c JudgeConfig) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}
	need(c.Site != "", "no site is named")
	need(c.Scope == ScopeTarget || c.Scope == ScopeSite, "scope is %q, want %s or %s", c.Scope, ScopeTarget, ScopeSite)
	need(c.MySQLFailures >= 1 && c.MySQLFailures <= max(1, len(c.Shards)), "mysql failures is %d, want 1 to %d", c.MySQLFailures, len(c.Shards))
	need(c.Interval > 0, "interval is %v, want more than 0", c.Interval)
	need(c.Grace >= 0, "grace is %v, want 0 or more", c.Grace)
	need(c.Stall > 0, "stall is %v, want more than 0", c.Stall)
	need(c.Expire > c.Interval, "expire is %v, want more than the interval %v", c.Expire, c.Interval)
	return errors.Join(append(errs, c.Rule.Validate())...)
}

// Judge turns one observer's samples of one site into its verdict. It belongs to one goroutine.
type Judge struct {
	cfg     JudgeConfig
	keys    []*key   // in the order in which they are shown
	targets []Target // of the keys, each once
	index   map[keyID]*key
	site    score // Φ over the window
	beat    time.Time
	phi     bool // of the beat that began at beat

	abnormal time.Time // newest sample that was abnormal
	lastGood time.Time
	state    State
	since    time.Time
}

type keyID struct {
	target Target
	factor Factor
}

// NewJudge returns a Judge that has seen nothing. Its error joins every mistake of the configuration.
func NewJudge(cfg JudgeConfig) (*Judge, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("judge site %s: %w", cfg.Site, err)
	}
	j := &Judge{cfg: cfg, index: map[keyID]*key{}, state: Unknown}
	j.site = j.newScore()
	mycat, site := Target{Site: cfg.Site, Kind: Mycat}, Target{Site: cfg.Site, Kind: Site}
	j.watch(mycat, Port, false, false)
	j.watch(mycat, Heartbeat, true, false)
	if cfg.Active {
		j.watch(site, Lease, false, true)
	}
	for _, shard := range cfg.Shards {
		writer := cfg.Writer[shard]
		instance := Target{Site: cfg.Site, Kind: MySQL, Shard: shard}
		j.watch(instance, Port, false, writer)
		j.watch(instance, SQL, false, writer)
		j.watch(instance, Heartbeat, !writer, writer)
		mycat.Shard, site.Shard = shard, shard
		j.watch(mycat, SQL, false, writer)
		if cfg.Active {
			j.watch(site, VIP, false, true)
		}
	}
	return j, nil
}

func (j *Judge) newScore() score {
	acc, err := accumulator.New(j.cfg.Rule)
	if err != nil {
		panic(err) // Validate has passed this very rule
	}
	return score{acc: acc, clear: j.cfg.Rule.Clear, grace: j.cfg.Grace}
}

func (j *Judge) watch(t Target, f Factor, advisory, writer bool) {
	place := slices.Index(j.targets, t)
	if place < 0 {
		place = len(j.targets)
		j.targets = append(j.targets, t)
	}
	k := &key{target: t, place: place, factor: f, advisory: advisory, writer: writer, score: j.newScore()}
	j.keys = append(j.keys, k)
	j.index[keyID{t, f}] = k
}

// Reset forgets every sample: what was seen under another assignment, or between a fence and the end of an undo, is void.
func (j *Judge) Reset() {
	for _, k := range j.keys {
		k.reset()
	}
	j.site.reset()
	j.beat, j.phi, j.abnormal, j.lastGood = time.Time{}, false, time.Time{}, time.Time{}
	j.state, j.since = Unknown, time.Time{}
}

// Observe takes one sample; one of a target that is not this site's is ignored. It says whether the same probe should look again at
// the confirm spacing: the evidence is hard, and the rule has not tripped yet.
func (j *Judge) Observe(s Sample) (confirm bool) {
	k, ok := j.index[keyID{s.Target, s.Factor}]
	if !ok {
		return false
	}
	e := k.effect(s.Cause, j.readsFine(s.Target))
	k.take(s, e, j.cfg.Stall, j.cfg.Expire)
	if e == void || k.frozen != "" || k.advisory {
		return false
	}
	j.phiOf(s.At, e == bad)
	return e == bad && s.Cause.Class() == ClassHard && !k.acc.Tripped(s.At)
}

// readsFine says whether the instance's last port and sql samples were answered, so that a write that hangs is a stall of writes.
// When they are not, a write that hangs is the server's hang and counts by the ordinary rule.
func (j *Judge) readsFine(t Target) bool {
	if t.Kind != MySQL {
		return true // through Mycat and the VIP the probe reads first, and calls only the write after it a stall
	}
	for _, f := range [...]Factor{Port, SQL} {
		switch k := j.index[keyID{t, f}]; {
		case k.newest.IsZero():
		case k.last.Cause.Class() == ClassHard || k.last.Cause.Class() == ClassSoft:
			return false
		}
	}
	return true
}

// phiOf closes the beats before at, and makes Φ of the present one 1 when something of the site is abnormal.
func (j *Judge) phiOf(at time.Time, abnormal bool) {
	if j.beat.IsZero() {
		j.beat = at
	}
	if past := at.Sub(j.beat); past >= j.cfg.Interval {
		if !j.phi {
			j.site.add(j.beat, false)
			j.lastGood = j.beat
		}
		j.beat, j.phi = j.beat.Add(past-past%j.cfg.Interval), false
	}
	if !abnormal {
		return
	}
	j.abnormal = at
	if !j.phi {
		j.phi = true
		j.site.add(at, true) // at once and not at the beat's end: one failure a beat, as early as it is known
	}
}

// Verdict is what is believed at now, with every target.
func (j *Judge) Verdict(now time.Time) Verdict { return j.VerdictSince(now, time.Time{}) }

// VerdictSince is the verdict of a recheck: a target is down only if its newest sample was taken at or after since and was bad. The
// hysteresis that keeps a state from flapping must not carry a vote over a recovery.
func (j *Judge) VerdictSince(now, since time.Time) Verdict {
	f := j.find(now, since)
	if f.state != j.state {
		j.state, j.since = f.state, now
	}
	v := Verdict{
		Site: j.cfg.Site, State: f.state, At: now, Since: j.since, Reason: f.reason,
		H: j.site.acc.Count(now), HTrip: j.site.acc.Trip(), LastGood: j.lastGood, FirstBad: f.firstBad,
		Targets: make([]TargetState, 0, len(j.keys)),
	}
	if j.phi {
		v.Phi = 1
	}
	for _, k := range j.keys {
		t := k.show(now, j.cfg.Expire)
		v.Targets = append(v.Targets, t)
		if t.Frozen != "" && !t.Advisory { // Mycat's own opinion is never a reason, and never a reason not to
			v.Frozen = append(v.Frozen, t.Target.String()+" "+string(t.Factor)+": "+t.Frozen)
		}
	}
	return v
}

// finding is what the keys together say.
type finding struct {
	state    State
	reason   string
	firstBad time.Time
}

// find applies the site's rule: down is a Mycat that is down, or enough shards, or the lease, or the VIP; by scope site, it is H.
func (j *Judge) find(now, since time.Time) finding {
	t := j.count(now, since)
	f := finding{firstBad: t.firstBad}
	switch {
	case j.cfg.Scope == ScopeSite && j.siteDown(now, since):
		f.state = Down
		f.reason = fmt.Sprintf("H of the site is %d of %d%s: %s", j.site.acc.Count(now), j.site.acc.Trip(), j.window(), j.describe(now, j.suspects(now)))
	case t.whole || len(t.shards) >= j.cfg.MySQLFailures:
		f.state, f.reason = Down, j.describe(now, t.culprits)
	case t.states[Down]+t.states[Suspect] > 0:
		f.state, f.reason = Suspect, j.describe(now, j.suspects(now))
	case len(t.unseen) > 0:
		f.state, f.reason = Unknown, "no valid sample of "+t.unseen[0].String()
	case t.states[Busy] > 0:
		f.state, f.reason = Busy, j.describeBusy(now)
	default:
		f.state, f.reason = Up, "all targets answer"
	}
	return f
}

func (j *Judge) siteDown(now, since time.Time) bool {
	fresh := since.IsZero() || j.phi && !j.abnormal.Before(since)
	return fresh && j.site.isDown(now)
}

// tally is the keys that count, counted.
type tally struct {
	states   map[State]int
	culprits []*key                     // that are down by the scope's rule
	shards   map[cluster.ShardName]bool // that are down by their instance, or through Mycat or the VIP
	through  map[TargetKind]int         // shards that are down through Mycat, or through the VIP
	whole    bool                       // something is down that needs no counting of shards
	unseen   []Target                   // without a valid sample of any factor
	firstBad time.Time
}

func (j *Judge) count(now, since time.Time) tally {
	t := tally{states: map[State]int{}, shards: map[cluster.ShardName]bool{}, through: map[TargetKind]int{}}
	const asked, seen = 1, 2
	targets := make([]int, len(j.targets)) // a map here costs more than all the rest: it is done for every key, many times a beat
	for _, k := range j.keys {
		if k.advisory {
			continue
		}
		s := k.stateSince(now, since, j.cfg.Expire)
		t.states[s]++
		targets[k.place] |= asked
		if s != Unknown {
			targets[k.place] |= seen
		}
		if !k.first.IsZero() {
			t.firstBad = earliest(t.firstBad, k.first)
		}
		if s == Down && (j.cfg.Scope == ScopeTarget || k.stalled) {
			t.blame(k, len(j.cfg.Shards))
		}
	}
	for i, what := range targets {
		// Lease and VIP have no sample while etcd does not answer, or where the VIP is this host's own: that says nothing of the site.
		if what == asked && j.targets[i].Kind != Site {
			t.unseen = append(t.unseen, j.targets[i])
		}
	}
	return t
}

// blame counts a key that is down. One shard that fails through Mycat is that shard's failure; Mycat itself, or the VIP, is down when
// every shard fails through it.
func (t *tally) blame(k *key, shards int) {
	t.culprits = append(t.culprits, k)
	if k.target.Shard == "" {
		t.whole = true
		return
	}
	t.shards[k.target.Shard] = true
	if k.target.Kind != MySQL {
		t.through[k.target.Kind]++
		t.whole = t.whole || t.through[k.target.Kind] == shards
	}
}

// suspects are the keys with failures in their window, the fullest first: equal ones stay in order.
func (j *Judge) suspects(now time.Time) []*key {
	var out []*key
	for _, k := range j.keys {
		if s := k.state(now, j.cfg.Expire); !k.advisory && (s == Suspect || s == Down) {
			out = append(out, k)
		}
	}
	slices.SortStableFunc(out, func(a, b *key) int { return b.acc.Count(now) - a.acc.Count(now) })
	return out
}

// describe says what was seen: "mysql b/s2 port: refused, 3 of 3 in 1s, and 2 more".
func (j *Judge) describe(now time.Time, keys []*key) string {
	if len(keys) == 0 {
		return ""
	}
	// Hard evidence says most; then the order of the keys.
	k := keys[0]
	if i := slices.IndexFunc(keys, func(k *key) bool { return k.last.Cause.Class() == ClassHard }); i >= 0 {
		k = keys[i]
	}
	text := k.describe(now, j.window())
	if n := len(keys) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}

func (j *Judge) describeBusy(now time.Time) string {
	i := slices.IndexFunc(j.keys, func(k *key) bool { return !k.advisory && k.state(now, j.cfg.Expire) == Busy })
	return j.keys[i].name() + ": " + j.keys[i].last.what() + ", it answers and has no room"
}

// window says over what the rule counts.
func (j *Judge) window() string {
	switch j.cfg.Rule.Rule {
	case accumulator.Cumulative:
		return " in " + j.cfg.Rule.Window.String()
	case accumulator.Consecutive:
		return " in a row"
	}
	return " of the bucket"
}
