package stats

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy knows where the cgroups of this machine are.
type hierarchy struct {
	unified bool
	// dirs are the roots: of the unified hierarchy under "", else of each
	// controller that we read.
	dirs map[string]string
}

// controllers of cgroup v1 that are read.
var controllers = []string{"cpu", "cpuacct", "memory", "pids", "blkio"}

// findHierarchy looks at a mounted cgroup file system (/sys/fs/cgroup). A hybrid
// machine counts as v1: that is where OCI runtimes put their limits.
func findHierarchy(root string) *hierarchy {
	h := &hierarchy{dirs: map[string]string{}}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		h.unified = true
		h.dirs[""] = root
		return h
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return h // every reading says that the cgroup is not there
	}
	for _, e := range entries {
		// Mounts of several controllers are named "cpu,cpuacct".
		for name := range strings.SplitSeq(e.Name(), ",") {
			for _, c := range controllers {
				if c == name {
					h.dirs[c] = filepath.Join(root, e.Name())
				}
			}
		}
	}
	return h
}

// hasPSI tells whether cgroups have pressure files.
func (h *hierarchy) hasPSI() bool {
	if !h.unified {
		return false
	}
	// The root cgroup has none of its own (/proc/pressure is that); with
	// psi=0 there is neither.
	_, err := os.Stat("/proc/pressure/cpu")
	return err == nil
}

// containerCgroup turns an OCI spec's cgroupsPath into the path below a
// hierarchy's root: "slice:prefix:name" is systemd's, anything else a path.
func containerCgroup(cgroupsPath string) string {
	if p := strings.Split(cgroupsPath, ":"); len(p) == 3 {
		name := p[2]
		if p[1] != "" {
			name = p[1] + "-" + name
		}
		if !strings.HasSuffix(name, ".slice") {
			name += ".scope"
		}
		return filepath.Join(expandSlice(p[0]), name)
	}
	return filepath.Join("/", cgroupsPath)
}

// podCgroup turns a pod's cgroup parent into the path below a hierarchy's root,
// "" when the pod has none of its own.
func podCgroup(parent string) string {
	switch {
	case parent == "":
		return ""
	case strings.HasSuffix(parent, ".slice") && !strings.Contains(parent, "/"):
		return expandSlice(parent)
	}
	return filepath.Join("/", parent)
}

// expandSlice is the path of a slice, whose name says where it is:
// a-b.slice is in a.slice (systemd.slice(5)).
func expandSlice(slice string) string {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "-" || name == "" {
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

// dir is an open cgroup folder. Files are read relative to it, so what is read
// together belongs to one cgroup, even if its name is taken anew meanwhile.
type dir struct {
	fd  int
	buf []byte
}

// open opens the cgroup that a controller has at path; ok is false when there is
// none.
func (h *hierarchy) open(controller, path string, buf []byte) (d dir, ok bool) {
	root, ok := h.dirs[controller]
	if !ok {
		return dir{}, false
	}
	fd, err := unix.Open(filepath.Join(root, path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return dir{}, false
	}
	return dir{fd, buf}, true
}

func (d dir) close() { unix.Close(d.fd) }

// read returns a file's content, nil when it is not there. It is valid until the
// next read.
func (d dir) read(name string) []byte {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	b := d.buf[:0]
	for len(b) < cap(b) {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil // ENODEV: the cgroup went away
		}
		if n == 0 {
			return b
		}
		b = b[:len(b)+n]
	}
	return b
}

func (d dir) number(name string) (uint64, bool) { return parseUint(d.read(name)) }

// value is a number, 0 when it is not there.
func (d dir) value(name string) uint64 {
	v, _ := d.number(name)
	return v
}

// limit is a number that may be "max", and may be as large as a v1 counter goes:
// 0 for no limit.
func (d dir) limit(name string) uint64 {
	v, ok := d.number(name)
	if !ok || v >= noLimit {
		return 0
	}
	return v
}

// noLimit is about what v1 shows for memory without a limit (PAGE_COUNTER_MAX).
const noLimit = 1 << 62
