package dcs

import (
	"testing"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
)

// A restored store gives its revisions out a second time: the same key at the same revision is another document.
func TestRevisionsOfARestoredStore(t *testing.T) {
	k := KeysOf("bank")
	item := func(site cluster.SiteName) Item {
		op := Doc(k.Assignment(), cluster.Assignment{Epoch: 7, Site: site, Phase: cluster.Serving})
		return Item{Key: op.Key, Value: op.Value, Mod: 42}
	}
	at := time.Now()
	v, _ := View{}.replaced([]Item{item("a")}, 42, at)
	dec := NewDecoder(k)
	for i, want := range []cluster.SiteName{"a", "a", "b"} {
		var changed bool
		v, changed = v.replaced([]Item{item(want)}, 42, at.Add(time.Duration(i)*time.Second))
		if changed != (want == "b") {
			t.Errorf("read %d: changed is %t", i, changed)
		}
		e, _ := v.Get(k.Assignment())
		if s := dec.Decode(42, at, []Source{{Item: e.Item, Received: e.Received}}); s.Assignment.Value.Site != want {
			t.Errorf("read %d: site %s, want %s", i, s.Assignment.Value.Site, want)
		}
		if first := e.Received.Equal(at); first != (want == "a") {
			t.Errorf("read %d: received at %v", i, e.Received)
		}
	}
}
