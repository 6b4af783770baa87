package standin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// gate lets callers through while it is open; closed, they wait.
type gate struct {
	mu sync.Mutex
	ch chan struct{} // nil: open
}

func (g *gate) set(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case closed && g.ch == nil:
		g.ch = make(chan struct{})
	case !closed && g.ch != nil:
		close(g.ch)
		g.ch = nil
	}
}

// wait returns whether the caller may go on; it may not when one of the others ended first.
func (g *gate) wait(ends ...<-chan struct{}) bool {
	for {
		g.mu.Lock()
		ch := g.ch
		g.mu.Unlock()
		if ch == nil {
			return true
		}
		var a, b <-chan struct{}
		if len(ends) > 0 {
			a = ends[0]
		}
		if len(ends) > 1 {
			b = ends[1]
		}
		select {
		case <-ch:
		case <-a:
			return false
		case <-b:
			return false
		}
	}
}

// faults are the knobs of the laboratory.
type faults struct {
	starve     gate // SQL of both ports waits, COM_PING is answered: builds since 2022
	reactor    gate // greeting, COM_PING and SQL wait: older builds
	acceptOnly gate // new connections are accepted and hear nothing
	pause      gate // everything waits while the collector runs
	slow       atomic.Int64
	hbLie      atomic.Bool

	mu          sync.Mutex // guards the fields below
	exhausted   map[string]bool
	uninit      map[string]bool
	every, span time.Duration // of gc-pause; zero: none
	changed     chan struct{} // gc-pause was set anew
}

func newFaults() *faults {
	return &faults{exhausted: map[string]bool{}, uninit: map[string]bool{}, changed: make(chan struct{}, 1)}
}

func (f *faults) has(set map[string]bool, name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return set[name]
}

// clear undoes every fault.
func (f *faults) clear() {
	for _, g := range []*gate{&f.starve, &f.reactor, &f.acceptOnly} {
		g.set(false)
	}
	f.slow.Store(0)
	f.hbLie.Store(false)
	f.mu.Lock()
	clear(f.exhausted)
	clear(f.uninit)
	f.mu.Unlock()
	f.setPauses(0, 0)
}

func (f *faults) setPauses(every, span time.Duration) {
	f.mu.Lock()
	f.every, f.span = every, span
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// runPauses closes the pause gate for span every so often, until ctx ends.
func (f *faults) runPauses(ctx context.Context) {
	for {
		f.mu.Lock()
		every, span := f.every, f.span
		f.mu.Unlock()
		f.pause.set(false)
		if every == 0 {
			select {
			case <-ctx.Done():
				return
			case <-f.changed:
			}
			continue
		}
		if f.hold(ctx, every) {
			f.pause.set(true)
			f.hold(ctx, span)
		}
		if ctx.Err() != nil {
			f.pause.set(false)
			return
		}
	}
}

// hold waits; it returns false when the setting changed or ctx ended meanwhile.
func (f *faults) hold(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-f.changed:
	case <-ctx.Done():
	}
	return false
}

// errFault is the answer to a command of the control socket that cannot be done.
var errFault = errors.New("standin: fault")

// apply runs one command of the control socket:
//
//	starve on|off · reactor-hang on|off · accept-only on|off · hb-lie on|off
//	slow 200ms|off · gc-pause 5s 800ms|off (every, for)
//	pool-exhausted DATANODE on|off · init-failed DATAHOST on|off · false-switch DATAHOST
//	clear
func (srv *Server) apply(command string) error {
	words := strings.FieldsFunc(command, func(r rune) bool { return r == ' ' || r == '=' || r == '/' })
	if len(words) == 0 {
		return fmt.Errorf("%w: no command", errFault)
	}
	args := words[1:]
	f := srv.faults
	switch words[0] {
	case "starve":
		return onOff(args, f.starve.set)
	case "reactor-hang":
		return onOff(args, f.reactor.set)
	case "accept-only":
		return onOff(args, f.acceptOnly.set)
	case "hb-lie":
		return onOff(args, f.hbLie.Store)
	case "slow":
		return durations(args, 1, func(d []time.Duration) { f.slow.Store(int64(d[0])) })
	case "gc-pause":
		return durations(args, 2, func(d []time.Duration) { f.setPauses(d[0], d[1]) })
	case "clear":
		f.clear()
		return nil
	}
	return srv.applyNamed(words[0], args)
}

// applyNamed runs the commands that name a data node or data host.
func (srv *Server) applyNamed(command string, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: %q is unknown, or lacks a name", errFault, command)
	}
	f, name := srv.faults, args[0]
	set := func(m map[string]bool) func(bool) {
		return func(on bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			m[name] = on
		}
	}
	host := srv.hosts[name]
	switch {
	case command == "pool-exhausted" && srv.nodes[name] != nil:
		return onOff(args[1:], set(f.exhausted))
	case command == "init-failed" && host != nil:
		return onOff(args[1:], set(f.uninit))
	case command == "false-switch" && host != nil && len(host.pools) > 1:
		srv.switchHost(host, (host.index()+1)%len(host.pools))
		return nil
	}
	return fmt.Errorf("%w: %s %s: no such command, data node or data host", errFault, command, name)
}

func onOff(args []string, set func(bool)) error {
	if len(args) != 1 || args[0] != "on" && args[0] != "off" {
		return fmt.Errorf("%w: say on or off", errFault)
	}
	set(args[0] == "on")
	return nil
}

// durations reads n durations ("200ms", or a bare number of milliseconds), or "off" for zeros.
func durations(args []string, n int, set func([]time.Duration)) error {
	out := make([]time.Duration, n)
	if len(args) == 1 && args[0] == "off" {
		set(out)
		return nil
	}
	if len(args) != n {
		return fmt.Errorf("%w: say off, or give %d durations", errFault, n)
	}
	for i, a := range args {
		if ms, err := strconv.Atoi(a); err == nil {
			out[i] = time.Duration(ms) * time.Millisecond
			continue
		}
		d, err := time.ParseDuration(a)
		if err != nil || d < 0 {
			return fmt.Errorf("%w: %q is no duration", errFault, a)
		}
		out[i] = d
	}
	set(out)
	return nil
}

// listenControl opens the control socket. A file left by a killed stand-in is in the way, and removed.
func listenControl(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old control socket: %w", err)
	}
	return net.Listen("unix", path)
}

// control serves one connection of the control socket: a command per line, "ok" or the error's text back.
func (srv *Server) control(conn net.Conn) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		answer := "ok"
		if err := srv.apply(lines.Text()); err != nil {
			answer = err.Error()
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

// Fault gives one command to the control socket of a running stand-in; README.md lists them. An unknown command is an error.
func Fault(ctx context.Context, socketPath, command string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socketPath)
	if err != nil {
		return fmt.Errorf("reach the stand-in: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return fmt.Errorf("send %q to the stand-in: %w", command, err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("wait for the stand-in's answer to %q: %w", command, err)
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return fmt.Errorf("give the stand-in %q: %s", command, answer)
	}
	return nil
}
