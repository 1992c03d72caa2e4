package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is where a container's, or an exec's, processes are.
type cgroup struct {
	// unified is a directory of a cgroup2 mount, or "". Beside v1 controllers
	// (hybrid mode) it has no controllers, but it can kill.
	unified string
	// v1 has a directory for each controller; "name=systemd" is one. Empty on v2.
	v1 map[string]string
}

// listing are the v1 hierarchies in which to look for processes, best first.
var listing = []string{"freezer", "pids", "memory", "devices", "name=systemd", "cpu", "cpuset", "blkio"}

// dir is the directory whose tree holds the processes, "" when unknown.
func (g *cgroup) dir() string {
	if len(g.v1) == 0 {
		return g.unified
	}
	for _, c := range listing {
		if d := g.v1[c]; d != "" {
			return d
		}
	}
	for _, d := range g.v1 {
		return d
	}
	return g.unified
}

// dirs are all directories of the cgroup.
func (g *cgroup) dirs() []string {
	var all []string
	if g.unified != "" {
		all = append(all, g.unified)
	}
	for _, d := range g.v1 {
		all = append(all, d)
	}
	return all
}

// pids are the processes in the cgroup and below. A container may have moved
// itself into a child.
func (g *cgroup) pids() []int {
	var pids []int
	walk(g.dir(), func(dir string) { pids = readPids(pids, dir) })
	return pids
}

// populated reports whether any directory of the cgroup holds a live process.
func (g *cgroup) populated() bool {
	return populated(g.unified) || len(g.v1) > 0 && populated(g.dir())
}

