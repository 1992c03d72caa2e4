//go:build linux

package boot

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// daemon is a stock containerd under a scratch root.
type daemon struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
	log bytes.Buffer
}

func startContainerd(t *testing.T) *daemon {
	dir, err := os.MkdirTemp("", "c") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir}
	config := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = %q
`, dir+"/root", dir+"/state", dir+"/d.sock")
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(containerd, "--config", d.dir+"/config.toml", "--address", d.dir+"/d.sock", "--log-level", "error")
	d.cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(runc)+":"+os.Getenv("PATH"))
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	// Shims hold the descriptors of what started them at most until they answer.
	d.cmd.WaitDelay = 2 * time.Second
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := d.run("version"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("containerd does not come up:\n%s", d.log.String())
		}
	}
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

func (d *daemon) stop() {
	if len(d.shims()) > 0 { // the test failed
		out, _ := d.command("task", "ls", "-q").Output()
		for id := range strings.FieldsSeq(string(out)) {
			_ = d.run("task", "delete", "-f", id)
		}
		for _, pid := range d.shims() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
	for _, dir := range []string{"runc/default", "runc", "fifo", "s", "."} {
		_ = os.Remove(filepath.Join("/run/containerd", dir)) // what is empty
	}
	if d.t.Failed() {
		d.t.Logf("containerd:\n%s", d.log.String())
	}
	for _, m := range mountsBelow(d.dir) {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	if err := os.RemoveAll(d.dir); err != nil {
		d.t.Error(err)
	}
}

func mountsBelow(dir string) []string {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			found = append(found, f[4])
		}
	}
	return found
}

func (d *daemon) command(args ...string) *exec.Cmd {
	// No command may outlive the test.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.t.Context()), 30*time.Second)
	d.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, filepath.Join(filepath.Dir(containerd), "ctr"), append([]string{"--address", d.dir + "/d.sock"}, args...)...)
	c.WaitDelay = time.Second
	return c
}

func (d *daemon) run(args ...string) error {
	out, err := d.command(args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (d *daemon) ctr(args ...string) string {
	d.t.Helper()
	c := d.command(args...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		d.t.Fatalf("ctr %s: %v: %s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

// shims are the pids of shims that work for this containerd.
func (d *daemon) shims() []int {
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(b, []byte(d.dir)) && bytes.HasSuffix(b, []byte("\x00"+actionServe+"\x00")) {
			found = append(found, pid)
		}
	}
	return found
}

// clean checks that nothing is left of any container.
func (d *daemon) clean() {
	d.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		bundles, _ := filepath.Glob(d.dir + "/state/io.containerd.runtime.v2.task/*/*")
		shims, mounts := d.shims(), mountsBelow(d.dir+"/state")
		if len(bundles)+len(shims)+len(mounts) == 0 {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("left over: bundles %v, shims %v, mounts %v", bundles, shims, mounts)
		}
	}
}

// writeImage writes busybox as an OCI archive.
func writeImage(t *testing.T, path, name string) {
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("a static busybox is needed: %v", err)
	}
	archive := func(add func(*tar.Writer)) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		add(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	file := func(w *tar.Writer, name string, mode int64, data []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(data)
	}
	layer := archive(func(w *tar.Writer) {
		for _, d := range []string{"bin", "proc", "dev", "sys", "tmp", "etc", "run"} {
			_ = w.WriteHeader(&tar.Header{Name: d + "/", Mode: 0o755, Typeflag: tar.TypeDir})
		}
		file(w, "bin/busybox", 0o755, box)
		for _, n := range []string{"sh", "sleep", "echo", "cat", "true", "trap"} {
			_ = w.WriteHeader(&tar.Header{Name: "bin/" + n, Linkname: "busybox", Typeflag: tar.TypeSymlink})
		}
	})
	blobs := map[string][]byte{}
	blob := func(data []byte) map[string]any {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		blobs["blobs/sha256/"+sum] = data
		return map[string]any{"digest": "sha256:" + sum, "size": len(data)}
	}
	object := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	typed := func(d map[string]any, mediaType string) map[string]any {
		d["mediaType"] = "application/vnd.oci.image." + mediaType
		return d
	}
	l := typed(blob(layer), "layer.v1.tar")
	config := typed(blob(object(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{l["digest"]}},
	})), "config.v1+json")
	manifest := typed(blob(object(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []any{l},
	})), "manifest.v1+json")
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "latest"}
	out := archive(func(w *tar.Writer) {
		file(w, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
		file(w, "index.json", 0o644, object(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}))
		for name, data := range blobs {
			file(w, name, 0o644, data)
		}
	})
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStockContainerd(t *testing.T) {
	d := startContainerd(t)
	const image = "example.invalid/busybox:latest"
	writeImage(t, d.dir+"/image.tar", image)
	d.ctr("image", "import", "--snapshotter", "native", "--local", d.dir+"/image.tar")
	create := func(id string, args ...string) []string {
		return append([]string{"run", "--snapshotter", "native", "--runtime", shimBinary, "--fifo-dir", d.dir + "/fifo", "--cgroup", "/berth-boot-test/" + id, image, id}, args...)
	}
	t.Cleanup(func() {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*/berth-boot-test")
		more, _ := filepath.Glob("/sys/fs/cgroup/berth-boot-test")
		for _, d := range append(dirs, more...) {
			_ = os.Remove(d)
		}
	})

	// In the foreground: output, exit code.
	cmd := d.command(append([]string{"run", "--rm"}, create("fg", "/bin/sh", "-c", "echo out; echo err >&2; exit 7")[1:]...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != 7 || stdout.String() != "out\n" || !strings.Contains(stderr.String(), "err\n") {
		t.Fatalf("foreground: %v, stdout %q, stderr %q", err, &stdout, &stderr)
	}
	d.clean()

	// Stdin goes through and ends. (ctr passes the end on only after its task
	// is made.)
	cmd = d.command(append([]string{"run", "--rm"}, create("in", "/bin/cat")[1:]...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer in.Close()
		for range 500 {
			if out, _ := d.command("task", "ls").Output(); bytes.Contains(out, []byte("RUNNING")) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		_, _ = io.WriteString(in, "to and fro")
	}()
	if out, err := cmd.Output(); err != nil || string(out) != "to and fro" {
		t.Fatalf("stdin: %v, %q", err, out)
	}
	d.clean()

	// Detached, with an exec; containerd is killed and comes back meanwhile.
	d.ctr(append([]string{"run", "-d"}, create("bg", "/bin/sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.1; done")[1:]...)...)
	if out := d.ctr("task", "exec", "--exec-id", "e1", "bg", "/bin/echo", "hello"); out != "hello\n" {
		t.Errorf("exec: %q", out)
	}
	if got := d.shims(); len(got) != 1 {
		t.Errorf("shims: %v, want one", got)
	}
	d.kill()
	d.start()
	if out := d.ctr("task", "ls"); !strings.Contains(out, "RUNNING") {
		t.Errorf("after containerd came back: %s", out)
	}
	if out := d.ctr("task", "exec", "--exec-id", "e2", "bg", "/bin/echo", "again"); out != "again\n" {
		t.Errorf("exec: %q", out)
	}
	d.ctr("task", "kill", "--signal", "SIGTERM", "bg")
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(d.ctr("task", "ls"), "STOPPED"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after kill: %s", d.ctr("task", "ls"))
		}
	}
	out, err := d.command("task", "delete", "bg").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("exit code 5")) {
		t.Errorf("delete: %v, %s; want the container's 5", err, out)
	}
	d.ctr("container", "delete", "bg")
	d.clean()

	// A container that is killed by force, and a shim that dies.
	d.ctr(append([]string{"run", "-d"}, create("k1", "/bin/sleep", "1000")[1:]...)...)
	d.ctr("task", "delete", "-f", "k1")
	d.ctr("container", "delete", "k1")
	d.clean()
	d.ctr(append([]string{"run", "-d"}, create("k2", "/bin/sleep", "1000")[1:]...)...)
	shims := d.shims()
	if len(shims) != 1 {
		t.Fatalf("shims: %v", shims)
	}
	if err := syscall.Kill(shims[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.clean()
	d.ctr("container", "delete", "k2")
	if left, _ := filepath.Glob(defaultSockets + "/*"); len(left) > 0 {
		for _, path := range left {
			if refused(path) {
				t.Errorf("socket %s of a dead shim is left", path)
			}
		}
	}
}
