package gate

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plan is what a daemon of this lab is told.
func (l *lab) plan(m Method, unmapped bool) rolePlan {
	cfg := l.config(m, unmapped)
	cfg.Log = nil
	return rolePlan{Config: cfg, Method: m, Unmapped: unmapped, TTL: 300 * time.Millisecond, Every: 20 * time.Millisecond}
}

func TestGateOfAKilledOrFrozenDaemonClosesAtItsDeadline(t *testing.T) {
	for _, v := range variants {
		for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
			t.Run(v.name+" "+name, func(t *testing.T) {
				l := newLab(t)
				tr := newTraffic(l)
				d := startDaemon(t, roleRenew, l.plan(v.method, v.unmapped))
				eventually(t, "renewals", func() bool { return len(d.said("outcome")) > 5 })
				tr.flows(50)
				d.signal(t, sig)
				deadline := d.lastDeadline(t)
				after(t, deadline)
				tr.silentSince(deadline, 50)
				if bad := d.said("verify"); len(bad) > 0 {
					t.Errorf("the daemon found its own gate wrong: %s", bad[0])
				}
				l.gate(l.config(v.method, v.unmapped)) // uninstalls what the daemon left
			})
		}
	}
}

func TestFrozenPredecessorWritesIntoAnOrphanedMap(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			d := startDaemon(t, roleRenew, l.plan(v.method, v.unmapped))
			eventually(t, "renewals", func() bool { return len(d.said("outcome")) > 5 })
			tr.flows(20)
			d.signal(t, syscall.SIGSTOP)

			g := l.installed(l.config(v.method, v.unmapped), Now().Add(time.Hour))
			after(t, d.lastDeadline(t))
			tr.flows(20) // the predecessor's gate has closed, and is not in the way
			_, err := g.Close()
			l.must(err)
			closed := Now()
			renewals := len(d.said("outcome"))
			d.signal(t, syscall.SIGCONT)
			eventually(t, "the predecessor to go on", func() bool { return len(d.said("outcome")) > renewals+10 })
			for _, o := range d.said("outcome") {
				if o != Swapped.String() {
					t.Errorf("the predecessor's swap was %s: this test needs one that believes it is open", o)
				}
			}
			tr.silentSince(closed, 50)
			l.must(g.Verify(t.Context()))
			eventually(t, "the predecessor to see that it was replaced", func() bool {
				last := d.said("verify")
				return len(last) > 0 && strings.HasPrefix(last[len(last)-1], "true")
			})
			d.signal(t, syscall.SIGKILL)
			l.must(g.Verify(t.Context()))
			tr.silentSince(closed, 50)
		})
	}
}

func TestReplacementByAnotherProcessLosesNothing(t *testing.T) {
	chains := map[string][]Method{
		"tcx": {TCX, TCX, TCX, TCX}, "clsact": {Clsact, Clsact, Clsact, Clsact}, "either": {Clsact, TCX, Clsact, TCX, Clsact},
	}
	for name, methods := range chains {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			tr.flows(20)
			// Not from the first one on: adding a clsact qdisc makes the kernel itself drop what is sent in that moment.
			var begin Word
			for _, m := range methods {
				plan := l.plan(m, false)
				plan.Preload = Now().Add(time.Hour)
				d := startDaemon(t, roleInstall, plan)
				eventually(t, "the successor to leave", func() bool { return exited(d.cmd) })
				tr.flows(5)
				if said := d.said("error"); len(said) > 0 {
					t.Fatal(said)
				}
				if begin == 0 {
					begin = Now()
				}
			}
			end := Now()
			tr.flows(20)
			for _, k := range []kind{echo, push} {
				if lost := tr.missing(k, begin, end); len(lost) > 0 {
					t.Errorf("%d of %d %ss were lost: %v", len(lost), tr.tried(k, begin), k, lost)
				}
			}
			if tr.tried(echo, begin) < 10 {
				t.Error("too few datagrams to say anything")
			}
			l.installed(l.config(methods[0], false), 0)
			tr.silentSince(Now(), 30)
		})
	}
}

// exited reports whether the process is a zombie or gone, without waiting for it.
func exited(cmd *exec.Cmd) bool {
	state := processState(cmd.Process.Pid)
	return state == "Z" || state == ""
}

func TestReplacementWhileClosedLeaksNothing(t *testing.T) {
	for _, m := range []Method{TCX, Clsact} {
		t.Run(string(m), func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			tr.flows(20)
			last := l.installed(l.config(m, false), 0)
			closed := Now()
			for range 30 {
				next := l.installed(l.config(m, false), 0)
				l.wantErr(last.Verify(t.Context()), ErrNotOurs)
				l.wantErr(last.Cover(t.Context(), []string{l.dev}), ErrNotOurs)
				l.must(last.Release())
				last = next
			}
			tr.silentSince(closed, 50)
			l.must(last.Verify(t.Context()))
		})
	}
}

func TestReleaseLeavesTheGateInForce(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			l := newLab(t)
			tr := newTraffic(l)
			g := l.installed(l.config(v.method, v.unmapped), Now().Add(time.Hour))
			tr.flows(5)
			deadline := Now().Add(200 * time.Millisecond)
			if got := g.Swap(g.Word(), deadline); got != Swapped {
				t.Fatal(got)
			}
			l.must(g.Release())
			if got := g.Swap(deadline, Now().Add(time.Hour)); got != NotInstalled {
				t.Errorf("swap after release: %v", got)
			}
			_, err := g.Close()
			l.wantErr(err, ErrNotInstalled)
			l.wantErr(g.Verify(t.Context()), ErrNotInstalled)
			after(t, deadline)
			tr.silentSince(deadline, 50)
		})
	}
}

func TestProbeNamesWhyThereCanBeNoGate(t *testing.T) {
	tests := []struct {
		name    string
		through []string
		want    int
	}{
		{"all capabilities", nil, exitOK},
		{"no capability", []string{"setpriv", "--bounding-set=-all"}, exitNotPermitted},
		{"network without BPF", []string{"setpriv", "--bounding-set=-all,+net_admin"}, exitNotPermitted},
		{"BPF without network", []string{"setpriv", "--bounding-set=-all,+bpf"}, exitNotPermitted},
		{"BPF and network", []string{"setpriv", "--bounding-set=-all,+bpf,+net_admin"}, exitOK},
		{"time namespace", []string{"unshare", "-T", "--boottime", "1000"}, exitClock},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := child(roleProbe, nil, tt.through...).Output()
			code := 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != tt.want {
				t.Errorf("exit code %d, want %d: %s", code, tt.want, out)
			}
		})
	}
}
