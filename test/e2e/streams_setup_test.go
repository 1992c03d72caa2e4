package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// long asks for the full counts of the acceptance cases: minutes each.
var long = os.Getenv("BERTH_LONG") != ""

// scaled is a count for every run, and the one for the long run.
func scaled(count, full int) int {
	if long {
		return full
	}
	return count
}

var buildWriter = sync.OnceValues(func() (string, error) {
	to := filepath.Join(work, "writer")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./writer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the writer: %w\n%s", err, out)
	}
	return to, nil
})

// withWriter gives a container the writer, as /writer, and a folder to be told
// to go in: its script waits for /go/now.
func withWriter(t *testing.T) (option containerOption, start func()) {
	t.Helper()
	path := must[string](t)(buildWriter())
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	option = func(c *cri.ContainerConfig) {
		c.Mounts = append(c.Mounts,
			&cri.Mount{ContainerPath: "/writer", HostPath: path, Readonly: true},
			&cri.Mount{ContainerPath: "/go", HostPath: dir, Readonly: true})
	}
	return option, func() {
		if err := os.WriteFile(dir+"/now", nil, 0o644); err != nil {
			t.Error(err)
		}
	}
}

const awaitGo = "while ! test -e /go/now; do sleep 0.02; done; "

// record is a line of a log too large for readLog: it is not kept.
type record struct {
	stdout, full bool
	text         []byte // until the next one
}

// eachRecord reads log files one after the other.
func eachRecord(t *testing.T, f func(record), files ...string) {
	t.Helper()
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReaderSize(file, 1<<20)
		for {
			b, err := r.ReadSlice('\n')
			if err == io.EOF && len(b) == 0 {
				break
			}
			if err != nil {
				t.Fatalf("%s ends with %q: %v", path, b, err)
			}
			w := bytes.SplitN(b[:len(b)-1], []byte{' '}, 4)
			if len(w) != 4 {
				t.Fatalf("%s: %q is no record", path, b)
			}
			f(record{string(w[1]) == "stdout", string(w[2]) == "F", w[3]})
		}
		file.Close()
	}
}

// numbered checks that stdout holds the lines "line 0" to "line count-1", each
// once and in order, and returns what the writer said of its longest write.
func numbered(t *testing.T, count int, files ...string) (stalled time.Duration) {
	t.Helper()
	next, wrong := 0, 0
	var want []byte
	eachRecord(t, func(r record) {
		if us, ok := strings.CutPrefix(string(r.text), "stalled "); ok && !r.stdout {
			n, _ := strconv.Atoi(us)
			stalled = time.Duration(n) * time.Microsecond
			return
		}
		if want = fmt.Appendf(want[:0], "line %d", next); !r.stdout || !r.full || !bytes.Equal(r.text, want) {
			if wrong++; wrong < 5 {
				t.Errorf("%q (stdout %t, whole %t), want %q", r.text, r.stdout, r.full, want)
			}
			fmt.Sscanf(string(r.text), "line %d", &next)
		}
		next++
	}, files...)
	if next != count {
		t.Errorf("the log ends with line %d, want %d lines", next-1, count)
	}
	return stalled
}

// mountTmpfs mounts a small file system until the test ends.
func mountTmpfs(t *testing.T, size string) string {
	t.Helper()
	dir, err := os.MkdirTemp(work, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("berth-e2e", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
		os.Remove(dir)
	})
	return dir
}

func logsIn(dir string) podOption {
	return func(c *cri.PodSandboxConfig) { c.LogDirectory = dir }
}

// holds is what a process holds of the machine: memory in bytes (now, and the
// most since clearPeak), descriptors, threads.
type holds struct{ memory, peak, files, threads int }

func held(t *testing.T, pid int) holds {
	t.Helper()
	var h holds
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "VmRSS:":
			h.memory = n << 10
		case "VmHWM:":
			h.peak = n << 10
		case "Threads:":
			h.threads = n
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	h.files = len(files)
	return h
}

// clearPeak has the kernel measure the most memory from now on.
func clearPeak(t *testing.T, pid int) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// sleepers counts the run's processes that sleep for this long.
func sleepers(seconds string) int {
	n := 0
	for _, cmd := range processes() {
		if strings.Contains(cmd, "sleep "+seconds) {
			n++
		}
	}
	return n
}

// best is the shortest of three: what is slow on a busy machine is not slow
// each time.
func best(f func() time.Duration) time.Duration {
	took := f()
	for range 2 {
		took = min(took, f())
	}
	return took
}
