package lab

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Story tells a run to a person as it happens: the laboratory's words, the fault, and what the daemons log from then on.
type Story struct {
	out io.Writer
	opt Options

	mu     sync.Mutex
	struck time.Time // the fault: times are counted from here
}

// NewStory starts a story.
func NewStory(out io.Writer, opt Options) *Story { return &Story{out: out, opt: opt} }

// Tell takes one event of the time-line.
func (s *Story) Tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Who == "fault":
		s.struck = e.At
		fmt.Fprintf(s.out, "\n%10s  %s\n", "0 ms", e.Text)
	case s.struck.IsZero() && e.Who == "lab":
		fmt.Fprintf(s.out, "%10s  %s\n", "", e.Text)
	case !s.struck.IsZero() && e.At.After(s.struck):
		fmt.Fprintf(s.out, "%7.0f ms  %-8s %s\n", ms(e.At.Sub(s.struck)), e.Who, e.Text)
	}
}

// End prints the times and the checks.
func (s *Story) End(r Result) {
	fmt.Fprintf(s.out, "\n%s\n\n%s\n", Table([]Result{r}), r.Line())
}
