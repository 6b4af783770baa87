package probe

import (
	"context"
	"fmt"
	"time"

	"github.com/baton-ha/baton/detector/health"
	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/mycat"
)

// Back-off of a dataNode that hangs. Each statement that we give up keeps a connection of Mycat's pool (maxCon is often 50) until its
// backend answers, so that three observers at ten looks a second would use it up before the verdict is out. The first hungFree looks
// are sent at the beat, so that the rule can trip; later ones at doubled distances.
const (
	hungFree = 4
	hungMost = 10 * time.Second
)

// nodeProbe runs the business SQL of one shard through one Mycat, by Mycat's dataNode hint, on a kept connection: the only proof that
// this shard works through this Mycat.
type nodeProbe struct {
	cfg    Config
	client *mycat.Client
	target health.Target
	node   string
	conn   *mycat.Conn
	looks  int  // as sqlProbe's
	redo   bool // the last write failed: write again
	wait   backoff
}

// backoff is the pause after statements that hung in a row.
type backoff struct {
	hangs int
	last  health.Cause // a hang of writes stays one: it has its own, slower rule
	again time.Time
}

// hold is the sample of a look that is not sent.
func (b *backoff) hold() (health.Sample, bool) {
	wait := time.Until(b.again)
	if wait <= 0 {
		return health.Sample{}, false
	}
	cause := health.Pending
	if b.last == health.WriteStall {
		cause = health.WriteStall
	}
	return health.Sample{Cause: cause, Detail: fmt.Sprintf("the last %d statements hang in Mycat, asked again in %v", b.hangs, wait.Round(time.Millisecond))}, true
}

// note counts what a look brought.
func (b *backoff) note(c health.Cause) {
	if c != health.Timeout && c != health.WriteStall {
		*b = backoff{}
		return
	}
	b.last = c
	if b.hangs++; b.hangs >= hungFree {
		b.again = time.Now().Add(min(hungMost, time.Second<<min(b.hangs-hungFree, 4)))
	}
}

func (p *nodeProbe) look(ctx context.Context, m Mode, st *Stage) []health.Sample {
	if s, held := p.wait.hold(); held && !m.Anew {
		return one(p.target, s)
	}
	p.looks++
	kept := p.conn != nil && p.looks%freshEvery != 0
	s := p.ask(ctx, m, st, kept)
	if kept && s.Cause.Class() == health.ClassHard {
		s = p.ask(ctx, m, st, false) // closed under us: only a fresh connection can tell whether Mycat is gone
	}
	p.wait.note(s.Cause)
	return one(p.target, s)
}

func (p *nodeProbe) ask(ctx context.Context, m Mode, st *Stage, kept bool) health.Sample {
	if !kept {
		p.close()
		conn, err := p.client.Dial(ctx)
		if err != nil {
			return classifier(mycat.Classify).sample(ctx, err)
		}
		p.conn = conn
	}
	write := m.write(p.target.Shard) && (m.Anew || p.redo || p.looks%writeEvery == 0)
	s := p.cfg.through(ctx, p.conn, p.node, p.target.Shard, write, func() { st.Writing(0) })
	p.redo = write && s.Cause != health.OK
	if s.Cause != health.OK && s.Number == 0 {
		p.close()
	}
	return s
}

func (p *nodeProbe) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.conn = nil
}

// through reads the shard's business SQL by hint, then writes Baton's row if asked; writing is called between. Unhinted `select 1`
// would be answered by Mycat itself.
func (c Config) through(ctx context.Context, conn *mycat.Conn, node string, shard cluster.ShardName, write bool, writing func()) health.Sample {
	for _, statement := range c.business(shard) {
		rows, err := conn.Hinted(ctx, node, statement.SQL)
		if err == nil {
			got := ""
			if len(rows.Values) > 0 && len(rows.Values[0]) > 0 {
				got = valueText(rows.Values[0][0])
			}
			err = statement.check(got)
		}
		if err != nil {
			return classifier(mycat.Classify).sample(ctx, err)
		}
	}
	if !write {
		return health.Sample{Cause: health.OK}
	}
	writing()
	now := time.Now().UnixMicro()
	_, err := conn.ExecHinted(ctx, node, fmt.Sprintf(
		"REPLACE INTO baton.heartbeat (observer, at_us, seq) VALUES (%s, %d, %d)", quote(string(c.Node)+"@mycat"), now, now))
	s := classifier(mycat.Classify).sample(ctx, err)
	if s.Number == 1146 {
		s.Cause = health.Config
	}
	return stalled(s)
}

// vipProbe is the business write through the VIP, on a fresh connection each time: what an application that connects now would see.
// A look takes one shard in turn; a failure to connect is every shard's.
type vipProbe struct {
	cfg     Config
	site    cluster.Site
	client  *mycat.Client
	targets []health.Target
	turn    int
	wait    []backoff // by target
}

func (p *vipProbe) look(ctx context.Context, m Mode, st *Stage) []health.Sample {
	conn, err := p.client.Dial(ctx)
	if err != nil {
		return all(p.targets, classifier(mycat.Classify).sample(ctx, err))
	}
	defer func() { _ = conn.Close() }()
	n := 1
	if m.Anew {
		n = len(p.targets)
	}
	var out []health.Sample
	for range n {
		p.turn = (p.turn + 1) % len(p.targets)
		i := p.turn
		t := p.targets[i]
		if s, held := p.wait[i].hold(); held && !m.Anew {
			out = append(out, one(t, s)...)
			continue
		}
		st.Reading(i)
		s := p.cfg.through(ctx, conn, p.site.Mycat.DataNodes[t.Shard], t.Shard, m.write(t.Shard), func() { st.Writing(i) })
		p.wait[i].note(s.Cause)
		out = append(out, one(t, s)...)
		if s.Cause != health.OK && s.Number == 0 {
			break // the connection is dead
		}
	}
	return out
}

// adminProbe reads Mycat's own opinion of its backends: advisory.
type adminProbe struct {
	target health.Target
	client *mycat.Client
	admin  *mycat.Admin
}

func (p *adminProbe) look(ctx context.Context, _ Mode, _ *Stage) []health.Sample {
	if p.admin == nil {
		admin, err := p.client.DialAdmin(ctx)
		if err != nil {
			return one(p.target, classifier(mycat.Classify).sample(ctx, err))
		}
		p.admin = admin
	}
	beats, err := p.admin.Heartbeats(ctx)
	if err != nil {
		p.close()
		return one(p.target, classifier(mycat.Classify).sample(ctx, err))
	}
	for _, b := range beats {
		if b.RSCode != mycat.RSOK && b.RSCode != mycat.RSInit {
			return one(p.target, health.Sample{Cause: health.BackendDown, Detail: fmt.Sprintf("Mycat says of %s: code %d, %s", b.Name, b.RSCode, b.Status)})
		}
	}
	return one(p.target, health.Sample{Cause: health.OK})
}

func (p *adminProbe) close() {
	if p.admin != nil {
		_ = p.admin.Close()
	}
	p.admin = nil
}
