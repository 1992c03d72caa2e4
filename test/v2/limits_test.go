package v2

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestLimits(t *testing.T) {
	p := runPod(t)
	c := p.run("c", forever, memory(64<<20, 0), func(c *cri.ContainerConfig) {
		r := c.Linux.Resources
		r.CpuShares, r.CpuQuota, r.CpuPeriod, r.CpusetCpus = 512, 30000, 100000, "0"
		r.Unified = map[string]string{"pids.max": "77", "memory.high": strconv.Itoa(48 << 20)}
	})
	for file, want := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.high": "50331648", "memory.oom.group": "0",
		"cpu.max": "30000 100000", "cpu.weight": "59", "cpuset.cpus": "0", "pids.max": "77",
	} {
		c.group.want(t, file, want)
	}
	// It sees its own cgroup as the root, and may not write there.
	if got := c.sh("cat /proc/1/cgroup; cat /sys/fs/cgroup/memory.max; echo 1 2>/dev/null >/sys/fs/cgroup/pids.max || echo no"); got != "0::/\n67108864\nno" {
		t.Errorf("in the container: %q", got)
	}

	update := func(r *cri.LinuxContainerResources) {
		t.Helper()
		if _, err := daemon.rt.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: c.id, Linux: r}); err != nil {
			t.Error(err)
		}
	}
	update(&cri.LinuxContainerResources{CpuQuota: 50000, CpuPeriod: 100000, CpuShares: 1024})
	c.group.want(t, "cpu.max", "50000 100000")
	c.group.want(t, "cpu.weight", "100")
	c.group.want(t, "memory.max", "67108864")
	update(&cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, MemorySwapLimitInBytes: 160 << 20})
	c.group.want(t, "memory.max", strconv.Itoa(128<<20))
	c.group.want(t, "memory.swap.max", strconv.Itoa(32<<20))
	update(&cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20})
	c.group.want(t, "memory.max", strconv.Itoa(32<<20))
	c.group.want(t, "memory.swap.max", "0")
	update(&cri.LinuxContainerResources{Unified: map[string]string{"pids.max": "88", "memory.min": "1048576"}})
	c.group.want(t, "pids.max", "88")
	c.group.want(t, "memory.min", "1048576")
	c.group.want(t, "cpu.max", "50000 100000")
	update(&cri.LinuxContainerResources{CpuQuota: -1, CpuPeriod: 100000})
	c.group.want(t, "cpu.max", "max 100000")
	s, err := c.state()
	if err != nil {
		t.Fatal(err)
	}
	if r := s.GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 32<<20 || r.GetCpuShares() != 1024 || r.GetUnified()["pids.max"] != "88" || r.GetUnified()["memory.high"] != "50331648" {
		t.Errorf("status: %v", r)
	}
	c.stop(5)
	if err := c.remove(); err != nil {
		t.Error(err)
	}
}

// The pod's own limits are the kubelet's, and stay.
func TestPodLimits(t *testing.T) {
	p := runPod(t)
	p.group.set(t, "pids.max", "60")
	// The inner shell ends when it cannot fork.
	c := p.run("c", sh("sh -c 'while :; do sleep 1000 & done'; echo full; exec sleep 1000"))
	c.waitLog("full")
	if n := p.group.processes(); n < 50 || n > 60 {
		t.Errorf("%d processes, the limit is 60", n)
	}
	begin := time.Now()
	c.stop(0)
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the stop took %v", d)
	}
	p.group.want(t, "pids.max", "60")
	if n := p.group.processes(); n > 0 {
		t.Errorf("%d processes are left", n)
	}
}

// Without a cgroup parent a container has a cgroup of its own at the top.
func TestNoParent(t *testing.T) {
	p := runPod(t, noParent)
	c := p.run("c", forever, memory(48<<20, 0))
	c.group.want(t, "memory.max", "50331648")
	c.stop(5)
	if err := c.remove(); err != nil {
		t.Error(err)
	}
}

// A privileged container that runs containers makes cgroups in its own, moves
// its processes there, and turns controllers on.
func TestNestedCgroups(t *testing.T) {
	for _, mode := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
		t.Run(mode.String(), func(t *testing.T) {
			options := func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions.Pid = mode
				c.Linux.SecurityContext.Privileged = true
			}
			p := runPod(t, options)
			c := p.run("c", sh(`cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && mkdir -p inner/deep || exit 1
				echo $$ >inner/deep/cgroup.procs || exit 2
				echo "+memory +pids" >cgroup.subtree_control || exit 3
				echo up; setsid sleep 1000 & sleep 1000`), memory(64<<20, 0), func(c *cri.ContainerConfig) {
				c.Linux.SecurityContext.Privileged = true
			})
			c.waitLog("up")
			if got := c.group.get(t, "cgroup.procs"); got != "" {
				t.Errorf("processes outside of the inner one: %q", got)
			}
			if got := c.sh("echo ok"); got != "ok" {
				t.Errorf("exec: %q", got)
			}
			eventually(t, func() error {
				if s := c.stats(t); s.Memory.UsageBytes.GetValue() == 0 {
					return fmt.Errorf("no memory: %v", s)
				}
				return nil
			})
			eventually(t, func() error { // a sample is up to a second old
				if n, want := podStats(t, p).Linux.Process.ProcessCount.GetValue(), p.group.processes(); int(n) != want || want < 2 {
					return fmt.Errorf("%d processes in the pod, want %d", n, want)
				}
				return nil
			})
			c.stop(0)
			if n := c.group.processes(); n > 0 {
				t.Errorf("%d processes are left", n)
			}
			if err := c.remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Containers that share a pid namespace, and the one that holds it, die with
// the pod, and none of their cgroups stays.
func TestSharedPIDs(t *testing.T) {
	p := runPod(t, func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD })
	a := p.run("a", sh("setsid sleep 1000 & setsid sleep 1001 & sleep 1002"))
	b := p.run("b", forever, memory(64<<20, 0))
	b.group.want(t, "memory.max", "67108864")
	if got := b.sh("ps"); !strings.Contains(got, "sleep 1001") {
		t.Errorf("b does not see a's processes: %s", got)
	}
	a.stop(0)
	if n := a.group.processes(); n > 0 {
		t.Errorf("%d processes of a are left", n)
	}
	if err := a.remove(); err != nil {
		t.Error(err)
	}
	b.sh("true")
}

// Containers in a user namespace have their limits, and out of memory is told.
func TestUserNamespace(t *testing.T) {
	ids := []*cri.IDMapping{{HostId: 100000, ContainerId: 0, Length: 65536}}
	p := runPod(t, func(c *cri.PodSandboxConfig) {
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Network = cri.NamespaceMode_POD // a user namespace has no host network
		o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
	})
	c := p.run("c", forever, memory(32<<20, 32<<20))
	c.group.want(t, "memory.max", "33554432")
	if got := c.sh("id -u; cat /proc/self/uid_map; cat /proc/1/cgroup"); strings.Join(strings.Fields(got), " ") != "0 0 100000 65536 0::/" {
		t.Errorf("in the container: %q", got)
	}
	o := p.run("o", []string{"probe", "eat", "200"}, memory(32<<20, 32<<20))
	if s := o.wait(); s.ExitCode != 137 || s.Reason != "OOMKilled" {
		t.Errorf("%d %q", s.ExitCode, s.Reason)
	}
}
