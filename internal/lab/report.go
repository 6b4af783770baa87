package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/baton-ha/baton/internal/lab/load"
)

// Report writes into dir what explains a run: its time-line (faults, Baton's journal and logs, the writer's errors, who held the
// VIP), the result, Baton's own words, and every host's logs. Errors name what is missing from it.
func (l *Lab) Report(ctx context.Context, dir string, result Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the report's directory: %w", err)
	}
	errs := []error{l.journal(ctx)}
	if l.writer != nil {
		for _, e := range complaints(l.writer.Writes()) {
			l.time.Put(e)
		}
	}
	if l.recorder != nil {
		for _, h := range l.recorder.Holds() {
			l.time.Put(Event{At: h.First, Who: "wire", Text: fmt.Sprintf("%s answers for the VIP: %d answers, %d of them ARP, over %.1f ms",
				h.Host, h.Answers, h.ARP, ms(h.Last.Sub(h.First)))})
		}
	}
	text, err := json.MarshalIndent(result, "", "  ")
	errs = append(errs, err, keep(dir, "result.json", text), keep(dir, "timeline.txt", []byte(l.time.String())))
	if l.opt.Baton != "" {
		why, err := l.ask(ctx, "why")
		errs = append(errs, err, keep(dir, "why.txt", why))
	}
	return errors.Join(append(errs, logs(dir))...)
}

func keep(dir, name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// journal puts Baton's own journal on the time-line.
func (l *Lab) journal(ctx context.Context) error {
	list, err := l.history(ctx)
	for _, s := range list {
		for _, e := range s.Journal {
			line := fmt.Sprintf("%s: %s %s", s.ID, e.Step, e.Phase)
			if e.Took > 0 {
				line += fmt.Sprintf(" in %.1f ms", ms(e.Took))
			}
			l.time.Put(Event{At: e.At, Who: "journal", Text: strings.TrimSpace(line + " " + e.Err)})
		}
	}
	return err
}

// complaints folds the writer's failures into one line for each streak of the same one.
func complaints(writes []load.Write) []Event {
	type streak struct {
		first, last load.Write
		n           int
	}
	var events []Event
	open := make(map[int]streak)
	closed := func(s streak) {
		if s.n > 0 {
			events = append(events, Event{At: s.first.Sent, Who: "writer", Text: fmt.Sprintf("%s: %d %s over %.1f ms: %s",
				shardName(s.first.Shard), s.n, s.first.Outcome, ms(s.last.Answered.Sub(s.first.Sent)), s.first.Err)})
		}
	}
	for _, w := range writes {
		s := open[w.Shard]
		if w.Outcome != load.Acknowledged && s.n > 0 && s.first.Outcome == w.Outcome && s.first.Err == w.Err {
			s.last, s.n = w, s.n+1
			open[w.Shard] = s
			continue
		}
		closed(s)
		open[w.Shard] = streak{}
		if w.Outcome != load.Acknowledged {
			open[w.Shard] = streak{w, w, 1}
		}
	}
	for _, s := range open {
		closed(s)
	}
	return events
}

// logs copies every host's logs.
func logs(dir string) error {
	return filepath.WalkDir(hostsDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Base(filepath.Dir(path)) != "log" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) == 0 {
			return err
		}
		host := filepath.Base(filepath.Dir(filepath.Dir(path)))
		return keep(dir, host+"-"+entry.Name(), text)
	})
}

// ReportName is the directory of a run's report.
func (r Result) ReportName() string {
	return fmt.Sprintf("%s-%s-%s-%03d-%s", r.Scenario, r.Bind, r.Profile, r.Run, time.Now().Format("150405"))
}
