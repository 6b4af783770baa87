package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

const followEvery = 10 * time.Millisecond

// follow puts each line of a daemon's JSON log on the time-line, at the time that the daemon gave it.
func (l *Lab) follow(node, path string) {
	l.loops.Go(func() error {
		file, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("follow the log of %s: %w", node, err)
		}
		defer func() { _ = file.Close() }()
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		var rest []byte
		chunk := make([]byte, 64<<10)
		for {
			n, _ := file.Read(chunk) // at the end of a file that grows, io.EOF is no news
			rest = l.lines(node, append(rest, chunk[:n]...))
			if n > 0 {
				continue
			}
			select {
			case <-l.ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	})
}

// lines takes the whole lines and returns what is left.
func (l *Lab) lines(node string, data []byte) []byte {
	for {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole {
			return data
		}
		at, text := logLine(line)
		if at.IsZero() {
			at = time.Now()
		}
		l.time.AddAt(at, node, text)
		data = rest
	}
}

// logLine makes "message key=value" of a line that log/slog wrote as JSON, in the order in which it was written. Anything else (a
// panic, a library's own line) stays as it is, with a zero time.
func logLine(line []byte) (time.Time, string) {
	dec := json.NewDecoder(bytes.NewReader(line))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return time.Time{}, string(line)
	}
	var at time.Time
	var msg string
	var attrs strings.Builder
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return time.Time{}, string(line)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return time.Time{}, string(line)
		}
		text := string(raw)
		_ = json.Unmarshal(raw, &text) // a string loses its quotes; numbers and objects stay as written
		switch key {
		case "time":
			at, _ = time.Parse(time.RFC3339Nano, text)
		case "msg":
			msg = text
		case "level":
			if text != "INFO" {
				msg = strings.TrimSpace(text + " " + msg)
			}
		default:
			fmt.Fprintf(&attrs, " %s=%s", key, text)
		}
	}
	return at, msg + attrs.String()
}
