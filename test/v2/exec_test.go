package v2

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An exec that had its time leaves no process, whatever it started, and no cgroup.
func TestExecTimeout(t *testing.T) {
	c := runPod(t).run("c", []string{"sleep", "10000"})
	for range 3 {
		begin := time.Now()
		_, err := c.exec(1, "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000")
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("it took %v", d)
		}
		eventually(t, func() error {
			if n, subs := c.group.processes(), c.group.children(); n != 1 || len(subs) > 0 {
				return fmt.Errorf("%d processes, want 1; cgroups %v", n, subs)
			}
			return nil
		})
	}
	if got := c.sh("echo ok"); got != "ok" {
		t.Errorf("%q", got)
	}
}

// What an exec leaves in the background is the container's, and ends with it.
func TestExecBackground(t *testing.T) {
	c := runPod(t).run("c", []string{"sleep", "10000"})
	c.sh("setsid sleep 1000 >/dev/null 2>&1 &")
	if n := c.group.processes(); n != 2 {
		t.Errorf("%d processes, want 2", n)
	}
	c.stop(0)
	if n := c.group.processes(); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	if err := c.remove(); err != nil {
		t.Error(err)
	}
}
