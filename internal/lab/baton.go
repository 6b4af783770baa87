package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/baton-ha/baton/switcher/plan"
)

const (
	cliBudget = 5 * time.Second // one look; a switch has its own
	cliPoll   = 100 * time.Millisecond
)

// errNoNode: no daemon could be asked.
var errNoNode = errors.New("lab: no daemon answers")

// baton runs Baton's command line on a node, as an operator would.
func (l *Lab) baton(ctx context.Context, node string, args ...string) ([]byte, error) {
	host, err := l.net.Host(node)
	if err != nil {
		return nil, err
	}
	return host.Output(exec.CommandContext(ctx, l.opt.Baton, append([]string{"-c", ConfigPath}, args...)...))
}

// ask runs the command line on the first node that answers.
func (l *Lab) ask(ctx context.Context, args ...string) ([]byte, error) {
	errs := []error{errNoNode}
	for _, node := range nodes {
		if !l.daemon[node].Alive() {
			continue
		}
		one, cancel := context.WithTimeoutCause(ctx, cliBudget, errors.New("the command did not answer"))
		out, err := l.baton(one, node, args...)
		cancel()
		if err == nil {
			return out, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// firstStart waits for every daemon and lets an operator's word begin the service at site a.
func (l *Lab) firstStart(ctx context.Context) error {
	for _, node := range nodes {
		if err := l.answers(ctx, node); err != nil {
			return err
		}
	}
	for {
		err := l.switchTo(ctx, sites[0].name, "first start")
		// On a slow machine the daemons answer before one of them is controller, and nobody takes the command up.
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitNobody || ctx.Err() != nil {
			return err
		}
	}
}

// exitNobody is what Baton's command line exits with when no controller has taken a command up.
const exitNobody = 69

// answers waits until the node's daemon can be asked, or has ended.
func (l *Lab) answers(ctx context.Context, node string) error {
	p := l.daemon[node]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.Dead():
			cancel(fmt.Errorf("the daemon of %s ended: its log says why: %s", node, p.LogPath()))
		case <-ctx.Done():
		}
	}()
	return l.poll(ctx, "daemon of "+node, func(ctx context.Context) error {
		_, err := l.baton(ctx, node, "status", "--json")
		return err
	})
}

// switchTo is an operator's switch, given on the target's own host.
func (l *Lab) switchTo(ctx context.Context, to, reason string) error {
	s, err := siteOf(to)
	if err != nil {
		return err
	}
	_, err = l.baton(ctx, s.node, "switch", "--to", to, "--yes", "--reason", reason)
	return err
}

// ready waits until Baton says that a failover would succeed.
func (l *Lab) ready(ctx context.Context) error {
	return l.poll(ctx, "readiness", func(ctx context.Context) error {
		out, err := l.ask(ctx, "status", "--json")
		if err != nil {
			return err
		}
		var status struct {
			Ready bool `json:"ready"`
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return fmt.Errorf("read status: %w", err)
		}
		if !status.Ready {
			return fmt.Errorf("a failover would not succeed yet: %s", out)
		}
		return nil
	})
}

// history reads the switches that Baton knows, newest first.
func (l *Lab) history(ctx context.Context) ([]plan.Summary, error) {
	if l.opt.Baton == "" {
		return nil, nil
	}
	out, err := l.ask(ctx, "history", "--json")
	if err != nil {
		return nil, err
	}
	var all []plan.Summary
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return all, nil
}

// remember marks every switch that history shows now: what comes later is new.
func (l *Lab) remember(ctx context.Context) error {
	all, err := l.history(ctx)
	for _, s := range all {
		l.known[s.ID] = true
	}
	return err
}

// switches returns the failovers and switchovers since remember, oldest first.
func (l *Lab) switches(ctx context.Context) ([]plan.Summary, error) {
	all, err := l.history(ctx)
	var fresh []plan.Summary
	for _, s := range slices.Backward(all) {
		if moves := s.Kind == plan.Failover || s.Kind == plan.Switchover; moves && !l.known[s.ID] {
			fresh = append(fresh, s)
		}
	}
	return fresh, err
}

// poll tries until it works or ctx ends; the error is the last try's.
func (l *Lab) poll(ctx context.Context, what string, try func(context.Context) error) error {
	tick := time.NewTicker(cliPoll)
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeoutCause(ctx, cliBudget, errors.New("one try took too long"))
		err := try(one)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
