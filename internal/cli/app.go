// Package cli is the command line of baton: it reads the configuration, talks to the daemons through etcd and prints for people, or as
// JSON. It decides nothing; the controller does.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/internal/args"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
)

// Exit codes, the same for every command (docs: README).
const (
	ExitOK       = 0
	ExitWarnings = 1  // check: warnings only; switch: it ended, and not completed, or was answered with no
	ExitCritical = 2  // check: critical findings; switch: refused by the policy
	ExitUsage    = 64 // wrong words on the command line
	ExitConfig   = 78 // baton.yaml is wrong
	ExitNoStore  = 69 // etcd does not answer, or refuses
	ExitFailed   = 70 // anything else
)

// errExit carries an exit code with its message; an empty message prints nothing.
type errExit struct {
	code int
	text string
}

func (e errExit) Error() string { return e.text }

// Main runs the command line and returns the exit code. Results go to stdout, errors to stderr.
func Main(argv []string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	a := app(os.Stdout, os.Stderr)
	err := a.RunContext(ctx, args.Reorder(a.Commands, argv))
	if err == nil {
		return ExitOK
	}
	complain(os.Stderr, err, slices.Contains(argv, "--json"))
	return code(err)
}

// complaint is an error for programs.
type complaint struct {
	Error    string          `json:"error"`
	Exit     int             `json:"exit"`
	Mistakes []*config.Error `json:"mistakes,omitempty"` // of the configuration, by line
}

// complain writes an error that has words: for people, or, where the command was asked for JSON, as one object on a line.
func complain(w io.Writer, err error, asJSON bool) {
	switch {
	case err.Error() == "":
	case asJSON:
		_ = json.NewEncoder(w).Encode(complaint{err.Error(), code(err), mistakes(err)})
	default:
		fmt.Fprintln(w, "baton:", err) //nolint:errcheck // stderr
	}
}

// mistakes are all those of a configuration that err names.
func mistakes(err error) []*config.Error {
	var one *config.Error
	var many interface{ Unwrap() []error }
	switch {
	case errors.As(err, &many):
		var all []*config.Error
		for _, e := range many.Unwrap() {
			all = append(all, mistakes(e)...)
		}
		return all
	case errors.As(err, &one):
		return []*config.Error{one}
	}
	return nil
}

func code(err error) int {
	var exit errExit
	var bad *config.Error
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &bad):
		return ExitConfig
	case errors.Is(err, dcs.ErrUnavailable), errors.Is(err, dcs.ErrUnknownOutcome), errors.Is(err, dcs.ErrRefused), errors.Is(err, dcs.ErrDenied):
		return ExitNoStore
	}
	return ExitFailed
}

func app(out, errOut io.Writer) *cli.App {
	a := &cli.App{
		Name: "baton", Usage: "failover controller for MySQL behind Mycat", Writer: out, ErrWriter: errOut, HideHelpCommand: true,
		ExitErrHandler: func(*cli.Context, error) {}, // Main prints, once
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return errExit{ExitUsage, err.Error() + "; `baton --help` lists commands and options"}
		},
		Flags: []cli.Flag{&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Value: "/etc/baton/baton.yaml", EnvVars: []string{"BATON_CONFIG"}, Usage: "configuration `FILE`"}},
		Commands: []*cli.Command{
			runCommand(), switchCommand(), statusCommand(), checkCommand(), historyCommand(), whyCommand(), maintenanceCommand(), releaseCommand(),
			configCommand(), versionCommand(),
		},
	}
	for _, c := range a.Commands {
		allowLate(c, "baton")
	}
	a.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return errExit{ExitUsage, fmt.Sprintf("no command %q; `baton --help` lists them", c.Args().First())}
		}
		return cli.ShowAppHelp(c)
	}
	return a
}

// allowLate lets -c stand before and after the command, and gives every command and subcommand the usage errors of the app. A word that
// nobody asked for is one of them: what was meant as a site must not be passed over.
func allowLate(c *cli.Command, above string) {
	name := above + " " + c.Name
	if len(c.Subcommands) > 0 {
		c.Action = func(ctx *cli.Context) error {
			return errExit{ExitUsage, fmt.Sprintf("%s has no command %q; `%s --help` lists them", name, ctx.Args().First(), name)}
		}
	} else if act := c.Action; act != nil {
		c.Action = func(ctx *cli.Context) error {
			if most := strings.Count(c.ArgsUsage, "["); ctx.NArg() > most {
				word := ctx.Args().Get(most)
				return errExit{ExitUsage, fmt.Sprintf("%s does not know what to do with %q; `%s --help` lists its options (a site is named with --to)", name, word, name)}
			}
			return act(ctx)
		}
	}
	c.Flags = append(c.Flags, &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "configuration `FILE`"})
	c.HideHelpCommand = true
	c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
		return errExit{ExitUsage, err.Error() + "; `" + name + " --help` lists the options"}
	}
	for _, sub := range c.Subcommands {
		allowLate(sub, name)
	}
}

func jsonFlag() cli.Flag { return &cli.BoolFlag{Name: "json", Usage: "print JSON"} }

// load reads the configuration named nearest to the command.
func load(c *cli.Context) (config.Config, error) {
	path := "/etc/baton/baton.yaml"
	for _, ctx := range c.Lineage() {
		if ctx.IsSet("config") {
			path = ctx.String("config")
			break
		}
	}
	cfg, err := config.Load(path)
	if bad := (*config.Error)(nil); !errors.As(err, &bad) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		return cfg, errExit{ExitConfig, fmt.Sprintf("%v; name the file with -c FILE, and run as root: it names the files of the passwords", err)}
	}
	return cfg, err
}

// who names the operator for the history.
func who() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if s := os.Getenv("SUDO_USER"); s != "" {
		name = s
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}
