package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// fakeKeeper answers from a fixed set of pods and notes what it was asked.
type fakeKeeper struct {
	pods       []*keeper.Pod
	recovering bool
	err        error // what changing calls answer

	// mu guards the fields below.
	mu        sync.Mutex
	calls     []string
	podReq    *keeper.PodRequest
	ctrReq    *keeper.ContainerRequest
	linux     json.RawMessage
	config    json.RawMessage
	subs      []chan *keeper.Event
	cancelled int
}

func (k *fakeKeeper) note(format string, args ...any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, fmt.Sprintf(format, args...))
	return k.err
}

func (k *fakeKeeper) noted() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string(nil), k.calls...)
}

func (k *fakeKeeper) RunPod(_ context.Context, r *keeper.PodRequest) (string, error) {
	k.podReq = r
	return "new-pod", k.note("RunPod %s %s", r.Name, r.Handler)
}
func (k *fakeKeeper) StopPod(_ context.Context, id string) error   { return k.note("StopPod %s", id) }
func (k *fakeKeeper) RemovePod(_ context.Context, id string) error { return k.note("RemovePod %s", id) }
func (k *fakeKeeper) UpdatePod(_ context.Context, id string, r json.RawMessage) error {
	k.config = r
	return k.note("UpdatePod %s", id)
}
func (k *fakeKeeper) CreateContainer(_ context.Context, r *keeper.ContainerRequest) (string, error) {
	k.ctrReq = r
	return "new-container", k.note("CreateContainer %s %s", r.PodID, r.Name)
}
func (k *fakeKeeper) StartContainer(_ context.Context, id string) error {
	return k.note("StartContainer %s", id)
}
func (k *fakeKeeper) StopContainer(_ context.Context, id, signal string, grace time.Duration) error {
	return k.note("StopContainer %s %s %s", id, signal, grace)
}
func (k *fakeKeeper) RemoveContainer(_ context.Context, id string) error {
	return k.note("RemoveContainer %s", id)
}
func (k *fakeKeeper) UpdateContainer(_ context.Context, id string, linux json.RawMessage, record func(*keeper.Container) (json.RawMessage, error)) error {
	_, c, err := k.Container(id)
	if err != nil {
		return err
	}
	k.linux = linux
	if k.config, err = record(c); err != nil {
		return err
	}
	return k.note("UpdateContainer %s", id)
}
func (k *fakeKeeper) ReopenLog(_ context.Context, id string) error {
	return k.note("ReopenLog %s", id)
}
func (k *fakeKeeper) Pods() []*keeper.Pod { return k.pods }
func (k *fakeKeeper) Recovered() bool     { return !k.recovering }

