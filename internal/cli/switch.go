package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/baton-ha/baton/internal/check"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
	"github.com/baton-ha/baton/switcher/plan"
	"github.com/baton-ha/baton/switcher/policy"
)

func switchCommand() *cli.Command {
	return &cli.Command{
		Name: "switch", Usage: "move the service to another site, or start it",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "`SITE` that is to serve; default: the next in the order of takeover"},
			&cli.IntFlag{Name: "advice", Usage: "do what mode advise has advised under that `NUMBER`, if it still holds"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show the plan, or why there would be none; nothing is touched"},
			&cli.StringFlag{Name: "reason", Usage: "`TEXT` for the history"},
			&cli.BoolFlag{Name: "force", Usage: "skip the observers' quorum, and nothing else; needs --reason"},
			&cli.BoolFlag{Name: "accept-loss", Usage: "with --force: do without evidence of the old side and without the RPO policy; needs --reason"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}, jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			cmd := plan.Command{
				Do: "switch", To: cluster.SiteName(c.String("to")), Reason: c.String("reason"), Force: c.Bool("force"),
				AcceptLoss: c.Bool("accept-loss"), DryRun: c.Bool("dry-run"),
			}
			if cmd.AcceptLoss && !cmd.Force {
				return errExit{ExitUsage, "--accept-loss goes with --force"}
			}
			return order(c, cmd)
		},
	}
}

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name: "release", Usage: "give the VIP up on purpose: nobody serves until `baton switch --to SITE`",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "reason", Usage: "`TEXT` for the history"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}, jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			return order(c, plan.Command{Do: "release", Reason: c.String("reason")})
		},
	}
}

// order leaves a command for the controller, and shows what becomes of it.
func order(c *cli.Context, cmd plan.Command) error {
	s, err := open(c)
	if err != nil {
		return err
	}
	defer s.close()
	st, err := s.read(c.Context)
	if err != nil {
		return err
	}
	if err := heed(c, st, &cmd); err != nil {
		return err
	}
	if err := s.admitFirst(c, st, cmd); err != nil {
		return err
	}
	if err := ask(c, st, cmd); err != nil {
		return err
	}
	if w := st.Command; w.Mod != 0 && time.Since(w.Value.At) < noController {
		return errExit{ExitFailed, fmt.Sprintf("a command of %s (%s) is waiting for a controller; try again in a moment", w.Value.By, w.Value.Do)}
	}
	cmd.ID, cmd.By, cmd.At = rand.Text(), who(), time.Now()
	ctx, cancel := context.WithTimeoutCause(c.Context, 3*time.Minute, errors.New("no end within 3 minutes; `baton history` shows how far it is"))
	defer cancel()
	if _, err := s.store.Do(ctx, "leave command", []dcs.Cmp{{Key: s.store.Keys.Command(), Mod: st.Command.Mod}}, dcs.Doc(s.store.Keys.Command(), cmd)); err != nil {
		if errors.Is(err, dcs.ErrCompare) {
			return errExit{ExitFailed, "another command was given at the same moment; look at `baton status` and try again"}
		}
		return err
	}
	f := follower{session: s, c: c, cmd: cmd}
	return f.run(ctx)
}

// heed turns the number of an advice into its switch; one that is over, or another, is refused.
func heed(c *cli.Context, st dcs.State, cmd *plan.Command) error {
	if !c.IsSet("advice") {
		return nil
	}
	r, err := readiness(st)
	switch {
	case err != nil:
		return err
	case r.Advice == nil || r.Advice.ID != c.Int("advice"):
		return errExit{ExitCritical, fmt.Sprintf("there is no advice %d now; `baton why` shows what is advised", c.Int("advice"))}
	case time.Now().After(r.Advice.Until):
		return errExit{ExitCritical, fmt.Sprintf("advice %d is over since %s; `baton why` shows what is advised now", r.Advice.ID, r.Advice.Until.Format(time.DateTime))}
	case cmd.To != "" && cmd.To != r.Advice.To:
		return errExit{ExitUsage, fmt.Sprintf("advice %d is about site %s", r.Advice.ID, r.Advice.To)}
	}
	cmd.To = r.Advice.To
	if cmd.Reason == "" {
		cmd.Reason = r.Advice.Text
	}
	return nil
}

