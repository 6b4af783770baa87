package daemon

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/gtid"
	"github.com/baton-ha/baton/switcher"
)

// What a standby has and the active instance has not is errant, unless the active one has lost it itself. It stays so while the active one
// does not answer, and a standby that was never compared is not blamed.
func TestErrant(t *testing.T) {
	a, b := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2") // nobody answers when asked again
	c := cluster.Cluster{Sites: []cluster.Site{
		{Name: "a", Instances: []cluster.Instance{{Shard: "s1", Addr: a}}}, {Name: "b", Instances: []cluster.Instance{{Shard: "s1", Addr: b}}},
	}}
	at := func(id uint32, state string) mysql.Status {
		set, err := gtid.Parse(gtid.MariaDBState, state)
		if err != nil {
			t.Fatal(err)
		}
		return mysql.Status{ServerID: id, BinlogState: set}
	}
	type looks = map[netip.AddrPort]mysql.Status
	for name, tt := range map[string]struct {
		looks []looks
		want  string
	}{
		"level":                           {[]looks{{a: at(1, "0-1-9"), b: at(2, "0-1-9")}}, ""},
		"behind":                          {[]looks{{a: at(1, "0-1-12"), b: at(2, "0-1-9")}}, ""},
		"it wrote by itself":              {[]looks{{a: at(1, "0-1-9"), b: at(2, "0-1-9,0-2-10")}}, "0-2-10..10"},
		"a third server wrote there":      {[]looks{{a: at(1, "0-1-9"), b: at(2, "0-1-9,0-7-11")}}, "0-7-10..11"},
		"the active one crashed and lost": {[]looks{{a: at(1, "0-1-7"), b: at(2, "0-1-9")}}, ""},
		"the active one is dead":          {[]looks{{a: at(1, "0-1-9"), b: at(2, "0-1-9,0-2-10")}, {b: at(2, "0-1-9,0-2-10")}}, "0-2-10..10"},
		"it was rebuilt":                  {[]looks{{a: at(1, "0-1-9"), b: at(2, "0-1-9,0-2-10")}, {a: at(1, "0-1-9"), b: at(2, "0-1-9")}}, ""},
		"never compared":                  {[]looks{{b: at(2, "0-2-10")}}, ""},
	} {
		l := newLooker(config.Config{Cluster: c})
		var seen []switcher.Seen
		for _, look := range tt.looks {
			l.states = maps.Clone(look)
			seen = []switcher.Seen{{Instance: switcher.Instance{Site: "a", Shard: "s1"}}, {Instance: switcher.Instance{Site: "b", Shard: "s1"}}}
			l.errants(t.Context(), cluster.Assignment{Site: "a"}, seen)
		}
		if seen[0].Errant != "" || seen[1].Errant != tt.want {
			t.Errorf("%s: %q, and of the active one %q; want %q", name, seen[1].Errant, seen[0].Errant, tt.want)
		}
	}
}
