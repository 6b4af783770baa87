package config

import "log/slog"

// hidden is all that a Secret ever shows.
const hidden = "***"

// Secret is a password that never prints itself: not by fmt in any verb, not in JSON or YAML, not in a log. Only Reveal gives it.
//
// It holds a pointer, because fmt cannot call the methods of a Secret in somebody's unexported field: there it prints the
// pointer and not what it points to.
type Secret struct{ text *string }

// NewSecret hides the text.
func NewSecret(text string) Secret { return Secret{text: &text} }

// Reveal gives the text; hand it to the driver that needs it and to nobody else. The zero Secret is the empty text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String hides the text.
func (Secret) String() string { return hidden }

// GoString hides the text from %#v.
func (Secret) GoString() string { return hidden }

// MarshalText hides the text from JSON, YAML and flags.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON hides the text.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// LogValue hides the text from log/slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
