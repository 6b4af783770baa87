package gtid

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naive is a set as a bag of single transactions, each by name: the second implementation.
type naive map[string]bool

// drawSet draws a set of small numbers in the server's words, and the same transactions one by one.
func drawSet(kind Kind) *rapid.Generator[[2]any] {
	return rapid.Custom(func(t *rapid.T) [2]any {
		text, all := []string{}, naive{}
		for range rapid.IntRange(0, 5).Draw(t, "parts") {
			who := rapid.IntRange(0, 2).Draw(t, "who")
			first := rapid.IntRange(1, 12).Draw(t, "first")
			last := rapid.IntRange(first, 14).Draw(t, "last")
			name := map[Kind]string{
				MySQL:        []string{u1 + ":%d-%d", u2 + ":%d-%d", u2 + ":tag:%d-%d"}[who],
				MariaDBState: []string{"0-1-%d..%d", "0-2-%d..%d", "3-1-%d..%d"}[who],
			}[kind]
			text = append(text, fmt.Sprintf(name, first, last))
			for n := first; n <= last; n++ {
				all[fmt.Sprintf("%d/%d", who, n)] = true
			}
		}
		s, err := Parse(kind, strings.Join(text, ","))
		if err != nil {
			t.Fatal(err)
		}
		return [2]any{s, all}
	})
}

// members lists the transactions of a set one by one.
func members(s Set) naive {
	all := naive{}
	for from, runs := range s.runs {
		who := map[origin]int{
			{uuid: u1}: 0, {uuid: u2}: 1, {uuid: u2, tag: "tag"}: 2,
			{domain: 0, server: 1}: 0, {domain: 0, server: 2}: 1, {domain: 3, server: 1}: 2,
		}[from]
		for _, r := range runs {
			for n := r.first; n <= r.last; n++ {
				all[fmt.Sprintf("%d/%d", who, n)] = true
			}
		}
	}
	return all
}

func TestSetsAgainstBags(t *testing.T) {
	for _, kind := range []Kind{MySQL, MariaDBState} {
		t.Run(string(kind), rapid.MakeCheck(func(t *rapid.T) {
			da, db := drawSet(kind).Draw(t, "a"), drawSet(kind).Draw(t, "b")
			a, b, na, nb := da[0].(Set), db[0].(Set), da[1].(naive), db[1].(naive)

			union, minus := maps.Clone(na), maps.Clone(na)
			maps.Copy(union, nb)
			maps.DeleteFunc(minus, func(k string, _ bool) bool { return nb[k] })
			contains := true
			for k := range nb {
				contains = contains && na[k]
			}

			u, err := a.Union(b)
			if err != nil || !maps.Equal(members(u), union) {
				t.Fatalf("%s union %s = %s, %v", a, b, u, err)
			}
			if d := a.Subtract(b); !maps.Equal(members(d), minus) {
				t.Fatalf("%s minus %s = %s", a, b, d)
			}
			if a.Contains(b) != contains || a.Equal(b) != maps.Equal(na, nb) || a.Empty() != (len(na) == 0) {
				t.Fatalf("%s and %s: contains %v, equal %v, empty %v", a, b, a.Contains(b), a.Equal(b), a.Empty())
			}
			roundTrip(t, u)
			if e := Errant(a, b); !a.Contains(e) || e.Empty() != b.Contains(a) {
				t.Fatalf("errant of %s against %s = %s", a, b, e)
			}
		}))
	}
}

type failer interface{ Fatalf(string, ...any) }

// roundTrip: the text of a set is the set, and is canonical.
func roundTrip(t failer, s Set) {
	again, err := Parse(s.Kind(), s.String())
	if err != nil || !again.Equal(s) || again.String() != s.String() {
		t.Fatalf("%s %q came back as %q, %v", s.Kind(), s, again, err)
	}
}

// history is the second implementation of positions: one domain's transactions in their order, a position is an index into it.
func TestPositionsAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		histories := make([][]string, 3)
		for d := range histories {
			for i := range rapid.IntRange(1, 8).Draw(t, "length") {
				histories[d] = append(histories[d], fmt.Sprintf("%d-%d-%d", d, rapid.IntRange(1, 2).Draw(t, "server"), i+1))
			}
		}
		draw := func(name string) ([]int, Set) {
			at, text := make([]int, 3), []string{}
			for d, h := range histories {
				at[d] = rapid.IntRange(0, len(h)).Draw(t, name)
				if at[d] > 0 {
					text = append(text, h[at[d]-1])
				}
			}
			s, err := Parse(MariaDBPos, strings.Join(text, ","))
			if err != nil {
				t.Fatal(err)
			}
			return at, s
		}
		ai, a := draw("a")
		bi, b := draw("b")
		contains, equal := true, slices.Equal(ai, bi)
		for d := range ai {
			contains = contains && ai[d] >= bi[d]
		}
		if a.Contains(b) != contains || a.Equal(b) != equal {
			t.Fatalf("%s and %s: contains %v, equal %v", a, b, a.Contains(b), a.Equal(b))
		}
		u, err := a.Union(b)
		if err != nil || !u.Contains(a) || !u.Contains(b) {
			t.Fatalf("%s union %s = %s, %v", a, b, u, err)
		}
		if rest, err := a.Subtract(b).Union(b); err != nil || !rest.Equal(u) {
			t.Fatalf("(%s minus %s) union %s = %s, %v; want %s", a, b, b, rest, err, u)
		}
		roundTrip(t, u)
	})
}

// FuzzParse: no text panics; what is a set prints canonically, equals itself, and obeys the laws with its neighbour.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "0-1-100,1-2-5", "0-1-3..9,0-1-18446744073709551615", u1 + ":1-5:7,\n" + u2 + ":tag:9", "0-1-0"} {
		f.Add(seed, "0-1-50")
		f.Add(seed, u1+":2-3")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		for _, kind := range []Kind{MySQL, MariaDBPos, MariaDBState} {
			a, err := Parse(kind, one)
			if err != nil {
				if !errors.Is(err, ErrSyntax) {
					t.Fatalf("parse %q: %v", one, err)
				}
				continue
			}
			roundTrip(t, a)
			b, err := Parse(kind, two)
			if err != nil {
				continue
			}
			if u, err := a.Union(b); err == nil && (!u.Contains(a) || !u.Contains(b)) {
				t.Fatalf("%s union %s = %s", a, b, u)
			}
			if d := a.Subtract(b); !a.Contains(d) || d.Empty() != b.Contains(a) {
				t.Fatalf("%s minus %s = %s", a, b, d)
			}
			_ = Errant(a, b)
		}
	})
}
