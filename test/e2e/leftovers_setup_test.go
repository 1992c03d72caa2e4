package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/test/audit"
)

// view is what the run has taken of the machine, and what the daemon holds open.
type view struct {
	machine audit.Snapshot
	files   map[string]int // descriptors by kind
	routine float64
}

func look(n *node) (*view, error) {
	// The daemon's first call of each kind opens what it keeps open.
	v := &view{machine: audit.Take(addressDir(), n.dir+"/s/pods", n.dir+"/s/s", n.dir+"/r/journal", n.dir+"/r/pods"), files: n.descriptors()}
	var err error
	v.routine, err = n.metric("go_goroutines")
	return v, err
}

// compare fails when something of the run is left, or the daemon holds more than
// it did. What others do on the machine meanwhile is not the run's.
func (v *view) compare(n *node) error {
	var err error
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(250 * time.Millisecond) {
		if err = v.diff(n); err == nil || time.Now().After(until) {
			return err
		}
	}
}

func (v *view) diff(n *node) error {
	now, err := look(n)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range now.machine.New(v.machine) {
		if ours(l) && !strings.HasPrefix(l, "process ") && l != "file /sys/class/net/"+bridge && l != "file "+addressDir()+"/"+runTag {
			errs = append(errs, errors.New(l))
		}
	}
	for pid, cmd := range processes() {
		if pid != n.cmd.Process.Pid && pid != os.Getpid() {
			errs = append(errs, fmt.Errorf("process %d: %s", pid, cmd))
		}
	}
	if ports, err := filepath.Glob("/sys/class/net/" + bridge + "/brif/*"); err != nil || len(ports) > 0 {
		errs = append(errs, fmt.Errorf("ports of the bridge: %v %v", ports, err))
	}
	if a, err := addresses(); err != nil || len(a) > 0 {
		errs = append(errs, fmt.Errorf("addresses: %v %v", a, err))
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		rules, _ := exec.Command(tool, "-w", "-t", "nat", "-S").Output() // the portmap plugin names the network in them
		for r := range strings.Lines(string(rules)) {
			if ours(r) {
				errs = append(errs, fmt.Errorf("%s: %s", tool, strings.TrimSpace(r)))
			}
		}
	}
	// A few idle connections and their goroutines come and go.
	if now.routine > v.routine+10 {
		errs = append(errs, fmt.Errorf("berthd has %v goroutines, had %v", now.routine, v.routine))
	}
	for kind, k := range now.files {
		if k > v.files[kind]+3 {
			errs = append(errs, fmt.Errorf("berthd has %d descriptors of %s, had %d", k, kind, v.files[kind]))
		}
	}
	return errors.Join(errs...)
}

// ours tells whether a line of the audit, or a command, is about this run.
func ours(l string) bool {
	if strings.Contains(l, runTag) || strings.Contains(l, bridge) {
		return true
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	for _, id := range known.ids {
		if strings.Contains(l, id) {
			return true
		}
	}
	return false
}

// processes are all that this run has started: a container's have the run's tag
// in their environment, from their config; shims and what they run have an id or
// the scratch folder in their command.
func processes() map[int]string {
	out := map[int]string{}
	es, _ := os.ReadDir("/proc")
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if len(b) == 0 {
			continue // it has ended, and its parent is about to notice
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if cmd := strings.ReplaceAll(string(b), "\x00", " "); strings.Contains(string(env), tagKey+"="+runTag+"\x00") || ours(cmd) {
			out[pid] = cmd
		}
	}
	return out
}

// descriptors counts the daemon's by what they are.
func (n *node) descriptors() map[string]int {
	out := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	es, _ := os.ReadDir(dir)
	for _, e := range es {
		to, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue
		}
		kind, _, _ := strings.Cut(to, ":[")
		if strings.HasPrefix(kind, "/") {
			kind = "files"
		}
		out[kind]++
	}
	return out
}

// metric asks the daemon's Prometheus endpoint for one number.
func (n *node) metric(name string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.metrics+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	s := bufio.NewScanner(resp.Body)
	for s.Scan() {
		if v, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("berthd's metrics have no %s: %w", name, s.Err())
}

// scrub takes away by force what a failed run has left.
func scrub() {
	for pid := range processes() {
		if pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(work))
	if err != nil {
		return
	}
	for i := len(ms) - 1; i >= 0; i-- {
		unix.Unmount(ms[i].Mountpoint, unix.MNT_DETACH)
	}
}
