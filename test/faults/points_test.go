package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/doctor"
)

// points are all moments of the shortest life, as the simulation knows them
// (internal/keeper, TestEveryCrashPoint), in their order.
func points() []string {
	var out []string
	both := func(what string) { out = append(out, "before-"+what, "after-"+what) }
	both("write-declared")
	for _, r := range []string{"dir", "namespaces", "network", "shim"} {
		both("take-" + r)
	}
	for n := range 4 {
		out = append(out, fmt.Sprintf("before-write-holds#%d", n+1), fmt.Sprintf("after-write-holds#%d", n+1))
	}
	both("write-ready")
	both("write-container-declared")
	both("take-rootfs")
	both("write-container-created")
	both("write-container-start-requested")
	both("take-task")
	both("write-container-stop-requested")
	both("stop-task")
	both("write-container-exited")
	both("give-task")
	both("write-remove-requested")
	for _, r := range []string{"rootfs", "network", "shim", "namespaces", "dir"} {
		both("give-" + r)
	}
	both("write-container-removed")
	for n := range 3 {
		out = append(out, fmt.Sprintf("before-write-released#%d", n+2))
	}
	both("write-removed")
	both("remove-journal")
	return out
}

// TestKillAtEveryPoint lets the daemon die at each point of a pod's life, and has
// the next one bring that life to its end.
func TestKillAtEveryPoint(t *testing.T) {
	n := newNode(t)
	all := points()
	for i, p := range all {
		if !t.Run(p, func(t *testing.T) {
			n.start(t, p+":kill")
			ended := n.life(t, i)
			if ended {
				t.Fatalf("the pod's life ended, and the daemon did not reach %s", p)
			}
			if st := n.cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signal() != syscall.SIGKILL {
				t.Fatalf("the daemon ended with %v", st)
			}
			n.stop(syscall.SIGKILL)
			n.start(t, "")
			if !n.life(t, i) {
				t.Fatalf("the next daemon died:\n%s", n.tail())
			}
			n.stop(syscall.SIGTERM)
			n.audit(t)
		}) {
			t.Logf("berthd said:\n%s", n.tail())
			return
		}
	}
	t.Logf("%d points", len(all))
}

// Other ends of a step: an error, a delay, and a daemon that is stopped and goes on.
func TestFailAndStop(t *testing.T) {
	n := newNode(t)
	for i, fault := range []string{
		"before-write-declared:fail", "before-take-network:fail", "after-take-shim:fail", "before-write-container-declared:fail",
		"after-take-rootfs:fail", "before-stop-task:fail", "after-give-task:fail", "after-give-network:fail", "before-write-released:fail",
		"before-write-container-exited:fail", "before-remove-journal:delay", "after-take-task:delay",
	} {
		n.start(t, fault)
		if !n.life(t, 1000+i) {
			t.Fatalf("%s: the daemon died:\n%s", fault, n.tail())
		}
		n.stop(syscall.SIGTERM)
		n.audit(t)
	}
	n.start(t, "before-take-namespaces:stop")
	time.AfterFunc(2*time.Second, func() { _ = n.cmd.Process.Signal(syscall.SIGCONT) })
	if !n.life(t, 2000) {
		t.Fatalf("the daemon died:\n%s", n.tail())
	}
	n.stop(syscall.SIGTERM)
	n.audit(t)
}

// life is the shortest life of a pod, as a kubelet would have it: it looks at
// what there is and asks for what is next, until the pod is gone (true) or the
// daemon is (false).
func (n *node) life(t *testing.T, i int) bool {
	t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	var last error
	for stopped := false; ; {
		if n.dead() {
			return false
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pod's life does not come to its end: %v\n%s", last, n.tail())
		}
		gone, err := n.step(i, &stopped)
		if gone {
			return true
		}
		if err != nil {
			last = err
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (n *node) step(i int, stopped *bool) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	name := fmt.Sprintf("p%d", i)
	cfg := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "faults", Uid: name}, Hostname: "h", LogDirectory: n.dir + "/logs",
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}
	l, err := n.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return false, err
	}
	var p *cri.PodSandbox
	for _, x := range l.Items {
		if x.Metadata.Name == name {
			if p != nil {
				return false, fmt.Errorf("two pods are called %s", name)
			}
			p = x
		}
	}
	done := n.dir + "/" + name + ".stopped" // what the client knows outlives the daemon
	if _, err := os.Stat(done); err == nil {
		*stopped = true
	}
	if p == nil {
		if *stopped {
			return true, nil
		}
		_, err := n.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg})
		return false, err
	}
	if *stopped {
		_, err := n.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.Id})
		return false, err
	}
	if p.State != cri.PodSandboxState_SANDBOX_READY {
		return false, fmt.Errorf("pod %s is not ready", p.Id)
	}
	cs, err := n.rt.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: p.Id}})
	if err != nil {
		return false, err
	}
	if len(cs.Containers) == 0 {
		_, err := n.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.Id, SandboxConfig: cfg, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"}, Image: &cri.ImageSpec{Image: image}, Args: []string{"1000"}, LogPath: name + ".log",
			Linux: &cri.LinuxContainerConfig{},
		}})
		return false, err
	}
	c := cs.Containers[0]
	switch c.State {
	case cri.ContainerState_CONTAINER_CREATED:
		_, err = n.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.Id})
	case cri.ContainerState_CONTAINER_RUNNING:
		_, err = n.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.Id, Timeout: 0})
	case cri.ContainerState_CONTAINER_EXITED:
		st, err := n.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if err != nil {
			return false, err
		}
		if st.Status.ExitCode != 137 {
			return false, fmt.Errorf("the container ended with %d (%s), want 137", st.Status.ExitCode, st.Status.Reason)
		}
		time.Sleep(100 * time.Millisecond) // its task is given back before the pod goes
		*stopped = true
		return false, os.WriteFile(done, nil, 0o600)
	}
	return false, err
}

// audit fails when anything of a pod is left.
func (n *node) audit(t *testing.T) {
	t.Helper()
	r, err := doctor.Look(t.Context(), &doctor.Options{Root: n.dir + "/r", State: n.dir + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Kind != "cgroup" { // it may be another daemon's
			t.Error(f)
		}
	}
	for _, note := range r.Notes {
		t.Error(note)
	}
	for _, dir := range []string{"r/journal", "r/pods", "r/network", "s/pods", "s/s"} {
		es, err := os.ReadDir(filepath.Join(n.dir, dir))
		if err != nil {
			t.Error(err)
		}
		for _, e := range es {
			t.Errorf("left in %s: %s", dir, e.Name())
		}
	}
	es, err := os.ReadDir(n.dir + "/addresses/faults")
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range es {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
			t.Errorf("address left: %s", e.Name())
		}
	}
}
