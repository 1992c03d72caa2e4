package e2e

import (
	"os"
	"strconv"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// limits reads a container's limits as the kernel has them.
type limits struct{ shares, quota, period, memory string }

func (c *container) limits() limits {
	c.t.Helper()
	l := limits{memory: cgroupFile(c.t, c, "memory", "memory.limit_in_bytes", "memory.max")}
	if cgroupV1() {
		l.shares = cgroupFile(c.t, c, "cpu", "cpu.shares", "")
		l.quota, l.period = cgroupFile(c.t, c, "cpu", "cpu.cfs_quota_us", ""), cgroupFile(c.t, c, "cpu", "cpu.cfs_period_us", "")
		return l
	}
	// cpu.max is "quota period"; the weight of shares is checked by its order only.
	l.quota = cgroupFile(c.t, c, "", "", "cpu.max")
	l.shares = cgroupFile(c.t, c, "", "", "cpu.weight")
	return l
}

func (c *container) update(r *cri.LinuxContainerResources) error {
	_, err := c.p.n.rt.UpdateContainerResources(c.t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: c.id, Linux: r})
	return err
}

func (l limits) check(t *testing.T, what string, shares, quota, period, memory int64) {
	t.Helper()
	want := limits{memory: strconv.FormatInt(memory, 10)}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	if cgroupV1() {
		want.shares, want.quota, want.period = n(shares), n(quota), n(period)
	} else {
		want.quota, l.shares = n(quota)+" "+n(period), ""
	}
	if l != want {
		t.Errorf("%s: %+v, want %+v", what, l, want)
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever, func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 512, CpuQuota: 30000, CpuPeriod: 100000, MemoryLimitInBytes: 64 << 20, CpusetCpus: "0"}
	})
	c.limits().check(t, "created", 512, 30000, 100000, 64<<20)
	c.want("grep Cpus_allowed_list /proc/self/status | cut -f2", "0")

	// What an update leaves out stays.
	if err := c.update(&cri.LinuxContainerResources{CpuQuota: 50000, CpuPeriod: 100000}); err != nil {
		t.Fatal(err)
	}
	c.limits().check(t, "cpu updated", 512, 50000, 100000, 64<<20)
	if err := c.update(&cri.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: 96 << 20}); err != nil {
		t.Fatal(err)
	}
	c.limits().check(t, "memory updated", 256, 50000, 100000, 96<<20)
	r := c.status().GetResources().GetLinux()
	if r.GetCpuShares() != 256 || r.GetCpuQuota() != 50000 || r.GetMemoryLimitInBytes() != 96<<20 || r.GetCpusetCpus() != "0" {
		t.Errorf("status: %v", r)
	}

	// Before the start it is what the container starts with.
	d := p.create("d", forever, func(c *cri.ContainerConfig) { c.Linux.Resources.CpuShares = 512 })
	if err := d.update(&cri.LinuxContainerResources{CpuShares: 1024, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 48 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := d.tryStart(); err != nil {
		t.Fatal(err)
	}
	d.limits().check(t, "updated before its start", 1024, 20000, 100000, 48<<20)
	d.stop(0)
	wantCode(t, "update after the end", d.update(&cri.LinuxContainerResources{CpuShares: 2}), codes.FailedPrecondition)
	// The other's are its own.
	c.limits().check(t, "at the end", 256, 50000, 100000, 96<<20)
}

// Containers are in the cgroup that the kubelet made for the pod.
func TestPodCgroup(t *testing.T) {
	t.Parallel()
	name := "/" + runTag + "-parent"
	base := "/sys/fs/cgroup"
	if cgroupV1() {
		base += "/memory"
	}
	if err := os.MkdirAll(base+name, 0o755); err != nil {
		t.Fatal(err)
	}
	// The kubelet makes and removes the parent, in each hierarchy.
	t.Cleanup(func() { removeCgroups(name) })
	p := shared.pod(t, func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = name })
	c := p.run("c", forever)
	if v := cgroupFile(t, c, "memory", "cgroup.procs", "cgroup.procs"); v == "" {
		t.Error("no process in its cgroup")
	}
	es := must[[]os.DirEntry](t)(os.ReadDir(base + name))
	found := ""
	for _, e := range es {
		if e.IsDir() {
			found += e.Name() + " "
		}
	}
	if found != c.id+" " {
		t.Errorf("cgroups below the parent: %q, want the container's id", found)
	}
	res := &cri.LinuxContainerResources{CpuShares: 300, MemoryLimitInBytes: 200 << 20}
	over := &cri.LinuxContainerResources{CpuShares: 10}
	if _, err := shared.rt.UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: p.id, Resources: res, Overhead: over}); err != nil {
		t.Fatal(err)
	}
	r := must[*cri.PodSandboxStatusResponse](t)(shared.rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true}))
	if i := r.Info["info"]; !contains(i, "209715200") {
		t.Errorf("the update is not in the pod's info: %.500s", i)
	}
	if _, err := shared.rt.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	_, err := shared.rt.UpdatePodSandboxResources(t.Context(), &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: p.id, Resources: res})
	wantCode(t, "update of a stopped pod", err, codes.FailedPrecondition)
}
