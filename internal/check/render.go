package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// width is where text is wrapped.
const width = 100

// Render writes the findings for people, the worst first, wrapped to 100 columns.
func Render(findings []Finding, w io.Writer) error {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s\n", strings.ToUpper(string(f.Severity)), f.Code)
		for _, part := range []struct{ label, text string }{{"place", f.Place}, {"seen", f.Seen}, {"means", f.Means}, {"do", f.Do}} {
			if part.text != "" {
				wrap(&b, fmt.Sprintf("  %-6s ", part.label), part.text)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Render writes the findings and a last line with their number.
func (r Report) Render(w io.Writer) error {
	if err := Render(r.Findings, w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d critical, %d warnings, %d notes; %d of %d checks found nothing, in %s\n",
		r.Count(Critical), r.Count(Warning), r.Count(Info), r.Clean, r.Checks, r.Took.Round(time.Millisecond))
	return err
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	if r.Findings == nil {
		r.Findings = []Finding{} // a list in every case: null is no list to whoever reads it
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// wrap writes a text behind its label, and its further lines below its first. A word longer than a line stays whole, so that a
// statement can be copied.
func wrap(b *strings.Builder, label, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(label))
	b.WriteString(label)
	column := len(indent)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
}
