package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExits(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for _, e := range []struct {
		name   string
		cmd    []string
		code   int32
		reason string
	}{
		{"zero", []string{"true"}, 0, "Completed"},
		{"fortytwo", script("exit 42"), 42, "Error"},
		{"high", script("exit 255"), 255, "Error"},
		// PID 1 gets no signal that it does not handle, except from outside.
		{"segv", script("trap 'exit 139' SEGV; kill -SEGV $$; sleep 1; exit 1"), 139, "Error"},
	} {
		begin := time.Now()
		c := p.run(e.name, e.cmd)
		st := c.wait()
		if st.ExitCode != e.code || st.Reason != e.reason {
			t.Errorf("%s: %d %q, want %d %q", e.name, st.ExitCode, st.Reason, e.code, e.reason)
		}
		if st.StartedAt < begin.UnixNano() || st.FinishedAt < st.StartedAt || st.FinishedAt > time.Now().UnixNano() {
			t.Errorf("%s: started %d, finished %d", e.name, st.StartedAt, st.FinishedAt)
		}
	}
}

// 128 + the signal that ended the process.
func TestExitsBySignal(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for sig, want := range map[string]int32{"KILL": 137, "TERM": 143, "SEGV": 139, "HUP": 129} {
		c := p.run("c-"+strings.ToLower(sig), []string{"sleep", "1000"})
		if err := kill(c.pid(), sig); err != nil {
			t.Fatal(err)
		}
		// Only SIGKILL, or what is not for a namespace's init to ignore, ends it.
		if sig != "KILL" {
			if st := c.status(); st.State == cri.ContainerState_CONTAINER_EXITED && st.ExitCode != want {
				t.Errorf("%s: %d, want %d", sig, st.ExitCode, want)
			}
			continue
		}
		if st := c.wait(); st.ExitCode != want || st.Reason != "Error" {
			t.Errorf("%s: %d %s, want %d", sig, st.ExitCode, st.Reason, want)
		}
	}
}

// A command that cannot be started is an error of StartContainer, and the
// container has ended with the code a shell would give.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for _, e := range []struct {
		name, cmd, word string
		code            int32
	}{
		{"missing", "/no/such/program", "no such file", 127},
		{"inpath", "no-such-program", "", 127},
		{"noexec", "/bin/text", "permission denied", 126},
		{"folder", "/tmp", "", 126},
	} {
		c := p.create(e.name, []string{e.cmd})
		err := c.tryStart()
		if err == nil || !strings.Contains(err.Error(), e.word) {
			t.Errorf("%s: start: %v, want %q", e.name, err, e.word)
		}
		st := c.status()
		if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != e.code || st.Reason != "StartError" || st.Message == "" || st.FinishedAt == 0 {
			t.Errorf("%s: %v, want %d StartError", e.name, st, e.code)
		}
		if _, err := os.Stat(c.log); err != nil {
			t.Errorf("%s: the log is not there: %v", e.name, err)
		}
		c.remove()
	}
}

func TestOOM(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	limit := func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes = 32 << 20
		c.Linux.Resources.MemorySwapLimitInBytes = 32 << 20
	}
	c := p.run("init", []string{"probe", "eat", "200"}, limit)
	if st := c.wait(); st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("its first process: %d %q", st.ExitCode, st.Reason)
	}
	// A child that is killed does not end the container by itself; when it does
	// end with an error, memory is the reason.
	c = p.run("child", script("probe eat 200; exit 3"), limit)
	if st := c.wait(); st.ExitCode != 3 && st.ExitCode != 137 || st.Reason != "OOMKilled" {
		t.Errorf("a child: %d %q", st.ExitCode, st.Reason)
	}
}

// What a container leaves behind ends with its first process.
func TestChildrenEnd(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	begin := time.Now()
	c := p.run("c", script("setsid sleep 98765 & setsid sleep 98765 & echo up; exit 7"))
	st := c.wait()
	if st.ExitCode != 7 {
		t.Errorf("exit %d", st.ExitCode)
	}
	if d := time.Duration(st.FinishedAt - begin.UnixNano()); d > patience {
		t.Errorf("the end took %v", d)
	}
	if n := c.processes(); len(n) > 0 {
		t.Errorf("processes are left: %v", n)
	}
}

func TestStopSignals(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	signals := []string{"probe", "signals"}
	c := p.run("term", signals)
	c.waitLog("ready")
	begin := time.Now()
	c.stop(1)
	if d := time.Since(begin); d < 900*time.Millisecond {
		t.Errorf("killed after %v, the grace is 1 s", d)
	}
	if st := c.wait(); st.ExitCode != 137 || st.StopSignal != cri.Signal_SIGNAL_SIGTERM {
		t.Errorf("%v", st)
	}
	if out := c.output(); strings.Count(out, "got") != 1 || !strings.Contains(out, "got TERMINATED 15") {
		t.Errorf("signals: %q, want SIGTERM once", out)
	}
	// The image's, and the config's over it.
	odd := func(c *cri.ContainerConfig) { c.Image.Image = oddImage }
	c = p.run("image", signals, odd)
	c.waitLog("ready")
	c.stop(1)
	if out := c.output(); !strings.Contains(out, "got USER DEFINED SIGNAL 1 10") || c.status().StopSignal != cri.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("the image's: %q, %v", out, c.status().StopSignal)
	}
	c = p.run("config", signals, odd, func(c *cri.ContainerConfig) { c.StopSignal = cri.Signal_SIGNAL_SIGINT })
	c.waitLog("ready")
	c.stop(1)
	if out := c.output(); !strings.Contains(out, "got INTERRUPT 2") || c.status().StopSignal != cri.Signal_SIGNAL_SIGINT {
		t.Errorf("the config's: %q, %v", out, c.status().StopSignal)
	}
	// A second stop shortens the grace.
	c = p.run("twice", signals)
	c.waitLog("ready")
	done := make(chan error, 1)
	go func() {
		_, err := shared.rt.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: 300})
		done <- err
	}()
	c.waitLog("got TERMINATED")
	c.stop(0)
	if err := <-done; err != nil {
		t.Errorf("the first stop: %v", err)
	}
}
