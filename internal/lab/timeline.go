package lab

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Event is one line of a run's time-line.
type Event struct {
	At   time.Time
	Who  string // "lab", "fault", "writer", "wire", "journal", a node's name
	Text string
	Log  *LogLine // of a daemon's line: its parts
}

// LogLine is a line that a daemon logged: a static message and its attributes, as text.
type LogLine struct {
	Msg   string
	Attrs map[string]string
}

// Timeline collects what happened, from any goroutine.
type Timeline struct {
	mu     sync.Mutex
	events []Event
	start  time.Time
	follow func(Event) // called for each event as it comes; may be nil
}

// NewTimeline starts a time-line. follow, if given, sees each event at once and must not block.
func NewTimeline(follow func(Event)) *Timeline {
	return &Timeline{start: time.Now(), follow: follow}
}

// Add takes an event that happens now.
func (t *Timeline) Add(who, format string, args ...any) {
	t.Put(Event{At: time.Now(), Who: who, Text: fmt.Sprintf(format, args...)})
}

// Put takes an event that may have happened earlier.
func (t *Timeline) Put(e Event) {
	t.mu.Lock()
	t.events = append(t.events, e)
	t.mu.Unlock()
	if t.follow != nil {
		t.follow(e)
	}
}

// String writes the events in the order of their times, in milliseconds since the start.
func (t *Timeline) String() string { return t.text(func(Event) bool { return true }) }

// Brief is String without the lines of the daemons' logs: faults, Baton's journal, the writer's errors, who held the VIP.
func (t *Timeline) Brief() string { return t.text(func(e Event) bool { return e.Log == nil }) }

func (t *Timeline) text(shown func(Event) bool) string {
	t.mu.Lock()
	events := slices.Clone(t.events)
	t.mu.Unlock()
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	var b strings.Builder
	for _, e := range events {
		if shown(e) {
			fmt.Fprintf(&b, "%10.1f ms  %-8s %s\n", ms(e.At.Sub(t.start)), e.Who, e.Text)
		}
	}
	return b.String()
}
