package gtid

import (
	"encoding/json"
	"errors"
	"testing"
)

const (
	u1 = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	u2 = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
)

func mustParse(t *testing.T, kind Kind, text string) Set {
	t.Helper()
	s, err := Parse(kind, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParse(t *testing.T) {
	tests := []struct {
		kind       Kind
		text, want string
	}{
		{MySQL, "", ""},
		{MySQL, u1 + ":1-5", u1 + ":1-5"},
		{MySQL, "3E11FA47-71CA-11E1-9E33-C80AA9429562:5", u1 + ":5"},
		{MySQL, u1 + ":7:1-3:4-5", u1 + ":1-5:7"},
		{MySQL, u2 + ":1,\n" + u1 + ":1-9", u1 + ":1-9," + u2 + ":1"},
		{MySQL, u1 + ":1-9:Backup:1-3:7", u1 + ":1-9:backup:1-3:7"},
		{MySQL, u1 + ":backup:1," + u1 + ":2", u1 + ":2:backup:1"},
		{MariaDBPos, "1-2-5, 0-1-100", "0-1-100,1-2-5"},
		{MariaDBPos, "0-1-0", ""},
		{MariaDBPos, "4294967295-4294967295-18446744073709551615", "4294967295-4294967295-18446744073709551615"},
		{MariaDBState, "0-2-150,0-1-100", "0-1-100,0-2-150"},
		{MariaDBState, "0-1-101..105", "0-1-101..105"},
		{MariaDBState, "0-1-3,0-1-4..9", "0-1-9"},
	}
	for _, tt := range tests {
		got := mustParse(t, tt.kind, tt.text)
		if got.String() != tt.want {
			t.Errorf("Parse(%s, %q) = %q, want %q", tt.kind, tt.text, got, tt.want)
		}
		if got.Kind() != tt.kind || got.Empty() != (tt.want == "") {
			t.Errorf("Parse(%s, %q): kind %s, empty %v", tt.kind, tt.text, got.Kind(), got.Empty())
		}
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		kind Kind
		text string
	}{
		{MySQL, u1},
		{MySQL, u1 + ":"},
		{MySQL, u1 + ":0"},
		{MySQL, u1 + ":5-3"},
		{MySQL, "x:1"},
		{MySQL, u1 + ":tag"},
		{MySQL, u1 + ":a:b:1"},
		{MySQL, u1 + ":9223372036854775807"},
		{MySQL, "0-1-100"},
		{MySQL, u1 + ":1-x"},
		{MariaDBPos, "0-1"},
		{MariaDBPos, "0-1-1,0-2-2"},
		{MariaDBPos, "0-1-1..2"},
		{MariaDBPos, "0-1-18446744073709551616"},
		{MariaDBPos, "4294967296-1-1"},
		{MariaDBPos, u1 + ":1"},
		{MariaDBState, "0-1-5..3"},
		{MariaDBState, "0-1-0..3"},
		{MariaDBState, "-1-1-1"},
	}
	for _, tt := range tests {
		if s, err := Parse(tt.kind, tt.text); !errors.Is(err, ErrSyntax) {
			t.Errorf("Parse(%s, %q) = %q, %v; want ErrSyntax", tt.kind, tt.text, s, err)
		}
	}
	if _, err := Parse("oracle", ""); !errors.Is(err, ErrKind) {
		t.Errorf("unknown kind: %v", err)
	}
}

func TestAlgebra(t *testing.T) {
	tests := []struct {
		kind              Kind
		a, b              string
		aHasB, bHasA      bool
		aMinusB, aUnionB  string
		diverged, equalIs bool
	}{
		{kind: MySQL, a: u1 + ":1-10", b: u1 + ":3-5", aHasB: true, aMinusB: u1 + ":1-2:6-10", aUnionB: u1 + ":1-10"},
		{kind: MySQL, a: u1 + ":1-10", b: u2 + ":1", aMinusB: u1 + ":1-10", aUnionB: u1 + ":1-10," + u2 + ":1"},
		{kind: MySQL, a: u1 + ":1-10", b: u1 + ":t:1-10", aMinusB: u1 + ":1-10", aUnionB: u1 + ":1-10:t:1-10"},
		{kind: MariaDBState, a: "0-1-100,0-2-150", b: "0-1-100", aHasB: true, aMinusB: "0-2-150", aUnionB: "0-1-100,0-2-150"},
		{kind: MariaDBState, a: "0-1-105", b: "0-1-100,0-2-101", aMinusB: "0-1-101..105", aUnionB: "0-1-105,0-2-101"},
		// Positions: later in its domain, whoever wrote it; the same number of another server is another history.
		{kind: MariaDBPos, a: "0-1-100", b: "0-2-99", aHasB: true, aMinusB: "0-1-100", aUnionB: "0-1-100"},
		{kind: MariaDBPos, a: "0-1-100,1-1-5", b: "0-1-100", aHasB: true, aMinusB: "1-1-5", aUnionB: "0-1-100,1-1-5"},
		{kind: MariaDBPos, a: "0-1-100", b: "0-2-100", aMinusB: "0-1-100", diverged: true},
		{kind: MariaDBPos, a: "0-1-7", b: "0-1-7", aHasB: true, bHasA: true, aUnionB: "0-1-7", equalIs: true},
		{kind: MariaDBPos, a: "", b: "0-1-7", bHasA: true, aUnionB: "0-1-7"},
	}
	for _, tt := range tests {
		a, b := mustParse(t, tt.kind, tt.a), mustParse(t, tt.kind, tt.b)
		if a.Contains(b) != tt.aHasB || b.Contains(a) != tt.bHasA || a.Equal(b) != tt.equalIs {
			t.Errorf("%s, %s: contains %v, %v, equal %v", a, b, a.Contains(b), b.Contains(a), a.Equal(b))
		}
		if got := a.Subtract(b).String(); got != tt.aMinusB {
			t.Errorf("%s minus %s = %q, want %q", a, b, got, tt.aMinusB)
		}
		u, err := a.Union(b)
		if errors.Is(err, ErrDiverged) != tt.diverged || u.String() != tt.aUnionB {
			t.Errorf("%s union %s = %q, %v; want %q", a, b, u, err, tt.aUnionB)
		}
	}
}

// Sets of two kinds never take anything away and never join; only a state contains a position, when it has each of its GTIDs. The zero
// Set is empty and goes with all.
func TestKinds(t *testing.T) {
	pos, state := mustParse(t, MariaDBPos, "0-1-5"), mustParse(t, MariaDBState, "0-1-5")
	if pos.Contains(state) || !pos.Subtract(state).Equal(pos) || !state.Subtract(pos).Equal(state) {
		t.Error("sets of two kinds were compared")
	}
	for text, want := range map[string]bool{"0-1-5": true, "0-1-4": true, "0-1-6": false, "0-2-5": false, "1-1-1": false, "0-1-5,1-1-1": false, "": true} {
		if got := state.Contains(mustParse(t, MariaDBPos, text)); got != want {
			t.Errorf("state %s contains position %q: %v", state, text, got)
		}
	}
	if _, err := pos.Union(state); !errors.Is(err, ErrKind) {
		t.Errorf("union of two kinds: %v", err)
	}
	if u, err := (Set{}).Union(pos); err != nil || !u.Equal(pos) {
		t.Errorf("zero union %s = %s, %v", pos, u, err)
	}
	if !pos.Contains(Set{}) || (Set{}).Contains(pos) {
		t.Error("the zero set is not the empty set")
	}
}

func TestErrant(t *testing.T) {
	tests := []struct {
		name             string
		kind             Kind
		old, cur, errant string
	}{
		{"clean", MariaDBState, "0-1-100", "0-1-100,0-2-130", ""},
		{"a tail of the old server", MariaDBState, "0-1-103", "0-1-100,0-2-130", "0-1-101..103"},
		{"numbers that the other server used are no errant ones", MariaDBState, "0-1-205,0-2-200", "0-1-100,0-2-200,0-2-300", "0-1-201..205"},
		{"a server that the new one never saw", MariaDBState, "0-1-100,0-3-102", "0-1-100", "0-3-101..102"},
		{"nothing in common", MariaDBState, "0-1-5", "1-1-5", "0-1-5"},
		{"another domain", MariaDBState, "0-1-100,7-1-3", "0-1-100", "7-1-3"},
		{"MySQL", MySQL, u1 + ":1-10," + u2 + ":1-3", u1 + ":1-8," + u2 + ":1-9", u1 + ":9-10"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Errant(mustParse(t, tt.kind, tt.old), mustParse(t, tt.kind, tt.cur)).String(); got != tt.errant {
				t.Errorf("errant of %s against %s = %q, want %q", tt.old, tt.cur, got, tt.errant)
			}
		})
	}
}

func TestWithout(t *testing.T) {
	for _, tt := range []struct {
		kind     Kind
		in, want string
	}{
		{MySQL, u1 + ":1-5:x:7," + u2 + ":3", u2 + ":3"},
		{MariaDBState, "0-1-5,0-2-9,3-1-2", "0-2-9"},
		{MariaDBPos, "0-1-5", "0-1-5"},
	} {
		set := mustParse(t, tt.kind, tt.in)
		if got := set.Without(1, u1).String(); got != mustParse(t, tt.kind, tt.want).String() {
			t.Errorf("%s without the first server is %s, want %s", tt.in, got, tt.want)
		}
		if set.String() != mustParse(t, tt.kind, tt.in).String() {
			t.Errorf("%s was changed to %s", tt.in, set)
		}
	}
}

func TestTextRoundTrip(t *testing.T) {
	for _, want := range []Set{{}, mustParse(t, MySQL, u1+":1-5:x:7"), mustParse(t, MariaDBPos, ""), mustParse(t, MariaDBState, "0-1-5,1-2-9")} {
		b, err := json.Marshal(map[string]Set{"gtid": want})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]Set
		if err := json.Unmarshal(b, &got); err != nil || !got["gtid"].Equal(want) || got["gtid"].Kind() != want.Kind() {
			t.Errorf("%s came back as %s %q: %v", b, got["gtid"].Kind(), got["gtid"], err)
		}
	}
	var s Set
	if err := s.UnmarshalText([]byte("oracle ")); !errors.Is(err, ErrKind) {
		t.Errorf("unknown kind read: %v", err)
	}
}
