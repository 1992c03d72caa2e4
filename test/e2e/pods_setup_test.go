package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var serial atomic.Int64 // of pods, in this run

// known are the ids of all pods and containers of the run: what is left over is
// found by them.
var known = struct {
	mu  sync.Mutex
	ids []string
}{}

func remember(id string) {
	known.mu.Lock()
	defer known.mu.Unlock()
	known.ids = append(known.ids, id)
}

type pod struct {
	t   *testing.T
	n   *node
	id  string
	cfg *cri.PodSandboxConfig
}

type podOption = func(*cri.PodSandboxConfig)
type containerOption = func(*cri.ContainerConfig)

// podConfig is what a kubelet would ask for.
func (n *node) podConfig(t *testing.T, change ...podOption) *cri.PodSandboxConfig {
	i := serial.Add(1)
	name := fmt.Sprintf("p%d", i)
	cfg := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "e2e", Uid: fmt.Sprintf("%s-%d", runTag, i)},
		Hostname:     name,
		LogDirectory: filepath.Join(n.dir, "logs", name),
		Labels:       map[string]string{"test": t.Name()},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}
	for _, c := range change {
		c(cfg)
	}
	return cfg
}

// pod runs a pod, which goes with the test.
func (n *node) pod(t *testing.T, change ...podOption) *pod {
	t.Helper()
	n.logOnFailure(t)
	return n.runPod(t, n.podConfig(t, change...))
}

func (n *node) runPod(t *testing.T, cfg *cri.PodSandboxConfig) *pod {
	t.Helper()
	r, err := n.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		t.Fatalf("run pod: %v", err)
	}
	remember(r.PodSandboxId)
	p := &pod{t, n, r.PodSandboxId, cfg}
	t.Cleanup(p.remove)
	return p
}

// remove stops and removes the pod, which must work, on a daemon that runs.
func (p *pod) remove() {
	p.t.Helper()
	if p.n.cmd == nil {
		return // privateNode's cleaning does it
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := p.n.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.t.Errorf("stop pod %s: %v", p.id, err)
	}
	if _, err := p.n.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.t.Errorf("remove pod %s: %v", p.id, err)
	}
}

func (p *pod) status() *cri.PodSandboxStatus {
	p.t.Helper()
	r, err := p.n.rt.PodSandboxStatus(p.t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		p.t.Fatalf("status of pod %s: %v", p.id, err)
	}
	return r.Status
}

func (p *pod) ip() string { return p.status().Network.Ip }

type container struct {
	p   *pod
	t   *testing.T
	id  string
	cfg *cri.ContainerConfig
	log string
}

// config asks for a container of the base image.
func (p *pod) config(name string, cmd []string, change ...containerOption) *cri.ContainerConfig {
	cfg := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: baseImage},
		Command:  cmd,
		Envs:     []*cri.KeyValue{{Key: tagKey, Value: []byte(runTag)}},
		LogPath:  name + "/0.log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: p.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	for _, c := range change {
		c(cfg)
	}
	return cfg
}

func (p *pod) tryCreate(cfg *cri.ContainerConfig) (*container, error) {
	r, err := p.n.rt.CreateContainer(p.t.Context(), &cri.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.cfg})
	if err != nil {
		return nil, err
	}
	remember(r.ContainerId)
	return &container{p, p.t, r.ContainerId, cfg, filepath.Join(p.cfg.LogDirectory, cfg.LogPath)}, nil
}

func (p *pod) create(name string, cmd []string, change ...containerOption) *container {
	p.t.Helper()
	c, err := p.tryCreate(p.config(name, cmd, change...))
	if err != nil {
		p.t.Fatalf("create container %s: %v", name, err)
	}
	return c
}

// run creates a container and starts it.
func (p *pod) run(name string, cmd []string, change ...containerOption) *container {
	p.t.Helper()
	c := p.create(name, cmd, change...)
	if err := c.tryStart(); err != nil {
		p.t.Fatalf("start container %s: %v", name, err)
	}
	return c
}

func (c *container) tryStart() error {
	_, err := c.p.n.rt.StartContainer(c.t.Context(), &cri.StartContainerRequest{ContainerId: c.id})
	return err
}

func (c *container) stop(seconds int64) {
	c.t.Helper()
	if _, err := c.p.n.rt.StopContainer(c.t.Context(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: seconds}); err != nil {
		c.t.Fatalf("stop container %s: %v", c.id, err)
	}
}

func (c *container) remove() {
	c.t.Helper()
	if _, err := c.p.n.rt.RemoveContainer(c.t.Context(), &cri.RemoveContainerRequest{ContainerId: c.id}); err != nil {
		c.t.Fatalf("remove container %s: %v", c.id, err)
	}
}

