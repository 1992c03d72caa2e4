package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func itoa(n int) string { return strconv.Itoa(n) }

func cloneOf[T proto.Message](m T) T { return proto.CloneOf(m) }

func sameSet(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// hostFolder is a folder for mounts.
func hostFolder(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp(work, "m")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cgroupFile reads a file of a container's cgroup on the host: the first name
// that is there, on a machine with v1 or with v2 (where the controller is "").
func cgroupFile(t *testing.T, c *container, v1controller, v1name, v2name string) string {
	t.Helper()
	pid := c.pid()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	path := ""
	for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		f := strings.SplitN(l, ":", 3)
		if v1controller != "" && slices.Contains(strings.Split(f[1], ","), v1controller) {
			path = "/sys/fs/cgroup/" + v1controller + f[2] + "/" + v1name
		}
		if f[0] == "0" && path == "" && v2name != "" && !cgroupV1() {
			path = "/sys/fs/cgroup" + f[2] + "/" + v2name
		}
	}
	v, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(v))
}

func cgroupV1() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err != nil
}

func contains(s, part string) bool { return strings.Contains(s, part) }

// removeCgroups removes a folder that a test made for pods, in all hierarchies,
// as the kubelet would.
func removeCgroups(name string) {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + name)
	for _, d := range append(dirs, "/sys/fs/cgroup"+name) {
		os.Remove(d)
	}
}

// machineHasNo tells of metrics which kernels may not have.
func machineHasNo(name string) bool {
	missing := func(file string) bool {
		_, err := os.Stat(file)
		return err != nil
	}
	switch {
	case strings.Contains(name, "pressure"):
		return cgroupV1() || missing("/proc/pressure/cpu")
	}
	return false
}
