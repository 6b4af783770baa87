package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/lab/load"
	"github.com/baton-ha/baton/internal/lab/record"
	"github.com/baton-ha/baton/internal/lab/script"
	"github.com/baton-ha/baton/switcher/plan"
)

const (
	runBudget   = 4 * time.Minute // of one run, building included
	warmUp      = 500 * time.Millisecond
	afterwards  = 500 * time.Millisecond // of load after the last step: what a late frame or write would spoil
	watchEvery  = 5 * time.Millisecond
	jitterTimes = 5 // how many times the quiet load's longest gap an uninterrupted one may have
)

// Run builds a laboratory, runs the scenario on it once, and checks everything. What went wrong is in the result.
func Run(ctx context.Context, opt Options, s script.Scenario, number int, seed uint64) (Result, *Lab) {
	ctx, cancel := context.WithTimeoutCause(ctx, runBudget, fmt.Errorf("the run did not end within %v", runBudget))
	defer cancel()
	r := &run{
		scenario: s, began: time.Now(),
		rng:    rand.New(rand.NewPCG(seed, uint64(number))),
		result: Result{Scenario: s.Name, Lab: "netns", Bind: opt.Bind, Profile: opt.Profile, Run: number, Seed: seed, Steps: map[string]float64{}},
	}
	lab, err := Up(ctx, opt)
	r.lab = lab
	r.result.UpMS = ms(time.Since(r.began))
	r.result.MySQL = lab.seed.Version
	if err == nil {
		err = r.all(ctx)
	}
	if err != nil {
		r.fail("%v", err)
	}
	r.result.OK = len(r.reasons) == 0
	r.result.Reason = strings.Join(r.reasons, "; ")
	return r.result, lab
}

// run is one run of a scenario.
type run struct {
	scenario script.Scenario
	lab      *Lab
	rng      *rand.Rand
	result   Result
	reasons  []string

	began    time.Time
	quiet    time.Time // the load is warm: its own jitter is measured from here
	struck   time.Time // the first fault or switchover
	latest   time.Time // the newest one
	baseline struct{ from, to time.Time }
	early    []plan.Summary // before any fault: a machine that is too busy for the profile
	switches []plan.Summary
}

func (r *run) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.reasons = append(r.reasons, text)
	r.lab.time.Add("lab", "FAIL %s", text)
}

// all runs the steps, then the checks. An error ends the run; a check that fails does not.
func (r *run) all(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for _, step := range r.scenario.Steps {
		if err := r.step(ctx, step); err != nil {
			r.fail("line %d: %s: %v", step.Line, step.Text, err)
			break
		}
	}
	if r.struck.IsZero() {
		r.struck = time.Now()
	}
	if err := pause(ctx, afterwards); err != nil {
		return err
	}
	return r.finish(ctx)
}

func (r *run) prepare(ctx context.Context) error {
	if err := pause(ctx, warmUp); err != nil {
		return err
	}
	if r.lab.opt.Baton == "" {
		r.quiet = time.Now()
		return nil
	}
	limit, cancel := context.WithTimeoutCause(ctx, readyBudget, fmt.Errorf("baton was not ready within %v", readyBudget))
	defer cancel()
	if err := r.lab.ready(limit); err != nil {
		return err
	}
	r.quiet = time.Now()
	var err error
	r.early, err = r.lab.switches(ctx)
	if len(r.early) > 0 {
		r.fail("there was a switch before any fault, as on a machine that is too busy for profile %s: %s", r.lab.opt.Profile, describe(r.early))
	}
	return errors.Join(err, r.lab.remember(ctx))
}

func (r *run) step(ctx context.Context, step script.Step) error {
	beat := r.lab.beat()
	switch step.Verb {
	case script.Pause:
		return pause(ctx, step.For.Of(beat))
	case script.Baseline:
		r.baseline.from = time.Now()
		err := pause(ctx, step.For.Of(beat))
		r.baseline.to = time.Now()
		return err
	case script.Wait:
		limit, cancel := context.WithTimeoutCause(ctx, step.Within.Of(beat), fmt.Errorf("not within %v", step.Within.Of(beat)))
		defer cancel()
		return r.wait(limit, step)
	case script.Expect:
		return r.expect(ctx, step)
	case script.Kill, script.Freeze, script.Flap, script.Cut, script.Switchover, script.Restart:
		// Faults do not wait for Baton's beat: strike at any moment of it.
		if r.struck.IsZero() {
			if err := pause(ctx, time.Duration(r.rng.Float64()*float64(beat))); err != nil {
				return err
			}
		}
		r.latest = time.Now()
		if r.struck.IsZero() {
			r.struck = r.latest
		}
	case script.Thaw, script.Start, script.Mend:
	}
	r.lab.time.Add("fault", "%s", step.Text)
	return r.lab.strike(ctx, step)
}

func (r *run) wait(ctx context.Context, step script.Step) error {
	switch step.Cond {
	case script.SwitchedTo:
		return r.waitSwitched(ctx, step.Site)
	case script.Ready:
		return r.lab.ready(ctx)
	default:
		return r.waitRepaired(ctx)
	}
}

