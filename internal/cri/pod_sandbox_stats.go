package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodSandboxStats tells what a pod and its containers use.
func (s *Service) PodSandboxStats(ctx context.Context, r *runtime.PodSandboxStatsRequest) (*runtime.PodSandboxStatsResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.d.Stats.Pod(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	return &runtime.PodSandboxStatsResponse{Stats: st}, nil
}
