// Package audit records what pods leave on a machine: the processes, mounts,
// cgroups, network namespaces, interfaces, addresses kept by host-local, and
// files that a runtime must give back. Two snapshots tell what is new.
package audit

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Snapshot is what there is, by kind: process, mount, cgroup, file.
type Snapshot map[string][]string

// folders are looked at besides those that Take is given.
var folders = []string{"/run/netns", "/var/lib/cni/networks", "/sys/class/net", "/run/runc", "/run/crun"}

// Take looks at the machine, and at more folders for files. The own process is
// left out, and what it started.
func Take(more ...string) Snapshot {
	s := Snapshot{}
	s.processes()
	s.mounts()
	filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			s["cgroup"] = append(s["cgroup"], p)
		}
		return nil
	})
	for _, dir := range append(folders, more...) {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			// host-local's lock and its memory of the last address stay by design.
			if err == nil && p != dir && filepath.Base(p) != "lock" && !strings.HasPrefix(filepath.Base(p), "last_reserved_ip") {
				s["file"] = append(s["file"], p)
			}
			return nil
		})
	}
	for k := range s {
		sort.Strings(s[k])
	}
	return s
}

func (s Snapshot) processes() {
	es, _ := os.ReadDir("/proc")
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		cmd, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || len(cmd) == 0 {
			continue // a kernel thread, or gone
		}
		stat, _ := os.ReadFile("/proc/" + e.Name() + "/stat")
		start := ""
		if i := strings.LastIndexByte(string(stat), ')'); i > 0 {
			if f := strings.Fields(string(stat[i+1:])); len(f) > 19 {
				start = f[19] // pids are used again, start times are not
			}
		}
		line := strings.ReplaceAll(strings.TrimRight(string(cmd), "\x00"), "\x00", " ")
		s["process"] = append(s["process"], fmt.Sprintf("%d@%s %.160s", pid, start, line))
	}
}

func (s Snapshot) mounts() {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 4 {
			s["mount"] = append(s["mount"], f[4])
		}
	}
}

// New lists what s has and old has not, a line each.
func (s Snapshot) New(old Snapshot) []string {
	var out []string
	for _, k := range []string{"process", "mount", "cgroup", "file"} {
		have := map[string]int{}
		for _, v := range old[k] {
			have[v]++
		}
		for _, v := range s[k] {
			if have[v] > 0 {
				have[v]--
				continue
			}
			out = append(out, k+" "+v)
		}
	}
	return out
}

// Save and Load keep a snapshot in a file.
func (s Snapshot) Save(path string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

// Load reads what Save wrote.
func Load(path string) (Snapshot, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := Snapshot{}
	return s, json.Unmarshal(b, &s)
}
