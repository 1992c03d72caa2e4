package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper"
	"berth/internal/namespaces"
	"berth/internal/pod"
	"berth/internal/record"
)

// Pods is where pods are found (a keeper).
type Pods interface {
	Pod(id string) (*keeper.Pod, error)
	Container(id string) (*keeper.Pod, *keeper.Container, error)
}

// FromKeeper finds containers and pods in the keeper's ledger: nobody is asked.
func FromKeeper(p Pods) Containers { return ledger{p} }

type ledger struct{ pods Pods }

// Session finds the shim of a container that runs, and what the container was
// made with (its bundle's config.json, which is ours).
func (l ledger) Session(_ context.Context, id string) (*Target, error) {
	p, c, err := l.pods.Container(id)
	if err != nil {
		return nil, err
	}
	if c.Status() != pod.ContainerStateRunning {
		return nil, fmt.Errorf("container %s is not running: %w", id, errdefs.ErrFailedPrecondition)
	}
	var shim struct {
		Sessions string `json:"sessions"`
	}
	if err := held(p.Holdings, pod.Shim, &shim); err != nil {
		return nil, fmt.Errorf("shim of pod %s: %w", p.ID, err)
	}
	var root record.Rootfs
	if err := held(c.Holdings, pod.Rootfs, &root); err != nil {
		return nil, fmt.Errorf("bundle of container %s: %w", id, err)
	}
	b, err := os.ReadFile(filepath.Join(root.Bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read spec of container %s: %w", id, err)
	}
	t := &Target{SessionSocket: shim.Sessions, ContainerID: c.ID, Spec: &specs.Spec{}}
	if err := json.Unmarshal(b, t.Spec); err != nil {
		return nil, fmt.Errorf("decode spec of container %s: %w", id, err)
	}
	if t.Spec.Process == nil {
		return nil, fmt.Errorf("spec of container %s has no process: %w", id, errdefs.ErrInternal)
	}
	if r, ok := c.Decoded.(*record.Container); ok {
		t.TTY, t.Stdin = r.Config.GetTty(), r.Config.GetStdin()
	}
	return t, nil
}

// NetNS finds the network of a pod that is ready.
func (l ledger) NetNS(_ context.Context, id string) (string, error) {
	p, err := l.pods.Pod(id)
	if err != nil {
		return "", err
	}
	if !p.IsReady() {
		return "", fmt.Errorf("pod %s is not ready: %w", id, errdefs.ErrFailedPrecondition)
	}
	if p.Traits.HostNetwork {
		return "", nil
	}
	var paths namespaces.Paths
	if err := held(p.Holdings, pod.Namespaces, &paths); err != nil {
		return "", fmt.Errorf("namespaces of pod %s: %w", id, err)
	}
	if paths.Net == "" {
		return "", fmt.Errorf("pod %s has no network namespace: %w", id, errdefs.ErrFailedPrecondition)
	}
	return paths.Net, nil
}

// held reads what the ledger says of a resource.
func held(holdings map[pod.Resource]pod.Holding, r pod.Resource, to any) error {
	h := holdings[r]
	if h.Phase != pod.Held {
		return fmt.Errorf("is not held: %w", errdefs.ErrFailedPrecondition)
	}
	if err := json.Unmarshal(h.Data, to); err != nil {
		return fmt.Errorf("decode ledger: %w", err)
	}
	return nil
}
