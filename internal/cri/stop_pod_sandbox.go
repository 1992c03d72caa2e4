package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopPodSandbox ends a pod's containers and gives its network and processes back.
// What is stopped, or not there, is success.
func (s *Service) StopPodSandbox(ctx context.Context, r *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err == nil {
		err = s.keeper.StopPod(ctx, p.ID)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &runtime.StopPodSandboxResponse{}, nil
}
