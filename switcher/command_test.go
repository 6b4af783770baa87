package switcher

import (
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

func TestCommands(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(w *world)
		cmd   plan.Command
		code  string // of a refusal; "": it is carried out
		force bool
		mode  policy.Mode
	}{
		"planned":                    {cmd: plan.Command{To: "b"}},
		"next in the order":          {cmd: plan.Command{}},
		"in mode advise":             {cmd: plan.Command{To: "b"}, mode: policy.Advise},
		"unknown site":               {cmd: plan.Command{To: "x"}, code: string(policy.UnknownSite)},
		"already there":              {cmd: plan.Command{To: "a"}, code: string(policy.AlreadyThere)},
		"target is down":             {spoil: func(w *world) { w.seen["b"] = "down" }, cmd: plan.Command{To: "b"}, code: string(policy.TargetDown)},
		"target is not ready":        {spoil: blocked, cmd: plan.Command{To: "b"}, code: string(policy.TargetNotReady)},
		"blockers are not forced":    {spoil: blocked, cmd: plan.Command{To: "b", Force: true, AcceptLoss: true, Reason: "x"}, code: string(policy.TargetNotReady)},
		"force without a reason":     {cmd: plan.Command{To: "b", Force: true}, code: string(policy.NeedsReason)},
		"expired":                    {cmd: plan.Command{To: "b", At: time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)}, code: "COMMAND_EXPIRED"},
		"no quorum":                  {spoil: alone, cmd: plan.Command{To: "b"}, code: string(policy.SourceUnhealthy)},
		"no quorum, forced":          {spoil: alone, cmd: plan.Command{To: "b", Force: true, Reason: "x"}},
		"maintenance stops no order": {spoil: maintained, cmd: plan.Command{To: "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				w.lead("witness", func(c *Config) {
					if tc.mode != "" {
						c.Mode = tc.mode
					}
				})
				if tc.spoil != nil {
					w.set(func() { tc.spoil(w) })
					w.pass(time.Second)
				}
				r := w.reply(w.command(tc.cmd))
				if r.Code != tc.code && tc.code != "" || (r.Refused == "") != (tc.code == "") {
					t.Fatalf("reply is %+v, want %q", r, tc.code)
				}
				if st := w.state(); st.Command.Mod != 0 {
					t.Error("the command is still there")
				}
				if tc.code != "" {
					w.pass(3 * time.Second)
					if got := w.phases(); got != "serving(a)" || len(w.state().Switches) != 0 {
						t.Errorf("refused, and yet %s\n%s", got, told(w.state()))
					}
					return
				}
				s := w.ended(r.Switch)
				if s.Outcome != plan.Completed || s.By != "op@desk" || s.Force != tc.cmd.Force {
					t.Errorf("%s by %s: %s\n%s", s.Outcome, s.By, s.Why, lines(s.Journal))
				}
			})
		})
	}
}

func blocked(w *world) {
	w.look = func(r *Readiness) {
		r.Sites["b"] = SiteReady{Blockers: []policy.Blocker{{Code: "APPLIER_STOPPED", Shard: "s2", Text: "error 1062"}}}
	}
}

func alone(w *world) { w.mute["mc-a"], w.mute["mc-b"] = true, true }

// maintained is called with the world locked; its own store needs no lock.
func maintained(w *world) { w.do(dcs.Doc(w.keys.Maintenance(), cluster.Maintenance{Who: "op"})) }

func TestDryRunChangesNothing(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness")
		r := w.reply(w.command(plan.Command{To: "b", DryRun: true}))
		if r.Refused != "" || r.Switch != "" || r.Plan == nil || r.Plan.Kind != plan.Switchover || len(r.Steps) != 10 || r.Steps[1] != "fence" {
			t.Errorf("reply is %+v", r)
		}
		w.pass(5 * time.Second)
		if got := w.phases(); got != "serving(a)" || len(w.state().Switches) != 0 || len(w.requests()) != 0 {
			t.Errorf("a dry run did %s and asked for %q", got, w.requests())
		}
	})
}

