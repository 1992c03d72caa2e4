package cri

import (
	"context"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PortForward prepares a session that forwards ports into a pod's network.
func (s *Service) PortForward(_ context.Context, r *runtime.PortForwardRequest) (*runtime.PortForwardResponse, error) {
	for i, port := range r.GetPort() {
		if port < 1 || port > maxPort {
			return nil, invalid(fmt.Sprintf("port[%d]", i), "%d is not between 1 and %d", port, maxPort)
		}
	}
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !p.IsReady() {
		return nil, notReady("forward ports to", p)
	}
	return s.d.Streams.PortForward(&runtime.PortForwardRequest{PodSandboxId: p.ID, Port: r.Port})
}
