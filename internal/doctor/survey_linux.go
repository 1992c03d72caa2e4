package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// cgroups is where the machine's cgroups are.
const cgroups = "/sys/fs/cgroup"

var (
	isID        = regexp.MustCompile(`^[0-9a-f]{64}$`)
	containerCg = regexp.MustCompile(`^berth-([0-9a-f]{64})$`)
)

// machine is what the machine has of pods.
type machine struct {
	boot      string
	shims     []*proc
	processes []*proc           // with a root file system of ours
	cgroups   map[string]string // path → container
	mounts    []string          // below the pods' folders
	sockets   []string
	folders   map[string]string // path → pod
	addresses map[string]string // path → pod
	records   map[string]string // path → pod
	local     map[string]bool   // pods whose addresses host-local gives
	networks  map[string]string // networks that pods of ours are in, with host-local's folder
}

// proc is a process, named for good by its pid and start time.
type proc struct {
	pid       int
	start     uint64
	cmd       string
	pod       string // of a shim
	container string // of another process: the container whose cgroup it is in
}

func (p *proc) String() string { return fmt.Sprintf("%d (%.80s)", p.pid, p.cmd) }

// survey looks at the machine.
func survey(o *Options) (*machine, error) {
	m := &machine{cgroups: map[string]string{}, folders: map[string]string{}, addresses: map[string]string{},
		records: map[string]string{}, local: map[string]bool{}, networks: map[string]string{}}
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	m.boot = strings.TrimSpace(string(b))
	if err := m.findMounts(o); err != nil {
		return nil, err
	}
	if err := m.findProcesses(o); err != nil {
		return nil, err
	}
	err = filepath.WalkDir(cgroups, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went while we looked
		}
		if c := containerCg.FindStringSubmatch(d.Name()); c != nil && d.IsDir() {
			m.cgroups[p] = c[1]
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	for _, dir := range []string{filepath.Join(o.Root, "pods"), filepath.Join(o.State, "pods")} {
		for _, name := range names(dir) {
			m.folders[filepath.Join(dir, name)] = name
		}
	}
	for _, name := range names(filepath.Join(o.State, "s")) {
		m.sockets = append(m.sockets, filepath.Join(o.State, "s", name))
	}
	m.findAddresses(o)
	return m, nil
}

// names are the entries of dir; none when it is not there.
func names(dir string) []string {
	es, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

func (m *machine) findMounts(o *Options) error {
	ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(o.State, "pods")))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, i := range ms {
		m.mounts = append(m.mounts, i.Mountpoint)
	}
	slices.Reverse(m.mounts) // as they are to be unmounted
	return nil
}

func (m *machine) findProcesses(o *Options) error {
	pods := filepath.Join(o.State, "pods") + "/"
	layers := []byte("upperdir=" + filepath.Join(o.Root, "images") + "/")
	for _, name := range names("/proc") {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p := &proc{pid: pid, start: startTime(pid)}
		cmd, err := os.ReadFile("/proc/" + name + "/cmdline")
		if err != nil || len(cmd) == 0 || p.start == 0 {
			continue // a kernel thread, or gone
		}
		args := strings.Split(strings.TrimRight(string(cmd), "\x00"), "\x00")
		p.cmd = strings.Join(args, " ")
		if i := slices.Index(args, "-id"); filepath.Base(args[0]) == "containerd-shim-berth-v1" && i > 0 && i+1 < len(args) {
			cwd, _ := os.Readlink("/proc/" + name + "/cwd")
			if strings.HasPrefix(cwd, pods) && isID.MatchString(args[i+1]) {
				p.pod = args[i+1]
				m.shims = append(m.shims, p)
			}
			continue
		}
		mounts, err := os.ReadFile("/proc/" + name + "/mountinfo")
		if err != nil {
			continue
		}
		for line := range bytes.Lines(mounts) {
			if f := bytes.Fields(line); len(f) > 4 && string(f[4]) == "/" && bytes.Contains(line, layers) {
				p.container = containerOf(pid)
				m.processes = append(m.processes, p)
				break
			}
		}
	}
	return nil
}

// startTime is field 22 of a process's stat; 0 when it is gone.
func startTime(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 || f[0] == "Z" {
		return 0
	}
	n, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// containerOf finds a container's id in the path of a process's cgroup.
func containerOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	return containerID.FindString(string(b))
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// findAddresses reads the records of the network service, and host-local's files
// of the networks that they name.
func (m *machine) findAddresses(o *Options) {
	for _, name := range o.Own {
		m.networks[name] = o.Addresses
	}
	dir := filepath.Join(o.Root, "network")
	for _, name := range names(dir) {
		id, ok := strings.CutSuffix(name, ".json")
		if !ok || !isID.MatchString(id) {
			continue
		}
		path := filepath.Join(dir, name)
		m.records[path] = id
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var r struct {
			Networks []struct {
				Config struct {
					Name    string `json:"name"`
					Plugins []struct {
						IPAM struct {
							Type    string `json:"type"`
							DataDir string `json:"dataDir"`
						} `json:"ipam"`
					} `json:"plugins"`
				} `json:"config"`
			} `json:"networks"`
		}
		if json.Unmarshal(b, &r) != nil {
			continue
		}
		for _, n := range r.Networks {
			m.networks[n.Config.Name] = o.Addresses
			for _, p := range n.Config.Plugins {
				m.local[id] = m.local[id] || p.IPAM.Type == "host-local"
				if p.IPAM.DataDir != "" {
					m.networks[n.Config.Name] = p.IPAM.DataDir
				}
			}
		}
	}
	for network, data := range m.networks {
		dir := filepath.Join(data, network)
		for _, ip := range names(dir) {
			b, err := os.ReadFile(filepath.Join(dir, ip))
			if err != nil {
				continue
			}
			if id := string(bytes.TrimSpace(bytes.SplitN(b, []byte("\n"), 2)[0])); isID.MatchString(id) {
				m.addresses[filepath.Join(dir, ip)] = id
			}
		}
	}
}
