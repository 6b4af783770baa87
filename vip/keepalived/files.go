package keepalived

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// configText is the whole configuration. What each line is for was measured with 2.2.7; without any of them the VIP comes later,
// comes back against the fence, or poisons neighbours.
var configText = template.Must(template.New("keepalived.conf").Parse(`# Written by Baton for an instance of its own. Edits are lost.
global_defs {
    router_id baton_{{.RouterID}}
    enable_script_security
    script_user root
}
vrrp_instance BATON_VIP {
    # Together these bind at once: a BACKUP line or a lower priority waits 3 s and more for adverts.
    state MASTER
    priority 255
    interface {{.Interface}}
    # Another on each site: no election can happen, in any version of keepalived.
    virtual_router_id {{.RouterID}}
    advert_int 1
    # One batch of gratuitous ARP at the bind. A later one would go on after the lease is lost and draw neighbours here.
    garp_master_repeat 5
    garp_master_delay 0
    virtual_ipaddress {
        # no_track: else the kernel's removal of an expired VIP is undone within 20 ms.
        {{.VIP}}/32 dev {{.Interface}} no_track
    }
}
`))

// Render returns the configuration of an instance.
func Render(cfg Config) ([]byte, error) {
	var b bytes.Buffer
	if err := configText.Execute(&b, cfg); err != nil {
		return nil, fmt.Errorf("render the configuration of keepalived: %w", err)
	}
	return b.Bytes(), nil
}

// files are the paths of one instance. Each instance has its own: one that ends stays for a second after its VIP is gone, and would
// take the pid files of its successor along.
type files struct {
	gen                int
	conf, pid, vrrpPID string
}

func (b *Binder) files(gen int) files {
	base := filepath.Join(b.cfg.StateDir, b.cfg.VIP.String()+"-"+strconv.Itoa(gen))
	return files{gen: gen, conf: base + ".conf", pid: base + ".pid", vrrpPID: base + "-vrrp.pid"}
}

// logFile takes what every instance says, and why one did not start.
func (b *Binder) logFile() string { return filepath.Join(b.cfg.StateDir, b.cfg.VIP.String()+".log") }

// genOf reads the generation out of the path of a configuration of this VIP; false: the path is not one of ours.
func (b *Binder) genOf(conf string) (int, bool) {
	rest, ok := strings.CutPrefix(conf, filepath.Join(b.cfg.StateDir, b.cfg.VIP.String()+"-"))
	if !ok {
		return 0, false
	}
	number, ok := strings.CutSuffix(rest, ".conf")
	gen, err := strconv.Atoi(number)
	return gen, ok && err == nil
}

// generations lists the numbers that have files in the state directory.
func (b *Binder) generations() (map[int]bool, error) {
	entries, err := os.ReadDir(b.cfg.StateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the state directory: %w", err)
	}
	gens := map[int]bool{}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), b.cfg.VIP.String()+"-")
		if !ok {
			continue
		}
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		if gen, err := strconv.Atoi(digits); err == nil {
			gens[gen] = true
		}
	}
	return gens, nil
}

// prepare makes a new generation. Its number is above every one that has files or that still lingers; files of the dead are removed.
// After Adopt there is no process of ours that this binder does not know.
func (b *Binder) prepare() (files, error) {
	if err := os.MkdirAll(b.cfg.StateDir, 0o700); err != nil {
		return files{}, fmt.Errorf("make the state directory: %w", err)
	}
	gens, err := b.generations()
	if err != nil {
		return files{}, err
	}
	highest := 0
	for _, inst := range b.dying {
		highest = max(highest, inst.gen)
		delete(gens, inst.gen)
	}
	for gen := range gens {
		highest = max(highest, gen)
		b.files(gen).remove()
	}
	f := b.files(highest + 1)
	text, err := Render(b.cfg)
	if err != nil {
		return files{}, err
	}
	if err := os.WriteFile(f.conf, text, 0o600); err != nil {
		return files{}, fmt.Errorf("write the configuration of keepalived: %w", err)
	}
	return f, nil
}

// remove tidies up; a file that stays is overwritten by nobody, for its number is not used again while it is there.
func (f files) remove() {
	for _, path := range []string{f.conf, f.pid, f.vrrpPID} {
		_ = os.Remove(path)
	}
}

// logLimit keeps the log in memory file systems small. A bind writes 2 kB.
const logLimit = 1 << 20

func (b *Binder) openLog() (*os.File, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(b.logFile()); err == nil && info.Size() > logLimit {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(b.logFile(), flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of keepalived: %w", err)
	}
	return f, nil
}

// said returns the last lines of the log, for an error message.
func (b *Binder) said() string {
	text, err := os.ReadFile(b.logFile())
	if err != nil {
		return "nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