// populated reports whether a directory, or one below it, holds a live process.
func populated(dir string) bool {
	if dir == "" {
		return false
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil {
		if n, ok := keyed(b, "populated"); ok {
			return n != 0
		}
	}
	found := false
	walk(dir, func(dir string) { found = found || len(readPids(nil, dir)) > 0 })
	return found
}

// kill sends SIGKILL to every process of the cgroup once. On v2, and in hybrid
// mode, the kernel does it in one step that no fork escapes; else the cgroup is
// frozen meanwhile. A cgroup that is not there is no error.
func (g *cgroup) kill() error {
	if populated(g.unified) && writeFile(filepath.Join(g.unified, "cgroup.kill"), "1") == nil {
		g.thaw() // a frozen task of v1 does not die
		return nil
	}
	frozen := g.freeze()
	err := g.signal(int(unix.SIGKILL), 0)
	if frozen {
		g.thaw()
	}
	if err != nil {
		return fmt.Errorf("kill processes of %s: %w", g.dir(), err)
	}
	return nil
}

// killWait kills until the cgroup is empty, or ctx ends.
func (g *cgroup) killWait(ctx context.Context) error {
	if g.dir() == "" {
		return nil
	}
	pause := time.Millisecond
	for {
		if !g.populated() {
			return nil
		}
		kerr := g.kill()
		if !g.populated() {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if kerr != nil {
				return kerr
			}
			var who []string
			for _, pid := range g.pids() {
				if len(who) == 4 {
					who = append(who, "others")
					break
				}
				who = append(who, describe(pid))
			}
			return fmt.Errorf("cgroup %s does not get empty: %s: %w", g.dir(), strings.Join(who, ", "), ctx.Err())
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// signal sends sig to every process of the cgroup but one.
func (g *cgroup) signal(sig, but int) (first error) {
	walk(g.dir(), func(dir string) {
		list := func() []int {
			pids := readPids(nil, dir)
			return slices.DeleteFunc(pids, func(pid int) bool { return pid == but })
		}
		if err := signalPids(list(), sig, list); first == nil {
			first = err
		}
	})
	return first
}

// freeze stops the processes of a v1 cgroup, as far as they can be stopped soon.
func (g *cgroup) freeze() bool {
	d := g.v1["freezer"]
	if d == "" || writeFile(filepath.Join(d, "freezer.state"), "FROZEN") != nil {
		return false
	}
	for range 20 {
		b, err := os.ReadFile(filepath.Join(d, "freezer.state"))
		if err != nil || bytes.HasPrefix(b, []byte("FROZEN")) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// thaw lets the processes of a frozen v1 cgroup go on, to die. A frozen v2
// cgroup lets them die as it is.
func (g *cgroup) thaw() {
	if d := g.v1["freezer"]; d != "" {
		walk(d, func(dir string) {
			p := filepath.Join(dir, "freezer.state")
			if b, err := os.ReadFile(p); err == nil && !bytes.HasPrefix(b, []byte("THAWED")) {
				_ = writeFile(p, "THAWED")
			}
		})
	}
}

// oomKills counts the processes of the cgroup that the kernel's OOM killer
// killed, whichever limit was hit: its own, or one of an ancestor.
func (g *cgroup) oomKills() (n uint64) {
	if d := g.v1["memory"]; d != "" {
		// v1 counts in the victim's cgroup only.
		walk(d, func(dir string) {
			if b, err := os.ReadFile(filepath.Join(dir, "memory.oom_control")); err == nil {
				k, _ := keyed(b, "oom_kill")
				n += k
			}
		})
		return n
	}
	if g.unified != "" {
		if b, err := os.ReadFile(filepath.Join(g.unified, "memory.events")); err == nil {
			n, _ = keyed(b, "oom_kill")
		}
	}
	return n
}

// remove removes the directories, deepest first. What cannot be removed for a
// moment (processes that are still going) is tried again until ctx ends.
func (g *cgroup) remove(ctx context.Context) error {
	pause := time.Millisecond
	for {
		var first error
		for _, d := range g.dirs() {
			if err := removeTree(d); err != nil && first == nil {
				first = err
			}
		}
		if first == nil {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup: %w", first)
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// below makes a cgroup of that name in this one for a single exec, and gives
// the runtime's argument that puts a process there. It has no controllers of
// its own: on v2 none is enabled for it, on v1 it is in one hierarchy.
func (g *cgroup) below(name string) (sub *cgroup, arg string, err error) {
	sub = &cgroup{}
	switch {
	case len(g.v1) == 0 && g.unified != "":
		sub.unified, arg = filepath.Join(g.unified, name), name
	case g.v1["freezer"] != "":
		sub.v1 = map[string]string{"freezer": filepath.Join(g.v1["freezer"], name)}
		arg = "freezer:" + name
	default:
		return nil, "", errors.New("no hierarchy to make a cgroup in")
	}
	if err := os.Mkdir(sub.dir(), 0o755); err != nil {
		return nil, "", fmt.Errorf("make cgroup for an exec: %w", err)
	}
	return sub, arg, nil
}

// walk calls fn for dir and all directories below it, parents first. Nothing
// happens for "" or a directory that is gone.
func walk(dir string, fn func(dir string)) {
	if dir == "" {
		return
	}
	fn(dir)
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || st.Nlink == 2 {
		return // cgroup file systems count subdirectories as links
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			walk(filepath.Join(dir, e.Name()), fn)
		}
	}
}

// removeEmpty removes a directory whose processes are gone, and reports whether
// it is gone too. For a moment after the last exit the kernel still calls it busy.
func removeEmpty(dir string) bool {
	for range 50 {
		if removeTree(dir) == nil {
			return true
		}
		if populated(dir) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	var all []string
	walk(dir, func(d string) { all = append(all, d) })
	for i := len(all) - 1; i >= 0; i-- {
		if err := unix.Rmdir(all[i]); err != nil && err != unix.ENOENT {
			return &os.PathError{Op: "rmdir", Path: all[i], Err: err}
		}
	}
	return nil
}

// readPids appends the processes of one cgroup directory.
func readPids(pids []int, dir string) []int {
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return pids
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// 0 is a process of another pid namespace.
		if pid, err := strconv.Atoi(s.Text()); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// keyed finds "<key> <number>" in a flat keyed file.
func keyed(b []byte, key string) (uint64, bool) {
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, err := strconv.ParseUint(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func writeFile(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil
}
