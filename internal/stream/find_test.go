package stream

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

type onePod struct {
	p *keeper.Pod
	c *keeper.Container
}

func (o onePod) Pod(string) (*keeper.Pod, error) { return o.p, nil }
func (o onePod) Container(string) (*keeper.Pod, *keeper.Container, error) {
	return o.p, o.c, nil
}

func TestFromKeeper(t *testing.T) {
	bundle := t.TempDir()
	spec := `{"process":{"args":["sleep"],"env":["A=b"],"cwd":"/w"}}`
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	hold := func(v any) pod.Holding {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return pod.Holding{Phase: pod.Held, Data: b}
	}
	c := &keeper.Container{
		Container: &pod.Container{ID: "c", StartedAt: time.Now(), Holdings: map[pod.Resource]pod.Holding{pod.Rootfs: hold(&record.Rootfs{Bundle: bundle})}},
		Decoded:   &record.Container{Config: &cri.ContainerConfig{Tty: true, Stdin: true}},
	}
	p := &keeper.Pod{State: &pod.State{ID: "p", ReadyAt: time.Now(), Holdings: map[pod.Resource]pod.Holding{
		pod.Shim:       hold(map[string]string{"sessions": "/run/io.sock"}),
		pod.Namespaces: hold(map[string]string{"net": "/run/net"}),
	}}}
	find := FromKeeper(onePod{p, c})
	got, err := find.Session(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if got.SessionSocket != "/run/io.sock" || got.ContainerID != "c" || !got.TTY || !got.Stdin || got.Spec.Process.Cwd != "/w" {
		t.Errorf("%+v", got)
	}
	if ns, err := find.NetNS(t.Context(), "p"); err != nil || ns != "/run/net" {
		t.Errorf("%s %v", ns, err)
	}
	p.Traits.HostNetwork = true
	if ns, err := find.NetNS(t.Context(), "p"); err != nil || ns != "" {
		t.Errorf("host network: %q %v", ns, err)
	}

	delete(p.Holdings, pod.Shim)
	if _, err := find.Session(t.Context(), "c"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no shim: %v", err)
	}
	c.FinishedAt = time.Now()
	if _, err := find.Session(t.Context(), "c"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exited: %v", err)
	}
	p.Stopping = true
	if _, err := find.NetNS(t.Context(), "p"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("stopping: %v", err)
	}
}
