package process

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// record is what the runtime and the bundle say of a container.
type record struct {
	cg cgroup
	// private: the container's init is the init of its own pid namespace, so
	// that the kernel ends everything in it with that init.
	private bool
	pid     int    // of init; 0 when unknown
	start   uint64 // clock ticks after boot, 0 when unknown
}

// mounts are where this machine has its cgroup file systems.
type mounts struct {
	unified string
	v1      map[string]string
}

// findMounts reads mountinfo, proc(5).
func findMounts(mountinfo string) (*mounts, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	defer f.Close()
	m := &mounts{v1: make(map[string]string)}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		pre, post, ok := strings.Cut(s.Text(), " - ")
		a, b := strings.Fields(pre), strings.Fields(post)
		if !ok || len(a) < 5 || len(b) < 3 {
			continue
		}
		point := a[4]
		switch b[0] {
		case "cgroup2":
			if m.unified == "" {
				m.unified = point
			}
		case "cgroup":
			for c := range strings.SplitSeq(b[2], ",") {
				if m.v1[c] == "" {
					m.v1[c] = point
				}
			}
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	// "rw" and "xattr" are options of the super block, not controllers.
	for _, o := range []string{"rw", "ro", "xattr", "clone_children", "noprefix"} {
		delete(m.v1, o)
	}
	return m, nil
}

// at is the cgroup of one path on every hierarchy.
func (m *mounts) at(path string) cgroup {
	g := cgroup{v1: make(map[string]string, len(m.v1))}
	if m.unified != "" {
		g.unified = filepath.Join(m.unified, path)
	}
	for c, p := range m.v1 {
		g.v1[c] = filepath.Join(p, path)
	}
	return g
}

// of is the cgroup in which a process is now. It is not where the runtime put
// it when it moved itself. Nothing is found for the root and for a zombie on v1.
func (m *mounts) of(pid int) cgroup {
	g := cgroup{v1: make(map[string]string, len(m.v1))}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return g
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		if f[1] == "" {
			if m.unified != "" {
				g.unified = filepath.Join(m.unified, f[2])
			}
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			if p := m.v1[c]; p != "" {
				g.v1[c] = filepath.Join(p, f[2])
			}
		}
	}
	return g
}

// exclude drops the directories of g in or above which this process is.
func (m *mounts) exclude(g *cgroup) {
	self := m.of(os.Getpid())
	for c, d := range g.v1 {
		if within(self.v1[c], d) || within(m.v1[c], d) {
			delete(g.v1, c)
		}
	}
	if within(self.unified, g.unified) || within(m.unified, g.unified) {
		g.unified = ""
	}
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// runcState is the part of runc's state.json that is used.
type runcState struct {
	Pid    int               `json:"init_process_pid"`
	Start  uint64            `json:"init_process_start"`
	Paths  map[string]string `json:"cgroup_paths"`
	Config struct {
		Namespaces []struct {
			Type string `json:"type"`
			Path string `json:"path"`
		} `json:"namespaces"`
	} `json:"config"`
}

// crunStatus is the part of crun's status file that is used.
type crunStatus struct {
	Pid    int    `json:"pid"`
	Start  uint64 `json:"process-start-time"`
	Cgroup string `json:"cgroup-path"`
}

// bundleConfig is the part of an OCI config.json that is used.
type bundleConfig struct {
	Linux struct {
		CgroupsPath string `json:"cgroupsPath"`
		Namespaces  []struct {
			Type specs.LinuxNamespaceType `json:"type"`
			Path string                   `json:"path"`
		} `json:"namespaces"`
	} `json:"linux"`
}

// locate asks, in this order, the runtime's own state, the init's /proc entry
// (pid may be 0), and the bundle. The first is there from the container's
// creation to its deletion, the last also when the runtime was killed halfway.
func (h *Host) locate(id, bundle string, pid int) (r record) {
	r.pid = pid
	// Whatever they say: killing a cgroup must not end this process.
	defer func() { h.mounts.exclude(&r.cg) }()
	var known bool // whether private is known
	var st runcState
	var cs crunStatus
	dir := filepath.Join(h.root, id)
	if readJSON(filepath.Join(dir, "state.json"), &st) == nil {
		r.pid, r.start, known = st.Pid, st.Start, true
		for _, n := range st.Config.Namespaces {
			if n.Type == "NEWPID" && n.Path == "" {
				r.private = true
			}
		}
		for c, p := range st.Paths {
			if c == "" {
				r.cg.unified = p
				continue
			}
			if r.cg.v1 == nil {
				r.cg.v1 = make(map[string]string, len(st.Paths))
			}
			r.cg.v1[c] = p
		}
	} else if readJSON(filepath.Join(dir, "status"), &cs) == nil && cs.Cgroup != "" {
		r.pid, r.start = cs.Pid, cs.Start
		r.cg = h.mounts.at(cs.Cgroup)
	} else if pid > 0 {
		r.cg = h.mounts.of(pid)
	}
	if r.cg.dir() != "" && known || bundle == "" {
		return r
	}
	var c bundleConfig
	if readJSON(filepath.Join(bundle, "config.json"), &c) != nil {
		return r
	}
	for _, n := range c.Linux.Namespaces {
		if n.Type == specs.PIDNamespace && n.Path == "" {
			r.private = true
		}
	}
	if r.cg.dir() == "" {
		if p := h.configuredPath(id, c.Linux.CgroupsPath); p != "" {
			r.cg = h.mounts.at(p)
		}
	}
	return r
}

// configuredPath is the cgroup path that runc gives to a cgroupsPath.
func (h *Host) configuredPath(id, path string) string {
	if !h.systemd {
		if path == "" {
			path = id
		}
		if path = filepath.Clean("/" + path); path == "/" {
			return ""
		}
		return path
	}
	f := strings.Split(path, ":")
	if path == "" {
		f = []string{"", "runc", id}
	}
	if len(f) != 3 || f[2] == "" {
		return ""
	}
	slice := f[0]
	if slice == "" {
		slice = "system.slice"
	}
	unit := f[2]
	if !strings.HasSuffix(unit, ".slice") {
		if f[1] != "" {
			unit = f[1] + "-" + unit
		}
		unit += ".scope"
	}
	return filepath.Join(expandSlice(slice), unit)
}

// expandSlice gives the path of a systemd slice: a-b.slice is in a.slice,
// systemd.slice(5).
func expandSlice(slice string) string {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "" || name == "-" {
		return "/"
	}
	path, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		path = filepath.Join(path, prefix+".slice")
		prefix += "-"
	}
	return path
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}