// admitFirst runs the check before the first start in mode automatic: it is the moment from which Baton acts by itself, and later a
// failover must not wait for a check.
func (s *session) admitFirst(c *cli.Context, st dcs.State, cmd plan.Command) error {
	if cmd.Do != "switch" || cmd.DryRun || cmd.Force || st.Assignment.Mod != 0 || s.cfg.Mode != policy.Automatic {
		return nil
	}
	r := runCheck(c.Context, s.cfg)
	n := r.Count(check.Critical)
	if n == 0 {
		return nil
	}
	if err := r.Render(c.App.ErrWriter); err != nil {
		return err
	}
	return errExit{ExitCritical, fmt.Sprintf("%d critical findings: mend them before mode automatic starts the service, or start it all the same with --force --reason TEXT", n)}
}

// ask asks once, on a terminal. Without one nothing is done unless --yes says so: a script must mean it.
func ask(c *cli.Context, st dcs.State, cmd plan.Command) error {
	if c.Bool("yes") || cmd.DryRun {
		return nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return errExit{ExitUsage, "nobody to ask on this terminal: give --yes to mean it"}
	}
	from, to := orElse(string(st.Assignment.Value.Site), "nobody"), orElse(string(cmd.To), "the next site")
	if cmd.Do == "release" {
		to = "nobody: the VIP will not answer"
	}
	fmt.Fprintf(c.App.ErrWriter, "The VIP is served by %s; from now on by %s. Go on? [y/N] ", from, to) //nolint:errcheck // a terminal that is gone needs no message
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || !strings.HasPrefix(strings.ToLower(strings.TrimSpace(line)), "y") {
		return errExit{ExitWarnings, "nothing was done"}
	}
	return nil
}

// follower shows a switch as it happens.
type follower struct {
	*session
	c     *cli.Context
	cmd   plan.Command
	id    string
	shown int       // the number of the newest entry shown: a long journal loses its oldest ones
	since time.Time // when it was shown
	told  string    // what it was said last to wait for
}

// waitsFor is what holds a step up, for an operator who sees nothing happen.
var waitsFor = map[plan.StepName]string{
	plan.Recheck:     "observers whose fresh looks agree (a planned switch: both sites well, for at most 8 s; a failover: the old one down)",
	plan.Release:     "the old VIP's silence: its guard's word, or the end of its lease",
	plan.FenceWrites: "the old MySQL to become read-only, behind commits under way",
	plan.Cut:         "the replicas to be cut from their sources",
	plan.CatchUp:     "the appliers: what was received is applied before it serves",
	plan.Promote:     "the new MySQL to become writable",
	plan.Bind:        "the new guard: nobody else answers for the VIP, the address is bound, its lease is held",
	plan.Verify:      "a quorum of observers that find it working through the VIP",
	plan.UndoTarget:  "the new side to become read-only again",
	plan.UndoSource:  "the old side to become writable again",
	plan.UndoServe:   "etcd, to let the old side serve again",
	plan.RejoinStep:  "the returned instances to replicate",
	plan.RepairStep:  "the instances to be mended",
}

// patient is after how long of nothing new an operator is told what is waited for.
const patient = time.Second

// waiting says once what the switch waits for now.
func (f *follower) waiting(p plan.Plan, log []plan.Entry, now time.Time) {
	if f.c.Bool("json") || now.Sub(f.since) < patient {
		return
	}
	var what []string
	for _, s := range plan.Due(p, log) {
		if w := waitsFor[s]; w != "" {
			what = append(what, w)
		}
	}
	text := strings.Join(what, "; and for ")
	if text == "" || text == f.told {
		return
	}
	f.told = text
	fmt.Fprintf(f.out, "  ... waits for %s\n", text) //nolint:errcheck // stdout
}

// noController is how long nobody may take the command up before it is withdrawn.
const noController = 8 * time.Second

// lookAgain is how often a follower looks although nothing has changed: for the command that nobody takes up.
const lookAgain = time.Second

