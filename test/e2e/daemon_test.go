package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The daemon is killed, or ends, among ten pods that never notice: nothing of
// what is told about them changes, and their logs have no gap.
func TestDaemonRestart(t *testing.T) {
	n := privateNode(t)
	const pods = 10
	var cs [pods]*container
	each(pods, func(i int) {
		p := n.pod(t)
		cs[i] = p.run("c", []string{"probe", "lines", "1000000", "2ms"})
	})
	tell := func(c *container) string {
		s, k := c.p.status(), c.status()
		return fmt.Sprint(s.State, s.CreatedAt, s.Network, s.Metadata, k.State, k.CreatedAt, k.StartedAt, k.ImageId, k.ImageRef, k.LogPath, c.pid())
	}
	var before [pods]string
	for i, c := range cs {
		before[i] = tell(c)
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		n.stop(sig)
		n.restart(t)
		for i, c := range cs {
			if after := tell(c); after != before[i] {
				t.Errorf("after %v:\n%s\nbefore:\n%s", sig, after, before[i])
			}
			c.want("echo hello", "hello")
		}
	}
	l := must[*cri.ListContainersResponse](t)(n.rt.ListContainers(t.Context(), &cri.ListContainersRequest{}))
	if len(l.Containers) != pods {
		t.Errorf("%d containers", len(l.Containers))
	}
	if i := n.imageStatus(t, baseImage); i.GetId() != ids[baseImage] {
		t.Errorf("image: %v", i)
	}
	for _, c := range cs {
		c.stop(0)
		if st := c.status(); st.ExitCode != 137 {
			t.Errorf("%v", st)
		}
		noGaps(t, readLog(t, c.log))
	}
}

// bring makes a pod run as the kubelet does: it looks what is there, does the
// next step, and comes again when that fails.
func (n *node) bring(ctx context.Context, rt func() cri.RuntimeServiceClient, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) error {
	var last error
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		done, err := step(ctx, rt(), cfg, c)
		if done {
			return nil
		}
		last = err
	}
	return fmt.Errorf("pod %s: %w", cfg.Metadata.Name, last)
}

func step(ctx context.Context, rt cri.RuntimeServiceClient, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) (bool, error) {
	l, err := rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"uid": cfg.Metadata.Uid}}})
	if err != nil {
		return false, err
	}
	id := ""
	cfg = cloneOf(cfg)
	for _, s := range l.Items {
		if s.State == cri.PodSandboxState_SANDBOX_READY {
			id = s.Id
		}
		cfg.Metadata.Attempt = max(cfg.Metadata.Attempt, s.Metadata.Attempt+1)
	}
	if id == "" {
		r, err := rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
		if err != nil {
			return false, err
		}
		id = r.PodSandboxId
	}
	remember(id)
	cl, err := rt.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return false, err
	}
	cid := ""
	c = cloneOf(c)
	for _, k := range cl.Containers {
		remember(k.Id)
		switch k.State {
		case cri.ContainerState_CONTAINER_RUNNING:
			return true, nil
		case cri.ContainerState_CONTAINER_CREATED:
			cid = k.Id
		}
		c.Metadata.Attempt = max(c.Metadata.Attempt, k.Metadata.Attempt+1)
	}
	if cid == "" {
		r, err := rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: id, Config: c, SandboxConfig: cfg})
		if err != nil {
			return false, err
		}
		cid = r.ContainerId
	}
	_, err = rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: cid})
	return false, err // it is looked at once more
}

// The daemon is killed again and again while twenty pods are made. In the end
// there is one of each, and nothing else.
func TestDaemonKilledDuringCreation(t *testing.T) {
	n := privateNode(t)
	n.logOnFailure(t)
	var client atomic.Pointer[cri.RuntimeServiceClient]
	first := n.rt
	client.Store(&first)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const pods = 20
	var wg sync.WaitGroup
	for range pods {
		cfg := n.podConfig(t)
		cfg.Labels["uid"] = cfg.Metadata.Uid
		c := (&pod{t: t, n: n, cfg: cfg}).config("c", forever)
		wg.Go(func() {
			if err := n.bring(ctx, func() cri.RuntimeServiceClient { return *client.Load() }, cfg, c); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 6 {
		time.Sleep(time.Duration(100+130*i) * time.Millisecond)
		n.kill()
		n.restart(t)
		rt := n.rt
		client.Store(&rt)
	}
	wg.Wait()
	l := must[*cri.ListPodSandboxResponse](t)(n.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{}))
	ready := map[string]int{}
	for _, p := range l.Items {
		if p.State == cri.PodSandboxState_SANDBOX_READY {
			ready[p.Metadata.Uid]++
		}
	}
	if len(ready) != pods {
		t.Errorf("%d pods are ready, want %d", len(ready), pods)
	}
	for uid, k := range ready {
		if k != 1 {
			t.Errorf("pod %s is there %d times", uid, k)
		}
	}
	// A shim for each pod that is ready, and for no other.
	eventually(t, patience, func() error {
		if s := n.shims(); len(s) != pods {
			return fmt.Errorf("%d shims for %d pods", len(s), pods)
		}
		return nil
	})
	cl := must[*cri.ListContainersResponse](t)(n.rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}}))
	if len(cl.Containers) != pods {
		t.Errorf("%d containers run, want %d", len(cl.Containers), pods)
	}
}

