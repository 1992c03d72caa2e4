package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A million lines at full speed, while the daemon is killed and comes back: each
// is in the log, once and in order, the writer was never held up, and attach
// works afterwards. A daemon that were in the way would hold it up every time.
func TestStreamsOutliveDaemon(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	const count, down, limit = 1000000, 500 * time.Millisecond, 100 * time.Millisecond
	stalled := best(func() time.Duration {
		writer, start := withWriter(t)
		c := p.run(fmt.Sprintf("c%d", time.Now().UnixNano()), script(awaitGo+fmt.Sprintf("/writer lines %d; read x; echo got $x; exit 3", count)), writer,
			func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
		start()
		eventually(t, patience, func() error {
			if fi, err := os.Stat(c.log); err != nil || fi.Size() < 1<<20 {
				return fmt.Errorf("%v, %v", fi, err)
			}
			return nil
		})
		n.kill()
		time.Sleep(down)
		n.restart(t)
		c.waitLogEnd("stalled ")
		r := c.attach(t, &session{protocol: "spdy", stdin: strings.NewReader("hello\n")})
		if r.out != "got hello\n" {
			t.Errorf("attach: %+v", r)
		}
		if st := c.wait(); st.ExitCode != 3 {
			t.Errorf("%v", st)
		}
		b, err := os.ReadFile(c.log)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(b, []byte("got hello\n")) {
			t.Errorf("the log ends with %q", b[max(0, len(b)-100):])
		}
		// numbered knows only the writer's lines.
		if err := os.Truncate(c.log, int64(bytes.LastIndexByte(b[:len(b)-1], '\n')+1)); err != nil {
			t.Fatal(err)
		}
		return numbered(t, count, c.log)
	})
	t.Logf("the longest write took %v", stalled)
	if stalled == 0 || stalled > limit {
		t.Errorf("the writer was held up for %v, at most %v are allowed", stalled, limit)
	}
}

// waitLogEnd waits for text near the end of the log, which may be long: one
// stream's end can come before what is still in the other's pipe.
func (c *container) waitLogEnd(text string) {
	c.t.Helper()
	eventually(c.t, 2*patience, func() error {
		f, err := os.Open(c.log)
		if err != nil {
			return err
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		b := make([]byte, min(fi.Size(), 256<<10))
		if _, err := f.ReadAt(b, fi.Size()-int64(len(b))); err != nil {
			return err
		}
		if !bytes.Contains(b, []byte(text)) {
			return fmt.Errorf("the log ends with %q, with no %q", b[max(0, len(b)-100):], text)
		}
		return nil
	})
}

// Containers that are over at once: as soon as one is shown as exited, all that
// it wrote is in its log, the ends of both streams without a newline too.
func TestStreamsOfShortContainers(t *testing.T) {
	t.Parallel()
	count := scaled(120, 2000)
	const pods = 4
	each(pods, func(k int) {
		p := shared.pod(t)
		for i := k; i < count; i += pods {
			c := p.run(fmt.Sprint("c", i), script(fmt.Sprintf("printf 'out %d\\nthe last %d'; printf 'err %d\\nthe last %d' >&2", i, i, i, i)))
			st := c.wait()
			var got [2]string
			for _, l := range readLog(t, c.log) {
				s := 0
				if l.stream == "stderr" {
					s = 1
				}
				got[s] += l.text
				if l.full {
					got[s] += "\n"
				}
			}
			if want := [2]string{fmt.Sprintf("out %d\nthe last %d", i, i), fmt.Sprintf("err %d\nthe last %d", i, i)}; got != want || st.ExitCode != 0 {
				t.Errorf("%d: %q, want %q (%v)", i, got, want, st)
			}
			c.remove()
		}
	})
}

// The log is rotated five times a second under 50,000 lines a second: all files
// together have each line once.
func TestStreamsRotation(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const second = 50000
	count := scaled(10, 60) * second
	writer, start := withWriter(t)
	c := p.run("c", script(awaitGo+fmt.Sprintf("/writer rate %d %d", count, second)), writer)
	start()
	var files []string
	for c.status().State == cri.ContainerState_CONTAINER_RUNNING {
		time.Sleep(200 * time.Millisecond)
		to := fmt.Sprintf("%s.%d", c.log, len(files))
		if err := os.Rename(c.log, to); err != nil {
			t.Fatal(err)
		}
		files = append(files, to)
		if _, err := shared.rt.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
			wantCode(t, "reopen", err, codes.FailedPrecondition) // it has just ended
			break
		}
	}
	if st := c.wait(); st.ExitCode != 0 {
		t.Errorf("%v", st)
	}
	if _, err := os.Stat(c.log); err == nil {
		files = append(files, c.log)
	}
	if len(files) < scaled(20, 200) {
		t.Errorf("only %d files", len(files))
	}
	numbered(t, count, files...)
}

// Where the log cannot be opened anew, the old file stays in use.
func TestStreamsReopenFails(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script("i=0; while :; do echo line $i; i=$((i+1)); sleep 0.01; done"))
	c.waitLog("line 3")
	dir := filepath.Dir(c.log)
	old := c.log + ".old"
	if err := os.Rename(c.log, old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unmount := func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	}
	defer unmount()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	reopen := func() error {
		_, err := shared.rt.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: c.id})
		return err
	}
	if err := reopen(); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("reopen in a read-only folder: %v", err)
	}
	grows := func(path string) {
		t.Helper()
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, patience, func() error {
			if now, err := os.Stat(path); err != nil || now.Size() < fi.Size()+100 {
				return fmt.Errorf("%s does not grow: %v", path, err)
			}
			return nil
		})
	}
	grows(old)
	unmount()
	// Nor does a log follow a link.
	target := filepath.Join(work, "target-"+c.id[:8])
	if err := os.Symlink(target, c.log); err != nil {
		t.Fatal(err)
	}
	if err := reopen(); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("reopen of a link: %v", err)
	}
	if _, err := os.Lstat(target); err == nil {
		t.Error("the log followed a link")
	}
	grows(old)
	if err := os.Remove(c.log); err != nil {
		t.Fatal(err)
	}
	if err := reopen(); err != nil {
		t.Error(err)
	}
	grows(c.log)
	c.stop(0)
	for i, l := range append(readLog(t, old), readLog(t, c.log)...) {
		if l.text != fmt.Sprint("line ", i) {
			t.Fatalf("%q, want line %d", l.text, i)
		}
	}
}

