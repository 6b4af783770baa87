package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/baton-ha/baton/internal/lab"
	"github.com/baton-ha/baton/internal/lab/script"
)

func benchFlags() []cli.Flag {
	return append(labFlags(),
		&cli.StringSliceFlag{Name: "binds", Value: cli.NewStringSlice("netlink", "keepalived"), Usage: "the binds to compare"},
		&cli.IntFlag{Name: "repeat", Value: 20, Usage: "runs of each scenario and bind"},
		&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of the moments at which faults strike"},
		&cli.StringFlag{Name: "report", Usage: "directory of the results, one JSON line a run (default: report)"},
	)
}

// bench is the matrix under way.
type bench struct {
	requests []request
	began    time.Time
	results  []lab.Result
	out      *json.Encoder
}

func benchCommand(c *cli.Context) error {
	opt, err := options(c)
	if err != nil {
		return err
	}
	names := c.Args().Slice()
	if len(names) == 0 {
		for _, t := range lab.Targets() {
			names = append(names, t.Scenario)
		}
	}
	list, err := scenariosOf(names)
	if err != nil {
		return err
	}
	dir, err := reportDir(c.String("report"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the report's directory: %w", err)
	}
	file, err := os.Create(filepath.Join(dir, "bench-"+time.Now().Format("20060102-150405")+".jsonl"))
	if err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	b := &bench{began: time.Now(), out: json.NewEncoder(file)}
	b.matrix(list, c.StringSlice("binds"), c.Int("repeat"), request{Job: jobRun, Options: opt, Report: dir, Seed: c.Uint64("seed")})
	err = b.run(c)
	fmt.Printf("\n%s\nresults: %s\n", lab.Table(b.results), file.Name())
	return errors.Join(err, file.Close())
}

// matrix takes every scenario and bind in turn, again and again, so that a slow hour of the machine spreads over all of them.
func (b *bench) matrix(list []script.Scenario, binds []string, repeat int, r request) {
	for n := range repeat {
		for _, s := range list {
			for _, bind := range binds {
				if s.Bind != "" && s.Bind != bind {
					continue
				}
				r.Scenario, r.Run, r.Options.Bind = s, n+1, bind
				b.requests = append(b.requests, r)
			}
		}
	}
}

func (b *bench) run(c *cli.Context) error {
	failed := 0
	for i, r := range b.requests {
		b.progress(i, r)
		result, err := send(c.Context, r, nil)
		if err != nil {
			return err
		}
		b.results = append(b.results, result)
		if err := b.out.Encode(result); err != nil {
			return fmt.Errorf("keep a result: %w", err)
		}
		if !result.OK {
			failed++
			fmt.Fprintln(os.Stderr, "\n"+result.Line())
		}
	}
	if failed > 0 {
		return fmt.Errorf("%w: %d of %d", errFailed, failed, len(b.requests))
	}
	return nil
}

// progress says what runs now and how long the rest will take; on a terminal it is one line that changes.
func (b *bench) progress(i int, r request) {
	left := "?"
	if i > 0 {
		rest := time.Since(b.began) / time.Duration(i) * time.Duration(len(b.requests)-i)
		left = rest.Round(time.Second).String()
	}
	line := fmt.Sprintf("%d/%d %s %s, %s left", i+1, len(b.requests), r.Scenario.Name, r.Options.Bind, left)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprintf(os.Stderr, "\r%s%s", line, strings.Repeat(" ", max(0, 70-len(line))))
		return
	}
	fmt.Fprintln(os.Stderr, line)
}