// waitSwitched watches the wire and the writer first, so that asking Baton does not disturb what is measured.
func (r *run) waitSwitched(ctx context.Context, to string) error {
	s, err := siteOf(to)
	if err != nil {
		return err
	}
	if err := r.until(ctx, func() bool { return slices.Contains(r.lab.recorder.Since(r.latest), s.node) }); err != nil {
		return fmt.Errorf("wait for an answer of %s for the VIP: %w", s.node, err)
	}
	if err := r.lab.works(ctx); err != nil {
		return err
	}
	return r.lab.poll(ctx, "the switch's end in history", func(ctx context.Context) error {
		list, err := r.lab.switches(ctx)
		if err != nil {
			return err
		}
		if n := len(list); n > 0 && list[n-1].To == clusterSite(to) && list[n-1].Outcome == plan.Completed {
			return nil
		}
		return fmt.Errorf("no completed switch to %s: %s", to, describe(list))
	})
}

func (r *run) until(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// waitRepaired waits until exactly one host answers for the VIP and every shard takes writes.
func (r *run) waitRepaired(ctx context.Context) error {
	if err := r.lab.writer.Works(ctx); err != nil {
		return err
	}
	return r.lab.poll(ctx, "one holder", func(ctx context.Context) error {
		holders, err := r.lab.holders(ctx)
		if err == nil && len(holders) != 1 {
			err = fmt.Errorf("%v answer for the VIP", holders)
		}
		return err
	})
}

func (r *run) expect(ctx context.Context, step script.Step) error {
	switch step.Cond {
	case script.NoSwitch:
		if err := pause(ctx, step.For.Of(r.lab.beat())); err != nil {
			return err
		}
		return r.noSwitch(ctx)
	case script.NoInterruption:
		return r.noInterruption()
	default: // of numbers and of the end: see judge
		return nil
	}
}

func (r *run) noSwitch(ctx context.Context) error {
	list, err := r.lab.switches(ctx)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return fmt.Errorf("there was a switch: %s", describe(list))
	}
	return nil
}

// strays is how many writes may run into the client's timeout more than twice as often as while it was quiet: two busy cores do that by
// themselves. A VIP that is away for two timeouts costs two writes, and one that is away for less is found by the gap.
const strays = 1

// noInterruption compares the load since the newest fault with the same load while it was quiet: no write may be refused that was not
// before, more than strays may not be lost, and no gap may be out of the machine's own proportion.
func (r *run) noInterruption() error {
	if r.baseline.from.IsZero() {
		return errors.New("measure a baseline before the fault: baseline 2s")
	}
	writes, now := r.lab.writer.Writes(), time.Now()
	quiet := load.Longest(writes, r.baseline.from, r.baseline.to).Length()
	since := load.Longest(writes, r.struck, now)
	for o, allowed := range map[load.Outcome]func(before int) int{
		load.Refused: func(before int) int { return before },
		load.Unknown: func(before int) int { return 2*before + strays },
		load.Unsent:  func(before int) int { return 2*before + strays },
	} {
		if n, before := load.Count(writes, o, r.struck, now), load.Count(writes, o, r.baseline.from, r.baseline.to); n > allowed(before) {
			return fmt.Errorf("%d writes were %s (%d while it was quiet)", n, o, before)
		}
	}
	// Not below what one stray write takes: its timeout, and a new connection.
	if limit := max(jitterTimes*max(quiet, shardCount*writeEvery), 3*writeTimeout); since.Length() > limit {
		return fmt.Errorf("%s had no good write for %v; while it was quiet the longest was %v", shardName(since.Shard), since.Length(), quiet)
	}
	return nil
}

func describe(list []plan.Summary) string {
	if len(list) == 0 {
		return "history shows none"
	}
	var words []string
	for _, s := range list {
		words = append(words, fmt.Sprintf("%s %s %s→%s %s (%s)", s.ID, s.Kind, s.From, s.To, s.Outcome, cmp.Or(s.Why, s.Reason)))
	}
	return strings.Join(words, ", ")
}

// finish ends the load, reads everything and checks it.
func (r *run) finish(ctx context.Context) error {
	l := r.lab
	if err := l.works(ctx); err != nil {
		r.fail("the service does not work at the end: %v", err)
	}
	holders, err := l.holders(ctx)
	if err != nil {
		return err
	}
	if len(holders) != 1 {
		r.fail("at the end %d hosts answer for the VIP: %v", len(holders), holders)
	}
	if err := l.stopWriter(); err != nil {
		return err
	}
	if died := l.died(); len(died) > 0 {
		r.fail("ended by itself: %s: its log says why", strings.Join(died, ", "))
	}
	if r.switches, err = l.switches(ctx); err != nil {
		r.fail("history: %v", err)
	}
	r.measure()
	if len(holders) == 1 {
		r.audit(ctx, holders[0])
	}
	r.judge()
	return nil
}

// measure fills the result's times.
func (r *run) measure() {
	writes, end := r.lab.writer.Writes(), time.Now()
	if n := len(writes); n > 0 {
		end = writes[n-1].Answered
	}
	r.result.OutageMS = ms(load.Longest(writes, r.struck, end).Length())
	r.result.BaselineMS = ms(load.Longest(writes, r.quiet, r.struck).Length())
	r.result.StallMS = ms(time.Duration(r.lab.stall.Load()))
	holds := r.lab.recorder.Holds()
	r.result.DoubleHolderMS = ms(record.Double(holds))
	for _, h := range holds {
		if n := len(r.result.Holders); n == 0 || r.result.Holders[n-1] != h.Host {
			r.result.Holders = append(r.result.Holders, h.Host)
		}
	}
	for _, s := range r.switches {
		if s.Outcome != plan.Completed {
			continue
		}
		r.result.Switched, r.result.To, r.result.SwitchMS = true, string(s.To), ms(s.Took)
		for step, took := range s.Steps {
			r.result.Steps[string(step)] = ms(took)
		}
	}
}
