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
		e := logEvent(line)
		e.Who = node
		if e.At.IsZero() {
			e.At = time.Now()
		}
		l.time.Put(e)
		data = rest
	}
}

// logEvent makes "message key=value" of a line that log/slog wrote as JSON, in the order in which it was written. Anything else (a
// panic, a library's own line) stays as it is, with a zero time.
func logEvent(line []byte) Event {
	asIs := Event{Text: string(line)}
	dec := json.NewDecoder(bytes.NewReader(line))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return asIs
	}
	e := Event{Log: &LogLine{Attrs: make(map[string]string)}}
	var words []string
	for dec.More() {
		key, err := dec.Token()
		var raw json.RawMessage
		if err == nil {
			err = dec.Decode(&raw)
		}
		if err != nil {
			return asIs
		}
		text := string(raw)
		_ = json.Unmarshal(raw, &text) // a string loses its quotes; numbers and objects stay as written
		switch key {
		case "time":
			e.At, _ = time.Parse(time.RFC3339Nano, text)
		case "level":
			if text != "INFO" {
				words = append(words, text)
			}
		case "msg":
			e.Log.Msg = text
			words = append(words, text)
		case "cluster", "self": // the same in every line of a node
		default:
			name := fmt.Sprint(key)
			e.Log.Attrs[name] = text
			words = append(words, name+"="+text)
		}
	}
	e.Text = strings.Join(words, " ")
	return e
}
