package standin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestBeats replays the timelines measured on real Mycat: ticks of 10 s, timeout 30 s, 3 retries. Each letter is one tick after the
// fault and how a beat that was sent at it ends: r refused, h hangs, o answers. The line is RS_CODE/RETRY after each tick, * while a
// beat is unanswered.
func TestBeats(t *testing.T) {
	for _, tt := range []struct{ name, ticks, want string }{
		{"well", "ooo", "1/0 1/0 1/0"},
		{"refused: RS_CODE leaves 1 at the third tick, within 30 s", "rrrrr", "1/1 1/2 -1/0 -1/1 -1/2"},
		{
			"frozen: RETRY at 40 s and 90 s after the first beat, -2 at 140 s", "hhhhhhhhhhhhhhh",
			"1/0* 1/0* 1/0* 1/0* 1/1 1/1* 1/1* 1/1* 1/1* 1/2 1/2* 1/2* 1/2* 1/2* -2/0",
		},
		{"one tick of health forgives two failures", "rrorr", "1/1 1/2 1/0 1/1 1/2"},
		{"back at the next tick", "rrro", "1/1 1/2 -1/0 1/0"},
	} {
		b := newBeats(30*time.Second, 10*time.Second, 3)
		var got []string
		for _, c := range tt.ticks {
			if b.tick() && c != 'h' {
				var err error
				if c == 'r' {
					err = errors.New("refused")
				}
				b.answered(b.sequence, err)
			}
			got = append(got, fmt.Sprintf("%d/%d%s", b.code, b.retry, map[bool]string{true: "*"}[b.checking]))
		}
		if line := strings.Join(got, " "); line != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, line, tt.want)
		}
	}
}

// TestLateBeat: the answer to a beat that was given up changes nothing.
func TestLateBeat(t *testing.T) {
	b := newBeats(30*time.Second, 10*time.Second, 3)
	b.tick()
	first := b.sequence
	for range 5 {
		b.tick()
	}
	if b.answered(first, nil) || b.retry != 1 {
		t.Errorf("a late answer was taken: retry %d, want 1", b.retry)
	}
	if !b.answered(b.sequence, nil) || b.retry != 0 {
		t.Errorf("the current answer was not taken: retry %d, want 0", b.retry)
	}
}
