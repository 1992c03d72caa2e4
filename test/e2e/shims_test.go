package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (p *pod) shim() int {
	p.t.Helper()
	pid := p.n.shims()[p.id]
	if pid == 0 {
		p.t.Fatalf("pod %s has no shim: %v", p.id, p.n.shims())
	}
	return pid
}

// lost waits until the daemon says that the container went with its shim.
func (c *container) lost() {
	c.t.Helper()
	st := c.wait()
	if st.ExitCode != 137 || !contains(st.Reason+st.Message, "shim") || st.FinishedAt < st.StartedAt {
		c.t.Errorf("%v, want 137 because the shim is lost", st)
	}
	eventually(c.t, patience, func() error {
		if l := c.processes(); len(l) > 0 {
			return fmt.Errorf("processes without a shim: %v", l)
		}
		return nil
	})
}

// Containers of a shim that dies are killed and reported, at once and only they.
func TestShimKilled(t *testing.T) {
	n := privateNode(t)
	p, q := n.pod(t), n.pod(t)
	a, b, other := p.run("a", forever), p.run("b", []string{"sleep", "1000"}), q.run("other", forever)
	done := p.run("done", script("exit 3"))
	done.wait()
	quickly(t, "noticing it", 5*time.Second, func() { // 2 s, and more for a busy machine
		if err := syscall.Kill(p.shim(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		a.lost()
		b.lost()
	})
	if st := done.status(); st.ExitCode != 3 || st.Reason != "Error" {
		t.Errorf("one that had ended before: %v", st)
	}
	if s := p.status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("a pod without a shim is %v", s.State)
	}
	_, err := p.tryCreate(p.config("late", forever))
	wantCode(t, "create in it", err, codes.FailedPrecondition)
	other.want("echo fine", "fine")
}

func TestShimKilledWhileDaemonIsDown(t *testing.T) {
	n := privateNode(t)
	p, q := n.pod(t), n.pod(t)
	a, other := p.run("a", forever), q.run("other", forever)
	// Its end is on disk, even if nobody was there to be told.
	pid := p.shim()
	n.kill()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	n.restart(t)
	quickly(t, "noticing it", 5*time.Second, a.lost)
	other.want("echo fine", "fine")
	if s := p.status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("a pod without a shim is %v", s.State)
	}
}

// Half of the shims hang: the other half, and all that needs no shim, works as
// always. When they go on, so do their pods.
func TestShimsHang(t *testing.T) {
	n := privateNode(t)
	const pods = 20
	var cs [pods]*container
	each(pods, func(i int) { cs[i] = n.pod(t).run("c", forever) })
	shims := n.shims()
	var stopped []int
	resume := func() {
		for _, pid := range stopped {
			syscall.Kill(pid, syscall.SIGCONT)
		}
		stopped = nil
	}
	defer resume()
	for _, c := range cs[:pods/2] {
		if err := syscall.Kill(shims[c.p.id], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		stopped = append(stopped, shims[c.p.id])
	}
	quickly(t, "what needs no shim", 5*time.Second, func() {
		l := must[*cri.ListContainersResponse](t)(n.rt.ListContainers(t.Context(), &cri.ListContainersRequest{}))
		if len(l.Containers) != pods {
			t.Errorf("%d containers", len(l.Containers))
		}
		for _, c := range cs {
			if st := c.status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("%v", st)
			}
			c.p.status()
		}
		must[*cri.ListContainerStatsResponse](t)(n.rt.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{}))
		must[*cri.ListPodSandboxStatsResponse](t)(n.rt.ListPodSandboxStats(t.Context(), &cri.ListPodSandboxStatsRequest{}))
	})
	for _, c := range cs[pods/2:] {
		c.want("echo fine", "fine")
	}
	quickly(t, "a new pod", 10*time.Second, func() { n.pod(t).run("new", forever).want("echo fine", "fine") })

	// A stop is asked of one that hangs; the caller gives up, the stop does not.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_, err := n.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: cs[0].id, Timeout: 1})
	cancel()
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("stop by a shim that hangs: %v", err)
	}
	// A daemon that starts meanwhile is up as well.
	n.kill()
	quickly(t, "the next daemon", 10*time.Second, func() {
		n.restart(t)
		for _, c := range cs[pods/2:] {
			c.want("echo fine", "fine")
		}
		if st := cs[1].status(); st.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("one whose shim hangs: %v", st)
		}
	})
	resume()
	if st := cs[0].wait(); st.ExitCode != 0 && st.ExitCode != 137 {
		t.Errorf("the one that was to stop: %v", st)
	}
	for _, c := range cs[1:] {
		c.want("echo fine", "fine")
	}
}
