package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/lab/load"
)

func TestTimelineIsInOrder(t *testing.T) {
	var followed []string
	line := NewTimeline(func(e Event) { followed = append(followed, e.Text) })
	at := func(ms int) time.Time { return line.start.Add(time.Duration(ms) * time.Millisecond) }
	line.Put(Event{At: at(20), Who: "fault", Text: "second"})
	line.Put(Event{At: at(30), Who: "mc-a", Text: "third", Log: &LogLine{Msg: "third"}})
	line.Put(Event{At: at(10), Who: "lab", Text: "first"})
	if got := strings.Join(followed, " "); got != "second third first" {
		t.Errorf("followed %q, want the order in which they came", got)
	}
	if got := line.String(); !strings.Contains(got, "10.0 ms  lab      first\n      20.0 ms  fault    second\n      30.0 ms  mc-a     third\n") {
		t.Errorf("time-line:\n%s", got)
	}
	if got := line.Brief(); strings.Contains(got, "third") || !strings.Contains(got, "second") {
		t.Errorf("brief time-line:\n%s", got)
	}
}

func TestLogEvent(t *testing.T) {
	tests := []struct{ name, line, text, msg string }{
		{
			"slog", `{"time":"2026-11-30T20:21:21.5Z","level":"WARN","msg":"target is down","cluster":"bank","self":"mc-a","fill":3,"seen":"a \"b\""}`,
			`WARN target is down fill=3 seen=a "b"`, "target is down",
		},
		{"a panic", "panic: boom", "panic: boom", ""},
		{"cut short", `{"time":"2026-11-30T20:21:21Z","msg":"ha`, `{"time":"2026-11-30T20:21:21Z","msg":"ha`, ""},
		{"no object", `[1]`, `[1]`, ""},
		{"empty", ``, ``, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := logEvent([]byte(tt.line))
			if e.Text != tt.text || (e.Log != nil) != (tt.msg != "") || e.Log != nil && (e.Log.Msg != tt.msg || e.At.IsZero()) {
				t.Errorf("event = %+v, want %q", e, tt.text)
			}
		})
	}
}

func TestComplaintsAreFolded(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	w := func(ms int, o load.Outcome, err string) load.Write {
		sent := at.Add(time.Duration(ms) * time.Millisecond)
		return load.Write{Shard: 1, Sent: sent, Answered: sent.Add(time.Millisecond), Outcome: o, Err: err}
	}
	events := complaints([]load.Write{
		w(0, load.Acknowledged, ""), w(4, load.Unsent, "refused"), w(8, load.Unsent, "refused"), w(12, load.Unknown, "timeout"),
		w(16, load.Acknowledged, ""), w(20, load.Unsent, "refused"),
	})
	var got []string
	for _, e := range events {
		got = append(got, e.Text)
	}
	want := "s2: 2 unsent over 5.0 ms: refused|s2: 1 unknown over 1.0 ms: timeout|s2: 1 unsent over 1.0 ms: refused"
	if strings.Join(got, "|") != want {
		t.Errorf("complaints = %q, want %q", got, want)
	}
}

func TestStory(t *testing.T) {
	var out strings.Builder
	s := NewStory(&out)
	at := time.Unix(1_800_000_000, 0)
	put := func(ms int, who, msg string, attrs map[string]string) {
		s.Tell(Event{At: at.Add(time.Duration(ms) * time.Millisecond), Who: who, Text: msg, Log: &LogLine{Msg: msg, Attrs: attrs}})
	}
	put(-5, "mc-a", "site changed its state", map[string]string{"site": "a", "state": "down", "cause": "before the fault"})
	s.Tell(Event{At: at, Who: "fault", Text: "kill mysql a s2"})
	put(40, "witness", "site changed its state", map[string]string{"site": "a", "state": "down", "cause": "refused, 3 of 3 in 1s", "h": "3", "trip": "3"})
	put(45, "witness", "site changed its state", map[string]string{"site": "b", "state": "unknown", "cause": "void"})
	put(50, "witness", "etcd member ready", nil)
	put(60, "mc-a", "VIP released", map[string]string{"took": "2000000", "facts": `{"binder":"keepalived","unbind_ms":"2.5"}`})
	put(70, "witness", "step", map[string]string{"step": "promote", "phase": "done", "took": "9000000", "facts": `{"s1.gtid":"0-1-2","s2.gtid":"0-1-2"}`})
	put(150, "mc-b", "step", map[string]string{"step": "verify", "phase": "done", "took": "9000000"})
	put(160, "mc-b", "step", map[string]string{"step": "rejoin", "phase": "done", "took": "1"})
	s.End(Result{OK: true, Switched: true, To: "b", SwitchMS: 142, Steps: map[string]float64{"verify": 9, "recheck": 1}})
	for _, want := range []string{"Kill mysql a s2", "40 ms  witness  site a is down, H 3/3: refused, 3 of 3", "gate shut 2.0 ms, keepalived stopped 2.5 ms", "promoted     2 of 2", "Switched in 142 ms", "Every check holds"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, &out)
		}
	}
	for _, never := range []string{"before the fault", "etcd member", "rejoin", "void"} {
		if strings.Contains(out.String(), never) {
			t.Errorf("the story tells %q:\n%s", never, &out)
		}
	}
	if strings.Index(out.String(), "recheck") > strings.LastIndex(out.String(), "verify") {
		t.Errorf("the steps are not in the plan's order:\n%s", &out)
	}
}
