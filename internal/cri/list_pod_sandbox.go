package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// ListPodSandbox lists pods from the published snapshots.
func (s *Service) ListPodSandbox(_ context.Context, r *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: s.listPods(r.GetFilter())}, nil
}

func (s *Service) listPods(f *runtime.PodSandboxFilter) []*runtime.PodSandbox {
	var out []*runtime.PodSandbox
	s.eachPod(f.GetId(), f.GetLabelSelector(), func(p *keeper.Pod) {
		if f.GetState() == nil || f.State.State == podState(p) {
			out = append(out, podItem(p))
		}
	})
	return out
}