func TestStreamsNeverThroughLink(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	target := filepath.Join(work, "precious-"+p.id[:8])
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(string) error{
		"link":     func(log string) error { return os.Symlink(target, log) },
		"dangling": func(log string) error { return os.Symlink(target+".none", log) },
		"fifo":     func(log string) error { return syscall.Mkfifo(log, 0o600) },
	} {
		c := p.create(name, []string{"echo", "hello"})
		if err := os.MkdirAll(filepath.Dir(c.log), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := make(c.log); err != nil {
			t.Fatal(err)
		}
		if err := c.tryStart(); err == nil {
			t.Errorf("%s: it started", name)
		}
		c.remove()
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "precious" {
		t.Errorf("behind the link: %q, %v", b, err)
	}
	if _, err := os.Lstat(target + ".none"); err == nil {
		t.Error("the log was made behind a link")
	}
}

// A full disk: what cannot be written is counted, one record tells of it once
// there is room, what comes then is logged, and the container never waits.
func TestStreamsFullDisk(t *testing.T) {
	t.Parallel()
	dir := mountTmpfs(t, "1m")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 600<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	p := shared.pod(t, logsIn(dir))
	writer, start := withWriter(t)
	const count = 20000
	c := p.run("c", script(awaitGo+fmt.Sprintf("/writer rate %d 5000; exit 4", count)), writer)
	start()
	var size int64
	eventually(t, patience, func() error {
		fi, err := os.Stat(c.log)
		if err != nil {
			t.Fatal(err)
		}
		grew := fi.Size() > size
		size = fi.Size()
		time.Sleep(100 * time.Millisecond)
		if grew || size < 300<<10 {
			return fmt.Errorf("the log has %d bytes, the disk is not full", size)
		}
		return nil
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if st := c.wait(); st.ExitCode != 4 {
		t.Errorf("%v", st)
	}
	next, lost, markers := 0, 0, 0
	eachRecord(t, func(r record) {
		if !r.stdout {
			return
		}
		var n, bytes int
		if k, _ := fmt.Sscanf(string(r.text), "[berth: %d lines, %d bytes not logged: no space", &n, &bytes); k == 2 {
			next, lost, markers = next+n, lost+n, markers+1
			return
		}
		if want := fmt.Sprint("line ", next); string(r.text) != want {
			t.Fatalf("%q, want %q", r.text, want)
		}
		next++
	}, c.log)
	if next != count || lost == 0 || markers != 1 {
		t.Errorf("%d lines are there or told of, want %d; %d are lost, in %d markers", next, count, lost, markers)
	}
	var stalled int
	eachRecord(t, func(r record) { fmt.Sscanf(string(r.text), "stalled %d", &stalled) }, c.log)
	if d := time.Duration(stalled) * time.Microsecond; d == 0 || d > time.Second {
		t.Errorf("the writer was held up for %v", d)
	}
}

// Limits of the node's: own rotation keeps a noisy container's log small, and a
// rate limit drops lines, and says how many.
func TestStreamsLimits(t *testing.T) {
	n := privateNode(t)
	n.kill()
	const size, files, rate = 256 << 10, 3, 1 << 20
	f, err := os.OpenFile(n.dir+"/config.toml", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "[logs]\nmax_size = %d\nmax_files = %d\nrate = %d\n", size, files, rate)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	p := n.pod(t)
	writer, start := withWriter(t)
	const count = 300000
	c := p.run("c", script(awaitGo+fmt.Sprintf("/writer rate %d 100000; sleep 1.1; echo the end", count)), writer)
	start()
	if st := c.wait(); st.ExitCode != 0 {
		t.Errorf("%v", st)
	}
	kept, err := filepath.Glob(c.log + ".*")
	if err != nil {
		t.Fatal(err)
	}
	kept = append(kept, c.log)
	if len(kept) != files {
		t.Errorf("files: %q, want %d", kept, files)
	}
	for _, path := range kept {
		if fi, err := os.Stat(path); err != nil || fi.Size() > size {
			t.Errorf("%s: %v, %v; at most %d bytes", path, fi.Size(), err, size)
		}
	}
	told, next := 0, -1
	eachRecord(t, func(r record) {
		var k, bytes int
		if n, _ := fmt.Sscanf(string(r.text), "[berth: %d lines, %d bytes not logged: over the rate limit]", &k, &bytes); n == 2 {
			told++
			if next >= 0 {
				next += k
			}
			return
		}
		if _, err := fmt.Sscanf(string(r.text), "line %d", &k); err == nil {
			if next >= 0 && k != next {
				t.Fatalf("line %d, want %d", k, next)
			}
			next = k + 1
		}
	}, kept...)
	if told == 0 || next < 0 {
		t.Errorf("%d markers, last line %d", told, next-1)
	}
	c.waitLogEnd("the end\n")
}

// A pod can ask for limits of its own.
func TestStreamsLimitsOfPod(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{"io.berth/log-max-size": "128Ki", "io.berth/log-max-files": "2", "io.berth/log-rate": "1Mi"}
	})
	c := p.run("c", []string{"probe", "lines", "300000"})
	if st := c.wait(); st.ExitCode != 0 {
		t.Errorf("%v", st)
	}
	kept := must[[]string](t)(filepath.Glob(c.log + "*"))
	if len(kept) != 2 {
		t.Errorf("files: %q, want 2", kept)
	}
	for _, path := range kept {
		if fi := must[os.FileInfo](t)(os.Stat(path)); fi.Size() > 128<<10 {
			t.Errorf("%s has %d bytes", path, fi.Size())
		}
	}
	c.waitLogEnd("over the rate limit]")
	q := shared.pod(t, func(c *cri.PodSandboxConfig) { c.Annotations = map[string]string{"io.berth/log-rate": "much"} })
	wantCode(t, "a bad limit", q.create("c", forever).tryStart(), codes.InvalidArgument, "io.berth/log-rate")
}
