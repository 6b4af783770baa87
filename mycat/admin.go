package mycat

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Admin is one connection to the management port, for one goroutine at a time. What it tells is advisory: RS_CODE stayed "ok" for 27 s
// after a backend was killed, for 149 s after one was frozen, and for ever for one that had never accepted a login. Its SQL hangs
// together with that of 8066. An answer here is never a reason not to switch, a silence never a reason alone to do so.
type Admin struct {
	session
}

// DialAdmin opens a connection to the management port.
func (c *Client) DialAdmin(ctx context.Context) (*Admin, error) {
	s, err := c.dial(ctx, c.cfg.Admin, "")
	if err != nil {
		return nil, fmt.Errorf("dial mycat management %s: %w", c.cfg.Admin, err)
	}
	return &Admin{s}, nil
}

// RSCode is Mycat's own opinion of a backend (backend/heartbeat/DBHeartbeat.java). Trust it only when it is not RSOK.
type RSCode int

// The codes of show @@heartbeat.
const (
	RSInit    RSCode = 0
	RSOK      RSCode = 1
	RSError   RSCode = -1
	RSTimeout RSCode = -2
)

// Heartbeat is one backend's row of show @@heartbeat.
type Heartbeat struct {
	Name       string // of the writeHost or readHost; unique in the whole schema.xml
	Type       string // "mysql"
	Host       string
	Port       int
	RSCode     RSCode
	Retry      int    // failed beats since the last change of RSCode
	Status     string // "idle", or "checking" while a beat is unanswered
	Timeout    time.Duration
	Averages   string // mean milliseconds of a beat over 1, 10 and 30 minutes, "2,2,2"
	LastActive string // local time of Mycat's host, without a zone: compare it, never subtract it. Errors move it too
	Stopped    bool
}

// DataNode is one row of show @@datanode: the only place that shows which writeHost is in use.
type DataNode struct {
	Name, DataHost, Database string
	Index                    int // of the active writeHost; anything but 0 is a switch that Mycat made by itself
	Type                     string
	Active, Idle, Size       int
	Execute                  int64         // statements since the start
	Paused                   time.Duration // left of `stop @@heartbeat`; 0 when beats run
}

// DataSource is one row of show @@datasource: one writeHost or readHost as seen by one dataNode.
type DataSource struct {
	DataNode, Name, Type, Host string
	Port                       int
	Access                     string // "W" or "R"
	Active, Idle, Size         int    // Size is maxCon
	Execute                    int64
}

// Server is the row of show @@server. Memory is in bytes.
type Server struct {
	Uptime                             string // "18s 761ms"
	UsedMemory, TotalMemory, MaxMemory int64
	Charset                            string
	Status                             string // "ON", or "OFF" after `offline`, which stops no SQL
}

// ThreadPool is one row of show @@threadpool. BusinessExecutor with every thread active and a growing queue is the mark of a hang.
type ThreadPool struct {
	Name                 string
	Size, Active, Queued int
	Completed, Total     int64
}

// Connection is one client's row of show @@connection.
type Connection struct {
	ID         int64
	Host       string
	ServerPort int // 8066 or 9066
	ClientPort int
	User       string
	Schema     string // empty when none is selected
	NetIn      int64
	NetOut     int64
	Alive      time.Duration
}

// Version asks for Mycat's version string, "5.6.29-mycat-1.6.7.5-release-20200428154739". DBLE and MySQL have no "-mycat-" in theirs.
func (a *Admin) Version(ctx context.Context) (string, error) {
	t, err := a.table(ctx, "show @@version", "VERSION")
	if err != nil {
		return "", err
	}
	all, err := decode(t, func(r *record) string { return r.text("VERSION") })
	if err != nil || len(all) != 1 {
		return "", fmt.Errorf("read show @@version of mycat: %d rows: %w", len(all), orColumn(err))
	}
	return all[0], nil
}

// Heartbeats asks for Mycat's opinion of every backend, in no order.
func (a *Admin) Heartbeats(ctx context.Context) ([]Heartbeat, error) {
	t, err := a.table(ctx, "show @@heartbeat", "NAME", "RS_CODE")
	if err != nil {
		return nil, err
	}
	return decode(t, heartbeatOf)
}

func heartbeatOf(r *record) Heartbeat {
	return Heartbeat{
		Name: r.text("NAME"), Type: r.text("TYPE"), Host: r.text("HOST"), Port: r.small("PORT"),
		RSCode: RSCode(r.small("RS_CODE")), Retry: r.small("RETRY"), Status: r.text("STATUS"),
		Timeout:  time.Duration(r.small("TIMEOUT")) * time.Millisecond,
		Averages: r.text("EXECUTE_TIME"), LastActive: r.text("LAST_ACTIVE_TIME"), Stopped: strings.EqualFold(r.text("STOP"), "true"),
	}
}

// DataNodes asks for every dataNode with the writeHost in use, in no order.
func (a *Admin) DataNodes(ctx context.Context) ([]DataNode, error) {
	t, err := a.table(ctx, "show @@datanode", "NAME", "INDEX")
	if err != nil {
		return nil, err
	}
	return decode(t, dataNodeOf)
}

