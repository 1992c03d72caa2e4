package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container is restarted in its pod as the kubelet does it: the pod's address,
// its sibling and the logs of the attempts before stay.
func TestRestartInPlace(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	sibling := p.run("sibling", []string{"probe", "lines", "100000", "10ms"})
	before, ip := sibling.status(), p.ip()
	c := p.run("c", script("echo attempt 0; echo $$ > /made; sleep 1000"))
	c.waitLog("attempt 0")
	const rounds = 10
	for i := 1; i <= rounds; i++ {
		begin := time.Now()
		c.stop(2) // the shell ignores SIGTERM as PID 1: killed after 2 s, or at once with a trap
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("stop took %v", took)
		}
		st := c.status()
		if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 && st.ExitCode != 143 {
			t.Fatalf("round %d: stopped: %v", i, st)
		}
		c.remove()
		what := fmt.Sprintf("attempt %d", i)
		c = p.run("c", script("test ! -e /made || echo stale; echo "+what+"; trap 'exit 143' TERM; touch /made; sleep 1000 & wait"), attempt(uint32(i)))
		c.waitLog(what)
	}
	if p.ip() != ip {
		t.Errorf("the pod's address changed from %s to %s", ip, p.ip())
	}
	after := sibling.status()
	if after.State != cri.ContainerState_CONTAINER_RUNNING || after.StartedAt != before.StartedAt || after.Id != before.Id {
		t.Errorf("the sibling changed: %v", after)
	}
	sibling.stop(0)
	noGaps(t, readLog(t, sibling.log))
	for i := range rounds + 1 {
		b, err := os.ReadFile(filepath.Join(p.cfg.LogDirectory, "c", fmt.Sprintf("%d.log", i)))
		if err != nil {
			t.Error(err)
			continue
		}
		if want := fmt.Sprintf("stdout F attempt %d\n", i); len(b) < len(want) || string(b[len(b)-len(want):]) != want {
			t.Errorf("log %d: %q", i, b)
		}
	}
}

// noGaps checks the lines of "probe lines", which may be cut at the end only.
func noGaps(t *testing.T, lines []line) {
	t.Helper()
	for i, l := range lines {
		if want := "line " + itoa(i); l.text != want || !l.full {
			t.Fatalf("line %d of the log is %q, want %q (of %d)", i, l.text, want, len(lines))
		}
	}
	if len(lines) == 0 {
		t.Fatal("the log is empty")
	}
}
