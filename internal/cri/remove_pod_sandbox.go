package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemovePodSandbox ends a pod and forgets it and its containers. What is not there
// is success.
func (s *Service) RemovePodSandbox(ctx context.Context, r *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err == nil {
		err = s.keeper.RemovePod(ctx, p.ID)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &runtime.RemovePodSandboxResponse{}, nil
}
