package v2

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type pod struct {
	t     *testing.T
	id    string
	cfg   *cri.PodSandboxConfig
	group group // "" when it has no cgroup parent
}

// group is a cgroup's folder.
type group string

// newGroup makes a pod's cgroup as the kubelet does: with all controllers on
// for what comes below. It must be empty when the test ends.
func newGroup(t *testing.T, uid string) group {
	t.Helper()
	g := group(mount + "/kubepods/pod" + uid)
	if err := os.MkdirAll(string(g), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []group{mount, mount + "/kubepods", g} {
		d.set(t, "cgroup.subtree_control", "+cpuset +cpu +io +memory +pids")
	}
	t.Cleanup(func() {
		if err := os.Remove(string(g)); err != nil {
			t.Errorf("the pod's cgroup is not empty: %v: %v", err, g.children())
		}
	})
	return g
}

func (g group) set(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(g), file), []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func (g group) get(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(string(g), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (g group) want(t *testing.T, file, value string) {
	t.Helper()
	if got := g.get(t, file); got != value {
		t.Errorf("%s: %q, want %q", file, got, value)
	}
}

func (g group) exists() bool {
	_, err := os.Stat(string(g))
	return err == nil
}

// children are the cgroups below.
func (g group) children() (names []string) {
	filepath.WalkDir(string(g), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && p != string(g) {
			names = append(names, strings.TrimPrefix(p, string(g)+"/"))
		}
		return nil
	})
	return names
}

// processes counts those in the cgroup and below.
func (g group) processes() (n int) {
	for _, d := range append(g.children(), "") {
		b, _ := os.ReadFile(filepath.Join(string(g), d, "cgroup.procs"))
		n += strings.Count(string(b), "\n")
	}
	return n
}

type podOption = func(*cri.PodSandboxConfig)
type containerOption = func(*cri.ContainerConfig)

// noParent leaves the cgroup to berthd.
func noParent(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = "" }

// runPod runs a pod on the host's network, in a cgroup of its own.
func runPod(t *testing.T, change ...podOption) *pod {
	t.Helper()
	i := serial.Add(1)
	uid := fmt.Sprintf("v2-%d", i)
	cfg := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: uid, Namespace: "v2", Uid: uid},
		LogDirectory: filepath.Join(work, "logs", uid),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/pod" + uid,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{
				Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER,
			}},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	p := &pod{t: t, cfg: cfg}
	if cfg.Linux.CgroupParent != "" {
		p.group = newGroup(t, uid)
	}
	r, err := daemon.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		t.Fatalf("run pod: %v\n%s", err, daemon.tail())
	}
	p.id = r.PodSandboxId
	t.Cleanup(p.remove)
	return p
}

func (p *pod) remove() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := daemon.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.t.Errorf("stop pod: %v", err)
	}
	if _, err := daemon.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.t.Errorf("remove pod: %v", err)
	}
	if p.t.Failed() {
		p.t.Logf("berthd said:\n%s", daemon.tail())
	}
}

type container struct {
	p     *pod
	id    string
	group group
	cfg   *cri.ContainerConfig
}

func (p *pod) create(name string, cmd []string, change ...containerOption) (*container, error) {
	cfg := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: image}, Command: cmd, LogPath: name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: p.cfg.Linux.SecurityContext.NamespaceOptions},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	r, err := daemon.rt.CreateContainer(p.t.Context(), &cri.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.cfg})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	c := &container{p, r.ContainerId, p.group + group("/"+r.ContainerId), cfg}
	if p.group == "" {
		c.group = group(mount + "/berth-" + r.ContainerId)
	}
	if _, err := daemon.rt.StartContainer(p.t.Context(), &cri.StartContainerRequest{ContainerId: c.id}); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// run creates and starts a container.
func (p *pod) run(name string, cmd []string, change ...containerOption) *container {
	p.t.Helper()
	c, err := p.create(name, cmd, change...)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, daemon.tail())
	}
	return c
}

func (c *container) state() (*cri.ContainerStatus, error) {
	r, err := daemon.rt.ContainerStatus(c.p.t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id})
	return r.GetStatus(), err
}

// end waits for the container's end.
func (c *container) end() (*cri.ContainerStatus, error) {
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s, err := c.state()
		if err != nil || s.State == cri.ContainerState_CONTAINER_EXITED {
			return s, err
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("container %s does not end", c.cfg.Metadata.Name)
		}
	}
}

func (c *container) wait() *cri.ContainerStatus {
	c.p.t.Helper()
	s, err := c.end()
	if err != nil {
		c.p.t.Fatal(err)
	}
	return s
}

func (c *container) stop(grace int64) {
	c.p.t.Helper()
	if _, err := daemon.rt.StopContainer(c.p.t.Context(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: grace}); err != nil {
		c.p.t.Fatalf("stop: %v", err)
	}
}

// remove removes the container; of its cgroup nothing is left then.
func (c *container) remove() error {
	if _, err := daemon.rt.RemoveContainer(c.p.t.Context(), &cri.RemoveContainerRequest{ContainerId: c.id}); err != nil {
		return err
	}
	if c.group.exists() {
		return fmt.Errorf("cgroup %s is left: %v", c.group, c.group.children())
	}
	return nil
}

func (c *container) exec(timeout int64, script string) (*cri.ExecSyncResponse, error) {
	return daemon.rt.ExecSync(c.p.t.Context(), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: sh(script), Timeout: timeout})
}

// sh runs a script in the container, which must succeed, and gives its output.
func (c *container) sh(script string) string {
	c.p.t.Helper()
	r, err := c.exec(60, script)
	if err != nil || r.ExitCode != 0 {
		c.p.t.Fatalf("%s: %v, exit %d: %s", script, err, r.GetExitCode(), r.GetStderr())
	}
	return strings.TrimSpace(string(r.Stdout))
}

func (c *container) waitLog(text string) {
	c.p.t.Helper()
	eventually(c.p.t, func() error {
		b, err := os.ReadFile(filepath.Join(c.p.cfg.LogDirectory, c.cfg.LogPath))
		if err == nil && !strings.Contains(string(b), text) {
			err = fmt.Errorf("%q is not in the log: %.300s", text, b)
		}
		return err
	})
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// forever runs until it is stopped.
var forever = sh("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

func memory(limit, withSwap int64) containerOption {
	return func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = limit, withSwap
	}
}
