package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/host"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var (
	runcPath string // the real runtime
	rootfs   string // a busybox, shared by all tests and only read
	group    = fmt.Sprintf("/berth-host-test-%d", os.Getpid())
	serial   atomic.Int64
)

// TestMain makes this process what the shim is: a subreaper whose children are
// all reaped by the package. Hence no test may wait for a process by itself.
func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	var err error
	if runcPath, err = findRunc(); err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "berth-host-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	rootfs = filepath.Join(dir, "rootfs")
	for _, d := range []string{"bin", "proc", "sys", "dev", "tmp"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			return 1, err
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return 1, err
	}
	for name, text := range map[string]string{"busybox": string(busybox), "junk": "no program", "lost": "#!/nowhere\n"} {
		if err := os.WriteFile(filepath.Join(rootfs, "bin", name), []byte(text), 0o755); err != nil {
			return 1, err
		}
	}
	if err := os.WriteFile(filepath.Join(rootfs, "bin", "plain"), []byte("text"), 0o644); err != nil {
		return 1, err
	}
	for _, a := range []string{"sh", "sleep", "true", "cat", "echo", "dd", "setsid", "stty", "yes", "head", "seq", "env", "id"} {
		if err := os.Symlink("busybox", filepath.Join(rootfs, "bin", a)); err != nil {
			return 1, err
		}
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		return 1, fmt.Errorf("left over after all tests: %s", strings.Join(left, ", "))
	}
	for _, d := range cgroupDirs(group) {
		_ = os.Remove(d)
	}
	return code, nil
}

func findRunc() (string, error) {
	if p := os.Getenv("BERTH_RUNC"); p != "" {
		return filepath.Abs(p)
	}
	for _, d := range append(filepath.SplitList(os.Getenv("PATH")), "../../../bin") {
		p, err := filepath.Abs(filepath.Join(d, "runc"))
		if st, serr := os.Stat(p); err == nil && serr == nil && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", errors.New("no runc: set BERTH_RUNC or PATH")
}

// cgroupDirs are the directories of a cgroup path that exist, in all hierarchies.
func cgroupDirs(path string) []string {
	m, err := findMounts("/proc/self/mountinfo")
	if err != nil {
		panic(err)
	}
	g := m.at(path)
	var found []string
	for _, d := range g.dirs() {
		if exists(d) {
			found = append(found, d)
		}
	}
	return found
}

// leftovers are container cgroups of the tests and children of this process.
func leftovers() (left []string) {
	for range 100 {
		left = nil
		for _, d := range cgroupDirs(group) {
			_ = filepath.WalkDir(d, func(p string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() && p != d {
					left = append(left, p)
				}
				return nil
			})
		}
		for _, pid := range descendants(os.Getpid()) {
			left = append(left, describe(pid))
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return left
}

// audit fails the test when it leaves a process, a cgroup, a descriptor or a goroutine.
func audit(t *testing.T) {
	t.Helper()
	reapers()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		if left := leftovers(); len(left) > 0 {
			t.Errorf("left over: %s", strings.Join(left, ", "))
		}
		for range 100 {
			if countFDs(t) <= fds && runtime.NumGoroutine() <= goroutines {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		buf := make([]byte, 64<<10)
		t.Errorf("fds %d, were %d; goroutines %d, were %d\n%s", countFDs(t), fds, runtime.NumGoroutine(), goroutines,
			buf[:runtime.Stack(buf, true)])
	})
}

func countFDs(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// newHost gives a host on the real runtime, or on another when given.
func newHost(t *testing.T, o Options) *Host {
	t.Helper()
	audit(t)
	if o.Runtime == "" {
		o.Runtime = runcPath
	}
	if o.Root == "" {
		o.Root = filepath.Join(t.TempDir(), "r")
	}
	h, err := New(&o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("close host: %v", err)
		}
		if left, err := os.ReadDir(o.Root); err != nil || len(left) > 0 {
			t.Errorf("runtime state left: %v, %v", left, err)
		}
	})
	return h
}

// bundle writes a bundle that runs args, changed by edits.
func bundle(t testing.TB, args []string, edits ...func(*specs.Spec)) (id, dir string) {
	t.Helper()
	id = fmt.Sprintf("c%d", serial.Add(1))
	dir = filepath.Join(t.TempDir(), id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount := func(dst, typ string, o ...string) specs.Mount {
		return specs.Mount{Destination: dst, Type: typ, Source: typ, Options: o}
	}
	s := &specs.Spec{
		Version: "1.0.2", // which old runtimes know too
		Root:    &specs.Root{Path: rootfs, Readonly: true},
		Process: process(args...),
		Mounts: []specs.Mount{
			mount("/proc", "proc"),
			mount("/dev", "tmpfs", "mode=755"),
			mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666"),
			mount("/tmp", "tmpfs"),
		},
		Linux: &specs.Linux{
			CgroupsPath: group + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
		},
	}
	for _, e := range edits {
		e(s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return id, dir
}

// rounds is how often a test does something: less in -short mode, which is for
// emulated machines (test/v2).
func rounds(n int) int {
	if testing.Short() {
		return max(n/5, 1)
	}
	return n
}

// bound is for how long a test waits, on the machine that it is on.
func bound(d time.Duration) time.Duration {
	if testing.Short() {
		return 5 * d
	}
	return d
}

func process(args ...string) *specs.Process {
	return &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}}
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// hostPID takes the container's own pid namespace away.
func hostPID(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }

func memory(limit int64) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
	}
}

var allStreams = host.StreamSpec{Stdin: true, Stdout: true, Stderr: true}

// run creates and starts a container.
func run(t testing.TB, h *Host, streams host.StreamSpec, args []string, edits ...func(*specs.Spec)) (string, host.Process) {
	t.Helper()
	id, dir := bundle(t, args, edits...)
	p, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Streams: streams, Start: true})
	if err != nil {
		t.Fatalf("run %q: %v", args, err)
	}
	closeStreams(t, p)
	return id, p
}

func execIn(t testing.TB, h *Host, id string, streams host.StreamSpec, args ...string) host.Process {
	t.Helper()
	p, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: process(args...), Streams: streams})
	if err != nil {
		t.Fatalf("exec %q: %v", args, err)
	}
	closeStreams(t, p)
	return p
}

func closeStreams(t testing.TB, p host.Process) {
	t.Cleanup(func() { closeNow(p) })
}

func closeNow(p host.Process) {
	s := p.Streams()
	for _, c := range []io.Closer{s.Stdin, s.Stdout, s.Stderr} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// wait gives the exit of a process that has to come within d.
func wait(t testing.TB, p host.Process, d time.Duration) *host.Exit {
	t.Helper()
	select {
	case <-p.Done():
		return p.Exit()
	case <-time.After(bound(d)):
		t.Fatalf("process %d did not end in %v", p.Pid(), d)
		return nil
	}
}

func read(t testing.TB, o host.Output) string {
	t.Helper()
	_ = o.SetReadDeadline(time.Now().Add(10 * time.Second))
	b, err := io.ReadAll(o)
	if err != nil {
		t.Fatalf("read output: %v (after %q)", err, b)
	}
	return string(b)
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(bound(10 * time.Second)); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in 10 s: %s", what)
}