// run follows etcd by a watch: reading all of it again and again would cost the switch that is being watched.
func (f *follower) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	keys := f.store.Keys
	mirror := dcs.NewMirror(dcs.MirrorConfig{KV: f.kv, Prefix: keys.Prefix(), Silence: max(f.cfg.Profile.LockPulse, lookAgain)})
	changed, unsubscribe := mirror.Subscribe()
	defer unsubscribe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = mirror.Run(ctx) // it ends with ctx alone
	}()
	defer func() {
		cancel()
		<-done
	}()
	dec := dcs.NewDecoder(keys)
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errExit{ExitFailed, context.Cause(ctx).Error()}
		case <-changed:
		case <-tick.C:
		}
		v := mirror.View()
		if v.Revision == 0 {
			continue
		}
		if end, err := f.show(ctx, dec.DecodeView(v)); end || err != nil {
			return err
		}
	}
}

// show prints what is new, and says whether the switch has ended.
func (f *follower) show(ctx context.Context, st dcs.State) (bool, error) {
	reply := st.Reply.Value
	if f.id == "" && reply.Command != f.cmd.ID {
		if time.Since(f.cmd.At) < noController {
			return false, nil
		}
		why := fmt.Sprintf("no controller has taken the command up within %s: is a daemon running in mode advise or automatic, and is another switch under way? `baton history` shows it", noController)
		if st.Command.Value.ID != f.cmd.ID {
			return true, errExit{ExitFailed, "another command has taken this one's place before a controller saw it; look at `baton status` and try again"}
		}
		if _, err := f.store.Do(ctx, "withdraw command", []dcs.Cmp{{Key: f.store.Keys.Command(), Mod: st.Command.Mod}}, dcs.Op{Kind: dcs.Delete, Key: f.store.Keys.Command()}); err != nil {
			return true, errExit{ExitNoStore, why + "; it could not be withdrawn and may still be taken up: " + err.Error()}
		}
		return true, errExit{ExitNoStore, why + "; it is withdrawn"}
	}
	if f.id == "" {
		if end, err := f.replied(reply); end || err != nil {
			return end, err
		}
		f.id = reply.Switch
	}
	docs := st.Switches[f.id]
	log := docs.Journal.Value
	if docs.Summary.Mod != 0 {
		log = docs.Summary.Value.Journal
	}
	for _, e := range log {
		if e.Seq > f.shown {
			f.line(e)
			f.shown, f.since = e.Seq, time.Now()
		}
	}
	if docs.Summary.Mod == 0 {
		f.waiting(docs.Plan.Value, log, time.Now())
		return false, nil
	}
	return true, f.ended(docs.Summary.Value)
}

func (f *follower) replied(r plan.Reply) (bool, error) {
	switch {
	case r.Refused != "" && f.c.Bool("json"):
		return true, errors.Join(f.print(r), errExit{ExitCritical, ""})
	case r.Refused != "":
		return true, errExit{ExitCritical, r.Code + ": " + r.Refused}
	case f.cmd.DryRun && f.c.Bool("json"):
		return true, f.print(r)
	case f.cmd.DryRun:
		fmt.Fprintf(f.out, "would be a %s from %s to %s, in these steps:\n", r.Plan.Kind, orElse(string(r.Plan.From), "nobody"), orElse(string(r.Plan.To), "nobody")) //nolint:errcheck // stdout
		for i, s := range r.Steps {
			fmt.Fprintf(f.out, "%3d. %s\n", i+1, s) //nolint:errcheck // stdout
		}
		return true, nil
	}
	return false, nil
}

func (f *follower) line(e plan.Entry) {
	if f.c.Bool("json") || e.Phase == plan.Started {
		return
	}
	fmt.Fprintln(f.out, Line(e)) //nolint:errcheck // stdout
}

func (f *follower) ended(s plan.Summary) error {
	if f.c.Bool("json") {
		if err := f.print(s); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(f.out, headline(s)) //nolint:errcheck // stdout
	}
	if s.Outcome != plan.Completed {
		return errExit{ExitWarnings, ""}
	}
	return nil
}

