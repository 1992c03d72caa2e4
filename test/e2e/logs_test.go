package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestLogFormat(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	begin := time.Now()
	c := p.run("c", script(`echo one; echo two >&2; sleep 0.2; printf 'no newline'; sleep 0.2; echo; echo; printf end`))
	c.wait()
	want := []line{{stream: "stdout", full: true, text: "one"}, {stream: "stderr", full: true, text: "two"},
		{stream: "stdout", full: true, text: "no newline"}, {stream: "stdout", full: true}, {stream: "stdout", text: "end"}}
	got := readLog(t, c.log)
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	// Two pipes: which of the first two lines is read first is not determined.
	if got[0].stream == "stderr" {
		got[0], got[1] = got[1], got[0]
	}
	for i, w := range want {
		g := got[i]
		if g.at.Before(begin) || g.at.After(time.Now()) {
			t.Errorf("line %d is of %v", i, g.at)
		}
		if g.at = w.at; g != w {
			t.Errorf("line %d: %+v, want %+v", i, g, w)
		}
	}
}

// A long line is written in parts, all but the last marked, and nothing is lost.
func TestLogPartialLines(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script(`head -c 100000 /dev/zero | tr '\0' x; echo; echo short`))
	c.wait()
	var text strings.Builder
	lines := readLog(t, c.log)
	parts := 0
	for _, l := range lines {
		if len(l.text) > 16384 {
			t.Errorf("a part has %d bytes", len(l.text))
		}
		text.WriteString(l.text)
		if l.full {
			text.WriteString("\n")
		} else {
			parts++
		}
	}
	if want := strings.Repeat("x", 100000) + "\nshort\n"; text.String() != want {
		t.Errorf("%d bytes, want %d", text.Len(), len(want))
	}
	if parts < 6 {
		t.Errorf("%d parts in %d lines", parts, len(lines))
	}
}

// The log is rotated as the kubelet does it, again and again, while the
// container writes as fast as it can: no line is lost or written twice.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const count = 1000000
	c := p.run("c", []string{"probe", "lines", itoa(count)})
	var files []string
	for i := 0; c.status().State == cri.ContainerState_CONTAINER_RUNNING && i < 500; i++ {
		to := fmt.Sprintf("%s.%d", c.log, i)
		if err := os.Rename(c.log, to); err != nil {
			t.Fatal(err)
		}
		files = append(files, to)
		if _, err := shared.rt.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
			// Its end may be a moment from being announced.
			wantCode(t, "reopen", err, codes.FailedPrecondition)
			break
		}
		if _, err := os.Stat(c.log); err != nil {
			t.Fatalf("after reopening: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	if st := c.wait(); st.ExitCode != 0 {
		t.Fatalf("%v", st)
	}
	if _, err := os.Stat(c.log); err == nil {
		files = append(files, c.log)
	}
	if len(files) < 5 {
		t.Errorf("only %d files: the container was too quick to test anything", len(files))
	}
	var all []line
	for _, f := range files {
		all = append(all, readLog(t, f)...)
	}
	noGaps(t, all)
	if len(all) != count {
		t.Errorf("%d lines, want %d", len(all), count)
	}
}

// The log is the kubelet's: it is there as soon as the container was started,
// even if that said nothing, and stays when the container and the pod are gone.
func TestLogStays(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	fi, err := os.Stat(c.log)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", fi.Mode())
	}
	d := p.run("d", []string{"echo", "kept"})
	d.wait()
	c.stop(2)
	c.remove()
	p.remove()
	for _, f := range []string{c.log, d.log} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
	if l := readLog(t, d.log); len(l) != 1 || l[0].text != "kept" {
		t.Errorf("%v", l)
	}
}

// A container with a terminal has one stream.
func TestLogOfTerminal(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script("echo out; echo err >&2; test -t 1 && echo terminal"), func(c *cri.ContainerConfig) { c.Tty = true })
	if out := strings.ReplaceAll(c.output(), "\r", ""); out != "out\nerr\nterminal\n" {
		t.Errorf("%q", out)
	}
	for _, l := range readLog(t, c.log) {
		if l.stream != "stdout" {
			t.Errorf("%+v", l)
		}
	}
}

// A container without a log path can write as much as it wants.
func TestNoLog(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", []string{"probe", "lines", "200000"}, func(c *cri.ContainerConfig) { c.LogPath = "" })
	if st := c.wait(); st.ExitCode != 0 || st.LogPath != "" {
		t.Errorf("%v", st)
	}
}
