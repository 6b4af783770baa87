package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/lab"
)

func demoCommand(c *cli.Context) error {
	opt, err := options(c)
	if err != nil {
		return err
	}
	list, err := scenariosOf([]string{"mysql-kill"})
	if err != nil {
		return err
	}
	dir, err := reportDir("")
	if err != nil {
		return err
	}
	result, err := send(c.Context, request{Job: jobDemo, Options: opt, Scenario: list[0], Run: 1, Seed: 1, Report: dir}, nil)
	if err == nil && !result.OK {
		err = errFailed
	}
	return err
}

// demo tells one failover as it happens.
func demo(ctx context.Context, r request) error {
	story := lab.NewStory(os.Stderr)
	r.Options.Time = lab.NewTimeline(story.Tell)
	result, l := lab.Run(ctx, r.Options, r.Scenario, r.Run, r.Seed)
	story.End(result)
	after := context.WithoutCancel(ctx)
	if !result.OK {
		result.Report = r.Report
		if err := l.Report(after, r.Report, result); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
		}
		fmt.Fprintf(os.Stderr, "The logs of all hosts are in %s.\n", r.Report)
		if r.Options.Profile == "fast" {
			fmt.Fprintln(os.Stderr, "Profile fast takes a stall of 300 ms for a failure. If this machine is busy: sudo bin/batonlab demo --profile steady")
		}
	}
	if err := l.Close(after); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return reply(result)
}