// headline is a switch in one line.
func headline(s plan.Summary) string {
	from, to := orElse(string(s.From), "nobody"), orElse(string(s.To), "nobody")
	switch s.Outcome {
	case plan.Completed:
		if s.Kind.Mends() {
			return fmt.Sprintf("%s: %s site %s in %s", s.ID, done[s.Kind], to, s.Ended.Sub(s.At).Round(time.Millisecond))
		}
		line := fmt.Sprintf("%s: %s %s→%s in %s", s.ID, done[s.Kind], from, to, s.Took.Round(time.Millisecond))
		if s.Outage > 0 {
			line += fmt.Sprintf(", outage through the VIP about %s", s.Outage.Round(time.Millisecond))
		}
		return line
	case plan.Running:
		return fmt.Sprintf("%s: %s %s→%s is under way", s.ID, s.Kind, from, to)
	}
	return fmt.Sprintf("%s: %s %s→%s was %s: %s", s.ID, s.Kind, from, to, s.Outcome, s.Why)
}

var done = map[plan.Kind]string{
	plan.First: "started", plan.Failover: "failed over", plan.Switchover: "switched", plan.Rejoin: "rejoined", plan.Repair: "repaired", plan.GiveUp: "released",
	plan.Degrade: "let semi-sync go at",
}

// Line is a journal entry as people read it: step, outcome, time, what was seen.
func Line(e plan.Entry) string {
	line := fmt.Sprintf("  %-13s %-8s %8s", e.Step, e.Phase, e.Took.Round(100*time.Microsecond))
	for _, k := range []string{"how", "unbind_ms", "bind_ms", "silence_ms", "mac", "arp", "observers", "votes"} {
		if v := e.Facts[k]; v != "" {
			line += "  " + strings.ReplaceAll(k, "_ms", " ms") + " " + v
		}
	}
	if e.Err != "" {
		line += "  " + strings.ReplaceAll(e.Err, "\n", "; ")
	}
	return line
}

func historyCommand() *cli.Command {
	return &cli.Command{
		Name: "history", Usage: "list the switches, or show one with its journal", ArgsUsage: "[ID]", Flags: []cli.Flag{jsonFlag()},
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
			all := switcher.Summaries(st.Switches)
			if id := c.Args().First(); id != "" {
				return s.one(c, all, id)
			}
			newest := make([]plan.Summary, 0, len(all))
			for i := len(all) - 1; i >= 0; i-- {
				newest = append(newest, all[i])
			}
			if c.Bool("json") {
				return s.print(newest)
			}
			s.list(newest)
			return nil
		},
	}
}

func (s *session) list(all []plan.Summary) {
	for _, sum := range all {
		fmt.Fprintf(s.out, "%s  %s  by %s: %s\n", sum.At.Format(time.DateTime), headline(sum), sum.By, sum.Reason) //nolint:errcheck // stdout
	}
}

func (s *session) one(c *cli.Context, all []plan.Summary, id string) error {
	for _, sum := range all {
		if sum.ID != id {
			continue
		}
		if c.Bool("json") {
			return s.print(sum)
		}
		fmt.Fprintf(s.out, "%s\nby %s at %s: %s\n", headline(sum), sum.By, sum.At.Format(time.RFC3339Nano), sum.Reason) //nolint:errcheck // stdout
		for _, e := range sum.Journal {
			if e.Phase != plan.Started {
				fmt.Fprintln(s.out, Line(e)) //nolint:errcheck // stdout
			}
		}
		renderTimes(s, sum.Times)
		return nil
	}
	return errExit{ExitFailed, fmt.Sprintf("no switch %s in the history; `baton history` lists them", id)}
}

func renderTimes(s *session, t plan.Times) {
	for _, m := range []struct {
		name string
		at   time.Time
	}{
		{"last good sample", t.LastGood},
		{"first bad sample", t.FirstBad},
		{"verdict", t.Verdict},
		{"lock", t.Lock},
		{"fenced", t.Fenced},
		{"released", t.Released},
		{"promoted", t.Promoted},
		{"committed", t.Committed},
		{"bound", t.Bound},
		{"verified", t.Verified},
		{"works through the VIP since", t.WorksSince},
	} {
		if !m.at.IsZero() {
			fmt.Fprintf(s.out, "  %-28s %s  %+d ms\n", m.name, m.at.Format("15:04:05.000"), m.at.Sub(t.Verdict).Milliseconds()) //nolint:errcheck // stdout
		}
	}
}
