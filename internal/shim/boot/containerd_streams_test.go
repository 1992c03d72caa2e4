//go:build linux

package boot

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const streamImage = "example.invalid/busybox:latest"

// withImage is a containerd that has the image.
func withImage(t *testing.T) *daemon {
	d := startContainerd(t)
	writeImage(t, d.dir+"/image.tar", streamImage)
	d.ctr("image", "import", "--snapshotter", "native", "--local", d.dir+"/image.tar")
	t.Cleanup(func() {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/berth-boot-test")
		more, _ := filepath.Glob("/sys/fs/cgroup/berth-boot-test")
		for _, d := range append(dirs, more...) {
			_ = os.Remove(d)
		}
	})
	return d
}

// runDetached runs a script in a container that nobody waits for.
func (d *daemon) runDetached(id, script string, options ...string) {
	d.t.Helper()
	args := append([]string{"run", "-d", "--snapshotter", "native", "--runtime", shimBinary, "--fifo-dir", d.dir + "/fifo", "--cgroup", "/berth-boot-test/" + id}, options...)
	d.ctr(append(args, streamImage, id, "/bin/sh", "-c", script)...)
}

// end waits for a container's exit code, and removes it.
func (d *daemon) end(id string) string {
	d.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(d.ctr("task", "ls"), "STOPPED"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("it does not end: %s", d.ctr("task", "ls"))
		}
	}
	out, _ := d.command("task", "delete", id).CombinedOutput() // fails with the container's code
	d.ctr("container", "delete", id)
	d.clean()
	return string(out)
}

// fifo opens a stream that the detached ctr left.
func (d *daemon) fifo(id, stream string, mode int) *os.File {
	d.t.Helper()
	found, err := filepath.Glob(d.dir + "/fifo/*/" + id + "-" + stream)
	if err != nil || len(found) != 1 {
		d.t.Fatalf("FIFO of %s: %v, %v", stream, found, err)
	}
	f, err := os.OpenFile(found[0], mode, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { f.Close() })
	return f
}

// cpuTime is what a process has used.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	var ticks int
	for _, v := range f[11:13] {
		n, _ := strconv.Atoi(v)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// The reader of a container's output goes away, and containerd with it; both
// come back. The container waits meanwhile, the shim does not spin, stdin still
// leads to the container, and every line is there, once and in order.
func TestStockStreamsOutliveReader(t *testing.T) {
	d := withImage(t)
	const count = 200000
	d.runDetached("r", fmt.Sprintf("read x; busybox seq 1 %d; while read x; do echo got $x; test $x = end && exit 4; done", count))
	in := d.fifo("r", "stdin", os.O_WRONLY)
	out := d.fifo("r", "stdout", os.O_RDONLY)
	shims := d.shims()
	if len(shims) != 1 {
		t.Fatalf("shims: %v", shims)
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for part := range 3 {
		if _, err := io.CopyN(&got, out, 200_000); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		in.Close()
		d.kill()
		time.Sleep(100 * time.Millisecond) // the FIFO fills
		before := cpuTime(t, shims[0])
		time.Sleep(500 * time.Millisecond)
		if used := cpuTime(t, shims[0]) - before; used > 100*time.Millisecond {
			t.Errorf("part %d: the shim used %v of 500ms while nobody read", part, used)
		}
		d.start()
		in = d.fifo("r", "stdin", os.O_WRONLY)
		out = d.fifo("r", "stdout", os.O_RDONLY)
	}
	if _, err := io.WriteString(in, "more\nend\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&got, out); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(&got)
	next := 1
	for s.Scan() && next <= count {
		if s.Text() != itoa(next) {
			t.Fatalf("line %q, want %d", s.Text(), next)
		}
		next++
	}
	rest := s.Text()
	for s.Scan() {
		rest += " " + s.Text()
	}
	if next != count+1 || rest != "got more got end" {
		t.Errorf("%d lines, then %q", next-1, rest)
	}
	if out := d.end("r"); !strings.Contains(out, "exit code 4") {
		t.Errorf("%s; want the container's 4", out)
	}
}

// Output to a file, and to a logging binary: all of it, over containerd's death.
func TestStockLoggers(t *testing.T) {
	d := withImage(t)
	logger := d.dir + "/logger"
	// Descriptor 5 says that it is ready, by its end.
	if err := os.WriteFile(logger, []byte("#!/bin/sh\ncat <&3 >$2.out 5>&- &\ncat <&4 >$2.err 5>&- &\nexec 5>&-\nwait\n: >$2.done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const count = 50000
	script := fmt.Sprintf("while ! busybox test -e /tmp/go; do sleep 0.05; done; busybox seq 1 %d; echo bad >&2; exit 6", count)
	var want strings.Builder
	for i := range count {
		fmt.Fprintln(&want, i+1)
	}
	for name, uri := range map[string]string{"file": "file://" + d.dir + "/f.out", "binary": "binary://" + logger + "?to=" + d.dir + "/b"} {
		d.runDetached(name, script, "--log-uri", uri)
		d.kill()
		d.start()
		d.ctr("task", "exec", "--exec-id", "go", name, "/bin/sh", "-c", ": >/tmp/go")
		if out := d.end(name); !strings.Contains(out, "exit code 6") {
			t.Errorf("%s: %s; want the container's 6", name, out)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(d.dir + "/b.done"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the logging binary does not end")
		}
	}
	text := func(path string) string {
		b, err := os.ReadFile(d.dir + path)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if got := text("/b.out"); got != want.String() {
		t.Errorf("binary: %d bytes of %d", len(got), want.Len())
	}
	if got := text("/b.err"); got != "bad\n" {
		t.Errorf("binary, stderr: %q", got)
	}
	if got := strings.Replace(text("/f.out"), "bad\n", "", 1); got != want.String() {
		t.Errorf("file: %d bytes of %d", len(got), want.Len())
	}
}
