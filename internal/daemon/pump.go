package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/baton-ha/baton/internal/dcs"
)

// pump decodes the mirror's view and hands it to everybody who follows it.
type pump struct {
	mirror *dcs.Mirror
	dec    *dcs.Decoder
	to     []func(dcs.State)
	latest atomic.Pointer[dcs.State]
}

// freshEvery is how often a view without changes is handed on, so that its age is known: half of the shortest limit that anybody
// puts on it would be 150 ms.
const freshEvery = 50 * time.Millisecond

func (p *pump) Run(ctx context.Context) error {
	changed, cancel := p.mirror.Subscribe()
	defer cancel()
	tick := time.NewTicker(freshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
		v := p.mirror.View()
		if v.Revision == 0 {
			continue
		}
		if last := p.latest.Load(); last != nil && last.Revision == v.Revision && last.FreshAt.Equal(v.FreshAt) {
			continue
		}
		s := p.dec.DecodeView(v)
		p.latest.Store(&s)
		for _, to := range p.to {
			to(s)
		}
	}
}

// state is the newest state; nil before the first.
func (p *pump) state() *dcs.State { return p.latest.Load() }
