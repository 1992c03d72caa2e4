package doctor

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/namespaces"
	"berth/internal/pod"
	"berth/internal/record"
	"berth/internal/shims"
)

// strays are what the machine has and no pod holds.
func (m *machine) strays(o *Options, l *ledger) (out []*Finding) {
	add := func(kind, name, pod string, give func(context.Context) error) {
		out = append(out, &Finding{Kind: kind, Name: name, Pod: pod, give: give})
	}
	for _, p := range m.processes {
		// One whose container cannot be told may be anybody's.
		if p.container != "" && l.containers[p.container] == nil {
			add("process", p.String(), p.container, p.kill)
		}
	}
	for _, p := range m.shims {
		if !l.intends(p.pod, pod.Shim) {
			add("shim", p.String(), p.pod, p.kill)
		}
	}
	for _, path := range sorted(m.cgroups) {
		if c := m.cgroups[path]; l.containers[c] == nil {
			add("cgroup", path, c, removeCgroup(path))
		}
	}
	for _, path := range m.mounts {
		if id := podOf(o, path); !l.intends(id, pod.Dir) && !l.intends(id, pod.Namespaces) {
			add("mount", path, id, unmount(path))
		}
	}
	for _, path := range m.sockets {
		id, _, _ := strings.Cut(filepath.Base(path), ".")
		if !l.byPrefix(id) {
			add("socket", path, id, remove(path))
		}
	}
	for _, path := range sorted(m.folders) {
		if id := m.folders[path]; !l.intends(id, pod.Dir) {
			add("folder", path, id, removeFolder(path))
		}
	}
	for _, path := range sorted(m.addresses) {
		network := filepath.Base(filepath.Dir(path))
		id := m.addresses[path]
		ours := slices.Contains(o.Own, network) || m.records[filepath.Join(o.Root, "network", id+".json")] != ""
		if ours && !l.intends(id, pod.Network) {
			add("address", filepath.Base(path)+" of network "+network, id, remove(path))
		}
	}
	for _, path := range sorted(m.records) {
		if id := m.records[path]; !l.intends(id, pod.Network) {
			add("record", path, id, remove(path))
		}
	}
	return out
}

// missing are what pods hold and the machine does not have.
func (m *machine) missing(o *Options, l *ledger) (out []*Finding) {
	for _, id := range sorted(l.pods) {
		s := l.pods[id]
		add := func(kind, name string) {
			out = append(out, &Finding{Kind: kind, Name: name, Pod: id, Missing: true})
		}
		held := func(hs map[pod.Resource]pod.Holding, r pod.Resource, data any) bool {
			h := hs[r]
			return h.Phase == pod.Held && (data == nil || json.Unmarshal(h.Data, data) == nil)
		}
		if dir := filepath.Join(o.Root, "pods", id); held(s.Holdings, pod.Dir, nil) && m.folders[dir] == "" {
			add("folder", dir)
		}
		ips := 0
		for _, owner := range m.addresses {
			if owner == id {
				ips++
			}
		}
		if held(s.Holdings, pod.Network, nil) && m.local[id] && ips == 0 {
			add("address", "of host-local")
		}
		if s.Rebooted || l.boot[id] != m.boot {
			continue // nothing of the kernel's can be there
		}
		var a shims.Address
		if held(s.Holdings, pod.Shim, &a) && !s.ShimLost && startTime(a.Pid) != a.StartTime {
			add("shim", (&proc{pid: a.Pid, cmd: "socket " + a.Socket}).String())
		}
		var ns namespaces.Paths
		if held(s.Holdings, pod.Namespaces, &ns) {
			for _, p := range []string{ns.Net, ns.IPC, ns.UTS, ns.User} {
				if p != "" && !slices.Contains(m.mounts, p) {
					add("mount", p)
				}
			}
		}
		for _, c := range s.Containers {
			var r record.Rootfs
			if held(c.Holdings, pod.Rootfs, &r) && r.Rootfs != "" && !slices.Contains(m.mounts, r.Rootfs) {
				add("mount", r.Rootfs)
			}
			if c.Status() == pod.ContainerStateRunning && c.Holdings[pod.Task].Phase == pod.Held && startTime(c.Pid) == 0 {
				add("process", (&proc{pid: c.Pid, cmd: "container " + c.Name}).String())
			}
		}
	}
	return out
}

// podOf is the pod whose folder path lies in.
func podOf(o *Options, path string) string {
	rel, err := filepath.Rel(filepath.Join(o.State, "pods"), path)
	if err != nil {
		return ""
	}
	id, _, _ := strings.Cut(rel, string(os.PathSeparator))
	return id
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
