package mycat

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const goodSchema = `<?xml version="1.0"?>
<!DOCTYPE mycat:schema SYSTEM "schema.dtd">
<mycat:schema xmlns:mycat="http://io.mycat/">
	<schema name="bank" checkSQLschema="true"><table name="ledger" dataNode="dn1,dn2" rule="mod-long"/></schema>
	<dataNode name="dn1" dataHost="dh1" database="bank"/>
	<dataHost name="dh1" maxCon="50" minCon="4" balance="0" writeType="0" dbType="mysql" dbDriver="native" switchType="-1" notSwitch="1">
		<heartbeat>select user()</heartbeat>
		<writeHost host="hostM1" url="10.0.0.1:3306" user="mycat" password="x"/>
	</dataHost>
</mycat:schema>`

// codes is the findings' codes and severities, sorted.
func codes(fs []Finding) string {
	var out []string
	for _, f := range fs {
		if f.Place == "" || f.Seen == "" || f.Means == "" || f.Do == "" {
			out = append(out, "INCOMPLETE")
		}
		out = append(out, fmt.Sprintf("%s/%s", f.Code, f.Severity))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestSchemaLint(t *testing.T) {
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(goodSchema) }
	second := `<writeHost host="hostM2" url="10.0.0.2:3306" user="mycat" password="x"><readHost host="hostM1" url="10.0.0.3:3306" user="r"/></writeHost></dataHost>`
	for _, tt := range []struct{ name, xml, want string }{
		{"good", goodSchema, ""},
		{"switchType 1", replace(`switchType="-1"`, `switchType="1"`), "MYCAT_SWITCH_TYPE/warning"},
		{"switchType omitted", replace(` switchType="-1"`, ``), "MYCAT_SWITCH_TYPE/info"},
		{"notSwitch omitted", replace(` notSwitch="1"`, ``), "MYCAT_NOT_SWITCH/warning"},
		{"random writes", replace(`writeType="0"`, `writeType="1"`), "MYCAT_WRITE_TYPE/warning"},
		{
			"two writers that switch", replace(`</dataHost>`, second, `switchType="-1"`, `switchType="1"`, `writeType="0"`, `writeType="1"`),
			"MYCAT_HOST_TWICE/warning MYCAT_SWITCH_TYPE/critical MYCAT_WRITE_HOSTS/critical MYCAT_WRITE_TYPE/critical",
		},
		{"no writer", replace(`<writeHost host="hostM1" url="10.0.0.1:3306" user="mycat" password="x"/>`, ``), "MYCAT_WRITE_HOSTS/critical"},
		{"another encoding", replace(`version="1.0"`, `version="1.0" encoding="GBK"`), ""},
	} {
		f, err := ParseSchema(strings.NewReader(tt.xml))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := codes(f.Lint()); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	f, err := ParseSchema(strings.NewReader(replace(`</dataHost>`, second+strings.Repeat("\n", 3))))
	want := "[{mycat 10.0.0.1:3306} {mycat 10.0.0.2:3306} {r 10.0.0.3:3306}]"
	if got := fmt.Sprint(f.BackendAccounts()); err != nil || got != want {
		t.Errorf("accounts %s, %v, want %s", got, err, want)
	}
	if f.DataNodes[0].DataHost != "dh1" || f.DataHosts[0].Heartbeat != "select user()" {
		t.Errorf("read %+v", f)
	}
}

func TestServerLint(t *testing.T) {
	for _, tt := range []struct{ name, system, want string }{
		{"good", `<property name="processorExecutor"> 64 </property><property name="bindIp">0.0.0.0</property>`, ""},
		{"defaults", ``, "MYCAT_EXECUTOR/warning"},
		{"bound", `<property name="processorExecutor">x</property><property name="bindIp">10.0.0.1</property>`, "MYCAT_BIND/critical MYCAT_EXECUTOR/warning"},
		{"zookeeper", `<property name="processorExecutor">64</property><property name="useZKSwitch">true</property>`, "MYCAT_ZK_SWITCH/critical"},
	} {
		f, err := ParseServer(strings.NewReader(serverXML(tt.system)))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := codes(f.Lint()); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	f, err := ParseServer(strings.NewReader(serverXML(`<property name="serverPort">8067</property><property name="x">y</property>`)))
	if err != nil || f.Port("serverPort") != 8067 || f.Port("managerPort") != 9066 || f.Port("x") != 0 {
		t.Errorf("ports %d %d, %v", f.Port("serverPort"), f.Port("managerPort"), err)
	}
	for user, want := range map[string]string{
		"baton": "", "reader": "MYCAT_USER_READ_ONLY/critical MYCAT_USER_SCHEMA/critical", "nobody": "MYCAT_USER/critical",
	} {
		if got := codes(f.LintUser(user, "bank")); got != want {
			t.Errorf("user %s: %s, want %s", user, got, want)
		}
	}
}

func serverXML(system string) string {
	return `<!DOCTYPE mycat:server SYSTEM "server.dtd"><mycat:server xmlns:mycat="http://io.mycat/"><system>` + system + `</system>
	<user name="baton" defaultAccount="true"><property name="password">x</property><property name="schemas">other, bank</property></user>
	<user name="reader"><property name="readOnly">true</property><property name="schemas">other</property></user></mycat:server>`
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "no xml", "<mycat:schema", "<a/>", serverXML("")} {
		if _, err := ParseSchema(strings.NewReader(text)); err == nil {
			t.Errorf("%.20q is a schema.xml", text)
		}
	}
	if _, err := ParseServer(strings.NewReader(goodSchema)); err == nil {
		t.Error("schema.xml is a server.xml")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(goodSchema)
	f.Add(serverXML(`<property name="bindIp">1</property>`))
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := ParseSchema(strings.NewReader(text)); err == nil {
			_, _ = s.Lint(), s.BackendAccounts()
		}
		if s, err := ParseServer(strings.NewReader(text)); err == nil {
			_, _, _ = s.Lint(), s.LintUser("a", "b"), s.Port("serverPort")
		}
	})
}
