package standin

import (
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const mycatTime = "2006-01-02 15:04:05" // local time of the host, without a zone

func showVersion(*Server, string) *resultSet { return single("VERSION:C", version) }

func hostPort(addr string) (string, int) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, 0
	}
	n, _ := strconv.Atoi(port)
	return host, n
}

func showHeartbeat(srv *Server, _ string) *resultSet {
	rs := newResult("NAME:S", "TYPE:S", "HOST:S", "PORT:I", "RS_CODE:I", "RETRY:I", "STATUS:S", "TIMEOUT:L", "EXECUTE_TIME:S",
		"LAST_ACTIVE_TIME:S", "STOP:S")
	now := time.Now()
	for _, h := range srv.hostOrder {
		for _, heart := range h.hearts {
			host, port := hostPort(heart.pool.host.Addr)
			v := heart.view(now)
			code, retry, status, last := v.state.code, v.state.retry, "idle", v.last
			if v.state.checking {
				status = "checking"
			}
			if srv.faults.hbLie.Load() {
				code, retry, status, last = rsOK, 0, "idle", now
			}
			rs.add(heart.pool.host.Name, "mysql", host, port, code, retry, status,
				time.Duration(srv.cfg.Periods.HeartbeatTimeout).Milliseconds(), averages(v.kept), last.Format(mycatTime), "false")
		}
	}
	return rs.shuffled()
}

// averages stands for Mycat's means over 1, 10 and 30 minutes; one mean serves for the three.
func averages(kept []beatRecord) string {
	if len(kept) == 0 {
		return "0,0,0"
	}
	var total time.Duration
	for _, k := range kept {
		total += k.took
	}
	ms := (total / time.Duration(len(kept))).Milliseconds()
	return fmt.Sprintf("%d,%d,%d", ms, ms, ms)
}

// showHeartbeatDetail has one row of NULLs for a name that is not there, as Mycat.
func showHeartbeatDetail(srv *Server, arg string) *resultSet {
	rs := newResult("NAME:S", "TYPE:S", "HOST:S", "PORT:I", "TIME:T", "EXECUTE_TIME:S")
	name := where(arg)
	for _, h := range srv.hostOrder {
		for _, heart := range h.hearts {
			if heart.pool.host.Name != name {
				continue
			}
			host, port := hostPort(heart.pool.host.Addr)
			for _, k := range heart.view(time.Now()).kept {
				rs.add(name, "mysql", host, port, k.at.Format(mycatTime), strconv.FormatInt(k.took.Milliseconds(), 10))
			}
			return rs
		}
	}
	rs.add(nil, nil, nil, nil, nil, nil)
	return rs
}

func showSyncDetail(*Server, string) *resultSet {
	return newResult("name:S", "host:S", "port:L", "Master_Host:S", "Master_Port:L", "Master_Use:S", "TIME:T", "Seconds_Behind_Master:L")
}

func showDataSource(srv *Server, arg string) *resultSet {
	rs := newResult("DATANODE:S", "NAME:S", "TYPE:S", "HOST:S", "PORT:I", "W/R:S", "ACTIVE:I", "IDLE:I", "SIZE:I", "EXECUTE:L",
		"READ_LOAD:I", "WRITE_LOAD:I")
	only := where(arg)
	for _, n := range srv.nodeOrder {
		if only != "" && n.cfg.Name != only {
			continue
		}
		for _, p := range n.host.pools {
			host, port := hostPort(p.host.Addr)
			active, idle := p.counts(n.cfg.Database)
			rs.add(n.cfg.Name, p.host.Name, "mysql", host, port, "W", active, idle, p.max, p.executed.Load(), 0, 0)
		}
	}
	return rs.shuffled()
}

func showDataNode(srv *Server, _ string) *resultSet {
	rs := newResult("NAME:S", "DATHOST:S", "INDEX:I", "TYPE:S", "ACTIVE:I", "IDLE:I", "SIZE:I", "EXECUTE:L", "TOTAL_TIME:D",
		"MAX_TIME:D", "MAX_SQL:L", "RECOVERY_TIME:L")
	now := time.Now()
	for _, n := range srv.nodeOrder {
		index := n.host.index()
		p := n.host.pools[index]
		active, idle := p.counts(n.cfg.Database)
		recovery := int64(-1)
		if left := n.host.hearts[index].view(now).paused; left > 0 {
			recovery = int64(left/time.Second) + 1
		}
		rs.add(n.cfg.Name, n.cfg.Host+"/"+n.cfg.Database, index, "mysql", active, idle, p.max, p.executed.Load(), 0, 0, 0, recovery)
	}
	return rs.shuffled()
}

