package standin

import (
	"regexp"
	"slices"
	"strings"
)

// tokenKind is what a token of a statement is.
type tokenKind uint8

const (
	word tokenKind = iota // a name or keyword, also in backquotes
	number
	text // in quotes
	punct
)

// token is a piece of a statement. For words lower holds the lower case without quotes, for text the content without quotes.
type token struct {
	kind       tokenKind
	lower      string
	start, end int
}

// tokenize takes a statement apart as far as routing needs it. It never fails: what it does not know is punctuation.
func tokenize(sql string) []token {
	var out []token
	for i := 0; i < len(sql); {
		start := i
		switch c := sql[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
			continue
		case strings.HasPrefix(sql[i:], "/*"):
			i = after(sql, i+2, "*/")
			continue
		case c == '#' || strings.HasPrefix(sql[i:], "-- "):
			i = after(sql, i, "\n")
			continue
		case c == '\'' || c == '"':
			i = quoted(sql, i, c)
			out = append(out, token{text, unquote(sql[start:i]), start, i})
		case c == '`':
			i = quoted(sql, i, c)
			out = append(out, token{word, strings.ToLower(unquote(sql[start:i])), start, i})
		case c >= '0' && c <= '9':
			i = span(sql, i, isWord)
			out = append(out, token{number, sql[start:i], start, i})
		case isWord(c):
			i = span(sql, i, isWord)
			out = append(out, token{word, strings.ToLower(sql[start:i]), start, i})
		default:
			i++
			out = append(out, token{punct, sql[start:i], start, i})
		}
	}
	return out
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '@' || c >= 0x80
}

func span(s string, i int, in func(byte) bool) int {
	for i < len(s) && in(s[i]) {
		i++
	}
	return i
}

// after is the index behind the next mark, or the end.
func after(s string, i int, mark string) int {
	if j := strings.Index(s[min(i, len(s)):], mark); j >= 0 {
		return i + j + len(mark)
	}
	return len(s)
}

// quoted is the index behind a quoted piece that starts at i: a doubled quote and a backslash do not end it.
func quoted(s string, i int, quote byte) int {
	for i++; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quote != '`':
			i++
		case s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
		case s[i] == quote:
			return i + 1
		}
	}
	return len(s)
}

func unquote(s string) string {
	if len(s) < 2 {
		return ""
	}
	return s[1 : len(s)-1]
}

// charsetRE keeps what goes into SET NAMES at a backend to a name.
var charsetRE = regexp.MustCompile(`^[a-z0-9_]+$`)

var hintRE = regexp.MustCompile(`(?i)^\s*/\*[!#]\s*mycat:\s*(\w+)\s*=\s*(.*?)\s*\*/`)

// statement is what the stand-in knows of a client's statement.
type statement struct {
	raw    string
	hint   string // the dataNode of a routing hint; empty: none
	badTag string // the kind of a hint that is not datanode
	body   string // without the hint
	tokens []token
	verb   string // first word, lower case
}

func parseStatement(sql string) statement {
	st := statement{raw: sql, body: sql}
	if m := hintRE.FindStringSubmatchIndex(sql); m != nil {
		st.body = sql[m[1]:]
		if tag := sql[m[2]:m[3]]; strings.EqualFold(tag, "datanode") {
			st.hint = sql[m[4]:m[5]]
		} else {
			st.badTag = tag
		}
	}
	st.body = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(st.body), ";"))
	st.tokens = tokenize(st.body)
	if len(st.tokens) > 0 {
		st.verb = st.tokens[0].lower
	}
	return st
}

// plain is the statement in lower case with single spaces, for the few that Mycat answers by itself.
func (st statement) plain() string {
	return strings.ToLower(strings.TrimSuffix(strings.Join(strings.Fields(st.raw), " "), ";"))
}

// reads says whether a readOnly user may send it.
func (st statement) reads() bool {
	switch st.verb {
	case "select", "show", "desc", "describe", "explain", "":
		return true
	}
	return false
}

// is says whether the token at i is that word.
func (st statement) is(i int, lower string) bool {
	return i >= 0 && i < len(st.tokens) && st.tokens[i].lower == lower && st.tokens[i].kind != text
}

// find is the index of the first such word at or after i, outside parentheses; -1: none.
func (st statement) find(i int, lower string) int {
	depth := 0
	for ; i < len(st.tokens); i++ {
		switch {
		case st.is(i, "("):
			depth++
		case st.is(i, ")"):
			depth--
		case depth == 0 && st.is(i, lower):
			return i
		}
	}
	return -1
}

// fillers are the words that may stand between a verb and its table.
var fillers = []string{
	"into", "ignore", "low_priority", "high_priority", "delayed", "quick", "from", "table", "if", "not", "exists", "only", "temporary",
}

// tableAt is the table's name and the index behind it, from the first word at i that is no filler; "" when there is none.
func (st statement) tableAt(i int) (string, int) {
	for i < len(st.tokens) && slices.Contains(fillers, st.tokens[i].lower) {
		i++
	}
	if i >= len(st.tokens) || st.tokens[i].kind != word {
		return "", i
	}
	if st.is(i+1, ".") && i+2 < len(st.tokens) {
		return st.tokens[i+2].lower, i + 3
	}
	return st.tokens[i].lower, i + 1
}

// table is the table that routes the statement and the index behind its name.
func (st statement) table() (string, int) {
	switch st.verb {
	case "select":
		from := st.find(1, "from")
		if from < 0 {
			return "", 0
		}
		return st.tableAt(from)
	case "insert", "replace", "update", "delete", "create", "drop", "alter", "truncate", "desc", "describe":
		return st.tableAt(1)
	}
	return "", 0
}

// keys are the literals that the key is compared with behind WHERE: `key = 1`, `key in (1, 2)`. None when an OR makes them useless.
func (st statement) keys(key string) []token {
	where := st.find(1, "where")
	if where < 0 || slices.ContainsFunc(st.tokens[where:], func(t token) bool { return t.kind == word && t.lower == "or" }) {
		return nil
	}
	var out []token
	for i := where + 1; i < len(st.tokens); i++ {
		switch {
		case st.is(i, key) && st.is(i+1, "="):
			out = append(out, st.literal(i+2)...)
		case st.is(i, key) && st.is(i+1, "in") && st.is(i+2, "("):
			for j := i + 3; j < len(st.tokens) && !st.is(j, ")"); j++ {
				out = append(out, st.literal(j)...)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

func (st statement) literal(i int) []token {
	if i < len(st.tokens) && (st.tokens[i].kind == number || st.tokens[i].kind == text) {
		return st.tokens[i : i+1]
	}
	return nil
}