// An end that nobody saw is reported as it was: code, time, and all of the log.
func TestExitWhileDaemonIsDown(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	c := p.run("c", script("while ! test -e /v/go; do sleep 0.05; done; seq 1 5000; exit 42"), with(&cri.Mount{HostPath: n.dir, ContainerPath: "/v", Readonly: true}))
	n.kill()
	down := time.Now()
	write(t, n.dir+"/go", "")
	eventually(t, patience, func() error {
		if l := c.processes(); len(l) > 0 {
			return fmt.Errorf("it still runs: %v", l)
		}
		return nil
	})
	time.Sleep(time.Second)
	up := time.Now()
	n.restart(t)
	st := c.wait()
	if st.ExitCode != 42 || st.Reason != "Error" || st.FinishedAt < down.UnixNano() || st.FinishedAt > up.Add(-500*time.Millisecond).UnixNano() {
		t.Errorf("%v, down at %d, up at %d", st, down.UnixNano(), up.UnixNano())
	}
	l := readLog(t, c.log)
	if len(l) != 5000 || l[4999].text != "5000" {
		t.Errorf("the log has %d lines", len(l))
	}
}

// A stop is the shim's: it completes at its deadline although the daemon that
// asked for it is gone.
func TestStopWhileDaemonIsDown(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	c := p.run("c", []string{"probe", "signals"})
	c.waitLog("ready")
	const grace = 4 * time.Second
	begin := time.Now()
	go n.rt.StopContainer(context.Background(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: int64(grace.Seconds())})
	c.waitLog("got TERMINATED")
	n.kill()
	eventually(t, patience, func() error {
		if l := c.processes(); len(l) > 0 {
			return fmt.Errorf("it still runs: %v", l)
		}
		return nil
	})
	took := time.Since(begin)
	n.restart(t)
	st := c.wait()
	if at := time.Duration(st.FinishedAt - begin.UnixNano()); st.ExitCode != 137 || at < grace-200*time.Millisecond || at > grace+3*time.Second {
		t.Errorf("%v: ended after %v (seen after %v), the grace was %v", st, at, took, grace)
	}
	if out := c.output(); strings.Count(out, "got") != 1 {
		t.Errorf("signals: %q", out)
	}
}

// A second daemon on the same folders is refused, and disturbs nothing.
func TestSecondDaemon(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	c := p.run("c", forever)
	again := *n
	again.log = n.dir + "/second.log"
	err := again.start()
	if again.cmd != nil && err == nil {
		// The socket that answered may be the first one's: it must end by itself.
		select {
		case <-again.dead:
		case <-time.After(patience):
			again.kill()
			t.Fatal("a second daemon runs")
		}
	}
	if b, err := os.ReadFile(again.log); err != nil || !contains(string(b), "another berthd runs") {
		t.Errorf("%q, %v", b, err)
	}
	c.want("echo fine", "fine")
}

// shims are the node's, by pod.
func (n *node) shims() map[string]int {
	out := map[string]int{}
	es, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, e := range es {
		b, _ := os.ReadFile(e)
		args := strings.Split(string(b), "\x00")
		cwd, _ := os.Readlink(filepath.Dir(e) + "/cwd")
		if !contains(args[0], "containerd-shim-berth-v1") || !strings.HasPrefix(cwd, n.dir+"/") && !contains(string(b), n.dir+"/") {
			continue
		}
		var pid int
		fmt.Sscanf(e, "/proc/%d/", &pid)
		for i, a := range args[:len(args)-1] {
			if a == "-id" {
				out[args[i+1]] = pid
			}
		}
	}
	return out
}
