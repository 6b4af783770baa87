package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/baton-ha/baton/internal/cluster"
	"github.com/baton-ha/baton/internal/config"
	"github.com/baton-ha/baton/mycat"
	"github.com/baton-ha/baton/vip"
)

// verifier looks through the VIP after a switch, as an application and as a neighbour.
type verifier struct {
	cfg config.Config

	mu  sync.Mutex
	ids map[netip.AddrPort]string // server_id by instance, as the instance itself says
}

func newVerifier(cfg config.Config) *verifier {
	return &verifier{cfg: cfg, ids: map[netip.AddrPort]string{}}
}

// verifyTry bounds one try; the onlooker tries again until it works.
const verifyTry = 500 * time.Millisecond

// Verify writes to every shard through the VIP and names the server that took it. The VIP's ARP answer must show the MAC (empty: not known).
func (v *verifier) Verify(ctx context.Context, name cluster.SiteName, mac string) (map[string]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, verifyTry, errors.New("no answer through the VIP within 500 ms"))
	defer cancel()
	site, ok := v.cfg.Cluster.Site(name)
	if !ok {
		return nil, fmt.Errorf("site %s is not configured", name)
	}
	facts := map[string]string{}
	if site.Node != v.cfg.Node && mac != "" {
		seen, err := v.neighbour(ctx)
		if err != nil {
			return nil, err
		}
		if seen != mac {
			return nil, fmt.Errorf("%s answers ARP for the VIP, expected %s", seen, mac)
		}
		facts["arp"] = seen
	}
	client, err := mycat.New(mycat.Config{
		SQL: netip.AddrPortFrom(v.cfg.Cluster.VIP.Addr, v.cfg.Cluster.VIP.Port), Admin: site.Mycat.Admin, User: v.cfg.Mycat.User,
		Password: v.cfg.Mycat.Password.Reveal(), Schema: site.Mycat.Schema, Timeout: verifyTry,
	})
	if err != nil {
		return nil, err
	}
	conn, err := client.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("log in through the VIP: %w", err)
	}
	defer conn.Close() //nolint:errcheck // read and written already
	for _, in := range site.Instances {
		id, err := v.write(ctx, conn, site, in)
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", in.Shard, err)
		}
		facts[string(in.Shard)] = "written at server " + id
	}
	return facts, nil
}

// write writes Baton's own row to the shard through the VIP, and compares the server that took it with the one that should have.
func (v *verifier) write(ctx context.Context, conn *mycat.Conn, site cluster.Site, in cluster.Instance) (string, error) {
	node := site.Mycat.DataNodes[in.Shard]
	row := fmt.Sprintf("REPLACE INTO baton.heartbeat (observer, at_us, seq) VALUES ('%s@verify', %d, 0)", v.cfg.Node, time.Now().UnixMicro())
	if _, err := conn.ExecHinted(ctx, node, row); err != nil {
		return "", fmt.Errorf("write through the VIP: %w", err)
	}
	rows, err := conn.Hinted(ctx, node, "select @@server_id")
	if err != nil {
		return "", fmt.Errorf("ask who was written to: %w", err)
	}
	want, err := v.serverID(ctx, in.Addr)
	if err != nil {
		return "", err
	}
	got := first(rows)
	if got != want {
		v.forget(in.Addr) // it may have been restarted under another id
		return "", fmt.Errorf("server %s took the write, expected %s (%s): Mycat's dataNode %s leads elsewhere", got, want, in.Addr, node)
	}
	return got, nil
}

func first(rows mycat.Rows) string {
	if len(rows.Values) == 0 || len(rows.Values[0]) == 0 {
		return ""
	}
	if b, ok := rows.Values[0][0].([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(rows.Values[0][0])
}

// learnEvery is the pause between two tries to learn who is who.
const learnEvery = 2 * time.Second

// learn asks every instance for its id, until all are known: in a switch there are better things to do.
func (v *verifier) learn(ctx context.Context) {
	tick := time.NewTicker(learnEvery)
	defer tick.Stop()
	for {
		missing := false
		for _, site := range v.cfg.Cluster.Sites {
			for _, in := range site.Instances {
				if _, err := v.serverID(ctx, in.Addr); err != nil {
					missing = true
				}
			}
		}
		if !missing {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (v *verifier) forget(addr netip.AddrPort) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.ids, addr)
}

func (v *verifier) known(addr netip.AddrPort) (string, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	id, ok := v.ids[addr]
	return id, ok
}

func (v *verifier) serverID(ctx context.Context, addr netip.AddrPort) (string, error) {
	if id, ok := v.known(addr); ok {
		return id, nil
	}
	c, err := serverOf(v.cfg, addr).Connect(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	id := fmt.Sprint(st.ServerID)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ids[addr] = id
	return id, nil
}

// neighbour asks the wire who has the VIP, on the interface of this host that is in its subnet.
func (v *verifier) neighbour(ctx context.Context) (string, error) {
	name, err := interfaceTo(v.cfg.Cluster.VIP.Addr)
	if err != nil {
		return "", err
	}
	p, err := vip.NewProber(vip.ProberConfig{VIP: v.cfg.Cluster.VIP.Addr, Interface: name})
	if err != nil {
		return "", err
	}
	defer p.Close()
	mac, err := p.Resolve(ctx, verifyTry/2)
	if err != nil {
		return "", fmt.Errorf("ask who has the VIP: %w", err)
	}
	return mac.String(), nil
}

// interfaceTo is the interface of this host whose subnet holds the address.
func interfaceTo(addr netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		for _, p := range prefixes(i) {
			if p.Contains(addr) && p.Bits() < addr.BitLen() {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface of this host is in the subnet of %s", addr)
}

func prefixes(i net.Interface) []netip.Prefix {
	addrs, err := i.Addrs()
	if err != nil {
		return nil // an interface that has just gone has no addresses
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// inSubnet refuses a VIP that is outside the subnets of its interface: nobody there would ask for it by ARP.
func inSubnet(addr netip.Addr, name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("interface %s, which is to carry the VIP: %w; set vip.interface to one of this host", name, err)
	}
	if err := cluster.SubnetProblem(addr, prefixes(*i)); err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	return nil
}
