package ocispec

import (
	"context"
	"maps"
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const resourcesField = "linux.resources"

// resources sets the container's cgroup and its limits.
func (b *builder) resources(context.Context) error {
	res, err := Resources(b.Container.GetLinux().GetResources(), b.Host)
	if err != nil {
		return err
	}
	b.spec.Linux.Resources = res
	b.spec.Linux.CgroupsPath = b.CgroupsPath
	if b.CgroupsPath == "" {
		parent := b.Pod.GetLinux().GetCgroupParent()
		if parent == "" && !b.Systemd {
			parent = path.Join("/berth", b.PodID)
		}
		b.spec.Linux.CgroupsPath, err = CgroupsPath(parent, b.ContainerID, b.Systemd)
	}
	return err
}

// CgroupsPath names a container's cgroup as the OCI runtime takes it: below
// parent, a path in cgroupfs's syntax (as CRI has it), or "slice:berth:id" for
// systemd, whose parent must be a slice (empty: system.slice).
func CgroupsPath(parent, id string, systemd bool) (string, error) {
	if !systemd {
		return path.Join("/", parent, id), nil
	}
	slice := path.Base(parent)
	if parent == "" {
		slice = "system.slice"
	}
	if !strings.HasSuffix(slice, ".slice") {
		return "", invalid("sandbox_config.linux.cgroup_parent", "%q is not a slice, and cgroups are systemd's", parent)
	}
	return slice + ":berth:" + id, nil
}

// Resources turns CRI's limits into OCI's, for a new container and for an
// update. What is zero or empty in CRI is left alone. Errors are
// InvalidArgument.
func Resources(l *runtime.LinuxContainerResources, host *Host) (*specs.LinuxResources, error) {
	res := &specs.LinuxResources{}
	if l == nil {
		return res, nil
	}
	if err := validateResources(l); err != nil {
		return nil, err
	}
	cpu := &specs.LinuxCPU{Cpus: l.GetCpusetCpus(), Mems: l.GetCpusetMems()}
	if v := uint64(l.GetCpuPeriod()); v != 0 {
		cpu.Period = &v
	}
	if v := l.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	if v := uint64(l.GetCpuShares()); v != 0 {
		cpu.Shares = &v
	}
	if *cpu != (specs.LinuxCPU{}) {
		res.CPU = cpu
	}

	memory := &specs.LinuxMemory{}
	limit, swap := l.GetMemoryLimitInBytes(), l.GetMemorySwapLimitInBytes()
	if limit != 0 {
		memory.Limit = &limit
	}
	// OCI's swap is memory and swap together. A container with a limit and no
	// word about swap must not swap past the limit.
	if swap == 0 {
		swap = limit
	}
	if swap != 0 && host.Swap {
		memory.Swap = &swap
	}
	if *memory != (specs.LinuxMemory{}) {
		res.Memory = memory
	}

	// The kubelet sends hugepage limits of zero for every size; a host without
	// the controller cannot hold a container to them and has none to give.
	if host.Hugetlb {
		for _, h := range l.GetHugepageLimits() {
			res.HugepageLimits = append(res.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPageSize(), Limit: h.GetLimit()})
		}
	}
	if len(l.GetUnified()) > 0 {
		if !host.CgroupV2 {
			return nil, invalid(resourcesField+".unified", "this host has no cgroup v2")
		}
		res.Unified = maps.Clone(l.GetUnified())
	}
	return res, nil
}

func validateResources(l *runtime.LinuxContainerResources) error {
	for _, f := range []struct {
		name       string
		value, min int64
	}{
		{"cpu_period", l.GetCpuPeriod(), 0},
		{"cpu_quota", l.GetCpuQuota(), -1}, // -1: no limit
		{"cpu_shares", l.GetCpuShares(), 0},
		{"memory_limit_in_bytes", l.GetMemoryLimitInBytes(), -1},
		{"memory_swap_limit_in_bytes", l.GetMemorySwapLimitInBytes(), -1},
		{"oom_score_adj", l.GetOomScoreAdj(), -1000},
	} {
		if f.value < f.min {
			return invalid(resourcesField+"."+f.name, "%d is below %d", f.value, f.min)
		}
	}
	if adj := l.GetOomScoreAdj(); adj > 1000 {
		return invalid(resourcesField+".oom_score_adj", "%d is above 1000", adj)
	}
	limit, swap := l.GetMemoryLimitInBytes(), l.GetMemorySwapLimitInBytes()
	if limit > 0 && swap > 0 && swap < limit {
		return invalid(resourcesField+".memory_swap_limit_in_bytes", "%d is below the memory limit of %d, which it includes", swap, limit)
	}
	for key := range l.GetUnified() {
		if key == "" || key == "." || key == ".." || strings.Contains(key, "/") {
			return invalid(resourcesField+".unified", "%q is not a file of a cgroup", key)
		}
	}
	for _, s := range []string{l.GetCpusetCpus(), l.GetCpusetMems()} {
		if strings.Trim(s, "0123456789,-") != "" {
			return invalid(resourcesField+".cpuset_cpus/mems", "%q is not a list of numbers", s)
		}
	}
	return nil
}
