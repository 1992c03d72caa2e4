package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// ListContainers lists containers from the published snapshots.
func (s *Service) ListContainers(ctx context.Context, r *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{Containers: s.listContainers(ctx, r.GetFilter())}, nil
}

func (s *Service) listContainers(ctx context.Context, f *runtime.ContainerFilter) []*runtime.Container {
	var out []*runtime.Container
	t := s.translator(ctx)
	s.eachContainer(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector(), func(c *keeper.Container) {
		if f.GetState() == nil || f.State.State == containerState(c) {
			out = append(out, t.item(c))
		}
	})
	return out
}
