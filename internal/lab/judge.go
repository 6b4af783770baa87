package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/lab/load"
	"github.com/baton-ha/baton/internal/lab/netns"
	"github.com/baton-ha/baton/internal/lab/script"
	"github.com/baton-ha/baton/switcher/plan"
)

const (
	arpTries  = 3
	arpPause  = 100 * time.Millisecond
	hardware  = 1      // ARP: Ethernet
	protocol  = 0x0800 // ARP: IPv4
	operation = 1      // ARP: request
	arpOnWire = 0x0608 // EtherType of ARP, in network byte order
)

func clusterSite(name string) cluster.SiteName { return cluster.SiteName(name) }

// holders asks the whole segment by ARP who has the VIP, and returns every host that answers.
func (l *Lab) holders(ctx context.Context) ([]string, error) {
	app, err := l.net.Host(appHost)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	for range arpTries {
		if err := app.Do(func() error { return askARP(app) }); err != nil {
			return nil, fmt.Errorf("ask for the VIP's holder: %w", err)
		}
		if err := pause(ctx, arpPause); err != nil {
			return nil, err
		}
	}
	return l.recorder.Since(since), nil
}

// askARP sends one request, "who has the VIP", to everybody (RFC 826).
func askARP(app *netns.Host) error {
	link, err := net.InterfaceByName(netns.Interface)
	if err != nil {
		return err
	}
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	self, vip := app.Addr.As4(), VIP.As4()
	frame := []byte{0, hardware, protocol >> 8, protocol & 0xff, 6, 4, 0, operation}
	frame = append(append(frame, app.MAC...), self[:]...)
	frame = append(append(frame, make([]byte, 6)...), vip[:]...)
	to := &unix.SockaddrLinklayer{
		Protocol: arpOnWire, Ifindex: link.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255},
	}
	return errors.Join(unix.Sendto(sock, frame, 0, to), unix.Close(sock))
}

// audit looks every write up on the servers of the site that serves now, and checks that no other server takes writes.
func (r *run) audit(ctx context.Context, holder string) {
	serving, ok := siteOfNode(holder)
	if !ok {
		r.fail("%s answers for the VIP at the end, and is no host of a site", holder)
		return
	}
	rows, servers := make(map[int][]load.Row), make(map[int][]uint32)
	for shard := range shardCount {
		for _, s := range sites {
			servers[shard] = append(servers[shard], s.serverID(shard))
		}
		list, err := r.lab.rows(ctx, serving.dbHost(shard))
		if err != nil {
			r.fail("the rows of %s cannot be read, and count as lost: %v", serving.dbHost(shard), err)
		}
		rows[shard] = list
	}
	completed := 0
	for _, s := range slices.Concat(r.early, r.switches) {
		if s.Outcome == plan.Completed {
			completed++
		}
	}
	r.result.Audit = load.Check(r.lab.writer.Writes(), rows, servers, completed)
	r.writable(ctx, serving)
}

// rows reads the ledger of one server.
func (l *Lab) rows(ctx context.Context, host string) ([]load.Row, error) {
	text, err := l.mysql[host].Query(ctx, "SELECT id, server_id FROM bank.ledger")
	if err != nil {
		return nil, err
	}
	list := make([]load.Row, 0, len(text))
	for _, line := range text {
		id, err := strconv.ParseInt(line[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the ledger of %s: %w", host, err)
		}
		server, err := strconv.ParseUint(line[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the ledger of %s: %w", host, err)
		}
		list = append(list, load.Row{ID: id, ServerID: uint32(server)})
	}
	return list, nil
}

// writable checks that of each shard the serving site's instance takes writes and no other that can be asked does. One that is
// frozen or dead cannot be asked.
func (r *run) writable(ctx context.Context, serving site) {
	for _, s := range sites {
		for shard := range shardCount {
			in := r.lab.mysql[s.dbHost(shard)]
			one, cancel := context.WithTimeout(ctx, time.Second)
			text, err := in.Query(one, "SELECT @@read_only")
			cancel()
			switch {
			case err != nil: // of the serving site: said by the audit of its rows
			case (text[0][0] == "0") != (s == serving):
				r.fail("read_only of %s is %s at the end, and site %s serves", in.Host.Name, text[0][0], serving.name)
			}
		}
	}
}

// judge compares the numbers with what every scenario demands and with what this one expects.
func (r *run) judge() {
	res := &r.result
	limits := map[script.Condition]int{script.Lost: 0, script.Duplicated: 0, script.DoubleHolder: 0}
	for _, step := range r.scenario.Steps {
		if step.Verb != script.Expect {
			continue
		}
		switch step.Cond {
		case script.SwitchedTo:
			if !res.Switched || res.To != step.Site {
				r.fail("expected a switch to %s: %s", step.Site, describe(r.switches))
			}
		case script.NoSwitch:
			if len(r.switches) > 0 || len(res.Holders) > 1 {
				r.fail("expected no switch: %s; %v answered for the VIP", describe(r.switches), res.Holders)
			}
		case script.NoInterruption, script.Repaired, script.Ready:
		case script.Lost, script.Duplicated, script.Refused, script.Unknown, script.DoubleHolder:
			limits[step.Cond] = step.Number
		}
	}
	got := map[script.Condition]float64{
		script.Lost: float64(res.Lost), script.Duplicated: float64(res.Duplicated), script.Refused: float64(res.Refused),
		script.Unknown: float64(res.UnknownPresent + res.UnknownAbsent), script.DoubleHolder: res.DoubleHolderMS,
	}
	for cond, limit := range limits {
		if got[cond] > float64(limit) {
			r.fail("%s is %g, at most %d is allowed", cond, got[cond], limit)
		}
	}
	for _, s := range r.switches {
		if s.Outcome == plan.Running || s.Outcome == plan.Stuck {
			r.fail("a switch has not ended: %s", describe([]plan.Summary{s}))
		}
	}
	if res.WrongServer > 0 {
		r.fail("%d rows were acknowledged by a server that did not serve", res.WrongServer)
	}
	if res.Acknowledged == 0 {
		r.fail("no write was acknowledged at all")
	}
}
