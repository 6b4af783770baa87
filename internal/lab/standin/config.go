// Package standin is a stand-in for Mycat 1.6 in the laboratory: the bytes, texts, timelines and faults of Mycat that a failover
// controller meets, in front of real MariaDB and MySQL servers. README.md says where it differs.
//
// It is not Mycat and no product code uses it: it knows no SQL beyond what routes a statement by its id. Like Mycat it gives backends
// no connect and no read deadline: a frozen backend hangs what was sent to it, and nothing else.
package standin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Config says what the stand-in serves. The words are those of server.xml and schema.xml; the zero value of a field is Mycat's default.
type Config struct {
	Bind          string `json:"bind,omitempty"`          // bindIp; "0.0.0.0", so that it accepts the VIP's traffic
	ServerPort    int    `json:"serverPort,omitempty"`    // 8066; -1 takes a free port
	ManagerPort   int    `json:"managerPort,omitempty"`   // 9066; -1 takes a free port
	OldHandshake  bool   `json:"oldHandshake,omitempty"`  // useHandshakeV10=0
	Executors     int    `json:"executors,omitempty"`     // processorExecutor; 4 = twice two cores. The starvation limit
	Control       string `json:"control,omitempty"`       // path of the unix socket for faults; empty: none
	DNIndex       string `json:"dnIndex,omitempty"`       // path of dnindex.properties; empty: an index is forgotten at the end
	MaxConnection int    `json:"maxConnection,omitempty"` // maxCon of data hosts that give none; 1000

	Users     []User     `json:"users"`
	Schemas   []Schema   `json:"schemas"`
	DataHosts []DataHost `json:"dataHosts"`
	DataNodes []DataNode `json:"dataNodes"`
	Tables    []Table    `json:"tables"`
	Periods   Periods    `json:"periods"`
}

// User is a <user> of server.xml. Each may use both ports, as in Mycat.
type User struct {
	Name      string   `json:"name"`
	Password  string   `json:"password"`
	ReadOnly  bool     `json:"readOnly,omitempty"`
	Schemas   []string `json:"schemas,omitempty"`   // empty: all
	Benchmark int      `json:"benchmark,omitempty"` // connections before "service be degraded"; 0: no limit
}

// Schema is a <schema>. A table that it does not know goes to DataNode, if one is given.
type Schema struct {
	Name     string `json:"name"`
	DataNode string `json:"dataNode,omitempty"`
}

// DataHost is a <dataHost>: its writeHosts are candidates in order, and only one is in use.
type DataHost struct {
	Name       string      `json:"name"`
	MaxCon     int         `json:"maxCon,omitempty"`     // connections to each writeHost, heartbeats included
	MinCon     int         `json:"minCon,omitempty"`     // opened at the start; 1
	SwitchType int         `json:"switchType,omitempty"` // -1 or 0: never switches; 1: on heartbeat
	NotSwitch  bool        `json:"notSwitch,omitempty"`  // notSwitch="1": never switches whatever switchType says
	WriteHosts []WriteHost `json:"writeHosts"`
}

// WriteHost is a <writeHost>: one backend server and the account that Mycat uses there.
type WriteHost struct {
	Name     string `json:"name"`
	Addr     string `json:"addr"` // host:port
	User     string `json:"user"`
	Password string `json:"password"`
}

// DataNode is a <dataNode>: one database at one data host.
type DataNode struct {
	Name     string `json:"name"`
	Host     string `json:"host"` // a DataHost's name
	Database string `json:"database"`
}

// Table is a <table> with the rule mod-long: a row lives at Nodes[key mod len(Nodes)].
type Table struct {
	Name  string   `json:"name"`
	Nodes []string `json:"nodes"`
	Key   string   `json:"key,omitempty"` // the sharding column; "id"
}

