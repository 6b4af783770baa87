package mysql

import (
	"testing"
	"time"
)

// A server that hangs in the middle of an inspection is an error: variables that were not read would be judged as if they were empty.
func TestInspectAHangingServer(t *testing.T) {
	n := startNode(t, 1)
	n.Timeout = 2 * time.Second // of the inspection that hangs; the one before it has to be ready by then
	c := n.connect(t)
	if in, err := c.Inspect(long(t)); err != nil || in.Vars["log_bin"] != "ON" {
		t.Fatalf("log_bin is %q: %v", in.Vars["log_bin"], err)
	}
	if err := n.Freeze(long(t)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Thaw(); err != nil {
			t.Error(err)
		}
	}()
	if in, err := c.Inspect(long(t)); err == nil {
		t.Errorf("%d variables, gaps %v, and no error", len(in.Vars), in.Gaps)
	}
}
