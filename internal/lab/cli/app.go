package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/args"
	"github.com/baton-ha/baton/internal/lab"
	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/script"
	"github.com/baton-ha/baton/internal/lab/standin"
	"github.com/baton-ha/baton/scenarios"
)

// errFailed: at least one run was not ok; each has said why.
var errFailed = errors.New("not every run was ok")

// Main runs the command line and returns the exit code: 0; 1 when a run or the command failed; of shell, the command's own.
func Main(argv []string) int {
	box.Init()
	a := app()
	err := a.Run(args.Reorder(a.Commands, argv))
	if err == nil {
		return 0
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "batonlab:", err)
	}
	var code cli.ExitCoder
	if errors.As(err, &code) {
		return code.ExitCode()
	}
	return 1
}

func app() *cli.App {
	a := cli.NewApp()
	a.Name, a.HideVersion = "batonlab", true
	a.Usage = "a failover laboratory in network namespaces: real MariaDB, keepalived, etcd and Baton, faults, and checks of what followed"
	a.ExitErrHandler = func(*cli.Context, error) {} // Main says it, once
	a.Commands = []*cli.Command{
		{Name: "run", Usage: "run scenarios, each on a fresh laboratory", ArgsUsage: "SCENARIO...|all", Flags: runFlags(), Action: runCommand},
		{Name: "list", Usage: "list the scenarios", Action: listCommand},
		{Name: "bench", Usage: "repeat the scenarios with both binds, and print p50 and p99 beside the targets", ArgsUsage: "[SCENARIO...]", Flags: benchFlags(), Action: benchCommand},
		{Name: "demo", Usage: "watch one failover as it happens", Flags: labFlags(), Action: demoCommand},
		{Name: "up", Usage: "keep a laboratory until Ctrl-C", Flags: append(labFlags(), noBaton, verbose), Action: upCommand},
		{Name: "shell", Usage: "enter a host of the laboratory that is up", ArgsUsage: "HOST [COMMAND...]", SkipFlagParsing: true, Action: shellCommand},
		{Name: "down", Usage: "end the laboratory that is up", Action: downCommand},
		{Name: "standin", Hidden: true, Usage: "the stand-in for Mycat", Flags: []cli.Flag{&cli.StringFlag{Name: "c", Required: true}}, Action: standinCommand},
		{Name: boxedCommand, Hidden: true, Action: func(c *cli.Context) error { return boxed(c.Context) }},
	}
	return a
}

var (
	noBaton = &cli.BoolFlag{Name: "no-baton", Usage: "no daemons: the laboratory alone, site a serves"}
	verbose = &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "print the time-line as it happens"}
)

func labFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "bind", Value: "keepalived", Usage: "how the VIP is bound: keepalived or netlink"},
		&cli.StringFlag{Name: "profile", Value: "fast", Usage: "times of detection and lease: fast or steady"},
		&cli.StringFlag{Name: "baton", Usage: "the daemon's program (default: baton beside this program)", EnvVars: []string{"BATON"}},
		&cli.StringFlag{Name: "cache", Usage: "directory of the baked data directory", EnvVars: []string{"BATONLAB_CACHE"}},
	}
}

func runFlags() []cli.Flag {
	return append(labFlags(), noBaton, verbose,
		&cli.IntFlag{Name: "repeat", Value: 1, Usage: "runs of each scenario"},
		&cli.Uint64Flag{Name: "seed", Usage: "of the moments at which faults strike (default: from the clock)"},
		&cli.StringFlag{Name: "report", Usage: "keep a report of every run here (default: of failed runs, in report)"},
		&cli.BoolFlag{Name: "json", Usage: "one JSON object a run"},
		&cli.BoolFlag{Name: "keep", Usage: "keep the laboratory up after a run, until Ctrl-C"},
	)
}

// options reads the flags that say what laboratory is built.
func options(c *cli.Context) (lab.Options, error) {
	opt := lab.Options{Bind: c.String("bind"), Profile: c.String("profile"), Baton: c.String("baton"), Cache: c.String("cache")}
	if !slices.Contains([]string{"keepalived", "netlink"}, opt.Bind) {
		return opt, fmt.Errorf("--bind %s: there are keepalived and netlink", opt.Bind)
	}
	if !slices.Contains([]string{"fast", "steady"}, opt.Profile) {
		return opt, fmt.Errorf("--profile %s: there are fast and steady", opt.Profile)
	}
	self, err := os.Executable()
	if err != nil {
		return opt, fmt.Errorf("find this program: %w", err)
	}
	opt.Self = self
	if opt.Cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = "/var/cache"
		}
		opt.Cache = filepath.Join(base, "baton")
	}
	if c.Bool("no-baton") {
		opt.Baton = ""
		return opt, nil
	}
	if opt.Baton == "" {
		opt.Baton = filepath.Join(filepath.Dir(self), "baton")
	}
	if opt.Baton, err = filepath.Abs(opt.Baton); err != nil {
		return opt, err
	}
	if _, err := os.Stat(opt.Baton); err != nil {
		return opt, fmt.Errorf("find the daemon's program: %w: build it (make build) or name it by --baton", err)
	}
	return opt, nil
}

