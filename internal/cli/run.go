package cli

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/daemon"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run the daemon of this node",
		Flags: []cli.Flag{&cli.StringFlag{Name: "log-format", Usage: "text or json; default: log.format of the configuration"}},
		Action: func(c *cli.Context) error {
			cfg, err := load(c)
			if err != nil {
				return err
			}
			opts := &slog.HandlerOptions{Level: cfg.Log.Level}
			var h slog.Handler = slog.NewTextHandler(os.Stderr, opts)
			switch f := c.String("log-format"); {
			case f == "json", f == "" && cfg.Log.JSON:
				h = slog.NewJSONHandler(os.Stderr, opts)
			case f != "" && f != "text":
				return errExit{ExitUsage, "--log-format is text or json"}
			}
			log := slog.New(h).With(slog.String("cluster", cfg.Cluster.Name), slog.String("self", string(cfg.Node)))
			for _, w := range cfg.Warnings {
				log.Warn("configuration", slog.String("place", w.Place), slog.String("text", w.Text))
			}
			log.Info("baton starts", slog.String("version", version()), slog.String("mode", string(cfg.Mode)), slog.String("profile", cfg.Profile.Name))
			// The garbage collector's pauses are short, but its work competes with probes on a busy host: trade memory for it.
			debug.SetGCPercent(400)
			return daemon.Run(c.Context, cfg, log)
		},
	}
}

// commit is set by the linker (Makefile); empty: built otherwise.
var commit string

// version is what the build says: the module's version, and the commit where it is known.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	known := commit
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && known == "" {
			known = s.Value[:min(12, len(s.Value))]
		}
	}
	return strings.TrimSpace(info.Main.Version + " " + known)
}
