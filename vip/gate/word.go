package gate

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Word is the gate's state: an absolute CLOCK_BOOTTIME deadline in nanoseconds when open, a counter far below any real time when closed.
//
// Each close writes a counter that was never used before, also when the gate is closed already. So a swap from a word that was read before a close fails
// whatever happened in between; with a plain zero for "closed" a renewal that began before a close and an earlier open could open the gate again.
type Word uint64

// firstDeadline parts counters from deadlines: 67 ms of CLOCK_BOOTTIME. No daemon runs that early after boot, and no process closes that often.
const firstDeadline Word = 1 << 26

// Now reads CLOCK_BOOTTIME, the clock that the kernel's side of the gate compares with: it counts through suspend and is never stepped.
func Now() Word {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Only a kernel older than 2.6.39 gets here. The largest time makes every deadline a passed one.
		return math.MaxUint64
	}
	return Word(ts.Nano())
}

// Open reports whether frames pass at now: whether w is a deadline that has not come yet.
func (w Word) Open(now Word) bool { return w.Deadline() && now < w }

// Deadline reports whether w is a deadline, passed or not, and not the counter of a close.
func (w Word) Deadline() bool { return w >= firstDeadline }

// Add returns the deadline d after w, or before it when d is negative. It stops at the ends instead of wrapping: a wrap at the lower end would be a deadline in 584 years.
func (w Word) Add(d time.Duration) Word {
	if d < 0 {
		back := Word(-(d + 1)) + 1 // the smallest duration has no positive counterpart
		if back > w {
			return 0
		}
		return w - back
	}
	if sum := w + Word(d); sum >= w {
		return sum
	}
	return math.MaxUint64
}

// Left returns how long the gate stays open from now on; zero when it is closed.
func (w Word) Left(now Word) time.Duration {
	if !w.Open(now) {
		return 0
	}
	return time.Duration(min(w-now, math.MaxInt64))
}

// String tells a deadline ("until 1234.567890123s") from a close ("closed #3").
func (w Word) String() string {
	if w.Deadline() {
		return fmt.Sprintf("until %d.%09ds", uint64(w)/1e9, uint64(w)%1e9)
	}
	return fmt.Sprintf("closed #%d", uint64(w))
}

// Outcome is what became of a Swap.
type Outcome uint8

// The outcomes of Swap. All but Swapped left the word as it was.
const (
	NotInstalled Outcome = iota // this process has no gate: Install was not called, or Release was
	Swapped                     // the word was the old one and is now the new one
	Overtaken                   // the word was not the old one any more: somebody closed; stop, and do not try again
	NotADeadline                // the new word is a counter: only Close writes those
	Unwritable                  // the kernel refused to read or write the map; the log has its error
)

var outcomes = [...]string{NotInstalled: "not installed", Swapped: "swapped", Overtaken: "overtaken", NotADeadline: "not a deadline", Unwritable: "unwritable"}

// String names the outcome for logs.
func (o Outcome) String() string {
	if int(o) < len(outcomes) {
		return outcomes[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}
