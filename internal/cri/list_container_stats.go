package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
)

// ListContainerStats tells what all running containers use.
func (s *Service) ListContainerStats(ctx context.Context, r *runtime.ListContainerStatsRequest) (*runtime.ListContainerStatsResponse, error) {
	items, err := s.listContainerStats(ctx, r.GetFilter())
	return &runtime.ListContainerStatsResponse{Stats: items}, err
}

func (s *Service) listContainerStats(ctx context.Context, f *runtime.ContainerStatsFilter) ([]*runtime.ContainerStats, error) {
	var ids []string
	s.eachContainer(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector(), func(c *keeper.Container) {
		if c.Status() == pod.ContainerStateRunning {
			ids = append(ids, c.ID)
		}
	})
	return collect(ctx, ids, s.d.Stats.Container)
}

// collect gets what there is for ids. One that ended meanwhile has nothing, and
// is not missed; one that fails does not hide the others.
func collect[T any](ctx context.Context, ids []string, get func(context.Context, string) (T, error)) ([]T, error) {
	out := make([]T, 0, len(ids))
	var failed error
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v, err := get(ctx, id)
		switch {
		case err == nil:
			out = append(out, v)
		case !errdefs.IsNotFound(err):
			failed = err
		}
	}
	if len(out) == 0 && failed != nil {
		return nil, failed
	}
	return out, nil
}