// Two operators: the second one's word is answered too, whenever it comes.
func TestTwoCommands(t *testing.T) {
	t.Run("during the switch", func(t *testing.T) {
		within(t, func(w *world) {
			w.serving()
			w.lead("witness")
			w.reply(w.command(plan.Command{To: "b"}))
			if r := w.reply(w.command(plan.Command{To: "b"})); r.Code != string(policy.AlreadyThere) {
				t.Errorf("second reply is %+v", r)
			}
			w.wait("a quiet end", func(st dcs.State) bool { return len(st.Switches) > 0 && st.Switches["s1"].Summary.Mod != 0 })
		})
	})
	t.Run("between sight and answer", func(t *testing.T) {
		within(t, func(w *world) {
			w.serving()
			c := w.lead("witness")
			var second string
			c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
				if _, ok := keysOf(w.keys, then)["reply"]; ok && second == "" {
					second = w.command(plan.Command{To: "b"})
				}
				return dcs.None
			})
			w.command(plan.Command{To: "x"})
			w.wait("the first answer", func(dcs.State) bool { return second != "" })
			if r := w.reply(second); r.Refused != "" {
				t.Errorf("second reply is %+v", r)
			}
		})
	})
}

// An operator who withdraws his word before it was answered is never surprised by a switch.
func TestWithdrawnCommand(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		withdrawn := false
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["reply"]; ok && !withdrawn {
				withdrawn = true
				w.do(dcs.Op{Kind: dcs.Delete, Key: w.keys.Command()})
			}
			return dcs.None
		})
		w.command(plan.Command{To: "b"})
		w.pass(3 * time.Second)
		if got := w.phases(); got != "serving(a)" || !withdrawn {
			t.Errorf("withdrawn %t, and yet %s", withdrawn, got)
		}
	})
}

// The transaction that takes a command up fails in every way, or its controller dies right after it: a switch that was promised comes, once.
func TestCommandIsNeverLost(t *testing.T) {
	for name, fault := range map[string]dcs.Fault{
		"not sent": dcs.BeforeSend, "applied": dcs.LoseAnswer, "lost": dcs.LoseRequest, "late": dcs.Late, "dies": dcs.LoseAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func(w *world) {
				w.serving()
				c := w.lead("witness")
				w.start("mc-b")
				done := false
				c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
					if _, ok := keysOf(w.keys, then)["reply"]; !ok || done {
						return dcs.None
					}
					done = true
					if name == "dies" {
						c.kill()
					}
					return fault
				})
				r := w.reply(w.command(plan.Command{To: "b"}))
				if r.Refused != "" {
					t.Fatalf("refused: %s", r.Refused)
				}
				w.mem.DeliverLate()
				if s := w.ended(r.Switch); s.Outcome != plan.Completed {
					t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
				}
				if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
					t.Errorf("assignment went %s", got)
				}
			})
		})
	}
}

// Maintenance is set between the decision and the fence: the fence compares it, and nothing is switched automatically until it ends.
func TestMaintenanceIsComparedInTheFence(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		c := w.lead("witness")
		set := false
		c.kv.OnTxn(func(_ []dcs.Cmp, then, _ []dcs.Op) dcs.Fault {
			if _, ok := keysOf(w.keys, then)["assignment"]; ok && !set {
				set = true
				w.do(dcs.Doc(w.keys.Maintenance(), cluster.Maintenance{Who: "op", Reason: "new disks"}))
			}
			return dcs.None
		})
		w.down("a")
		s := w.ended("s1")
		if s.Outcome != plan.Aborted {
			t.Errorf("%s: %s\n%s", s.Outcome, s.Why, lines(s.Journal))
		}
		w.pass(30 * time.Second)
		if got := w.phases(); got != "serving(a)" || len(w.requests()) != 0 {
			t.Errorf("under maintenance %s, asked for %q", got, w.requests())
		}
		w.do(dcs.Op{Kind: dcs.Delete, Key: w.keys.Maintenance()})
		w.wait("the failover", func(st dcs.State) bool { return st.Assignment.Value.Serves("b") })
		if got := w.phases(); got != "serving(a) switching(a) serving(b)" {
			t.Errorf("assignment went %s", got)
		}
	})
}

// In mode advise nothing is touched by itself, and the decision says what would be done.
func TestAdviseTouchesNothing(t *testing.T) {
	within(t, func(w *world) {
		w.serving()
		w.lead("witness", advising)
		w.down("a")
		w.pass(5 * time.Second)
		if got := w.phases(); got != "serving(a)" || len(w.requests()) != 0 {
			t.Errorf("advises, and does %s, asked for %q", got, w.requests())
		}
		if r := published(t, w.state()); r.Decision.Reason != policy.WouldSwitch || r.Decision.To != "b" {
			t.Errorf("decision is %+v", r.Decision)
		}
	})
}
