package check

import (
	"fmt"
	"strconv"
	"strings"
)

var mycatChecks = []func(input) []Finding{checkMycatLogin, checkMycatVersion, checkRouting, checkDataSources, checkParams, checkLint}

var (
	mycatLogin = declare("MYCAT_LOGIN", Critical,
		"Mycat cannot be probed from here as an application uses it.",
		"Start Mycat, open the port to every node, and add the user of baton.yaml to server.xml with its schema.")
	mycatAdminLogin = declare("MYCAT_ADMIN_LOGIN", Warning,
		"The management port does not answer. It is advisory to Baton, but its tables show switches that Mycat makes by itself.",
		"Open the port to the nodes, and to nobody else: every user may run every command there.")
	mycatVersion = declare("MYCAT_VERSION", Warning,
		"Baton was made for Mycat 1.6. Another proxy may not know the routing hint, which is how a single shard is looked at.",
		"Use Mycat 1.6.7 or later of the 1.6 line.")
	mycatShard = declare("MYCAT_DATANODE_FAILS", Critical,
		"Applications cannot reach this shard through this Mycat: the site could not take over, or is down for this shard.",
		"Look at the dataNode and its dataHost in schema.xml, and at the backend's account.")
	mycatWrongServer = declare("MYCAT_DATANODE_WRONG", Critical,
		"The dataNode leads to another server than baton.yaml says. After a switch applications would write elsewhere than Baton believes.",
		"Point the dataHost's only writeHost at the site's own instance, or mend data_nodes in baton.yaml.")
	mycatWriteHosts = declare("MYCAT_WRITE_HOSTS", Critical,
		"With several writeHosts Mycat switches by itself, without fence or agreement: some shards of one side would be written on the other's servers.",
		"Exactly one writeHost for each dataHost, with switchType=\"-1\" and notSwitch=\"1\".")
	mycatIndex = declare("MYCAT_INDEX", Critical,
		"Mycat has switched by itself to another writeHost than the first.",
		"Leave one writeHost in the dataHost, delete conf/dnindex.properties and restart Mycat.")
	mycatBind = declare("MYCAT_BIND", Critical,
		"Mycat listens on one address only, so it does not answer on the VIP when it comes.",
		"Set bindIp to 0.0.0.0 in server.xml.")
	mycatExecutor = declare("MYCAT_EXECUTOR", Warning,
		"All SQL of both ports runs on this few threads. One hanging shard takes them all, and the whole proxy looks dead.",
		"Set processorExecutor to 64 or more in server.xml.")
	mycatTables = declare("MYCAT_TABLES", Warning,
		"Whether Mycat can switch by itself is not known.",
		"Use Mycat 1.6.7 or later; give schema_xml, so that the file is looked at.")
	mycatFile = declare("MYCAT_FILE", Warning,
		"Whether Mycat's own configuration works against a switch from outside is not known.",
		"Mend the path in mycat: {schema_xml, server_xml}, or the file; run the check as root on a Mycat host.")
)

func checkMycatLogin(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Mycats {
		if m.SQL != nil {
			fs = append(fs, mycatLogin.at(mycatPlace(m.Site), m.SQL.Error()))
		}
		if m.Admin != nil {
			fs = append(fs, mycatAdminLogin.at(mycatPlace(m.Site), m.Admin.Error()))
		} else if m.TableErr != nil {
			fs = append(fs, mycatTables.at(mycatPlace(m.Site), m.TableErr.Error()))
		}
	}
	return fs
}

func checkMycatVersion(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Mycats {
		if m.Admin == nil && m.Version != "" && !strings.Contains(m.Version, "-mycat-1.6") {
			fs = append(fs, mycatVersion.at(mycatPlace(m.Site), "version "+m.Version))
		}
	}
	return fs
}

// checkRouting asks each shard through each proxy who it is, and compares that with what the server itself says.
func checkRouting(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Mycats {
		if m.SQL != nil {
			continue
		}
		for _, r := range m.Shards {
			place := fmt.Sprintf("%s dataNode %s", mycatPlace(m.Site), r.DataNode)
			if r.Err != nil {
				fs = append(fs, mycatShard.at(place, r.Err.Error()))
				continue
			}
			for _, x := range in.answered() {
				id := strconv.FormatUint(uint64(r.ServerID), 10)
				if x.Site == m.Site && x.Shard == r.Shard && (id != x.Vars["server_id"] || r.Hostname != x.Vars["hostname"] || strconv.Itoa(int(r.Port)) != x.Vars["port"]) {
					fs = append(fs, mycatWrongServer.at(place, fmt.Sprintf("server_id %d on %s:%d answers; shard %s of site %s is server_id %s on %s:%s",
						r.ServerID, r.Hostname, r.Port, r.Shard, m.Site, x.Vars["server_id"], x.Vars["hostname"], x.Vars["port"])))
				}
			}
		}
	}
	return fs
}

func checkDataSources(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Mycats {
		for _, d := range m.Sources {
			place := fmt.Sprintf("%s dataNode %s", mycatPlace(m.Site), d.DataNode)
			if len(d.WriteHosts) > 1 {
				fs = append(fs, mycatWriteHosts.at(place, fmt.Sprintf("%d writeHosts: %s", len(d.WriteHosts), strings.Join(d.WriteHosts, ", "))))
			}
			if d.Index != 0 {
				fs = append(fs, mycatIndex.at(place, fmt.Sprintf("INDEX = %d", d.Index)))
			}
		}
	}
	return fs
}

// enoughThreads is what measurements recommend for processorExecutor; the default is twice the cores.
const enoughThreads = 32

func checkParams(in input) []Finding {
	var fs []Finding
	for _, m := range in.facts.Mycats {
		if ip, ok := m.Params["bindip"]; ok && ip != "0.0.0.0" && ip != "" {
			fs = append(fs, mycatBind.at(mycatPlace(m.Site), "bindIp = "+ip))
		}
		if n, err := strconv.Atoi(m.Params["processorexecutor"]); err == nil && n < enoughThreads {
			fs = append(fs, mycatExecutor.at(mycatPlace(m.Site), fmt.Sprintf("processorExecutor = %d", n)))
		}
	}
	return fs
}

// checkLint hands on what package mycat found in the files: it knows them.
func checkLint(in input) []Finding { return in.facts.Lint }
