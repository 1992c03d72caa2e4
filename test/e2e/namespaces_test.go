package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func hostNamespace(t *testing.T, kind string) string {
	t.Helper()
	return must[string](t)(os.Readlink("/proc/self/ns/" + kind))
}

// Containers of a pod share what a pod shares, and nothing else.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	a, b := p.run("a", forever), p.run("b", forever)
	for kind, same := range map[string]bool{"net": true, "ipc": true, "uts": true, "pid": false, "mnt": false, "cgroup": cgroupV1()} {
		x, y := a.sh("readlink /proc/self/ns/"+kind), b.sh("readlink /proc/self/ns/"+kind)
		if (x == y) != same {
			t.Errorf("%s: %s and %s", kind, x, y)
		}
		// A cgroup namespace is of use with v2 only.
		if x == hostNamespace(t, kind) && (kind != "cgroup" || !cgroupV1()) {
			t.Errorf("%s is the host's", kind)
		}
	}
	a.want("hostname; cat /etc/hostname", p.cfg.Hostname+"\n"+p.cfg.Hostname)
	a.want("cat /proc/1/comm", "sh")
	// /dev/shm belongs to the pod.
	a.sh("echo shared > /dev/shm/f")
	b.want("cat /dev/shm/f", "shared")
	q := shared.pod(t)
	q.run("a", forever).want("ls /dev/shm", "")
}

func TestSharedPID(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, podNamespaces(func(o *cri.NamespaceOption) { o.Pid = cri.NamespaceMode_POD }))
	a := p.run("a", []string{"sleep", "77771"})
	b := p.run("b", []string{"sleep", "77772"})
	for _, c := range []*container{a, b} {
		if ps := c.sh("ps"); !strings.Contains(ps, "sleep 77771") || !strings.Contains(ps, "sleep 77772") {
			t.Errorf("%s sees %s", c.cfg.Metadata.Name, ps)
		}
	}
	if comm := a.sh("cat /proc/1/comm"); comm == "sleep" {
		t.Errorf("process 1 is %s", comm)
	}
	// An orphan's end is reaped by the pod's init.
	a.sh("setsid sh -c 'sleep 0.1 & exit 0'; sleep 0.5")
	if ps := a.sh("ps -o stat,comm"); strings.Contains(ps, "Z") {
		t.Errorf("a zombie: %s", ps)
	}
	// One container's end is not its sibling's, and takes all of it along.
	a.sh("setsid sleep 77773 & echo")
	a.stop(0)
	if ps := b.sh("ps"); strings.Contains(ps, "77771") || strings.Contains(ps, "77773") || !strings.Contains(ps, "77772") {
		t.Errorf("after a's end: %s", ps)
	}
	a.remove()
	c := p.run("a", []string{"sleep", "77774"}, attempt(1))
	if ps := b.sh("ps"); !strings.Contains(ps, "77774") {
		t.Errorf("after a's restart: %s", ps)
	}
	if st := c.status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
}

func TestHostNamespaces(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, podNamespaces(func(o *cri.NamespaceOption) {
		o.Network, o.Pid, o.Ipc = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	}), func(c *cri.PodSandboxConfig) { c.Hostname = "" })
	c := p.run("c", forever)
	for _, kind := range []string{"net", "pid", "ipc", "uts"} {
		c.want("readlink /proc/self/ns/"+kind, hostNamespace(t, kind))
	}
	if ip := p.ip(); ip != "" {
		t.Errorf("address %s", ip)
	}
	name := must[string](t)(os.Hostname())
	c.want("hostname", name)
	// It ends although its processes are no namespace's.
	c.sh("setsid sleep 77777 & echo")
	c.stop(0)
	if l := c.processes(); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// An ephemeral container sees the processes of its target.
func TestTargetPID(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	a := p.run("a", []string{"sleep", "66661"})
	b := p.run("b", []string{"sleep", "66662"}, security(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: a.id}
	}))
	if ps := b.sh("ps"); !strings.Contains(ps, "66661") || !strings.Contains(ps, "66662") {
		t.Errorf("it sees %s", ps)
	}
	b.stop(0)
	if st := a.status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the target: %v", st)
	}
	// A container that is made for a target which then ends does not start, in
	// whichever namespace has the target's pid by then.
	c := p.create("c", []string{"sleep", "66663"}, security(func(s *cri.LinuxContainerSecurityContext) {
		s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET, TargetId: a.id}
	}))
	st := must[*cri.ContainerStatusResponse](t)(shared.rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true}))
	var info struct {
		RuntimeSpec specs.Spec `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == specs.PIDNamespace && (n.Path == "" || strings.HasPrefix(n.Path, "/proc/")) {
			t.Errorf("the target's namespace is named %q, want a pinned file", n.Path)
		}
	}
	a.stop(0)
	if _, err := shared.rt.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c.id}); err == nil {
		t.Error("it started without its target")
	}
}

func TestSysctls(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, func(c *cri.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_local_port_range": "1024 65000", "net.ipv4.conf.eth0.rp_filter": "2"}
	})
	c := p.run("c", forever)
	c.want("cat /proc/sys/kernel/shm_rmid_forced", "1")
	c.want("cat /proc/sys/net/ipv4/ip_local_port_range", "1024\t65000")
	c.want("cat /proc/sys/net/ipv4/conf/eth0/rp_filter", "2")
	q := shared.pod(t)
	q.run("c", forever).want("cat /proc/sys/kernel/shm_rmid_forced", "0")
}
