// Package cli is the command line of the laboratory. Outside a box it only starts boxes; inside, it builds one laboratory.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/lab"
	"github.com/baton-ha/baton/internal/lab/box"
	"github.com/baton-ha/baton/internal/lab/script"
)

// job is what the program does inside a box.
type job string

const (
	jobRun  job = "run"  // one scenario, once
	jobUp   job = "up"   // stand until interrupted
	jobDemo job = "demo" // one scenario, told as it happens
)

// request goes into a box on its standard input; the result comes back on descriptor 3.
type request struct {
	Job      job             `json:"job"`
	Options  lab.Options     `json:"options"`
	Scenario script.Scenario `json:"scenario"`
	Run      int             `json:"run"`
	Seed     uint64          `json:"seed"`
	Report   string          `json:"report"` // where reports go
	Always   bool            `json:"always"` // also when the run is ok
	Keep     bool            `json:"keep"`   // stand afterwards, until interrupted
	Verbose  bool            `json:"verbose"`
}

const (
	boxedCommand = "boxed" // hidden: what the program runs as inside a box
	resultFile   = 3
)

// send runs the request in a box of its own and returns its result; started, if given, is told the box's first process.
func send(ctx context.Context, r request, started func(pid int)) (lab.Result, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return lab.Result{}, fmt.Errorf("write request: %w", err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		return lab.Result{}, fmt.Errorf("make a pipe for the result: %w", err)
	}
	defer func() { _ = from.Close() }()
	// The box reports an interrupt in its own way: let it end by itself, unless it is asked twice.
	ctx, cancel := secondInterrupt(ctx)
	defer cancel()
	full, read := neighbours(), make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(from) // a box that died leaves half a result, which does not parse
		read <- all
	}()
	err = box.Run(ctx, box.Command{
		Args: []string{boxedCommand}, Stdin: strings.NewReader(string(text)), Stdout: os.Stderr, Stderr: os.Stderr,
		Files: []*os.File{to}, Started: started,
	})
	_ = to.Close()
	var result lab.Result
	if out := <-read; len(out) > 0 {
		err := json.Unmarshal(out, &result)
		if n := neighbours() - full; n > 0 && !result.OK {
			result.Reason += fmt.Sprintf("; and the machine's ARP table was full %d times meanwhile: something else on it fills the table, and the run proves nothing", n)
		}
		return result, err
	}
	if err == nil && r.Job != jobUp {
		err = errors.New("it ended without a result")
	}
	if err != nil {
		err = fmt.Errorf("run a laboratory: %w", err)
	}
	return result, err
}

// neighbours reads how often the machine's table of neighbours was full. All network namespaces share one table: whoever fills it
// makes ARP fail in every laboratory. 0 when the kernel does not say.
func neighbours() uint64 {
	text, err := os.ReadFile("/proc/net/stat/arp_cache")
	if err != nil {
		return 0
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	column := slices.Index(strings.Fields(lines[0]), "table_fulls")
	var total uint64
	for _, line := range lines[1:] { // one line for each processor
		if words := strings.Fields(line); column >= 0 && column < len(words) {
			n, _ := strconv.ParseUint(words[column], 16, 64)
			total += n
		}
	}
	return total
}

func secondInterrupt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	sigs := make(chan os.Signal, 2)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM)
	go func() {
		defer signal.Stop(sigs)
		for seen := 0; ; seen++ {
			select {
			case s := <-sigs:
				if seen > 0 || s == unix.SIGTERM {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// boxed reads the request and does it. It runs inside a box only.
func boxed(ctx context.Context) error {
	if !box.Inside() {
		return box.ErrNotBoxed
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	follow := func(lab.Event) {}
	if r.Verbose {
		follow = func(e lab.Event) {
			fmt.Fprintf(os.Stderr, "%s %-8s %s\n", e.At.Format("15:04:05.000"), e.Who, e.Text)
		}
	}
	switch r.Job {
	case jobUp:
		return stand(ctx, r, follow)
	case jobDemo:
		return demo(ctx, r)
	case jobRun:
		return once(ctx, r, follow)
	default:
		return fmt.Errorf("unknown request %q", r.Job)
	}
}

// once runs a scenario and hands the result back.
func once(ctx context.Context, r request, follow func(lab.Event)) error {
	r.Options.Time = lab.NewTimeline(follow)
	result, l := lab.Run(ctx, r.Options, r.Scenario, r.Run, r.Seed)
	after := context.WithoutCancel(ctx)
	if r.Keep {
		fmt.Fprintln(os.Stderr, result.Line())
		tellHosts(r.Options)
		<-ctx.Done()
	}
	if !result.OK || r.Always {
		dir := filepath.Join(r.Report, result.ReportName())
		if err := l.Report(after, dir, result); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
		}
		result.Report = dir
	}
	if !result.OK && !r.Verbose {
		fmt.Fprint(os.Stderr, r.Options.Time.Brief())
	}
	if err := l.Close(after); err != nil && result.OK {
		result.OK, result.Reason = false, err.Error()
	}
	return reply(result)
}

func reply(result lab.Result) error {
	file := os.NewFile(resultFile, "result")
	if err := json.NewEncoder(file).Encode(result); err != nil {
		return fmt.Errorf("hand the result back: %w", err)
	}
	return file.Close()
}

// stand builds a laboratory and keeps it until it is interrupted.
func stand(ctx context.Context, r request, follow func(lab.Event)) error {
	r.Options.Time = lab.NewTimeline(follow)
	l, err := lab.Up(ctx, r.Options)
	if err == nil {
		tellHosts(r.Options)
		<-ctx.Done()
	}
	return errors.Join(err, l.Close(context.WithoutCancel(ctx)))
}

func tellHosts(opt lab.Options) {
	fmt.Fprintf(os.Stderr, "The laboratory is up; a writer writes through %s. Enter a host from another terminal:\n\n"+
		"    %s shell mc-a\n\n"+
		"Hosts: mc-a, mc-b, witness, app, db-a1..4, db-b1..4, switch. ", lab.VIP, opt.Self)
	if opt.Baton != "" {
		fmt.Fprint(os.Stderr, "On mc-a, mc-b and witness: baton status, baton why, baton switch. ")
	}
	fmt.Fprintln(os.Stderr, "Ctrl-C ends it and leaves nothing.")
}
