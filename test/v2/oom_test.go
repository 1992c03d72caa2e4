package v2

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const small = 24 << 20

// many runs a container often, a few at a time, and wants an end.
func (p *pod) many(n int, cmd []string, code int32, reason string, change ...containerOption) {
	p.t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 3)
	for i := range n {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c, err := p.create(fmt.Sprintf("c%d", i), cmd, change...)
			if err != nil {
				p.t.Error(err)
				return
			}
			s, err := c.end()
			if err != nil {
				p.t.Error(err)
				return
			}
			if s.ExitCode != code || s.Reason != reason {
				p.t.Errorf("run %d: %d %q, want %d %q", i, s.ExitCode, s.Reason, code, reason)
			}
			if err := c.remove(); err != nil {
				p.t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestOOMInit(t *testing.T) {
	runPod(t).many(20, []string{"probe", "eat", "200"}, 137, "OOMKilled", memory(small, small))
}

// A child that is killed is the reason of an end with an error.
func TestOOMChild(t *testing.T) {
	runPod(t).many(20, sh("probe eat 200; exit 3"), 3, "OOMKilled", memory(small, small))
}

// Neither a SIGKILL from elsewhere nor another container's end is out of memory.
func TestNoOOM(t *testing.T) {
	p := runPod(t)
	p.many(1, []string{"probe", "eat", "200"}, 137, "OOMKilled", memory(small, small))
	p.many(3, sh("exec 2>&1; sleep 1000 & kill -9 $!; exit 9"), 9, "Error", memory(small, small))
	c := p.run("killed", forever, memory(small, small))
	c.stop(0)
	if s := c.wait(); s.ExitCode != 137 || s.Reason != "Error" {
		t.Errorf("killed: %d %q", s.ExitCode, s.Reason)
	}
}

// The pod's limit counts as the container's own.
func TestOOMPod(t *testing.T) {
	p := runPod(t)
	p.group.set(t, "memory.max", fmt.Sprint(48<<20))
	p.group.set(t, "memory.swap.max", "0")
	p.many(5, []string{"probe", "eat", "200"}, 137, "OOMKilled")
}

// The kernel may kill a whole cgroup for one of its processes.
func TestOOMGroup(t *testing.T) {
	group := func(c *cri.ContainerConfig) { c.Linux.Resources.Unified = map[string]string{"memory.oom.group": "1"} }
	runPod(t).many(5, sh("probe eat 200; exit 3"), 137, "OOMKilled", memory(small, small), group)
}

// An exec that eats too much: its cgroup is in the container's.
func TestOOMExec(t *testing.T) {
	c := runPod(t).run("c", forever, memory(small, small))
	r, err := c.exec(60, "probe eat 200; echo $?")
	if err != nil || strings.TrimSpace(string(r.Stdout)) != "137" {
		t.Errorf("%v, %v", r, err)
	}
	if s, err := c.state(); err != nil || s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v, %v", s, err)
	}
	c.sh("true")
}

// Out of memory while there is no berthd, and a container that lives on.
func TestOOMWithoutDaemon(t *testing.T) {
	p := runPod(t)
	lives := p.run("lives", forever, memory(64<<20, 0))
	dies := p.run("dies", sh("while ! [ -e /tmp/go ]; do sleep 0.1; done; exec probe eat 200"), memory(small, small))
	pid := lives.group.get(t, "cgroup.procs")
	// It waits for the daemon's death: the sleep is longer than that takes.
	dies.sh("(sleep 2; touch /tmp/go) >/dev/null 2>&1 &")
	daemon.stop(syscall.SIGKILL)
	eventually(t, func() error {
		if n := dies.group.processes(); n > 0 {
			return fmt.Errorf("%d processes", n)
		}
		return nil
	})
	if err := daemon.start(); err != nil {
		t.Fatal(err)
	}
	if s := dies.wait(); s.ExitCode != 137 || s.Reason != "OOMKilled" {
		t.Errorf("%d %q", s.ExitCode, s.Reason)
	}
	if got := lives.group.get(t, "cgroup.procs"); strings.Fields(got)[0] != strings.Fields(pid)[0] {
		t.Errorf("processes %q, were %q", got, pid)
	}
	lives.sh("true")
	lives.group.want(t, "memory.max", "67108864")
	lives.stop(5)
	if err := lives.remove(); err != nil {
		t.Error(err)
	}
}
