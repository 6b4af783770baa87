package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/baton-ha/baton/internal/lab/netns"
)

const hostsFile = hostsDir + "/hosts.json"

// entrance is where a host's namespaces are found: a thread of the laboratory's own process, by the ids that hold in its box.
type entrance struct {
	PID int `json:"pid"`
	TID int `json:"tid"`
}

// writeHosts leaves, in the box, the way into each host.
func writeHosts(n *netns.Network) error {
	ways := make(map[string]entrance)
	for _, name := range hostNames() {
		host, err := n.Host(name)
		if err != nil {
			return err
		}
		ways[name] = entrance{PID: os.Getpid(), TID: host.ThreadID()}
	}
	ways["switch"] = entrance{PID: os.Getpid(), TID: n.Switch.ThreadID()}
	text, err := json.Marshal(ways)
	if err != nil {
		return fmt.Errorf("write the list of hosts: %w", err)
	}
	if err := os.WriteFile(hostsFile, text, 0o644); err != nil {
		return fmt.Errorf("write the list of hosts: %w", err)
	}
	return nil
}

func hostNames() []string {
	var names []string
	for _, s := range specs() {
		names = append(names, s.Name)
	}
	return names
}

// EnterArgs is the command that runs another command on a host of the laboratory in the box whose first process is pid.
func EnterArgs(pid int, host string, command ...string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), hostsFile))
	if err != nil {
		return nil, fmt.Errorf("find the hosts of the laboratory (is it still up?): %w", err)
	}
	var ways map[string]entrance
	if err := json.Unmarshal(text, &ways); err != nil {
		return nil, fmt.Errorf("read the list of hosts: %w", err)
	}
	way, ok := ways[host]
	if !ok {
		return nil, fmt.Errorf("host %q does not exist: there are %s and switch", host, strings.Join(hostNames(), ", "))
	}
	// First into the box, whose /proc knows the thread; then into the host.
	ns := fmt.Sprintf("/proc/%d/task/%d/ns/", way.PID, way.TID)
	args := []string{
		"nsenter", "--target", fmt.Sprint(pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--",
		"nsenter", "--net=" + ns + "net", "--uts=" + ns + "uts", "--mount=" + ns + "mnt", "--",
	}
	return append(args, command...), nil
}