func showBackend(srv *Server, _ string) *resultSet {
	rs := newResult("processor:S", "id:I", "mysqlId:I", "host:S", "port:I", "l_port:I", "net_in:L", "net_out:L", "life:L", "closed:S",
		"borrowed:S", "SEND_QUEUE:I", "schema:S", "charset:S", "txlevel:S", "autocommit:S", "tx_readonly:S")
	now := time.Now()
	for _, h := range srv.hostOrder {
		for _, p := range h.pools {
			host, port := hostPort(p.host.Addr)
			for _, b := range p.list() {
				_, local := hostPort(b.local.String())
				rs.add("Processor0", b.id, int64(b.threadID), host, port, local, 0, 0, int64(now.Sub(b.born)/time.Second), "false",
					strconv.FormatBool(b.borrowed), 0, b.database, b.vars.charset+":"+strconv.Itoa(backendCharset), "3",
					strconv.FormatBool(b.vars.autocommit), "false")
			}
		}
	}
	return rs.shuffled()
}

func showBackendOld(*Server, string) *resultSet {
	return newResult("processor:S", "id:I", "mysqlId:I", "host:S", "port:I", "l_port:I", "net_in:L", "net_out:L", "life:L",
		"lasttime:L", "borrowed:S")
}

func showConnection(srv *Server, _ string) *resultSet {
	rs := newResult("PROCESSOR:S", "ID:I", "HOST:S", "PORT:I", "LOCAL_PORT:I", "USER:S", "SCHEMA:S", "CHARSET:S", "NET_IN:L",
		"NET_OUT:L", "ALIVE_TIME(S):L", "RECV_BUFFER:I", "SEND_QUEUE:I", "txlevel:S", "autocommit:S")
	now := time.Now()
	for _, s := range srv.sortedSessions() {
		_, server := hostPort(s.conn.LocalAddr().String())
		host, client := hostPort(s.conn.RemoteAddr().String())
		s.mu.Lock()
		user, schema := s.user.Name, orNull(s.schema)
		s.mu.Unlock()
		rs.add("Processor"+strconv.Itoa(int(s.id%2)), int64(s.id), host, server, client, user, schema, "utf8:33", s.conn.in.Load(),
			s.conn.out.Load(), int64(now.Sub(s.born)/time.Second), 4096, 0, "", "")
	}
	return rs.shuffled()
}

func showConnectionSQL(srv *Server, _ string) *resultSet {
	rs := newResult("ID:I", "HOST:S", "USER:S", "SCHEMA:S", "START_TIME:L", "EXECUTE_TIME:L", "SQL:S")
	now := time.Now()
	for _, s := range srv.sortedSessions() {
		host, _ := hostPort(s.conn.RemoteAddr().String())
		s.mu.Lock()
		rs.add(int64(s.id), host, s.user.Name, orNull(s.schema), s.since.UnixMilli(), now.Sub(s.since).Milliseconds(), orNull(s.active))
		s.mu.Unlock()
	}
	return rs.shuffled()
}

func showServer(srv *Server, _ string) *resultSet {
	rs := newResult("UPTIME:S", "USED_MEMORY:L", "TOTAL_MEMORY:L", "MAX_MEMORY:L", "RELOAD_TIME:L", "ROLLBACK_TIME:L", "CHARSET:S",
		"STATUS:S")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	up := time.Since(srv.started)
	status := "ON"
	if srv.offline.Load() {
		status = "OFF"
	}
	reloaded := srv.reloaded.Load()
	if reloaded == 0 {
		reloaded = srv.started.UnixMilli()
	}
	const maxHeap = 512 << 20 // -Xmx512m, as measured
	rs.add(fmt.Sprintf("%ds %dms", up/time.Second, up%time.Second/time.Millisecond), int64(m.HeapAlloc), int64(m.HeapSys), maxHeap,
		reloaded, -1, "utf8", status)
	return rs
}

func showThreadPool(srv *Server, _ string) *resultSet {
	rs := newResult("NAME:S", "POOL_SIZE:I", "ACTIVE_COUNT:I", "TASK_QUEUE_SIZE:I", "COMPLETED_TASK:L", "TOTAL_TASK:L")
	active, queued, completed := len(srv.exec.slots), srv.exec.queued.Load(), srv.exec.completed.Load()
	rs.add("Timer", 2, 0, 0, completed, completed)
	rs.add("BusinessExecutor", srv.cfg.Executors, active, queued, completed, completed+queued+int64(active))
	return rs
}

