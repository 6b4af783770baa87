package standin

import (
	"sync"
	"time"
)

// The codes of RS_CODE.
const (
	rsOK      = 1
	rsError   = -1
	rsTimeout = -2
)

// beats is Mycat's state of one backend's heartbeat, without a clock: it counts ticks of the heartbeat period. It has Mycat's lies in
// it: it is OK before any beat, leaves OK only after maxRetry failed ones, and counts an unanswered one only every limit+2 ticks.
type beats struct {
	limit    int // ticks that a beat may stay unanswered: heartbeatTimeout in periods
	maxRetry int

	code     int
	retry    int
	checking bool
	waited   int // ticks since the unanswered beat was sent
	sequence int // of the last beat sent; an answer to an older one is void
}

func newBeats(timeout, period time.Duration, maxRetry int) beats {
	return beats{limit: int(timeout / period), maxRetry: maxRetry, code: rsOK}
}

// tick is one heartbeat period: it says whether a beat is to be sent now. With 30 s and 10 s a beat sent at 0 is given up at 40, not
// at 30 (Mycat asks for *more* than the timeout), and the next one goes out at 50: hence 149 s from a freeze to RS_CODE -2.
func (b *beats) tick() (send bool) {
	if !b.checking {
		b.checking, b.waited = true, 0
		b.sequence++
		return true
	}
	b.waited++
	if b.waited > b.limit {
		b.checking = false
		b.sequence++ // whatever the old beat answers now is void
		b.failed(rsTimeout)
	}
	return false
}

// answered takes the result of the beat with that sequence number; it says whether that beat was still awaited.
func (b *beats) answered(sequence int, err error) bool {
	if sequence != b.sequence || !b.checking {
		return false
	}
	b.checking = false
	if err != nil {
		b.failed(rsError)
		return true
	}
	b.code, b.retry = rsOK, 0
	return true
}

func (b *beats) failed(code int) {
	b.retry++
	if b.retry >= b.maxRetry {
		b.code, b.retry = code, 0
	}
}

// beatRecord is one row of show @@heartbeat.detail.
type beatRecord struct {
	at   time.Time
	took time.Duration
}

// keptBeats is how many beats show @@heartbeat.detail remembers.
const keptBeats = 60

// heart beats for one writeHost.
type heart struct {
	pool *pool

	mu     sync.Mutex // guards the fields below
	state  beats
	last   time.Time // completion of the last beat, errors included
	kept   []beatRecord
	paused time.Time // until when `stop @@heartbeat` holds
}

// heartView is what the management port shows of a heart.
type heartView struct {
	state  beats
	last   time.Time
	kept   []beatRecord
	paused time.Duration
}

func (h *heart) view(now time.Time) heartView {
	h.mu.Lock()
	defer h.mu.Unlock()
	return heartView{h.state, h.last, append([]beatRecord(nil), h.kept...), max(h.paused.Sub(now), 0)}
}

// tick runs one period. The beat itself may hang for as long as its backend does; it goes over the ordinary pool, as in Mycat, so an
// exhausted pool is a failed beat.
func (h *heart) tick(now time.Time, database string, spawn func(func())) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.paused) {
		return
	}
	if h.state.tick() {
		sequence := h.state.sequence
		spawn(func() { h.beat(sequence, now, database) })
	}
}

func (h *heart) beat(sequence int, sent time.Time, database string) {
	b, err := h.pool.borrow(database)
	if err == nil {
		err = b.run("select user()")
		h.pool.release(b, err != nil)
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state.answered(sequence, err) {
		h.last = now
		h.kept = append(h.kept, beatRecord{now, now.Sub(sent)})
		if len(h.kept) > keptBeats {
			h.kept = h.kept[1:]
		}
	}
}

func (h *heart) pause(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = until
}

func (h *heart) code() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state.code
}
