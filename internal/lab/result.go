package lab

import (
	"fmt"
	"time"

	"github.com/baton-ha/baton/internal/lab/load"
)

// Result is one run of one scenario: one JSON object. Times are in milliseconds.
type Result struct {
	Scenario string `json:"scenario"`
	Lab      string `json:"lab"`   // "netns"
	MySQL    string `json:"mysql"` // "mariadb 10.11.19"
	Bind     string `json:"bind"`
	Profile  string `json:"profile"`
	Run      int    `json:"run"`  // from 1
	Seed     uint64 `json:"seed"` // of the faults' moments
	OK       bool   `json:"ok"`

	Switched   bool               `json:"switched"`
	To         string             `json:"to,omitempty"` // the last switch's target
	OutageMS   float64            `json:"outage_ms"`    // longest time without a good write of one shard, after the first fault
	BaselineMS float64            `json:"baseline_ms"`  // the same before it: the machine's own jitter
	SwitchMS   float64            `json:"switch_ms"`    // of the last switch, by Baton's clock: verdict to verified
	Steps      map[string]float64 `json:"steps"`

	load.Audit
	DoubleHolderMS float64  `json:"double_holder_ms"`
	Holders        []string `json:"holders"`  // who answered for the VIP, in order: "mc-a", "mc-b"
	UpMS           float64  `json:"up_ms"`    // to build the laboratory
	StallMS        float64  `json:"stall_ms"` // the longest time by which the laboratory's own process was late
	Reason         string   `json:"reason"`   // why it is not ok; empty if it is
	Report         string   `json:"report,omitempty"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Line is the result for a person.
func (r Result) Line() string {
	verdict := "ok  "
	if !r.OK {
		verdict = "FAIL"
	}
	line := fmt.Sprintf("%s %-24s %-10s %-6s #%-3d", verdict, r.Scenario, r.Bind, r.Profile, r.Run)
	if r.Switched {
		line += fmt.Sprintf(" to %s in %.0f ms,", r.To, r.SwitchMS)
	} else {
		line += " no switch,"
	}
	line += fmt.Sprintf(" outage %.0f ms, acknowledged %d, lost %d, duplicated %d, two holders %.0f ms",
		r.OutageMS, r.Acknowledged, r.Lost, r.Duplicated, r.DoubleHolderMS)
	if r.Reason != "" {
		line += fmt.Sprintf("\n     %s (seed %d)", r.Reason, r.Seed)
	}
	if r.Report != "" {
		line += "\n     report: " + r.Report
	}
	return line
}
