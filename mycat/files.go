package mycat

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// maxFile bounds a configuration file; real ones have a few hundred lines.
const maxFile = 8 << 20

// SchemaFile is what Baton reads of schema.xml: which servers Mycat writes to, and what it would do when one fails. Attributes that
// are not there are empty.
type SchemaFile struct {
	DataNodes []struct {
		Name     string `xml:"name,attr"` // may be a range, "dn$1-4"
		DataHost string `xml:"dataHost,attr"`
		Database string `xml:"database,attr"`
	} `xml:"dataNode"`
	DataHosts []DataHostFile `xml:"dataHost"`
}

// DataHostFile is one <dataHost> of schema.xml.
type DataHostFile struct {
	Name       string     `xml:"name,attr"`
	SwitchType string     `xml:"switchType,attr"` // -1 when empty, whatever Mycat's documentation says
	NotSwitch  string     `xml:"notSwitch,attr"`  // "1" forbids Mycat's own switch whatever switchType says
	WriteType  string     `xml:"writeType,attr"`  // "1" writes to a random writeHost
	MaxCon     string     `xml:"maxCon,attr"`
	Heartbeat  string     `xml:"heartbeat"`
	WriteHosts []HostFile `xml:"writeHost"`
}

// HostFile is one <writeHost> or <readHost>: a server and the account that Mycat uses there.
type HostFile struct {
	Name      string     `xml:"host,attr"`
	URL       string     `xml:"url,attr"` // host:port, or a JDBC URL
	User      string     `xml:"user,attr"`
	ReadHosts []HostFile `xml:"readHost"`
}

// ServerFile is what Baton reads of server.xml.
type ServerFile struct {
	Properties []propertyFile `xml:"system>property"`
	Users      []UserFile     `xml:"user"`
}

// UserFile is one <user> of server.xml: who may log in to both ports.
type UserFile struct {
	Name       string         `xml:"name,attr"`
	Properties []propertyFile `xml:"property"`
}

type propertyFile struct {
	Name  string `xml:"name,attr"`
	Value string `xml:",chardata"`
}

func property(all []propertyFile, name string) string {
	i := slices.IndexFunc(all, func(p propertyFile) bool { return p.Name == name })
	if i < 0 {
		return ""
	}
	return strings.TrimSpace(all[i].Value)
}

// ParseSchema reads schema.xml.
func ParseSchema(r io.Reader) (SchemaFile, error) {
	var f SchemaFile
	if err := parse(r, "schema", &f); err != nil {
		return SchemaFile{}, fmt.Errorf("read schema.xml: %w", err)
	}
	return f, nil
}

// ParseServer reads server.xml.
func ParseServer(r io.Reader) (ServerFile, error) {
	var f ServerFile
	if err := parse(r, "server", &f); err != nil {
		return ServerFile{}, fmt.Errorf("read server.xml: %w", err)
	}
	return f, nil
}

// parse decodes a document whose root is <mycat:root>. Bytes of other encodings than UTF-8 pass: what Baton reads is ASCII.
func parse(r io.Reader, root string, into any) error {
	d := xml.NewDecoder(io.LimitReader(r, maxFile))
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("no <mycat:%s> in it", root)
		}
		if err != nil {
			return err
		}
		if start, ok := t.(xml.StartElement); ok {
			if start.Name.Local != root {
				return fmt.Errorf("the root is <%s>, not <mycat:%s>", start.Name.Local, root)
			}
			return d.DecodeElement(into, &start)
		}
	}
}

// BackendAccount is an account that Mycat logs in with at a server. One that passes read_only makes a fence worthless.
type BackendAccount struct {
	User, URL string
}

// BackendAccounts lists the accounts of all writeHosts and readHosts once each, in the order of the file.
func (f SchemaFile) BackendAccounts() []BackendAccount {
	var out []BackendAccount
	add := func(h HostFile) {
		if a := (BackendAccount{h.User, h.URL}); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, dh := range f.DataHosts {
		for _, w := range dh.WriteHosts {
			add(w)
			for _, r := range w.ReadHosts {
				add(r)
			}
		}
	}
	return out
}

// Port is a port that server.xml gives ("serverPort", "managerPort"), or Mycat's default for it; 0 when it is no port.
func (f ServerFile) Port(name string) uint16 {
	text := property(f.Properties, name)
	if text == "" {
		return map[string]uint16{"serverPort": 8066, "managerPort": 9066}[name]
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}
