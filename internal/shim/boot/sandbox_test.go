//go:build linux

package boot

import (
	"net"
	"os"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestSandboxService is a containerd with `sandboxer = "shim"`.
func TestSandboxService(t *testing.T) {
	c := modern(t)
	var r bootapi.BootstrapResult
	if err := proto.Unmarshal(c.start("pod", c.bundle("")), &r); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", strings.TrimPrefix(r.Address, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx := t.Context()
	var shim taskv2.ConnectResponse
	if err := client.Call(ctx, "containerd.task.v3.Task", "Connect", &taskv2.ConnectRequest{ID: "pod"}, &shim); err != nil {
		t.Fatal(err)
	}
	s := sandboxapi.NewTTRPCSandboxClient(client)
	if _, err := s.StartSandbox(ctx, &sandboxapi.StartSandboxRequest{SandboxID: "pod"}); status.Code(err) != codes.NotFound {
		t.Errorf("start before create: %v, want NotFound", err)
	}
	for range 2 {
		if _, err := s.CreateSandbox(ctx, &sandboxapi.CreateSandboxRequest{SandboxID: "pod", NetnsPath: "/proc/self/ns/net"}); err != nil {
			t.Fatal(err)
		}
	}
	started, err := s.StartSandbox(ctx, &sandboxapi.StartSandboxRequest{SandboxID: "pod"})
	if err != nil || started.Pid == 0 {
		t.Fatalf("start: %+v, %v", started, err)
	}
	for _, ns := range []string{"ipc", "uts", "pid"} {
		ours, _ := os.Readlink("/proc/self/ns/" + ns)
		if its, err := os.Readlink("/proc/" + itoa(int(started.Pid)) + "/ns/" + ns); err != nil || its == ours {
			t.Errorf("%s namespace of the sandbox: %s, %v; want one of its own", ns, its, err)
		}
	}
	if st, err := s.SandboxStatus(ctx, &sandboxapi.SandboxStatusRequest{SandboxID: "pod"}); err != nil || st.State != "SANDBOX_READY" || st.Pid != started.Pid {
		t.Errorf("status: %+v, %v", st, err)
	}
	if p, err := s.Platform(ctx, &sandboxapi.PlatformRequest{SandboxID: "pod"}); err != nil || p.Platform.OS != "linux" {
		t.Errorf("platform: %+v, %v", p, err)
	}
	exec := &taskv2.ExecProcessRequest{ID: "pod", ExecID: "e", Spec: &anypb.Any{Value: []byte("{}")}}
	if err := client.Call(ctx, "containerd.task.v3.Task", "Exec", exec, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("exec in the sandbox: %v, want Unimplemented", err)
	}
	// A shutdown of tasks leaves the sandbox alone.
	if err := client.Call(ctx, "containerd.task.v3.Task", "Shutdown", &taskv2.ShutdownRequest{ID: "x"}, &emptypb.Empty{}); err != nil {
		t.Error(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := s.WaitSandbox(ctx, &sandboxapi.WaitSandboxRequest{SandboxID: "pod"})
		waited <- err
	}()
	for range 2 {
		if _, err := s.StopSandbox(ctx, &sandboxapi.StopSandboxRequest{SandboxID: "pod", TimeoutSecs: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waited; err != nil {
		t.Errorf("wait: %v", err)
	}
	waitGone(t, int(started.Pid))
	if _, err := s.ShutdownSandbox(ctx, &sandboxapi.ShutdownSandboxRequest{SandboxID: "pod"}); err != nil {
		t.Fatal(err)
	}
	client.Close()
	waitGone(t, int(shim.ShimPid))
}
