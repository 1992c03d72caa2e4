package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveContainer ends a container if need be, and forgets it and its name. Its
// log stays. What is not there is success.
func (s *Service) RemoveContainer(ctx context.Context, r *runtime.RemoveContainerRequest) (*runtime.RemoveContainerResponse, error) {
	_, c, err := s.findContainer(r.GetContainerId())
	if err == nil {
		err = s.keeper.RemoveContainer(ctx, c.ID)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &runtime.RemoveContainerResponse{}, nil
}
