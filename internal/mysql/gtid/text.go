package gtid

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxMySQL is the highest sequence number of MySQL (GNO_END - 1).
const maxMySQL = 1<<63 - 2

// Parse reads a set in the words of its server; white space around commas is allowed (MySQL breaks lines there). An empty text is the
// empty set. Errors wrap ErrSyntax. A MariaDBState may also hold ranges, as String prints them for a difference.
func Parse(kind Kind, text string) (Set, error) {
	s := Set{kind: kind}
	add := s.addMariaDB
	switch kind {
	case MySQL:
		add = s.addMySQL
	case MariaDBPos, MariaDBState:
	default:
		return Set{}, fmt.Errorf("parse set of kind %q: %w", kind, ErrKind)
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		if err := add(part); err != nil {
			return Set{}, fmt.Errorf("parse %q: %w", text, err)
		}
	}
	for from, runs := range s.runs {
		s.runs[from] = normalize(runs)
	}
	return s, nil
}

// addMariaDB reads domain-server-seq, or domain-server-first..last.
func (s *Set) addMariaDB(part string) error {
	head, last, ranged := strings.Cut(part, "..")
	fields := strings.Split(head, "-")
	if len(fields) != 3 || (ranged && s.kind == MariaDBPos) {
		return fmt.Errorf("%q is no domain-server-sequence: %w", part, ErrSyntax)
	}
	domain, err1 := strconv.ParseUint(fields[0], 10, 32)
	server, err2 := strconv.ParseUint(fields[1], 10, 32)
	seq, err3 := strconv.ParseUint(fields[2], 10, 64)
	r := run{1, seq}
	if ranged {
		end, err := strconv.ParseUint(last, 10, 64)
		if err != nil || seq == 0 || end < seq {
			return fmt.Errorf("%q is no range: %w", part, ErrSyntax)
		}
		r = run{seq, end}
	}
	if err1 != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("%q: number out of range: %w", part, ErrSyntax)
	}
	if r.last == 0 {
		return nil // 0-1-0 is the position before the first transaction
	}
	if s.kind == MariaDBState {
		from := origin{domain: uint32(domain), server: uint32(server)}
		s.set(from, append(s.runs[from], r))
		return nil
	}
	if _, twice := s.pos[uint32(domain)]; twice {
		return fmt.Errorf("%q: domain named twice in a position: %w", part, ErrSyntax)
	}
	s.put(uint32(domain), point{uint32(server), seq})
	return nil
}

// addMySQL reads uuid:1-5:7, with a tag before the intervals that are its own: uuid:1-5:tag:3.
func (s *Set) addMySQL(part string) error {
	head, rest, ok := strings.Cut(part, ":")
	uuid, valid := canonicalUUID(head)
	if !ok || !valid {
		return fmt.Errorf("%q does not begin with a UUID: %w", part, ErrSyntax)
	}
	from := origin{uuid: uuid}
	open := true // a UUID or tag with no interval after it
	for field := range strings.SplitSeq(rest, ":") {
		field = strings.TrimSpace(field)
		if isTag(field) {
			if open && from.tag != "" {
				break
			}
			from.tag, open = strings.ToLower(field), true
			continue
		}
		first, last, ranged := strings.Cut(field, "-")
		if !ranged {
			last = first
		}
		a, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		b, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 64)
		if err1 != nil || err2 != nil || a == 0 || b < a || b > maxMySQL {
			return fmt.Errorf("%q is no interval: %w", field, ErrSyntax)
		}
		s.set(from, append(s.runs[from], run{a, b}))
		open = false
	}
	if open {
		return fmt.Errorf("%q has no interval: %w", part, ErrSyntax)
	}
	return nil
}

// canonicalUUID returns the UUID in lower case with hyphens.
func canonicalUUID(text string) (string, bool) {
	text = strings.ToLower(strings.TrimSpace(text))
	if len(text) != 36 {
		return "", false
	}
	for i, c := range []byte(text) {
		hyphen := i == 8 || i == 13 || i == 18 || i == 23
		if hyphen != (c == '-') || (!hyphen && !isHex(c)) {
			return "", false
		}
	}
	return text, true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }

// isTag: a letter or underscore, then letters, digits, underscores; at most 32 (MySQL 8.3 and later).
func isTag(text string) bool {
	if text == "" || len(text) > 32 {
		return false
	}
	for i, c := range []byte(strings.ToLower(text)) {
		letter := c == '_' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// String prints the set in the words of its server, sorted, without white space. A difference of MariaDB states prints its ranges as
// domain-server-first..last.
func (s Set) String() string {
	var b strings.Builder
	for _, domain := range slices.Sorted(maps.Keys(s.pos)) {
		comma(&b)
		fmt.Fprintf(&b, "%d-%d-%d", domain, s.pos[domain].server, s.pos[domain].seq)
	}
	uuid := ""
	for _, from := range slices.SortedFunc(maps.Keys(s.runs), origin.compare) {
		if s.kind == MySQL {
			writeMySQL(&b, from, s.runs[from], from.uuid != uuid)
			uuid = from.uuid
			continue
		}
		for _, r := range s.runs[from] {
			comma(&b)
			fmt.Fprintf(&b, "%d-%d-", from.domain, from.server)
			if r.first > 1 {
				fmt.Fprintf(&b, "%d..", r.first)
			}
			fmt.Fprintf(&b, "%d", r.last)
		}
	}
	return b.String()
}

func writeMySQL(b *strings.Builder, from origin, runs []run, next bool) {
	if next {
		comma(b)
		b.WriteString(from.uuid)
	}
	if from.tag != "" {
		b.WriteString(":" + from.tag)
	}
	for _, r := range runs {
		fmt.Fprintf(b, ":%d", r.first)
		if r.last > r.first {
			fmt.Fprintf(b, "-%d", r.last)
		}
	}
}

func comma(b *strings.Builder) {
	if b.Len() > 0 {
		b.WriteByte(',')
	}
}

// MarshalText writes the kind before the set, "mariadb-pos 0-1-100", so that a journal's fact can be read back. The zero Set is empty.
func (s Set) MarshalText() ([]byte, error) {
	if s.kind == "" {
		return nil, nil
	}
	return []byte(string(s.kind) + " " + s.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (s *Set) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = Set{}
		return nil
	}
	kind, rest, _ := strings.Cut(string(text), " ")
	parsed, err := Parse(Kind(kind), rest)
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
