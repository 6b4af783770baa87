package load

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func write(shard, ms int, o Outcome) Write {
	return Write{ID: int64(ms), Shard: shard, Sent: at(ms), Answered: at(ms + 1), Outcome: o}
}

func TestLongest(t *testing.T) {
	tests := []struct {
		name   string
		writes []Write
		from   int
		want   time.Duration
		open   bool
	}{
		{"nothing written", nil, 0, 0, false},
		{"no trouble", []Write{write(0, 0, Acknowledged), write(0, 4, Acknowledged), write(0, 8, Acknowledged)}, 0, 4 * time.Millisecond, false},
		{"from good to good over failures", []Write{write(0, 0, Acknowledged), write(0, 4, Unknown), write(0, 60, Refused), write(0, 100, Acknowledged)}, 0, 100 * time.Millisecond, false},
		{"the worst shard counts", []Write{write(0, 0, Acknowledged), write(1, 0, Acknowledged), write(0, 10, Acknowledged), write(1, 50, Acknowledged)}, 0, 50 * time.Millisecond, false},
		{"before the fault does not count", []Write{write(0, 0, Acknowledged), write(0, 90, Acknowledged), write(0, 95, Acknowledged)}, 92, 5 * time.Millisecond, false},
		{"no good write any more", []Write{write(0, 0, Acknowledged), write(0, 4, Unsent)}, 0, 999 * time.Millisecond, true},
		{"what comes after the record's end does not count", []Write{write(0, 0, Acknowledged), write(0, 5000, Acknowledged)}, 0, 999 * time.Millisecond, true},
		{"never a good write", []Write{write(0, 0, Unsent), write(0, 4, Unsent)}, 0, time.Second, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			end := at(1000)
			if !tt.open && len(tt.writes) > 0 {
				end = tt.writes[len(tt.writes)-1].Answered
			}
			got := Longest(tt.writes, at(tt.from), end)
			if got.Length() != tt.want || got.Open != tt.open {
				t.Errorf("Longest = %v open %v, want %v open %v", got.Length(), got.Open, tt.want, tt.open)
			}
		})
	}
}

// naiveLongest measures, for every moment, how far the nearest good answers of the shard lie to both sides.
func naiveLongest(writes []Write, from, end int) int {
	worst := 0
	for shard := range 2 {
		first, goods := -1, []int{}
		for _, w := range writes {
			if w.Shard != shard || w.Answered.After(at(end)) {
				continue
			}
			if first < 0 {
				first = int(w.Sent.Sub(start).Milliseconds())
			}
			if w.Outcome == Acknowledged {
				goods = append(goods, int(w.Answered.Sub(start).Milliseconds()))
			}
		}
		if first < 0 {
			continue
		}
		edges := append(append([]int{first}, goods...), end)
		for i := 1; i < len(edges); i++ {
			if edges[i] > from {
				worst = max(worst, edges[i]-edges[i-1])
			}
		}
	}
	return worst
}

func TestLongestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := 0
		var writes []Write
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			ms += rapid.IntRange(1, 50).Draw(t, "step")
			writes = append(writes, write(rapid.IntRange(0, 1).Draw(t, "shard"), ms, Outcome(rapid.IntRange(0, 3).Draw(t, "outcome"))))
		}
		end := rapid.IntRange(0, ms+20).Draw(t, "end")
		from := rapid.IntRange(0, end).Draw(t, "from")
		got := int(Longest(writes, at(from), at(end)).Length().Milliseconds())
		if want := naiveLongest(writes, from, end); got != want {
			t.Fatalf("Longest = %d ms, naive %d ms", got, want)
		}
	})
}

func TestCheck(t *testing.T) {
	servers := map[int][]uint32{0: {11, 21}, 1: {12, 22}}
	w := func(id int64, o Outcome) Write { return Write{ID: id, Shard: int(id % 2), Outcome: o} }
	tests := []struct {
		name     string
		writes   []Write
		rows     map[int][]Row
		switches int
		want     Audit
	}{
		{
			"all there",
			[]Write{w(2, Acknowledged), w(3, Acknowledged)},
			map[int][]Row{0: {{2, 11}}, 1: {{3, 12}}},
			0,
			Audit{Acknowledged: 2},
		},
		{
			"one lost, one twice",
			[]Write{w(2, Acknowledged), w(3, Acknowledged)},
			map[int][]Row{0: {{3, 12}}, 1: {{3, 12}}},
			0,
			Audit{Acknowledged: 2, Lost: 1, Duplicated: 1},
		},
		{
			"unknown and refused are looked for",
			[]Write{w(2, Unknown), w(4, Unknown), w(6, Refused), w(8, Refused), w(10, Unsent)},
			map[int][]Row{0: {{2, 11}, {6, 11}}},
			0,
			Audit{UnknownPresent: 1, UnknownAbsent: 1, Refused: 2, RefusedPresent: 1},
		},
		{
			"a switch moves the server once",
			[]Write{w(2, Acknowledged), w(4, Acknowledged), w(6, Acknowledged)},
			map[int][]Row{0: {{2, 11}, {4, 21}, {6, 21}}},
			1,
			Audit{Acknowledged: 3, Moves: 1},
		},
		{
			"the deposed one acknowledged after the switch",
			[]Write{w(2, Acknowledged), w(4, Acknowledged), w(6, Acknowledged), w(8, Acknowledged)},
			map[int][]Row{0: {{2, 11}, {4, 21}, {6, 11}, {8, 21}}},
			1,
			Audit{Acknowledged: 4, Moves: 3, WrongServer: 2},
		},
		{
			"the shard of another",
			[]Write{w(2, Acknowledged)},
			map[int][]Row{1: {{2, 12}}},
			0,
			Audit{Acknowledged: 1, WrongServer: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Check(tt.writes, tt.rows, servers, tt.switches); got != tt.want {
				t.Errorf("Check = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestCount(t *testing.T) {
	writes := []Write{write(0, 0, Refused), write(0, 10, Refused), write(0, 20, Refused), write(0, 10, Unknown)}
	if got := Count(writes, Refused, at(10), at(20)); got != 1 {
		t.Errorf("Count = %d, want the one at the span's beginning and not the one at its end", got)
	}
}