func (c *container) tryStatus() (*cri.ContainerStatus, error) {
	r, err := c.p.n.rt.ContainerStatus(c.t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id})
	if err != nil {
		return nil, err
	}
	return r.Status, nil
}

func (c *container) status() *cri.ContainerStatus {
	c.t.Helper()
	st, err := c.tryStatus()
	if err != nil {
		c.t.Fatalf("status of container %s: %v", c.id, err)
	}
	return st
}

// wait waits for the end.
func (c *container) wait() *cri.ContainerStatus {
	c.t.Helper()
	var st *cri.ContainerStatus
	eventually(c.t, patience, func() error {
		if st = c.status(); st.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("container %s is %s", c.cfg.Metadata.Name, st.State)
		}
		return nil
	})
	return st
}

func (c *container) try(timeout int64, cmd ...string) (*cri.ExecSyncResponse, error) {
	return c.p.n.rt.ExecSync(c.t.Context(), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: cmd, Timeout: timeout})
}

// sh runs a script that must succeed, and returns what it wrote.
func (c *container) sh(script string) string {
	c.t.Helper()
	r, err := c.try(30, "sh", "-c", script)
	if err != nil {
		c.t.Fatalf("%s: %v", script, err)
	}
	if r.ExitCode != 0 {
		c.t.Fatalf("%s: exit %d: %s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// want fails unless a script writes this.
func (c *container) want(script, want string) {
	c.t.Helper()
	if got := c.sh(script); got != want {
		c.t.Errorf("%s: %q, want %q", script, got, want)
	}
}

// output is what a container wrote to stdout and stderr, once it has ended.
func (c *container) output() string {
	c.t.Helper()
	c.wait()
	var b strings.Builder
	for _, l := range readLog(c.t, c.log) {
		b.WriteString(l.text)
		if l.full {
			b.WriteString("\n")
		}
	}
	return b.String()
}

// line is one of a CRI log.
type line struct {
	at     time.Time
	stream string
	full   bool
	text   string
}

// readLog reads a whole CRI log, and fails where its format is broken. What is
// behind the last newline is not there yet.
func readLog(t *testing.T, path string) []line {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []line
	for i, l := range strings.SplitAfter(string(b), "\n") {
		l, whole := strings.CutSuffix(l, "\n")
		if !whole {
			continue
		}
		f := strings.SplitN(l, " ", 4)
		if len(f) != 4 {
			t.Fatalf("%s:%d: %q is no line of a CRI log", path, i+1, l)
		}
		at, err := time.Parse(time.RFC3339Nano, f[0])
		if err != nil || f[1] != "stdout" && f[1] != "stderr" || f[2] != "F" && f[2] != "P" {
			t.Fatalf("%s:%d: %q is no line of a CRI log (%v)", path, i+1, l, err)
		}
		out = append(out, line{at, f[1], f[2] == "F", f[3]})
	}
	return out
}

// waitLog waits for a line in the log.
func (c *container) waitLog(text string) {
	c.t.Helper()
	eventually(c.t, patience, func() error {
		b, err := os.ReadFile(c.log)
		if err == nil && !strings.Contains(string(b), text) {
			err = fmt.Errorf("%q is not in the log: %.300s", text, b)
		}
		return err
	})
}

// each calls f with 0 to n-1 at once, and waits.
func each(n int, f func(int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func script(s string) []string { return []string{"sh", "-c", s} }

// forever is a container that ends at once when it is stopped.
var forever = script("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

func attempt(n uint32) containerOption {
	return func(c *cri.ContainerConfig) {
		c.Metadata.Attempt = n
		c.LogPath = fmt.Sprintf("%s/%d.log", c.Metadata.Name, n)
	}
}

func security(f func(*cri.LinuxContainerSecurityContext)) containerOption {
	return func(c *cri.ContainerConfig) { f(c.Linux.SecurityContext) }
}

func podNamespaces(f func(*cri.NamespaceOption)) podOption {
	return func(c *cri.PodSandboxConfig) { f(c.Linux.SecurityContext.NamespaceOptions) }
}

// pid is the container's first process.
func (c *container) pid() int {
	c.t.Helper()
	r, err := c.p.n.rt.ContainerStatus(c.t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	if err != nil {
		c.t.Fatal(err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil || info.Pid == 0 {
		c.t.Fatalf("pid of container %s: %v: %.200s", c.id, err, r.Info["info"])
	}
	return info.Pid
}

// processes are those in the container's cgroups.
func (c *container) processes() map[int]string {
	out := map[int]string{}
	for pid, cmd := range processes() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if strings.Contains(string(b), c.id) {
			out[pid] = cmd
		}
	}
	return out
}

// kill sends a signal to a process of the host.
func kill(pid int, name string) error {
	return unix.Kill(pid, unix.SignalNum("SIG"+name))
}
