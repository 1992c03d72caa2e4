package cri

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

// findPod finds a pod by id or unique prefix.
func (s *Service) findPod(id string) (*keeper.Pod, error) {
	if id == "" {
		return nil, invalid("pod_sandbox_id", "it is empty")
	}
	return s.keeper.Pod(id)
}

// findContainer finds a container by id or unique prefix.
func (s *Service) findContainer(id string) (*keeper.Pod, *keeper.Container, error) {
	if id == "" {
		return nil, nil, invalid("container_id", "it is empty")
	}
	return s.keeper.Container(id)
}

// findCreated is findContainer for calls about containers whose creation
// succeeded: before that nobody was given the id.
func (s *Service) findCreated(id string) (*keeper.Pod, *keeper.Container, error) {
	p, c, err := s.findContainer(id)
	if err == nil && !c.IsCreated() {
		err = fmt.Errorf("container %q is still being created: %w", id, errdefs.ErrNotFound)
	}
	return p, c, err
}

// findRunning is findCreated for calls that need the container's processes.
func (s *Service) findRunning(id, what string) (*keeper.Pod, *keeper.Container, error) {
	p, c, err := s.findCreated(id)
	if err == nil && c.Status() != pod.ContainerStateRunning {
		err = precondition("%s container %s: it is not running (%s)", what, c.ID, containerState(c))
	}
	return p, c, err
}

// notReady is what a call that needs a pod which is up says of one that is not.
func notReady(what string, p *keeper.Pod) error {
	why := p.Reason
	if why == "" && !p.Stopping {
		why = "being made"
	}
	return precondition("%s pod %s: it is not ready (%s)", what, p.ID, why)
}

// podConfig is the config that the pod was made from. A journal whose config
// cannot be read still has the pod's name, and a pod must be listed to be
// removed.
func podConfig(p *keeper.Pod) *runtime.PodSandboxConfig {
	if r, ok := p.Decoded.(*record.Pod); ok && r.Config != nil {
		return r.Config
	}
	f := strings.Split(p.Name, "_")
	m := &runtime.PodSandboxMetadata{Name: p.Name, Namespace: "unknown", Uid: p.ID}
	if len(f) == 4 {
		m.Name, m.Namespace, m.Uid, m.Attempt = f[0], f[1], f[2], attempt(f[3])
	}
	return &runtime.PodSandboxConfig{Metadata: m}
}

// containerRecord is the record that the container was made from, or, when it
// cannot be read, what its name tells.
func containerRecord(c *keeper.Container) *record.Container {
	if r, ok := c.Decoded.(*record.Container); ok && r.Config != nil {
		return r
	}
	f := strings.Split(c.Name, "_")
	m := &runtime.ContainerMetadata{Name: f[0], Attempt: attempt(f[len(f)-1])}
	return &record.Container{
		Config:     &runtime.ContainerConfig{Metadata: m, Image: &runtime.ImageSpec{Image: "unknown"}},
		ImageID:    "unknown",
		StopSignal: defaultStopSignal,
	}
}

func attempt(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32) // 0 for what is no number
	return uint32(n)
}
