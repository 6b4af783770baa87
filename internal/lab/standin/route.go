package standin

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// dataNode is a dataNode at work.
type dataNode struct {
	cfg  DataNode
	host *dataHost
}

// target is one statement for one data node.
type target struct {
	node *dataNode
	sql  string
	pool *pool // of the writeHost in use; set when the data host was found ready
}

// route finds the data nodes of a statement as Mycat does: by hint, by the key of its table, else all nodes of the table. A statement
// without a table goes to any node.
func (srv *Server) route(st statement, schema string) ([]target, *sqlError) {
	switch {
	case st.badTag != "":
		return nil, mycatError(erParse, "the stand-in knows no hint but datanode: %s", st.badTag)
	case st.hint != "":
		node := srv.nodes[st.hint]
		if node == nil {
			return nil, mycatError(erParse, "can't find hint datanode:%s", st.hint)
		}
		return []target{{node: node, sql: st.body}}, nil
	}
	name, behind := st.table()
	if name == "" {
		node := srv.nodeOrder[rand.IntN(len(srv.nodeOrder))]
		return []target{{node: node, sql: st.body}}, nil
	}
	t := srv.tables[name]
	if t == nil {
		return srv.routeDefault(st, schema, name)
	}
	return srv.routeTable(st, t, behind)
}

func (srv *Server) routeDefault(st statement, schema, table string) ([]target, *sqlError) {
	i := slices.IndexFunc(srv.cfg.Schemas, func(s Schema) bool { return s.Name == schema })
	if i < 0 || srv.cfg.Schemas[i].DataNode == "" {
		return nil, mycatError(erParse, "can't find table define in schema %s schema:%s", strings.ToUpper(table), schema)
	}
	return []target{{node: srv.nodes[srv.cfg.Schemas[i].DataNode], sql: st.body}}, nil
}

func (srv *Server) routeTable(st statement, t *Table, behind int) ([]target, *sqlError) {
	switch st.verb {
	case "insert", "replace":
		return srv.routeInsert(st, t, behind)
	case "desc", "describe":
		return []target{{node: srv.nodes[t.Nodes[0]], sql: st.body}}, nil
	}
	names := t.Nodes
	if keys := st.keys(t.Key); len(keys) > 0 {
		names = nil
		for _, k := range keys {
			name, err := t.nodeOf(k)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	out := make([]target, 0, len(names))
	for _, name := range names {
		out = append(out, target{node: srv.nodes[name], sql: st.body})
	}
	return out, nil
}

// nodeOf is the rule mod-long: the absolute value of the key modulo the number of nodes.
func (t *Table) nodeOf(key token) (string, *sqlError) {
	n, err := strconv.ParseInt(key.lower, 10, 64)
	if err != nil {
		return "", mycatError(erParse, "columnValue:%s Please eliminate any quote and non number within it.", key.lower)
	}
	i := n % int64(len(t.Nodes))
	return t.Nodes[max(i, -i)], nil
}

// routeInsert finds the key in the column list, and splits the rows of VALUES by node.
func (srv *Server) routeInsert(st statement, t *Table, behind int) ([]target, *sqlError) {
	if len(t.Nodes) == 1 {
		return []target{{node: srv.nodes[t.Nodes[0]], sql: st.body}}, nil
	}
	if st.is(behind, "set") {
		return srv.routeInsertSet(st, t, behind)
	}
	if !st.is(behind, "(") {
		return nil, mycatError(erParse, "partition table, insert must provide ColumnList")
	}
	position, i := -1, behind+1
	for column := 0; i < len(st.tokens) && !st.is(i, ")"); i++ {
		if st.is(i, ",") {
			column++
		} else if st.is(i, t.Key) {
			position = column
		}
	}
	if position < 0 {
		return nil, mycatError(erParse, "bad insert sql (sharding column:%s not provided,%s", strings.ToUpper(t.Key), st.body)
	}
	if i++; !st.is(i, "values") && !st.is(i, "value") || i+1 >= len(st.tokens) {
		return nil, mycatError(erParse, "the stand-in routes only INSERT ... VALUES and INSERT ... SET")
	}
	return srv.splitRows(st, t, i+1, position)
}

func (srv *Server) routeInsertSet(st statement, t *Table, set int) ([]target, *sqlError) {
	for i := set + 1; i < len(st.tokens); i++ {
		if !st.is(i, t.Key) || !st.is(i+1, "=") {
			continue
		}
		for _, key := range st.literal(i + 2) {
			name, err := t.nodeOf(key)
			return []target{{node: srv.nodes[name], sql: st.body}}, err
		}
	}
	return nil, mycatError(erParse, "bad insert sql (sharding column:%s not provided,%s", strings.ToUpper(t.Key), st.body)
}

// splitRows gives each node an INSERT with its own rows; first is the index of the first row's parenthesis.
func (srv *Server) splitRows(st statement, t *Table, first, position int) ([]target, *sqlError) {
	rows := map[string][]string{}
	var names []string
	i := first
	for st.is(i, "(") {
		end, key := st.row(i, position)
		if len(key) == 0 || end >= len(st.tokens) {
			return nil, mycatError(erParse, "bad insert sql (sharding column:%s is no literal,%s", strings.ToUpper(t.Key), st.body)
		}
		name, err := t.nodeOf(key[0])
		if err != nil {
			return nil, err
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		rows[name] = append(rows[name], st.body[st.tokens[i].start:st.tokens[end].end])
		if i = end + 1; st.is(i, ",") {
			i++
		}
	}
	if len(names) == 0 {
		return nil, mycatError(erParse, "the stand-in routes only INSERT ... VALUES and INSERT ... SET")
	}
	if len(names) == 1 {
		return []target{{node: srv.nodes[names[0]], sql: st.body}}, nil
	}
	head, tail := st.body[:st.tokens[first].start], ""
	if i < len(st.tokens) {
		tail = " " + st.body[st.tokens[i].start:]
	}
	var out []target
	for _, name := range names {
		out = append(out, target{node: srv.nodes[name], sql: head + strings.Join(rows[name], ",") + tail})
	}
	return out, nil
}

// row is the index of the parenthesis that ends the row at i, and the literal at the key's position.
func (st statement) row(i, position int) (end int, key []token) {
	depth, column := 0, 0
	for ; i < len(st.tokens); i++ {
		switch {
		case st.is(i, "("):
			depth++
		case st.is(i, ")"):
			if depth--; depth == 0 {
				return i, key
			}
		case st.is(i, ",") && depth == 1:
			column++
		case column == position && depth == 1 && key == nil:
			if key = st.literal(i); key == nil && st.is(i, "-") {
				key = st.literal(i + 1) // mod-long takes the absolute value
			}
		}
	}
	return i, key
}

// sums says whether a select list holds nothing but count(...) and sum(...): then the nodes' single rows are added up.
func (st statement) sums() bool {
	from := st.find(1, "from")
	if st.verb != "select" || from < 0 || st.find(from, "group") >= 0 {
		return false
	}
	depth, fresh := 0, true
	for i := 1; i < from; i++ {
		switch {
		case fresh && !st.is(i, "count") && !st.is(i, "sum"):
			return false
		case st.is(i, "("):
			depth++
		case st.is(i, ")"):
			depth--
		}
		fresh = depth == 0 && st.is(i, ",")
	}
	return true
}
