package dcs_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/baton-ha/baton/internal/dcs"
)

// TestCloseLeavesNothing: a client that wrote, watched and mirrored leaves no goroutine behind, not even after a lost endpoint.
func TestCloseLeavesNothing(t *testing.T) {
	c := prepare(t, 1)
	c.nodes[0].spawn(t) // as a process of its own: only the client's goroutines are here
	awaitQuorum(t, connect(t, dcs.Config{Endpoints: c.endpoints(), AttemptTimeout: attempt}))
	p := startProxy(t, c.endpoints()[0])
	before := goleak.IgnoreCurrent()
	kv, err := dcs.NewEtcd(dcs.Config{Endpoints: []string{p.addr(), freePorts(t, 1)[0], c.endpoints()[0]}, AttemptTimeout: attempt})
	if err != nil {
		t.Fatal(err)
	}
	m := dcs.NewMirror(dcs.MirrorConfig{KV: kv, Prefix: "/", Silence: attempt, Prove: attempt})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	run(t, kv, nil, []dcs.Op{put("/a", "1")}, nil)
	p.cut()
	eventually(t, "the mirror shows a write after the cut", func() bool {
		_, _ = kv.Txn(within(t, generous), nil, []dcs.Op{put("/a", "2")}, nil)
		e, ok := m.View().Get("/a")
		return ok && string(e.Value) == "2"
	})
	cancel()
	receive(t, done, "the mirror ends")
	if err := kv.Close(); err != nil {
		t.Error(err)
	}
	p.cut()
	eventually(t, "no goroutine is left", func() bool { return goleak.Find(before) == nil })
	if _, err := kv.Txn(t.Context(), nil, []dcs.Op{get("/a")}, nil); err == nil {
		t.Error("a closed client answers")
	}
}
