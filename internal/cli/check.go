package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/check"
	"github.com/baton-ha/baton/internal/config"
)

// checkTime bounds a check: every look has its own deadline, this is for all of them together.
const checkTime = 20 * time.Second

func checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "find everything that would stand in the way of a switch; nothing is touched", Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			var r check.Report
			if cfg, err := load(c); err != nil {
				r = check.InvalidConfig(err)
			} else {
				r = runCheck(c.Context, cfg)
			}
			show := r.Render
			if c.Bool("json") {
				show = r.JSON
			}
			if err := show(c.App.Writer); err != nil {
				return err
			}
			if code := r.ExitCode(); code != 0 {
				return errExit{code, ""}
			}
			return nil
		},
	}
}

func runCheck(ctx context.Context, cfg config.Config) check.Report {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	return check.Run(ctx, cfg, check.Outside(cfg, slog.New(slog.DiscardHandler)))
}
