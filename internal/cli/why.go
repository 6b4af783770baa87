package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

// Why is `baton why --json`.
type Why struct {
	Decision policy.Decision                   `json:"decision"` // the controller's newest
	At       time.Time                         `json:"at"`
	Votes    map[cluster.SiteName]policy.Votes `json:"votes"`
	Advice   *switcher.Advice                  `json:"advice,omitempty"` // in mode advise
	NotReady []string                          `json:"not_ready"`        // why no other site could take over now
	Last     *plan.Summary                     `json:"last,omitempty"`   // the newest switch that was not a mending
}

func whyCommand() *cli.Command {
	return &cli.Command{
		Name: "why", Usage: "say why it did or did not switch, now", Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			s, err := open(c)
			if err != nil {
				return err
			}
			defer s.close()
			st, err := s.read(c.Context)
			if err != nil {
				return err
			}
			r, err := readiness(st)
			if err != nil {
				return err
			}
			now, err := s.status(c.Context)
			if err != nil {
				return err
			}
			w := Why{Decision: r.Decision, At: r.At, Votes: r.Votes, Advice: r.Advice, NotReady: now.NotReady}
			for _, sum := range switcher.Summaries(st.Switches) {
				if !sum.Kind.Mends() {
					w.Last = &sum
				}
			}
			if c.Bool("json") {
				return s.print(w)
			}
			return s.explain(st, w)
		},
	}
}

func (s *session) explain(st dcs.State, w Why) error {
	p := func(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) } //nolint:errcheck // stdout
	switch age := time.Since(w.At); {
	case st.Readiness.Mod == 0:
		p("No controller has decided anything yet: is a daemon running in mode advise or automatic?")
	case w.At.IsZero():
		p("No controller has looked since the last switch: ask again in a moment.")
	case age > 10*time.Second:
		p("The newest decision is %s old: no controller is at work. Look at the daemons' logs.", age.Round(time.Second))
	}
	if w.Decision.Reason != "" {
		p("%s: %s", w.Decision.Reason, w.Decision.Text)
	}
	if len(w.NotReady) > 0 && st.Assignment.Value.Site != "" {
		p("NOT ready to fail over:")
		for _, why := range w.NotReady {
			p("  - %s", why)
		}
	}
	if a := w.Advice; a != nil && time.Now().Before(a.Until) && a.From == st.Assignment.Value.Site {
		p("%s (valid for another %s)", a.Text, time.Until(a.Until).Round(time.Second))
	}
	if m := st.Maintenance; m.Mod != 0 {
		p("maintenance by %s until %s (%s): nothing is switched automatically", m.Value.Who, until(m.Value.Until), orElse(m.Value.Reason, "no reason given"))
	}
	for _, site := range s.cfg.Cluster.Sites {
		if v, ok := w.Votes[site.Name]; ok {
			p("site %s is %s by %d up, %d down, %d unknown of %d observers: %s", site.Name, v.State, v.Up, v.Down, v.Unknown, len(s.cfg.Cluster.Nodes), v.Text)
		}
	}
	if w.Last != nil {
		p("last: %s (%s ago): %s", headline(*w.Last), time.Since(w.Last.At).Round(time.Second), w.Last.Reason)
	}
	return nil
}

func maintenanceCommand() *cli.Command {
	return &cli.Command{
		Name: "maintenance", Usage: "switch automatic switching off and on",
		Subcommands: []*cli.Command{
			{
				Name: "on", Usage: "nothing is switched automatically from now on",
				Flags: []cli.Flag{
					&cli.DurationFlag{Name: "for", Usage: "end it by itself after `TIME`, such as 30m"},
					&cli.StringFlag{Name: "reason", Usage: "`TEXT` for status and why"}, jsonFlag(),
				},
				Action: func(c *cli.Context) error {
					m := cluster.Maintenance{Who: who(), Reason: c.String("reason")}
					if d := c.Duration("for"); d > 0 {
						m.Until = time.Now().Add(d)
					} else if c.IsSet("for") {
						return errExit{ExitUsage, "--for takes a time above zero, such as 30m"}
					}
					return maintain(c, "maintenance is on until "+until(m.Until), func(k dcs.Keys) dcs.Op { return dcs.Doc(k.Maintenance(), m) })
				},
			},
			{
				Name: "off", Usage: "automatic switching is on again", Flags: []cli.Flag{jsonFlag()},
				Action: func(c *cli.Context) error {
					return maintain(c, "maintenance is off", func(k dcs.Keys) dcs.Op { return dcs.Op{Kind: dcs.Delete, Key: k.Maintenance()} })
				},
			},
		},
	}
}

func maintain(c *cli.Context, said string, op func(dcs.Keys) dcs.Op) error {
	s, err := open(c)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeoutCause(c.Context, readTimeout, errors.New("no answer within 3 s"))
	defer cancel()
	if _, err := s.store.Do(ctx, "change maintenance", nil, op(s.store.Keys)); err != nil {
		return fmt.Errorf("etcd does not answer at %v: %w", s.cfg.Etcd.Endpoints, err)
	}
	if c.Bool("json") {
		return s.print(map[string]string{"maintenance": said})
	}
	fmt.Fprintln(s.out, said) //nolint:errcheck // stdout
	return nil
}

func configCommand() *cli.Command {
	return &cli.Command{
		Name: "config", Usage: "look at the configuration",
		Subcommands: []*cli.Command{{
			Name: "validate", Usage: "name every mistake with its line; nothing is touched", Flags: []cli.Flag{jsonFlag()},
			Action: func(c *cli.Context) error {
				cfg, err := load(c)
				if wrong := mistakes(err); len(wrong) > 0 && c.Bool("json") { // the mistakes are what was asked for
					s := session{out: c.App.Writer}
					return errors.Join(s.print(map[string]any{"ok": false, "path": wrong[0].File, "mistakes": wrong}), errExit{code: ExitConfig})
				}
				if err != nil {
					return err
				}
				return validated(c, cfg)
			},
		}},
	}
}

func validated(c *cli.Context, cfg config.Config) error {
	s := session{out: c.App.Writer}
	if c.Bool("json") {
		return s.print(map[string]any{"ok": true, "path": cfg.Path, "warnings": cfg.Warnings})
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(s.out, "%s: warning: %s\n", w.Place, w.Text) //nolint:errcheck // stdout
	}
	fmt.Fprintf(s.out, "%s: %d sites, %d shards, %d observers, mode %s, profile %s: valid\n", cfg.Path, len(cfg.Cluster.Sites), len(cfg.Cluster.Shards), //nolint:errcheck // stdout
		len(cfg.Cluster.Nodes), cfg.Mode, cfg.Profile.Name)
	return nil
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version", Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			s := session{out: c.App.Writer}
			if c.Bool("json") {
				return s.print(map[string]string{"version": version()})
			}
			fmt.Fprintln(s.out, "baton", version()) //nolint:errcheck // stdout
			return nil
		},
	}
}