func dataNodeOf(r *record) DataNode {
	host, database, _ := strings.Cut(r.text("DATHOST"), "/") // sic: the column's name has no second A
	return DataNode{
		Name: r.text("NAME"), DataHost: host, Database: database, Index: r.small("INDEX"), Type: r.text("TYPE"),
		Active: r.small("ACTIVE"), Idle: r.small("IDLE"), Size: r.small("SIZE"), Execute: r.long("EXECUTE"),
		Paused: time.Duration(max(r.small("RECOVERY_TIME"), 0)) * time.Second, // -1 when beats run
	}
}

// DataSources asks for every writeHost and readHost of every dataNode, in no order.
func (a *Admin) DataSources(ctx context.Context) ([]DataSource, error) {
	t, err := a.table(ctx, "show @@datasource", "DATANODE", "W/R")
	if err != nil {
		return nil, err
	}
	return decode(t, dataSourceOf)
}

func dataSourceOf(r *record) DataSource {
	return DataSource{
		DataNode: r.text("DATANODE"), Name: r.text("NAME"), Type: r.text("TYPE"), Host: r.text("HOST"), Port: r.small("PORT"),
		Access: strings.ToUpper(r.text("W/R")), Active: r.small("ACTIVE"), Idle: r.small("IDLE"), Size: r.small("SIZE"),
		Execute: r.long("EXECUTE"),
	}
}

// Server asks for memory and state of the process.
func (a *Admin) Server(ctx context.Context) (Server, error) {
	t, err := a.table(ctx, "show @@server", "UPTIME", "STATUS")
	if err != nil {
		return Server{}, err
	}
	all, err := decode(t, serverOf)
	if err != nil || len(all) != 1 {
		return Server{}, fmt.Errorf("read show @@server of mycat: %d rows: %w", len(all), orColumn(err))
	}
	return all[0], nil
}

func serverOf(r *record) Server {
	return Server{
		Uptime: r.text("UPTIME"), UsedMemory: r.long("USED_MEMORY"), TotalMemory: r.long("TOTAL_MEMORY"),
		MaxMemory: r.long("MAX_MEMORY"), Charset: r.text("CHARSET"), Status: r.text("STATUS"),
	}
}

// ThreadPools asks for Mycat's executors.
func (a *Admin) ThreadPools(ctx context.Context) ([]ThreadPool, error) {
	t, err := a.table(ctx, "show @@threadpool", "NAME", "ACTIVE_COUNT")
	if err != nil {
		return nil, err
	}
	return decode(t, threadPoolOf)
}

func threadPoolOf(r *record) ThreadPool {
	return ThreadPool{
		Name: r.text("NAME"), Size: r.small("POOL_SIZE"), Active: r.small("ACTIVE_COUNT"), Queued: r.small("TASK_QUEUE_SIZE"),
		Completed: r.long("COMPLETED_TASK"), Total: r.long("TOTAL_TASK"),
	}
}

// Connections asks for every client of both ports, this one included.
func (a *Admin) Connections(ctx context.Context) ([]Connection, error) {
	t, err := a.table(ctx, "show @@connection", "ID", "PORT")
	if err != nil {
		return nil, err
	}
	return decode(t, connectionOf)
}

func connectionOf(r *record) Connection {
	return Connection{
		ID: r.long("ID"), Host: r.text("HOST"), ServerPort: r.small("PORT"), ClientPort: r.small("LOCAL_PORT"),
		User: r.text("USER"), Schema: r.text("SCHEMA"), NetIn: r.long("NET_IN"), NetOut: r.long("NET_OUT"),
		Alive: time.Duration(r.small("ALIVE_TIME(S)")) * time.Second,
	}
}

// SysParams asks for the parameters of server.xml in force, by name in lower case without Mycat's prefix ("Mycat_bindIp" is "bindip").
// switchType, notSwitch and everything else of schema.xml is not among them: only the file tells (ParseSchema).
func (a *Admin) SysParams(ctx context.Context) (map[string]string, error) {
	t, err := a.table(ctx, "show @@sysparam", "PARAM_NAME", "PARAM_VALUE")
	if err != nil {
		return nil, err
	}
	params := make(map[string]string, len(t.rows))
	_, err = decode(t, func(r *record) struct{} {
		name := strings.ToLower(r.text("PARAM_NAME"))
		name = strings.TrimPrefix(strings.TrimPrefix(name, "mycat_"), "mysql_")
		params[name] = r.text("PARAM_VALUE")
		return struct{}{}
	})
	return params, err
}

// Kill closes clients of either port by their ids and rolls their transactions back; it says how many it found. A client whose
// statement hangs at a backend is closed, its statement is not: only the backend itself can stop that one.
func (a *Admin) Kill(ctx context.Context, ids ...int64) (int64, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = strconv.FormatInt(id, 10)
	}
	n, err := a.exec(ctx, "kill @@connection "+strings.Join(list, ","))
	if err != nil {
		return 0, fmt.Errorf("kill %d connections of mycat: %w", len(ids), err)
	}
	return n, nil
}

func (a *Admin) table(ctx context.Context, command string, needs ...string) (table, error) {
	rows, err := a.query(ctx, command)
	if err != nil {
		return table{}, fmt.Errorf("run %s of mycat: %w", command, err)
	}
	t, err := newTable(rows, needs...)
	if err != nil {
		return table{}, fmt.Errorf("read %s of mycat: %w", command, err)
	}
	return t, nil
}
