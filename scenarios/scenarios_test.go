package scenarios_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/baton-ha/baton/internal/lab/script"
	"github.com/baton-ha/baton/scenarios"
)

// names are a contract: reports, documents and other laboratories use them.
var names = []string{
	"agent-freeze-then-kill", "daemon-restart", "etcd-member-kill", "flap-below", "host-cut", "keepalived-kill", "mycat-freeze",
	"mycat-kill", "mysql-freeze", "mysql-kill", "mysql-kill-all", "switchover", "witness-cut",
}

func TestEveryScenarioIsReadable(t *testing.T) {
	known := map[string]bool{}
	for _, name := range scenarios.Names() {
		known[name] = true
		text, err := scenarios.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := script.Parse(name, text)
		if err != nil {
			t.Error(err)
		}
		if s.Why == "" {
			t.Errorf("%s does not say why it is there", name)
		}
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("scenario %s is gone", name)
		}
	}
	if _, err := scenarios.Read("nonsense"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown name: %v", err)
	}
}
