//go:build linux

package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// caller is a containerd of some generation.
type caller struct {
	t       *testing.T
	sockets string // "" = the default folder, for those who cannot name one
	env     []string
	stdin   func(id string) []byte
}

func modern(t *testing.T) *caller {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &caller{t: t, sockets: dir, env: []string{"MAX_SHIM_VERSION=2"}}
	c.stdin = func(id string) []byte {
		o, _ := anypb.New(&options.Options{BinaryName: runc})
		b, err := proto.Marshal(&bootapi.BootstrapParams{
			InstanceID: id, Namespace: "test", ContainerdGrpcAddress: t.Name(), SocketDir: &dir,
			Extensions: []*bootapi.Extension{{Value: o}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return c
}

func legacy(t *testing.T, env ...string) *caller {
	// Whoever cannot name a folder for sockets uses the default one.
	if _, err := os.Stat(defaultSockets); errors.Is(err, os.ErrNotExist) {
		t.Cleanup(func() {
			_ = os.Remove(defaultSockets)
			_ = os.Remove(filepath.Dir(defaultSockets))
		})
	}
	return &caller{t: t, env: env, stdin: func(string) []byte {
		a, _ := anypb.New(&options.Options{BinaryName: runc})
		b, _ := proto.Marshal(a)
		return b
	}}
}

func (c *caller) bundle(annotations string) string {
	dir := c.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"annotations":{`+annotations+`}}`), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "log"), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// start runs start as containerd does, output and errors in one buffer.
func (c *caller) start(id, bundle string) []byte {
	c.t.Helper()
	cmd := exec.Command(shimBinary, "-namespace", "test", "-address", c.t.Name(), "-publish-binary", "x", "-id", id, "start")
	cmd.Dir, cmd.Stdin = bundle, bytes.NewReader(c.stdin(id))
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MAX_SHIM_VERSION=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, c.env...)
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("start: %v\n%s", err, out)
	}
	c.t.Logf("start answered in %v", time.Since(begin))
	return out
}

// end asks the shim at an address to end, in both versions of the task service,
// and checks that nothing is left.
func (c *caller) end(address string) {
	c.t.Helper()
	path := strings.TrimPrefix(address, "unix://")
	conn, err := net.Dial("unix", path)
	if err != nil {
		c.t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	var pid uint32
	for _, service := range []string{"containerd.task.v2.Task", "containerd.task.v3.Task"} {
		var r taskv2.ConnectResponse
		if err := client.Call(c.t.Context(), service, "Connect", &taskv2.ConnectRequest{ID: "x"}, &r); err != nil {
			c.t.Fatalf("%s: %v", service, err)
		}
		pid = r.ShimPid
	}
	if err := client.Call(c.t.Context(), "containerd.task.v3.Task", "Shutdown", &taskv2.ShutdownRequest{ID: "x"}, &emptypb.Empty{}); err != nil {
		c.t.Fatal(err)
	}
	client.Close()
	waitGone(c.t, int(pid))
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		c.t.Errorf("socket is left: %v", err)
	}
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
		if err != nil || bytes.Contains(b, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}

func TestAnswerToEachGeneration(t *testing.T) {
	t.Run("2.3 and later", func(t *testing.T) {
		c := modern(t)
		bundle := c.bundle("")
		out := c.start("a", bundle)
		var r bootapi.BootstrapResult
		if err := proto.Unmarshal(out, &r); err != nil || r.Version != 3 || r.Protocol != "ttrpc" || !strings.HasPrefix(r.Address, "unix://"+c.sockets+"/") {
			t.Fatalf("answer: %+v, %v", &r, err)
		}
		if _, err := os.Stat(filepath.Join(bundle, "address")); err == nil {
			t.Error("start wrote a file")
		}
		c.end(r.Address)
	})
	t.Run("1.7 to 2.2", func(t *testing.T) {
		c := legacy(t, "MAX_SHIM_VERSION=2")
		bundle := c.bundle("")
		var r struct {
			Version           int
			Address, Protocol string
		}
		if err := json.Unmarshal(c.start("a", bundle), &r); err != nil || r.Version != 2 || r.Protocol != "ttrpc" {
			t.Fatalf("answer: %+v, %v", r, err)
		}
		if b, err := os.ReadFile(filepath.Join(bundle, "address")); err != nil || string(b) != r.Address {
			t.Errorf("address file: %q, %v", b, err)
		}
		c.end(r.Address)
	})
	t.Run("1.6", func(t *testing.T) {
		c := legacy(t)
		out := string(c.start("a", c.bundle("")))
		if !strings.HasPrefix(out, "unix://") || strings.ContainsAny(out, "{\n ") {
			t.Fatalf("answer: %q", out)
		}
		c.end(out)
	})
	t.Run("no options at all", func(t *testing.T) {
		c := legacy(t, "MAX_SHIM_VERSION=2")
		c.stdin = func(string) []byte { return nil }
		var r struct{ Address string }
		if err := json.Unmarshal(c.start("a", c.bundle("")), &r); err != nil {
			t.Fatal(err)
		}
		c.end(r.Address)
	})
}

func TestOneShimForAPod(t *testing.T) {
	c := modern(t)
	address := func(out []byte) string {
		var r bootapi.BootstrapResult
		if err := proto.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		return r.Address
	}
	cri := `"io.kubernetes.cri.sandbox-id":"pod"`
	first := address(c.start("pod", c.bundle(cri)))
	if got := address(c.start("container", c.bundle(cri))); got != first {
		t.Errorf("container of the pod: %s, want %s", got, first)
	}
	other := address(c.start("x", c.bundle(cri+`,"io.containerd.runc.v2.group":"mine"`)))
	if other == first {
		t.Error("a group of its own got the pod's shim")
	}
	c.end(other)

	// The shim dies without a word; its socket stays.
	conn, err := net.Dial("unix", strings.TrimPrefix(first, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	var r taskv2.ConnectResponse
	if err := client.Call(t.Context(), "containerd.task.v2.Task", "Connect", &taskv2.ConnectRequest{}, &r); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if cwd, err := os.Readlink("/proc/" + itoa(int(r.ShimPid)) + "/cwd"); err != nil || cwd != "/" {
		t.Errorf("working directory of the shim is %q, %v", cwd, err)
	}
	if err := syscall.Kill(int(r.ShimPid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, int(r.ShimPid))
	if got := address(c.start("pod", c.bundle(cri))); got != first {
		t.Errorf("after the shim's death: %s, want %s", got, first)
	}
	c.end(first)
}

// A shim whose log nobody reads works on, and does not spin.
func TestLogWithoutReader(t *testing.T) {
	c := modern(t)
	bundle := c.bundle("")
	var r bootapi.BootstrapResult
	if err := proto.Unmarshal(c.start("a", bundle), &r); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(r.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	connect := func() int {
		t.Helper()
		var r taskv2.ConnectResponse
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := client.Call(ctx, "containerd.task.v2.Task", "Connect", &taskv2.ConnectRequest{}, &r); err != nil {
			t.Fatalf("the shim does not answer: %v", err)
		}
		return int(r.ShimPid)
	}
	pid := connect()
	before := cpuTime(t, pid)
	const dumps = 100 // of the stacks, some KiB each
	for range dumps {
		if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
		connect()
	}
	// Ending says something too, under the lock that a stuck one would hold.
	if used := cpuTime(t, pid) - before; used > time.Second {
		t.Errorf("the shim used %v", used)
	}
	// The FIFO is full; what did not fit is told of when somebody reads again.
	f, err := os.OpenFile(filepath.Join(bundle, "log"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	n, err := f.Read(buf)
	if err != nil || n < 32<<10 {
		t.Errorf("%d bytes in the log, %v", n, err)
	}
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var told string
	for deadline := time.Now().Add(5 * time.Second); !strings.Contains(told, "messages dropped"); {
		if err := f.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		n, err := f.Read(buf)
		if err != nil {
			t.Fatalf("the log says %q: %v", told, err)
		}
		told += string(buf[:n])
	}
	c.end(r.Address)
}

func TestInfoAndVersion(t *testing.T) {
	a, _ := anypb.New(&options.Options{BinaryName: runc})
	in, _ := proto.Marshal(a)
	cmd := exec.Command(shimBinary, "-info")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r types.RuntimeInfo
	if err := proto.Unmarshal(out, &r); err != nil || r.Name != runtimeName || r.Features.GetTypeUrl() != featuresType || r.Options == nil {
		t.Errorf("info: %+v, %v", &r, err)
	}
	var f struct{ OCIVersionMax string }
	if err := json.Unmarshal(r.Features.GetValue(), &f); err != nil || f.OCIVersionMax == "" {
		t.Errorf("features: %s, %v", r.Features.GetValue(), err)
	}
	if out, err := exec.Command(shimBinary, "-v").Output(); err != nil || !bytes.Contains(out, []byte("Version:")) {
		t.Errorf("version: %s, %v", out, err)
	}
}

func FuzzReadRequest(f *testing.F) {
	p, _ := proto.Marshal(&bootapi.BootstrapParams{InstanceID: "id", Namespace: "ns", ContainerdGrpcAddress: "a"})
	f.Add(p)
	f.Add([]byte(nil))
	f.Add([]byte("unix:///x"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := readRequest(&args{id: "id", namespace: "ns", address: "cmdline"}, bytes.NewReader(in))
		if err != nil {
			return
		}
		var p bootapi.BootstrapParams
		named := proto.Unmarshal(in, &p) == nil && p.InstanceID == "id" && p.Namespace == "ns"
		if r.modern != named || r.address == "" || r.socketDir == "" {
			t.Errorf("request: %+v, parameters name this instance: %t", r, named)
		}
	})
}
