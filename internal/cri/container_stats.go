package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats tells what a running container uses.
func (s *Service) ContainerStats(ctx context.Context, r *runtime.ContainerStatsRequest) (*runtime.ContainerStatsResponse, error) {
	_, c, err := s.findCreated(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.d.Stats.Container(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	return &runtime.ContainerStatsResponse{Stats: st}, nil
}
