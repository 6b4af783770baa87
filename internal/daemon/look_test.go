package daemon

import (
	"net/netip"
	"testing"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/mysql"
	"github.com/baton-ha/baton/internal/mysql/gtid"
	"github.com/baton-ha/baton/switcher"
)

// What a standby has and the active instance has not is errant, unless it was only read later, or the active one has lost it itself.
func TestErrant(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:3306"), netip.MustParseAddrPort("10.0.0.2:3306")
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
		before, now looks
		site, want  string
		err         string
	}{
		"level":                           {looks{b: at(2, "0-1-9")}, looks{a: at(1, "0-1-9"), b: at(2, "0-1-9")}, "b", "", ""},
		"it received more since":          {looks{b: at(2, "0-1-9")}, looks{a: at(1, "0-1-9"), b: at(2, "0-1-12")}, "b", "", ""},
		"it wrote by itself":              {looks{b: at(2, "0-1-9,0-2-10")}, looks{a: at(1, "0-1-9")}, "b", "0-2-10..10", ""},
		"a third server wrote there":      {looks{b: at(2, "0-1-9,0-7-11")}, looks{a: at(1, "0-1-9")}, "b", "0-7-10..11", ""},
		"the active one crashed and lost": {looks{b: at(2, "0-1-9")}, looks{a: at(1, "0-1-7")}, "b", "", ""},
		"the active one was not read":     {looks{b: at(2, "0-2-10")}, looks{}, "b", "", ""},
		"it was not read before":          {looks{}, looks{a: at(1, "0-1-9"), b: at(2, "0-2-10")}, "b", "", ""},
		"it does not answer now":          {looks{b: at(2, "0-2-10")}, looks{a: at(1, "0-1-9")}, "b", "", "refused"},
		"the active one itself":           {looks{a: at(1, "0-1-10")}, looks{a: at(1, "0-1-9")}, "a", "", ""},
	} {
		l := newLooker(config.Config{Cluster: c})
		l.states = tt.now
		s := switcher.Seen{Instance: switcher.Instance{Site: cluster.SiteName(tt.site), Shard: "s1", Err: tt.err}}
		if got := l.errant(cluster.Assignment{Site: "a"}, s, tt.before); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