// scenariosOf reads the named scenarios: a name of the shipped ones, "all", or a path to a file.
func scenariosOf(names []string) ([]script.Scenario, error) {
	if len(names) == 1 && names[0] == "all" {
		names = scenarios.Names()
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("name a scenario, or all: there are %s", strings.Join(scenarios.Names(), ", "))
	}
	var list []script.Scenario
	var errs []error
	for _, name := range names {
		text, err := scenarios.Read(name)
		if errors.Is(err, fs.ErrNotExist) && strings.ContainsRune(name, '/') {
			text, err = os.ReadFile(name)
			name = strings.TrimSuffix(filepath.Base(name), ".txt")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read scenario %s: %w: there are %s", name, err, strings.Join(scenarios.Names(), ", ")))
			continue
		}
		s, err := script.Parse(name, text)
		list, errs = append(list, s), append(errs, err)
	}
	return list, errors.Join(errs...)
}

func runCommand(c *cli.Context) error {
	opt, err := options(c)
	if err != nil {
		return err
	}
	list, err := scenariosOf(c.Args().Slice())
	if err != nil {
		return err
	}
	r := request{Job: jobRun, Options: opt, Keep: c.Bool("keep"), Verbose: c.Bool("verbose"), Always: c.IsSet("report"), Seed: c.Uint64("seed")}
	if r.Report, err = reportDir(c.String("report")); err != nil {
		return err
	}
	if r.Seed == 0 {
		r.Seed = uint64(time.Now().UnixNano())
	}
	failed := false
	for _, s := range list {
		if s.Bind != "" && s.Bind != opt.Bind {
			fmt.Fprintf(os.Stderr, "%s is for --bind %s: left out\n", s.Name, s.Bind)
			continue
		}
		for n := range c.Int("repeat") {
			r.Scenario, r.Run = s, n+1
			result, err := send(c.Context, r, nil)
			if err != nil {
				return err
			}
			failed = failed || !result.OK
			if err := show(result, c.Bool("json")); err != nil {
				return err
			}
		}
	}
	if failed {
		return errFailed
	}
	return nil
}

func show(result lab.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(result)
	}
	_, err := fmt.Println(result.Line())
	return err
}

// reportDir makes the directory absolute; a box has its own /run and /dev/shm, so a report there would be lost.
func reportDir(dir string) (string, error) {
	if dir == "" {
		dir = "report"
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, hidden := range []string{"/run/", "/dev/shm/", "/proc/"} {
		if strings.HasPrefix(abs+"/", hidden) {
			return "", fmt.Errorf("--report %s: a box has its own %s, and the report would go with it: name another directory", dir, hidden)
		}
	}
	return abs, nil
}

func listCommand(*cli.Context) error {
	list, err := scenariosOf([]string{"all"})
	if err != nil {
		return err
	}
	for _, s := range list {
		fmt.Printf("%-24s %s\n", s.Name, s.Title)
		if s.Why != "" {
			fmt.Printf("%-24s   %s\n", "", s.Why)
		}
	}
	return nil
}

func standinCommand(c *cli.Context) error {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return standin.RunFile(context.WithoutCancel(c.Context), c.String("c"), log)
}

const stateFile = "/run/batonlab.json" // of the machine: the laboratory that is up

type state struct {
	PID int `json:"pid"` // of the box's first process
}

func upCommand(c *cli.Context) error {
	opt, err := options(c)
	if err != nil {
		return err
	}
	if s, err := running(); err == nil {
		return fmt.Errorf("a laboratory is up already (process %d): batonlab down ends it", s.PID)
	}
	defer func() { _ = os.Remove(stateFile) }()
	_, err = send(c.Context, request{Job: jobUp, Options: opt, Verbose: c.Bool("verbose")}, func(pid int) {
		text, _ := json.Marshal(state{pid}) // one number: cannot fail
		if err := os.WriteFile(stateFile, text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "batonlab shell will not find this laboratory:", err)
		}
	})
	return err
}

// running reads which laboratory is up.
func running() (state, error) {
	var s state
	text, err := os.ReadFile(stateFile)
	if err != nil {
		return s, fmt.Errorf("no laboratory is up: batonlab up starts one: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", stateFile, err)
	}
	// A process id may belong to another by now: only a box has the laboratory's hosts in it.
	if _, err := lab.EnterArgs(s.PID, "app"); err != nil {
		return s, fmt.Errorf("the laboratory of %s is gone: %w", stateFile, err)
	}
	return s, nil
}

func shellCommand(c *cli.Context) error {
	s, err := running()
	if err != nil {
		return err
	}
	command := c.Args().Tail()
	if len(command) == 0 {
		command = []string{"bash", "--norc"}
	}
	args, err := lab.EnterArgs(s.PID, c.Args().First(), command...)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(c.Context, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	// On the host, "baton status" is enough.
	cmd.Env = append(os.Environ(), "PS1="+c.Args().First()+"# ", "BATON_CONFIG="+lab.ConfigPath, "PATH="+filepath.Dir(self)+":"+os.Getenv("PATH"))
	if err := cmd.Run(); cmd.ProcessState == nil {
		return fmt.Errorf("enter the host: %w", err)
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return cli.Exit("", code) // the command has said why
	}
	return nil
}

func downCommand(*cli.Context) error {
	s, err := running()
	if err != nil {
		return err
	}
	if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
		return fmt.Errorf("end the laboratory: %w", err)
	}
	return nil
}
