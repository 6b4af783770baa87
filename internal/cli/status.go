package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher"
)

// Status is `baton status --json`.
type Status struct {
	Cluster     string                             `json:"cluster"`
	Ready       bool                               `json:"ready"` // another site could take over now
	NotReady    []string                           `json:"not_ready,omitempty"`
	Assignment  cluster.Assignment                 `json:"assignment"`
	Holder      cluster.Holder                     `json:"holder"`
	Renewing    bool                               `json:"renewing"` // the holder renewed while this command looked
	Lease       time.Duration                      `json:"lease"`    // D
	LeaseLeft   time.Duration                      `json:"lease_left"`
	Term        cluster.Term                       `json:"term"`
	Maintenance *cluster.Maintenance               `json:"maintenance,omitempty"`
	Readiness   switcher.Readiness                 `json:"readiness"`
	Observers   map[cluster.NodeName]health.Report `json:"observers"`
	Silent      []cluster.NodeName                 `json:"silent,omitempty"` // observers that published nothing while this command looked
	Sync        map[cluster.ShardName]string       `json:"sync"`
	Bad         []string                           `json:"bad,omitempty"`
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show sites, Mycat, MySQL, votes, VIP holder and lease", Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			s, err := open(c)
			if err != nil {
				return err
			}
			defer s.close()
			st, err := s.status(c.Context)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return s.print(st)
			}
			renderStatus(s.out, s.cfg, st)
			return nil
		},
	}
}

// status reads twice, a renewal apart: only that shows whether the lease lives, and how old its newest renewal is at most.
func (s *session) status(ctx context.Context) (Status, error) {
	first, err := s.read(ctx)
	if err != nil {
		return Status{}, err
	}
	d := s.cfg.Profile.Lease
	looked := time.Now()
	timer := time.NewTimer(d / 10 * 3 / 2)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return Status{}, context.Cause(ctx)
	case <-timer.C:
	}
	st, err := s.read(ctx)
	if err != nil {
		return Status{}, err
	}
	out := Status{
		Cluster: s.cfg.Cluster.Name, Assignment: st.Assignment.Value, Holder: st.Holder.Value, Lease: d, Term: st.Term.Value, Bad: st.Bad,
		Renewing: st.Holder.Value.Seq > first.Holder.Value.Seq, Observers: map[cluster.NodeName]health.Report{}, Sync: map[cluster.ShardName]string{},
	}
	if out.Renewing {
		out.LeaseLeft = max(0, d-s.cfg.Profile.Margin-time.Since(looked))
	}
	if m := st.Maintenance; m.Mod != 0 {
		out.Maintenance = &m.Value
	}
	for n, r := range st.Reports {
		out.Observers[n] = r.Value
	}
	for n, r := range st.Reports {
		if was, ok := first.Reports[n]; ok && was.Value.Seq == r.Value.Seq {
			out.Silent = append(out.Silent, n)
		}
	}
	slices.Sort(out.Silent)
	for shard, v := range st.Sync {
		out.Sync[shard] = v.Value.State
	}
	if out.Readiness, err = readiness(st); err != nil {
		return out, err
	}
	out.NotReady = notReady(s.cfg, first, st, out)
	out.Ready = len(out.NotReady) == 0
	return out, nil
}

// notReady says why no other site could take over now.
func notReady(cfg config.Config, first, st dcs.State, s Status) []string {
	var why []string
	if s.Assignment.Site == "" || s.Assignment.Phase != cluster.Serving {
		return []string{"no site serves"}
	}
	if !s.Renewing {
		why = append(why, "the holder does not renew its lease")
	}
	if age := time.Since(s.Readiness.At); st.Readiness.Mod == 0 || age > 10*time.Second {
		return append(why, "no controller has looked within 10 s, or since the last switch")
	}
	for _, o := range cfg.Cluster.Others(s.Assignment.Site) {
		r := s.Readiness.Sites[o.Name]
		if st.Reports[o.Node].Value.Seq == first.Reports[o.Node].Value.Seq {
			why = append(why, fmt.Sprintf("%s: GUARD_SILENT the daemon of %s does not report: start it", o.Name, o.Node))
		}
		for _, b := range r.Blockers {
			why = append(why, fmt.Sprintf("%s: %s %s", o.Name, b.Code, b.Text))
		}
		if v := s.Readiness.Votes[o.Name]; v.State != health.Up {
			why = append(why, fmt.Sprintf("%s is %s for the observers: %s", o.Name, v.State, v.Text))
		}
	}
	if v := s.Readiness.Votes[s.Assignment.Site]; v.State != health.Up {
		why = append(why, fmt.Sprintf("%s is %s for the observers: %s", s.Assignment.Site, v.State, v.Text))
	}
	for _, shard := range cfg.Cluster.Shards {
		if s.Sync[shard] != cluster.SyncArmed {
			why = append(why, fmt.Sprintf("semi-sync of %s is not armed", shard))
		}
	}
	for _, o := range cfg.Cluster.Others(s.Assignment.Site) { // what is not said yet
		for _, m := range s.Readiness.Sites[o.Name].Rejoin {
			if !slices.ContainsFunc(why, func(said string) bool { return strings.Contains(said, m) }) {
				why = append(why, fmt.Sprintf("%s: %s", o.Name, m))
			}
		}
	}
	return why
}

