package lab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/baton-ha/baton/switcher/plan"
)

// Story tells a run to a person as it happens: what is built, the fault, and what the daemons do about it.
type Story struct {
	out io.Writer

	mu     sync.Mutex
	struck time.Time // the fault: times are counted from here
	ended  bool      // the switch is over: what the daemons tidy up is another story
}

// NewStory starts a story.
func NewStory(out io.Writer) *Story { return &Story{out: out} }

// sentences say what a daemon's log line means to somebody who reads along. Lines that are not here are not told.
var sentences = map[string]func(map[string]string) string{
	"site changed its state": siteSentence,
	"switch begins": func(a map[string]string) string {
		return fmt.Sprintf("%s %s→%s begins: %s", a["kind"], a["from"], a["to"], a["reason"])
	},
	"step": stepSentence,
	"VIP released": func(a map[string]string) string {
		return fmt.Sprintf("gate shut %s, %s stopped %s ms", short(a["took"]), binder(a), fact(a, "unbind_ms"))
	},
	"VIP served: gate open, address bound, gratuitous ARP sent": func(a map[string]string) string {
		return "address bound, gate open, gratuitous ARP sent from " + a["mac"] + ": " + short(a["took"])
	},
	"neighbour has the VIP's new place": func(a map[string]string) string { return a["addr"] + " has learned the new MAC" },
	"switch is undone":                  func(a map[string]string) string { return "switch is undone: " + a["reason"] },
}

// siteSentence tells that a site is down, in the paper's words: H of its window.
func siteSentence(a map[string]string) string {
	if a["state"] != "down" {
		return ""
	}
	return fmt.Sprintf("site %s is down, H %s/%s: %s", a["site"], a["h"], a["trip"], a["cause"])
}

// fact is one of the facts that a daemon logged with a line; "?" when it did not.
func fact(a map[string]string, name string) string {
	var facts map[string]string
	if json.Unmarshal([]byte(a["facts"]), &facts) != nil || facts[name] == "" {
		return "?"
	}
	return facts[name]
}

func binder(a map[string]string) string {
	if b := fact(a, "binder"); b != "?" {
		return b
	}
	return "keepalived"
}

func stepSentence(a map[string]string) string {
	if a["step"] == string(plan.Promote) && a["phase"] == string(plan.Done) {
		n := strings.Count(a["facts"], `.gtid":`)
		return fmt.Sprintf("%-13s%d of %d in %s", "promoted", n, n, short(a["took"]))
	}
	words := fmt.Sprintf("%-13s%s in %s", a["step"], a["phase"], short(a["took"]))
	if a["err"] != "" {
		words += ": " + a["err"]
	}
	return words
}

// steps are the names of a plan's steps in their order, for people.
var steps = []plan.StepName{
	plan.Recheck, plan.Fence, plan.Release, plan.FenceWrites, plan.Cut, plan.CatchUp, plan.Promote, plan.Commit, plan.Bind, plan.Verify,
}

// byOrder sorts the names of steps as the plan does them; others come last.
func byOrder(a, b string) int {
	place := func(name string) int {
		if i := slices.Index(steps, plan.StepName(name)); i >= 0 {
			return i
		}
		return len(steps)
	}
	return cmp.Or(place(a)-place(b), strings.Compare(a, b))
}

// short writes a duration that slog logged in nanoseconds.
func short(nanoseconds string) string {
	n, err := strconv.ParseInt(nanoseconds, 10, 64)
	if err != nil {
		return nanoseconds
	}
	return fmt.Sprintf("%.1f ms", ms(time.Duration(n)))
}

// say prints. A terminal that is gone needs no story.
func (s *Story) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }

// Tell takes one event of the time-line.
func (s *Story) Tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Who == "fault":
		s.struck = e.At
		s.say("\n%8s  %-8s %s\n", "0 ms", "", strings.ToUpper(e.Text[:1])+e.Text[1:])
	case e.Who == "lab" && s.struck.IsZero():
		s.say("%8s  %-8s %s\n", "", "", e.Text)
	case e.Who == "lab":
		s.line(e.At, e.Who, e.Text)
	case e.Log == nil || s.struck.IsZero() || s.ended || e.At.Before(s.struck):
	case sentences[e.Log.Msg] != nil:
		if text := sentences[e.Log.Msg](e.Log.Attrs); text != "" {
			s.line(e.At, e.Who, text)
		}
		s.ended = e.Log.Msg == "step" && e.Log.Attrs["step"] == "verify" && e.Log.Attrs["phase"] == "done"
	}
}

func (s *Story) line(at time.Time, who, text string) {
	s.say("%5.0f ms  %-8s %s\n", ms(at.Sub(s.struck)), who, strings.ReplaceAll(text, "\n", "; "))
}

// End prints the times and the checks.
func (s *Story) End(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Switched {
		s.say("\nSwitched in %.0f ms, to site %s. Applications had no good write for %.0f ms.\n\n", r.SwitchMS, r.To, r.OutageMS)
	}
	for _, name := range slices.SortedFunc(maps.Keys(r.Steps), byOrder) {
		s.say("    %-14s%8.1f ms\n", name, r.Steps[name])
	}
	s.say("\n    acknowledged writes   %8d\n    lost                  %8d\n    duplicated            %8d\n"+
		"    two holders at once   %5.0f ms\n    holders on the wire   %8s\n", r.Acknowledged, r.Lost, r.Duplicated, r.DoubleHolderMS, strings.Join(r.Holders, ", then "))
	if r.OK {
		s.say("\nEvery check holds.\n")
		return
	}
	s.say("\nNot ok: %s\n", r.Reason)
}