func (k *fakeKeeper) Pod(id string) (*keeper.Pod, error) {
	var found *keeper.Pod
	for _, p := range k.pods {
		if strings.HasPrefix(p.ID, id) {
			if found != nil {
				return nil, fmt.Errorf("%q is not unique: %w", id, errdefs.ErrInvalidArgument)
			}
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("pod %q: %w", id, errdefs.ErrNotFound)
	}
	return found, nil
}

func (k *fakeKeeper) Container(id string) (*keeper.Pod, *keeper.Container, error) {
	for _, p := range k.pods {
		for _, c := range p.Containers {
			if strings.HasPrefix(c.ID, id) {
				return p, c, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
}

func (k *fakeKeeper) Subscribe() (<-chan *keeper.Event, func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ch := make(chan *keeper.Event, 16)
	k.subs = append(k.subs, ch)
	return ch, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.cancelled++
		for i, s := range k.subs {
			if s == ch {
				k.subs[i] = nil
			}
		}
	}
}

// publish gives e to all subscribers, and waits for a place in each one's
// channel at most for patience.
func (k *fakeKeeper) publish(e *keeper.Event, patience time.Duration) (stalled bool) {
	k.mu.Lock()
	subs := append([]chan *keeper.Event(nil), k.subs...)
	k.mu.Unlock()
	for _, s := range subs {
		if s == nil {
			continue
		}
		select {
		case s <- e:
		case <-time.After(patience):
			stalled = true
		}
	}
	return stalled
}

func (k *fakeKeeper) subscribers() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, s := range k.subs {
		if s != nil {
			n++
		}
	}
	return n
}

// fakeImages has the images that it was given.
type fakeImages struct {
	images  []*image.Image
	err     error
	pulled  string
	removed string
}

func (f *fakeImages) Get(_ context.Context, ref string) (*image.Image, error) {
	for _, i := range f.images {
		for _, n := range append(append([]string{i.ID}, i.Tags...), i.Digests...) {
			if n == ref {
				return i, nil
			}
		}
	}
	return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
}
func (f *fakeImages) List(context.Context) []*image.Image { return f.images }
func (f *fakeImages) Pull(_ context.Context, ref string, o *image.PullOptions) (*image.Image, error) {
	f.pulled = fmt.Sprint(ref, o.Auth)
	return &image.Image{ID: "sha256:pulled"}, f.err
}
func (f *fakeImages) Remove(_ context.Context, ref string) error {
	f.removed = ref
	return f.err
}
func (f *fakeImages) Usage(context.Context) (*image.Usage, error) {
	return &image.Usage{At: time.Unix(5, 0), Mountpoint: "/images", Bytes: 7, Inodes: 3}, f.err
}

type fakeStreams struct{ last any }

func (f *fakeStreams) Exec(r *runtime.ExecRequest) (*runtime.ExecResponse, error) {
	f.last = r
	return &runtime.ExecResponse{Url: "exec"}, nil
}
func (f *fakeStreams) Attach(r *runtime.AttachRequest) (*runtime.AttachResponse, error) {
	f.last = r
	return &runtime.AttachResponse{Url: "attach"}, nil
}
func (f *fakeStreams) PortForward(r *runtime.PortForwardRequest) (*runtime.PortForwardResponse, error) {
	f.last = r
	return &runtime.PortForwardResponse{Url: "forward"}, nil
}
func (f *fakeStreams) ExecSync(_ context.Context, id string, cmd []string, timeout time.Duration) (*runtime.ExecSyncResponse, error) {
	f.last = fmt.Sprintf("%s %v for %s", id, cmd, timeout)
	if cmd[0] == "hang" {
		return nil, fmt.Errorf("command did not end in %s: %w", timeout, context.DeadlineExceeded)
	}
	return &runtime.ExecSyncResponse{Stdout: []byte("out"), ExitCode: 3}, nil
}

type fakeStats struct{}

func (fakeStats) Container(_ context.Context, id string) (*runtime.ContainerStats, error) {
	return &runtime.ContainerStats{Attributes: &runtime.ContainerAttributes{Id: id}}, nil
}
func (fakeStats) Pod(_ context.Context, id string) (*runtime.PodSandboxStats, error) {
	return &runtime.PodSandboxStats{Attributes: &runtime.PodSandboxAttributes{Id: id}}, nil
}
func (fakeStats) Metrics(context.Context) ([]*runtime.PodSandboxMetrics, error) {
	return []*runtime.PodSandboxMetrics{{PodSandboxId: podA}}, nil
}
func (fakeStats) Descriptors() []*runtime.MetricDescriptor {
	return []*runtime.MetricDescriptor{{Name: "m"}}
}

type fakeNetwork struct {
	err  error
	cidr string
}

func (f *fakeNetwork) Status(context.Context) error { return f.err }
func (f *fakeNetwork) SetPodCIDR(c string) error {
	f.cidr = c
	return nil
}
func (f *fakeNetwork) Info() *network.Info { return &network.Info{ConfDir: "/conf-dir"} }

// rig is a service on fakes.
type rig struct {
	*Service
	keeper  *fakeKeeper
	images  *fakeImages
	streams *fakeStreams
	network *fakeNetwork
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{
		keeper: &fakeKeeper{pods: []*keeper.Pod{readyPod(), stoppedPod(), newPod()}},
		images: &fakeImages{images: []*image.Image{
			{ID: imageID, Tags: []string{"docker.io/library/busybox:1", "docker.io/library/busybox:2"}, Digests: []string{"docker.io/library/busybox@sha256:d1"}, Size: 12},
			{ID: volID, Tags: []string{"docker.io/library/vol:1"}},
		}},
		streams: &fakeStreams{},
		network: &fakeNetwork{},
	}
	s, err := New(&Deps{
		Keeper: r.keeper, Images: r.images, Streams: r.streams, Stats: fakeStats{}, Network: r.network,
		Host:         &ocispec.Host{CgroupV2: true},
		Handlers:     []Handler{{Name: "runc", Kind: "process", RecursiveReadOnly: true, UserNamespaces: true}, {Name: "plain", Kind: "process"}},
		Default:      "runc",
		CgroupDriver: "systemd",
		Version:      "1.2.3",
		Root:         "/root-dir", State: "/state-dir",
		Config: map[string]any{"log_level": "info"},
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Service = s
	return r
}

// bundle gives a container a bundle with spec, and returns its folder.
func bundle(t testing.TB, c *keeper.Container, spec string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Holdings[pod.Rootfs] = pod.Holding{Phase: pod.Held, Data: json.RawMessage(`{"bundle":"` + dir + `","snapshot":"snap"}`)}
	return dir
}

// dial serves r through a real gRPC server and returns clients of it.
func (r *rig) dial(t testing.TB) (runtime.RuntimeServiceClient, runtime.ImageServiceClient) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer(r.ServerOptions()...)
	r.Register(g)
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l) })
	c, err := grpc.NewClient("passthrough:///berth",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		g.Stop()
		wg.Wait()
	})
	return runtime.NewRuntimeServiceClient(c), runtime.NewImageServiceClient(c)
}
