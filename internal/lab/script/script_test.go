package script

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	tests := []struct {
		line string
		want Step
	}{
		{"pause 1500ms", Step{Verb: Pause, For: Length{Fixed: 1500 * time.Millisecond}}},
		{"baseline 2s", Step{Verb: Baseline, For: Length{Fixed: 2 * time.Second}}},
		{"kill mysql a s2", Step{Verb: Kill, Kind: MySQL, Site: "a", Shard: "s2"}},
		{"kill mysql a all", Step{Verb: Kill, Kind: MySQL, Site: "a", Shard: All}},
		{"freeze mycat b", Step{Verb: Freeze, Kind: Mycat, Site: "b"}},
		{"freeze daemon mc-a", Step{Verb: Freeze, Kind: Daemon, Host: "mc-a"}},
		{"kill keepalived active", Step{Verb: Kill, Kind: Keepalived, Host: "active"}},
		{"kill etcd leader", Step{Verb: Kill, Kind: Etcd}},
		{"restart daemon mc-a", Step{Verb: Restart, Kind: Daemon, Host: "mc-a"}},
		{"cut host mc-a", Step{Verb: Cut, Kind: Host, Host: "mc-a"}},
		{"cut link mc-a witness", Step{Verb: Cut, Kind: Link, Host: "mc-a", Peer: "witness", Both: true}},
		{"cut link mc-a to witness", Step{Verb: Cut, Kind: Link, Host: "mc-a", Peer: "witness"}},
		{"mend", Step{Verb: Mend}},
		{"flap mysql a s2 down 1beats every 15beats for 6s", Step{
			Verb: Flap, Kind: MySQL, Site: "a", Shard: "s2",
			Down: Length{Beats: 1}, Every: Length{Beats: 15}, For: Length{Fixed: 6 * time.Second},
		}},
		{"switchover to b", Step{Verb: Switchover, Site: "b"}},
		{"wait switched to b within 10s", Step{Verb: Wait, Cond: SwitchedTo, Site: "b", Within: Length{Fixed: 10 * time.Second}}},
		{"wait ready within 20s", Step{Verb: Wait, Cond: Ready, Within: Length{Fixed: 20 * time.Second}}},
		{"expect no switch", Step{Verb: Expect, Cond: NoSwitch}},
		{"expect no switch for 40beats", Step{Verb: Expect, Cond: NoSwitch, For: Length{Beats: 40}}},
		{"expect no interruption", Step{Verb: Expect, Cond: NoInterruption}},
		{"expect lost 0", Step{Verb: Expect, Cond: Lost}},
		{"expect double_holder 3", Step{Verb: Expect, Cond: DoubleHolder, Number: 3}},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			s, err := Parse("x", []byte("title T\n\n# a comment\n  "+tt.line+"  \n"))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Line, tt.want.Text = 4, tt.line
			if !reflect.DeepEqual(s.Steps, []Step{tt.want}) {
				t.Errorf("steps = %+v, want %+v", s.Steps, tt.want)
			}
		})
	}
}

func TestParseHeader(t *testing.T) {
	s, err := Parse("x", []byte("title One of four dies\nwhy first line\nwhy and second\nbind netlink\npause 1s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "x" || s.Title != "One of four dies" || s.Why != "first line and second" || s.Bind != "netlink" {
		t.Errorf("scenario = %+v", s)
	}
}

func TestMistakesHaveLines(t *testing.T) {
	tests := []struct{ text, want string }{
		{"title T\nexplode mysql a s1", `x:2: unknown word "explode"`},
		{"title T\nkill mysql a", "x:2: kill mysql a: the shard, or all is missing"},
		{"title T\nkill host mc-a", "host cannot be struck so"},
		{"title T\nkill mysql a s1 now", `should end before "now"`},
		{"title T\npause soon", "soon is no time"},
		{"title T\npause -1s", "-1s is no time"},
		{"title T\npause NaNbeats", "no number of beats"},
		{"title T\nwait b within 1s", "waits for"},
		{"title T\nwait ready", `"within" is missing`},
		{"title T\nexpect peace 0", "expects"},
		{"title T\nexpect lost", "a number is missing"},
		{"title T\nexpect lost some", "some is no number"},
		{"title T\nkill etcd", `"leader" is missing`},
		{"title T\nflap mysql a s1 down 2s every 1s for 3s", "never up"},
		{"title T\nswitchover b", `"to" is missing`},
		{"title T\nbind glue\npause 1s", "x:2: bind glue: there are"},
		{"pause 1s", "x: no title"},
		{"title T", "x: no steps"},
		{"title T\nbad\npause 1s\nworse", `x:4: unknown word "worse"`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			_, err := Parse("x", []byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestLength(t *testing.T) {
	if got := (Length{Beats: 1.5}).Of(100 * time.Millisecond); got != 150*time.Millisecond {
		t.Errorf("1.5 beats of 100 ms = %v", got)
	}
	if !(Length{}).IsZero() || (Length{Beats: 1}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

// FuzzParse: no text panics, and what is accepted can be read again from its own words.
func FuzzParse(f *testing.F) {
	f.Add("title T\nkill mysql a s2\nwait switched to b within 10s\nexpect lost 0")
	f.Add("title T\nflap mysql a s1 down 1beats every 2beats for 3s")
	f.Add("why\nexpect no switch for 1e300beats")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("x", []byte(text))
		if err != nil {
			return
		}
		again := "title " + s.Title + "\n"
		for _, step := range s.Steps {
			again += step.Text + "\n"
		}
		twice, err := Parse("x", []byte(again))
		if err != nil || len(twice.Steps) != len(s.Steps) {
			t.Fatalf("read again: %v", err)
		}
		for i := range s.Steps {
			s.Steps[i].Line = twice.Steps[i].Line
		}
		if !reflect.DeepEqual(s.Steps, twice.Steps) {
			t.Fatalf("steps = %+v, read again %+v", s.Steps, twice.Steps)
		}
	})
}
