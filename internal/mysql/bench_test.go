package mysql

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkSwitch times the steps of one shard's planned switch under writers, connecting included, and reports median and p99 of each in
// microseconds: what the controller waits for between fence and commit.
func BenchmarkSwitch(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprintf("writers=%d", n), func(b *testing.B) { benchmarkSwitch(b, n) })
	}
}

func benchmarkSwitch(b *testing.B, clients int) {
	from, to := pair(b)
	took := map[string][]time.Duration{}
	epoch := int64(1)
	for b.Loop() {
		epoch++
		w := write(b, from, clients, epoch*10_000_000)
		eventually(b, "writes are acknowledged", func() bool { return w.count() > 50 })
		whole := time.Now()
		step := func(name string, fn func() error) {
			start := time.Now()
			if err := fn(); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(start))
		}
		var cf, ct *Conn
		var f Fenced
		var err error
		step("connect", func() error {
			if cf, err = from.Connect(b.Context()); err == nil {
				ct, err = to.Connect(b.Context())
			}
			return err
		})
		step("fence-writes", func() error { f, err = cf.FenceWrites(long(b), current); return err })
		step("catch-up", func() error { _, err := ct.CatchUp(long(b), current, f.Executed); return err })
		step("cut", func() error { _, err := ct.Cut(long(b), current); return err })
		step("promote", func() error {
			_, err := promote(long(b), ct, current, Epoch{epoch, "sw", "b"}, []Verification{{"SELECT 1", "1"}})
			return err
		})
		took["shard"] = append(took["shard"], time.Since(whole))
		w.stop()
		step("rejoin+arm", func() error { join(b, cf, ct, to); return nil })
		cf.Close()
		ct.Close()
		from, to = to, from
	}
	for name, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(list[len(list)*99/100].Microseconds()), name+"-p99-µs")
	}
	b.ReportMetric(0, "ns/op")
}
