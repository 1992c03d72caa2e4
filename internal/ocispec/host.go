package ocispec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/seccomp"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// Host is what this machine, and the OCI runtime on it, can do.
type Host struct {
	// CgroupV2 is the unified hierarchy; false for v1 and hybrid.
	CgroupV2 bool
	// Swap and Hugetlb: the memory controller limits swap; the hugetlb
	// controller is there.
	Swap, Hugetlb bool
	// CgroupOptions are options of the host's cgroup v2 mount that a second
	// mount of it would otherwise take away from the host.
	CgroupOptions []string

	Seccomp, AppArmor, SELinux bool
	// RecursiveReadOnly and IDMap: the kernel makes mounts read-only with all
	// that is below, and maps their ids (probed where data is kept: /var/lib).
	RecursiveReadOnly, IDMap bool
	// Capabilities are those that a container can get: the process's own.
	Capabilities []string
	// MinOOMScoreAdj is the lowest OOM score adjustment that can be set: the
	// process's own where it lacks CAP_SYS_RESOURCE.
	MinOOMScoreAdj int
	// CDIDirs are the folders of CDI specs, later ones first.
	CDIDirs []string
}

// Probe finds out what the host can do. It forks once, for a user namespace;
// call it once.
func Probe() (*Host, error) {
	h := &Host{
		CgroupV2:          cgroups.Mode() == cgroups.Unified,
		Seccomp:           seccomp.IsEnabled(),
		AppArmor:          apparmor.HostSupports(),
		SELinux:           selinux.GetEnabled(),
		RecursiveReadOnly: hasMountSetattr(),
		IDMap:             hasIDMap("/var/lib"),
		MinOOMScoreAdj:    -1000,
		CDIDirs:           []string{"/etc/cdi", "/var/run/cdi"},
	}
	var err error
	if h.Capabilities, err = cap.Current(); err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	if !slices.Contains(h.Capabilities, "CAP_SYS_RESOURCE") {
		data, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return nil, err
		}
		if h.MinOOMScoreAdj, err = strconv.Atoi(string(bytes.TrimSpace(data))); err != nil {
			return nil, fmt.Errorf("own oom_score_adj: %w", err)
		}
	}
	const root = "/sys/fs/cgroup"
	own := ""
	if h.CgroupV2 {
		if _, own, err = cgroups.ParseCgroupFileUnified("/proc/self/cgroup"); err != nil {
			return nil, fmt.Errorf("find own cgroup: %w", err)
		}
		if h.CgroupOptions, err = cgroupOptions(root); err != nil {
			return nil, fmt.Errorf("options of %s: %w", root, err)
		}
	}
	if err := h.probeControllers(root, own); err != nil {
		return nil, fmt.Errorf("probe cgroup controllers: %w", err)
	}
	return h, nil
}

// probeControllers looks for the controllers that may be missing.
func (h *Host) probeControllers(root, own string) error {
	if !h.CgroupV2 {
		h.Swap = exists(root + "/memory/memory.memsw.limit_in_bytes")
		h.Hugetlb = exists(root + "/hugetlb")
		return nil
	}
	data, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return err
	}
	controllers := strings.Fields(string(data))
	h.Hugetlb = slices.Contains(controllers, "hugetlb")
	h.Swap = slices.Contains(controllers, "memory") && limitsSwap(root, own)
	return nil
}

// limitsSwap looks whether a cgroup v2 can have a swap limit. The root has none,
// nor has a cgroup for which the memory controller is off: any other tells.
func limitsSwap(root, own string) bool {
	var dirs []string
	for d := path.Clean("/" + own); d != "/"; d = path.Dir(d) {
		dirs = append(dirs, filepath.Join(root, d))
	}
	others, _ := filepath.Glob(root + "/*") // the pattern is well-formed
	for _, d := range append(dirs, others...) {
		if exists(d + "/memory.max") {
			return exists(d + "/memory.swap.max")
		}
	}
	// Nobody has the controller yet. It has the limit where the kernel can swap.
	return exists("/proc/swaps")
}

// cgroupOptions are those of the cgroup v2 mount that belong to the hierarchy
// rather than to the mount.
func cgroupOptions(root string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(root))
	if err != nil {
		return nil, err
	}
	var list []string
	for _, m := range mounts {
		for o := range strings.SplitSeq(m.VFSOptions, ",") {
			if o == "nsdelegate" || o == "memory_recursiveprot" {
				list = append(list, o)
			}
		}
	}
	return list, nil
}

// Limit returns what host and runtime can do together; f is what the runtime
// says of itself (`runc features`), nil for one that says nothing, which then
// is not relied on for anything beyond OCI 1.0.
func (h *Host) Limit(f *features.Features) *Host {
	l := *h
	var linux features.Linux
	if f != nil && f.Linux != nil {
		linux = *f.Linux
	}
	l.RecursiveReadOnly = h.RecursiveReadOnly && f != nil && slices.Contains(f.MountOptions, "rro")
	ext := linux.MountExtensions
	l.IDMap = h.IDMap && ext != nil && ext.IDMap != nil && ext.IDMap.Enabled != nil && *ext.IDMap.Enabled
	if s := linux.Seccomp; s != nil && s.Enabled != nil {
		l.Seccomp = h.Seccomp && *s.Enabled
	}
	if a := linux.Apparmor; a != nil && a.Enabled != nil {
		l.AppArmor = h.AppArmor && *a.Enabled
	}
	if s := linux.Selinux; s != nil && s.Enabled != nil {
		l.SELinux = h.SELinux && *s.Enabled
	}
	return &l
}

// hasMountSetattr: the call came with kernel 5.12, and read-only trees with it.
func hasMountSetattr() bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return errors.Is(err, unix.EBADF)
}

// hasIDMap maps the ids of a detached copy of the mount that dir is on.
func hasIDMap(dir string) bool {
	userns, err := mount.GetUsernsFD("0:65536:65536", "0:65536:65536")
	if err != nil {
		return false
	}
	defer userns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(tree)
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(userns.Fd()),
	}) == nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