func renderStatus(w io.Writer, cfg config.Config, s Status) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) } //nolint:errcheck // a terminal that is gone needs no message
	p("cluster %s   mode %s   profile %s   epoch %d (%s)   term %d (%s)", s.Cluster, cfg.Mode, cfg.Profile.Name, s.Assignment.Epoch,
		orElse(string(s.Assignment.Phase), "nobody serves yet"), s.Term.N, s.Term.Node)
	switch {
	case s.Assignment.Site == "":
		p("VIP %s   nobody serves: `baton switch --to SITE` starts the service", cfg.Cluster.VIP.Addr)
	case s.Renewing:
		p("VIP %s   at %s (%s, %s)   lease %s, at least %s left   gate %s", cfg.Cluster.VIP.Addr, s.Holder.Site, s.Holder.Node, s.Holder.MAC, s.Lease, s.LeaseLeft.Round(10*time.Millisecond), s.Holder.Gate)
	default:
		p("VIP %s   assigned to %s, and its lease is NOT being renewed: look at the log of %s", cfg.Cluster.VIP.Addr, s.Assignment.Site, nodeOf(cfg, s.Assignment.Site))
	}
	if m := s.Maintenance; m != nil {
		p("MAINTENANCE by %s until %s: %s", m.Who, until(m.Until), m.Reason)
	}
	for _, site := range cfg.Cluster.Sites {
		renderSite(p, s, site)
	}
	for _, n := range cfg.Cluster.Nodes {
		r, ok := s.Observers[n.Name]
		switch {
		case !ok:
			p("observer %-8s no report", n.Name)
		case slices.Contains(s.Silent, n.Name):
			p("observer %-8s SILENT: its daemon publishes nothing; has no vote", n.Name)
		case r.Blind != "":
			p("observer %-8s abstains: %s", n.Name, r.Blind)
		default:
			line := ""
			for _, site := range cfg.Cluster.Sites {
				v := r.Verdicts[site.Name]
				line += fmt.Sprintf("   %s %s H %d/%d", site.Name, v.State, v.H, v.HTrip)
			}
			p("observer %-8s%s", n.Name, line)
		}
	}
	for _, a := range s.Readiness.Alarms {
		p("ALARM %s", a)
	}
	for _, b := range s.Bad {
		p("ALARM a document in etcd cannot be read and counts as absent: %s", b)
	}
	if s.Ready {
		p("ready: if site %s died now: RTO ≈ %s, RPO %s", s.Assignment.Site, s.Readiness.RTO, s.Readiness.Sites[s.Assignment.Site].RPO)
	} else {
		p("NOT ready to fail over:")
		for _, why := range s.NotReady {
			p("  - %s", why)
		}
	}
	if d := s.Readiness.Decision; d.Reason != "" {
		p("decision: %s %s", d.Reason, d.Text)
	}
}

func renderSite(p func(string, ...any), s Status, site cluster.Site) {
	role := "standby"
	if s.Assignment.Site == site.Name {
		role = "ACTIVE"
	}
	v := s.Readiness.Votes[site.Name]
	if v.State == "" {
		p("site %s  %s   not judged yet", site.Name, role)
	} else {
		p("site %s  %s   %s by %d up, %d down, %d unknown", site.Name, role, v.State, v.Up, v.Down, v.Unknown)
	}
	p("├─ mycat %s  %s", site.Mycat.SQL, targets(s, site.Name, health.Mycat, ""))
	for i, in := range site.Instances {
		tree := "├─"
		if i == len(site.Instances)-1 {
			tree = "└─"
		}
		line := "not looked at"
		for _, x := range s.Readiness.Instances {
			if x.Site == site.Name && x.Shard == in.Shard {
				line = instance(x)
			}
		}
		p("%s mysql %s %s  %s  %s", tree, in.Shard, in.Addr, line, targets(s, site.Name, health.MySQL, in.Shard))
	}
}

func instance(x switcher.Instance) string {
	if x.Err != "" {
		return "UNREACHABLE " + x.Err
	}
	switch {
	case x.Role != "replica":
	case x.Stopped != "":
		return fmt.Sprintf("replica of %s, STOPPED: %s", x.Source, x.Stopped)
	case x.Lag == nil:
		return fmt.Sprintf("replica of %s, lag unknown", x.Source)
	default:
		return fmt.Sprintf("replica of %s, lag %s", x.Source, x.Lag.Round(time.Millisecond))
	}
	return fmt.Sprintf("%s, semi-sync %s", x.Role, x.SemiSync)
}

// targets shows the fullest window of a target over all observers: "port 0/3 sql 1/3".
func targets(s Status, site cluster.SiteName, kind health.TargetKind, shard cluster.ShardName) string {
	type key struct{ f health.Factor }
	fill := map[key][2]int{}
	var order []key
	for _, r := range s.Observers {
		for _, t := range r.Verdicts[site].Targets {
			if t.Target.Kind != kind || shard != "" && t.Target.Shard != shard {
				continue
			}
			k := key{t.Factor}
			if _, ok := fill[k]; !ok {
				order = append(order, k)
			}
			if t.Fill >= fill[k][0] {
				fill[k] = [2]int{t.Fill, t.Trip}
			}
		}
	}
	out := ""
	for _, f := range []health.Factor{health.Port, health.Heartbeat, health.SQL} {
		for _, k := range order {
			if k.f == f {
				out += fmt.Sprintf(" %s %d/%d", f, fill[k][0], fill[k][1])
			}
		}
	}
	return out
}

func nodeOf(cfg config.Config, site cluster.SiteName) cluster.NodeName {
	s, _ := cfg.Cluster.Site(site)
	return s.Node
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func until(t time.Time) string {
	if t.IsZero() {
		return "switched off"
	}
	return t.Format(time.DateTime)
}