// Periods are the times that Mycat counts in. Tests shorten them; a zero is Mycat's default.
type Periods struct {
	Heartbeat        Duration `json:"heartbeat,omitempty"`        // dataNodeHeartbeatPeriod, 10 s
	HeartbeatTimeout Duration `json:"heartbeatTimeout,omitempty"` // 30 s, hard-coded in Mycat
	MaxRetry         int      `json:"maxRetry,omitempty"`         // failed beats before RS_CODE leaves 1; 3
	SQLExecute       Duration `json:"sqlExecute,omitempty"`       // sqlExecuteTimeout, 300 s: the only limit of a hung statement
	Check            Duration `json:"check,omitempty"`            // how often limits are looked at, 1 s
	Auth             Duration `json:"auth,omitempty"`             // authTimeout, 15 s
	Idle             Duration `json:"idle,omitempty"`             // idleTimeout of clients, 30 min
	Init             Duration `json:"init,omitempty"`             // how long a data host's first connection is waited for, 60 s
}

// Duration is a time.Duration that JSON writes as "10s".
type Duration time.Duration

// MarshalText writes the duration as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// Load reads a configuration in JSON. A key that it does not know is an error.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read stand-in configuration: %w", err)
	}
	var cfg Config
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cfg); err != nil {
		return Config{}, fmt.Errorf("read stand-in configuration %s: %w", path, err)
	}
	return cfg, nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// withDefaults fills the zero fields with Mycat's own values.
func (c Config) withDefaults() Config {
	orDefault(&c.Bind, "0.0.0.0")
	orDefault(&c.ServerPort, 8066)
	orDefault(&c.ManagerPort, 9066)
	orDefault(&c.Executors, 4)
	orDefault(&c.MaxConnection, 1000)
	orDefault(&c.Periods.Heartbeat, Duration(10*time.Second))
	orDefault(&c.Periods.HeartbeatTimeout, Duration(30*time.Second))
	orDefault(&c.Periods.MaxRetry, 3)
	orDefault(&c.Periods.SQLExecute, Duration(300*time.Second))
	orDefault(&c.Periods.Check, Duration(time.Second))
	orDefault(&c.Periods.Auth, Duration(15*time.Second))
	orDefault(&c.Periods.Idle, Duration(30*time.Minute))
	orDefault(&c.Periods.Init, Duration(60*time.Second))
	c.DataHosts = slices.Clone(c.DataHosts)
	for i := range c.DataHosts {
		orDefault(&c.DataHosts[i].MaxCon, c.MaxConnection)
		orDefault(&c.DataHosts[i].MinCon, 1)
	}
	c.Tables = slices.Clone(c.Tables)
	for i := range c.Tables {
		orDefault(&c.Tables[i].Key, "id")
	}
	return c
}

// Validate names every mistake of the configuration.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Users) == 0 {
		bad("no user")
	}
	hosts, backends := map[string]bool{}, map[string]bool{}
	for _, h := range c.DataHosts {
		if hosts[h.Name] {
			bad("data host %q is there twice", h.Name)
		}
		hosts[h.Name] = true
		if len(h.WriteHosts) == 0 {
			bad("data host %q has no write host", h.Name)
		}
		for _, w := range h.WriteHosts {
			if backends[w.Name] {
				bad("write host %q is there twice: show @@heartbeat knows them by name alone", w.Name)
			}
			backends[w.Name] = true
		}
	}
	nodes := map[string]bool{}
	for _, n := range c.DataNodes {
		nodes[n.Name] = true
		if !hosts[n.Host] {
			bad("data node %q names data host %q, which is not there", n.Name, n.Host)
		}
	}
	for _, t := range c.Tables {
		if len(t.Nodes) == 0 {
			bad("table %q has no data node", t.Name)
		}
		for _, n := range t.Nodes {
			if !nodes[n] {
				bad("table %q names data node %q, which is not there", t.Name, n)
			}
		}
	}
	for _, s := range c.Schemas {
		if s.DataNode != "" && !nodes[s.DataNode] {
			bad("schema %q names data node %q, which is not there", s.Name, s.DataNode)
		}
	}
	return errors.Join(errs...)
}
