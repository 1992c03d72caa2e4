package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StartContainer runs a created container's command. A container is started
// once: FailedPrecondition after that. A command that cannot be started is an
// error, and the container has exited then (StartError, 126 to 128).
func (s *Service) StartContainer(ctx context.Context, r *runtime.StartContainerRequest) (*runtime.StartContainerResponse, error) {
	_, c, err := s.findCreated(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := s.keeper.StartContainer(ctx, c.ID); err != nil {
		return nil, err
	}
	return &runtime.StartContainerResponse{}, nil
}
