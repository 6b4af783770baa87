package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/dcs"
	"github.com/baton-ha/baton/switcher/plan"
)

// onlooker is this node's part in the verification of a switch: asked by the journal, it looks through the VIP until the service works
// from here, and answers the controller.
type onlooker struct {
	look  func(ctx context.Context, site cluster.SiteName, mac string) (map[string]string, error)
	store interface {
		Do(ctx context.Context, what string, cmps []dcs.Cmp, ops ...dcs.Op) (dcs.Result, error)
	}
	keys   dcs.Keys
	node   cluster.NodeName
	log    *slog.Logger
	states chan dcs.State
}

// question is a verify step that waits for answers.
type question struct {
	id   string // of the switch
	seq  int    // of the journal's entry
	site cluster.SiteName
	mac  string // of the new guard; empty: not known
	mod  int64  // of the assignment that the switch has made
	plan int64  // revision of the plan, which the switch's end deletes
}

// asked is the question that the state holds; the zero value when there is none.
func asked(s dcs.State) question {
	a := s.Assignment.Value
	docs := s.Switches[a.Switch]
	log := docs.Journal.Value
	if a.Phase != cluster.Serving || len(log) == 0 {
		return question{}
	}
	q := question{id: a.Switch, site: a.Site, mod: s.Assignment.Mod, plan: docs.Plan.Mod}
	for _, e := range log {
		switch {
		case e.Step == plan.Bind && e.Phase == plan.Done:
			q.mac = e.Facts["mac"]
		case e.Step == plan.Verify && e.Phase == plan.Started:
			q.seq = e.Seq
		case e.Step == plan.Verify:
			q.seq = 0 // it is answered
		}
	}
	if q.seq == 0 {
		return question{}
	}
	return q
}

// observe hands the newest state over; it never blocks, and an unread older one is dropped.
func (o *onlooker) observe(s dcs.State) {
	for {
		select {
		case o.states <- s:
			return
		default:
		}
		select {
		case <-o.states:
		default:
		}
	}
}

// Run answers questions until ctx ends, the newest only.
func (o *onlooker) Run(ctx context.Context) error {
	var now question
	end := func() {}
	defer func() { end() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-o.states:
			q := asked(s)
			if q == now {
				continue
			}
			end()
			now, end = q, func() {}
			if q != (question{}) {
				end = o.begin(ctx, q)
			}
		}
	}
}

// begin looks in the background; the function that it returns ends that and waits for its end.
func (o *onlooker) begin(ctx context.Context, q question) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.answer(ctx, q)
	}()
	return func() {
		cancel()
		<-done
	}
}

// lookEvery is the pause between two looks while the service does not work yet: a fraction of what a switch takes.
const lookEvery = 10 * time.Millisecond

// tellAgain is how often a failure is told: errors name ports, and each may be another one.
const tellAgain = 250 * time.Millisecond

// answer looks until it works, and tells the controller what does not work meanwhile.
func (o *onlooker) answer(ctx context.Context, q question) {
	var told time.Time
	for {
		facts, err := o.look(ctx, q.site, q.mac)
		if ctx.Err() != nil {
			return
		}
		l := plan.Look{Question: q.seq, At: time.Now(), Facts: facts}
		if err != nil {
			l.Err, l.Facts = err.Error(), nil
		}
		if now := time.Now(); err == nil || now.Sub(told) >= tellAgain {
			werr := o.tell(ctx, q, l)
			if errors.Is(werr, dcs.ErrCompare) || ctx.Err() != nil {
				return // the question is over
			}
			if werr != nil {
				o.log.Warn("the look through the VIP cannot be told", slog.String("switch", q.id), slog.Any("err", werr))
				err = werr
			}
			told = now
		}
		if err == nil {
			return
		}
		timer := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// tell writes the answer, if the assignment is still the one that was asked about and the switch has not ended.
func (o *onlooker) tell(ctx context.Context, q question, l plan.Look) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("etcd did not take the answer within a second"))
	defer cancel()
	_, err := o.store.Do(ctx, "tell what was seen through the VIP",
		[]dcs.Cmp{{Key: o.keys.Assignment(), Mod: q.mod}, {Key: o.keys.Switch(q.id, "plan"), Mod: q.plan}},
		dcs.Doc(o.keys.Switch(q.id, "look/"+string(o.node)), l))
	return err
}
