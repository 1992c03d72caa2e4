//go:build linux

package shims

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// binary is the shim, built once for all tests; runc is the runtime.
var binary, runc string

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	runc = os.Getenv("BERTH_RUNC")
	if runc == "" {
		var err error
		if runc, err = exec.LookPath("runc"); err != nil {
			return 0, fmt.Errorf("set BERTH_RUNC to a runc 1.2 or later: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "shims")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "containerd-shim-berth-v1")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-tags", "no_grpc", "-o", binary, "berth/cmd/containerd-shim-berth-v1")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("build the shim: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// pod is a pod's directories and its shim.
type pod struct {
	t   testing.TB
	m   *Manager
	id  string
	req *StartRequest
}

func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newPod(t testing.TB) *pod {
	t.Helper()
	// Sockets need a short path.
	sockets, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	dir := t.TempDir()
	id := newID()
	t.Cleanup(func() { removeCgroups(t, id[:8]) }) // after the shim's end
	p := &pod{t: t, m: NewManager(&Options{Binary: binary, SocketDir: sockets}), id: id}
	p.req = &StartRequest{
		ID: id, Dir: filepath.Join(dir, "run"), ExitDir: filepath.Join(dir, "exits"),
		Runtime: runc, RuntimeRoot: filepath.Join(dir, "runc"), Drain: 2 * time.Second,
	}
	for _, d := range []string{p.req.Dir, p.req.ExitDir, p.req.RuntimeRoot} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// start starts the pod's shim and promises that it is gone after the test.
func (p *pod) start() *Shim {
	p.t.Helper()
	a, err := p.m.Start(p.t.Context(), p.req)
	if err != nil {
		p.log()
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.log()
		}
		if err := p.m.Finish(contextOf(p.t), p.id, p.req.Dir, a); err != nil {
			p.t.Errorf("finish: %v", err)
		}
	})
	return p.m.Shim(a)
}

func (p *pod) log() {
	b, _ := os.ReadFile(filepath.Join(p.req.Dir, "shim.log"))
	p.t.Logf("shim.log:\n%s", b)
}

// bundle makes a bundle of a container that runs a shell command.
func (p *pod) bundle(script string, opts ...func(*specs.Spec)) (id, dir string) {
	p.t.Helper()
	id = newID()
	dir = filepath.Join(p.req.Dir, "containers", id)
	root := filepath.Join(dir, "rootfs")
	for _, d := range []string{"bin", "proc", "dev", "tmp", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		p.t.Fatalf("a static busybox is needed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "busybox"), box, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for _, n := range []string{"sh", "sleep", "echo", "cat", "seq", "setsid", "true", "kill", "ps", "trap", "head"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", n)); err != nil {
			p.t.Fatal(err)
		}
	}
	s := &specs.Spec{
		Version: "1.2.0",
		Process: &specs.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/"},
		Root:    &specs.Root{Path: root},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/berth-test-" + p.id[:8] + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
		},
	}
	for _, o := range opts {
		o(s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return id, dir
}

// removeCgroups removes the folder of the pod, which no runtime owns. It is
// empty, or something is left of a container.
func removeCgroups(t testing.TB, pod string) {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/berth-test-" + pod)
	more, _ := filepath.Glob("/sys/fs/cgroup/berth-test-" + pod)
	for _, d := range append(dirs, more...) {
		if err := os.Remove(d); err != nil {
			t.Errorf("cgroup of a container is left: %v", err)
		}
	}
}
