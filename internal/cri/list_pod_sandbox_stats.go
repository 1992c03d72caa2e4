package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// ListPodSandboxStats tells what the pods that are ready use.
func (s *Service) ListPodSandboxStats(ctx context.Context, r *runtime.ListPodSandboxStatsRequest) (*runtime.ListPodSandboxStatsResponse, error) {
	items, err := s.listPodStats(ctx, r.GetFilter())
	return &runtime.ListPodSandboxStatsResponse{Stats: items}, err
}

func (s *Service) listPodStats(ctx context.Context, f *runtime.PodSandboxStatsFilter) ([]*runtime.PodSandboxStats, error) {
	var ids []string
	s.eachPod(f.GetId(), f.GetLabelSelector(), func(p *keeper.Pod) {
		if p.IsReady() {
			ids = append(ids, p.ID)
		}
	})
	return collect(ctx, ids, s.d.Stats.Pod)
}