func showProcessor(srv *Server, _ string) *resultSet {
	rs := newResult("NAME:S", "NET_IN:L", "NET_OUT:L", "REACT_COUNT:L", "R_QUEUE:I", "W_QUEUE:I", "FREE_BUFFER:L", "TOTAL_BUFFER:L",
		"BU_PERCENT:Y", "BU_WARNS:I", "FC_COUNT:I", "BC_COUNT:I")
	var in, out int64
	for _, s := range srv.allSessions() {
		in, out = in+s.conn.in.Load(), out+s.conn.out.Load()
	}
	backends := 0
	for _, h := range srv.hostOrder {
		for _, p := range h.pools {
			backends += len(p.list())
		}
	}
	const buffers = 171798691840 // as measured on a machine of 2 cores
	rs.add("Processor0", in, out, 0, 0, 0, int64(buffers), int64(buffers), 0, 0, len(srv.allSessions()), backends)
	return rs
}

func showSlow(*Server, string) *resultSet {
	return newResult("USER:S", "DATASOURCE:S", "START_TIME:L", "EXECUTE_TIME:L", "SQL:S", "IP:S", "SCHEMA:S")
}

func showSQL(*Server, string) *resultSet {
	return newResult("ID:L", "USER:V", "START_TIME:L", "EXECUTE_TIME:L", "SQL:S", "IP:S")
}

func showSession(*Server, string) *resultSet {
	return newResult("SESSION:S", "DN_COUNT:S", "DN_LIST:S")
}

func showDatabase(srv *Server, _ string) *resultSet {
	rs := newResult("DATABASE:S")
	for _, s := range srv.cfg.Schemas {
		rs.add(s.Name)
	}
	return rs
}

func showTime(*Server, string) *resultSet { return single("TIMESTAMP:L", time.Now().UnixMilli()) }

func showStartup(srv *Server, _ string) *resultSet {
	return single("TIMESTAMP:L", srv.started.UnixMilli())
}

func showCommand(srv *Server, _ string) *resultSet {
	rs := newResult("PROCESSOR:S", "INIT_DB:L", "QUERY:L", "STMT_PREPARE:L", "STMT_EXECUTE:L", "STMT_CLOSE:L", "PING:L", "KILL:L",
		"QUIT:L", "OTHER:L")
	rs.add("Processor0", 0, srv.exec.completed.Load(), 0, 0, 0, 0, 0, 0, 0)
	return rs
}

func showMemory(*Server, string) *resultSet {
	rs := newResult("MDIRECT_MEMORY_MAXED:S", "DIRECT_MEMORY_USED:S", "DIRECT_MEMORY_AVAILABLE:S", "SAFETY_FRACTION:S",
		"DIRECT_MEMORY_RESERVED:S")
	rs.add("256MB", "1736KB", "254MB", "1.0", "0")
	return rs
}

func showSysParam(srv *Server, _ string) *resultSet {
	rs := newResult("PARAM_NAME:S", "PARAM_VALUE:S", "PARAM_DESCR:S")
	ms := func(d Duration) string { return strconv.FormatInt(time.Duration(d).Milliseconds(), 10) }
	p := srv.cfg.Periods
	for _, row := range [][2]string{
		{"processors", "2"},
		{"processorExecutor", strconv.Itoa(srv.cfg.Executors)},
		{"Mysql_idleTimeout", ms(p.Idle)},
		{"Mysql_sqlExecuteTimeout", strconv.FormatInt(int64(time.Duration(p.SQLExecute)/time.Second), 10)},
		{"Mycat_dataNodeHeartbeatPeriod", ms(p.Heartbeat)},
		{"Mycat_bindIp", srv.cfg.Bind},
		{"Mycat_serverPort", strconv.Itoa(int(srv.addrs[0].Port()))},
		{"Mycat_managerPort", strconv.Itoa(int(srv.addrs[1].Port()))},
	} {
		rs.add(row[0], row[1], "")
	}
	return rs
}

func showHelp(srv *Server, _ string) *resultSet {
	rs := newResult("STATEMENT:S", "DESCRIPTION:S")
	for _, c := range srv.commands {
		rs.add(strings.TrimSpace(c.words), "")
	}
	return rs
}
