package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckpointContainer answers Unimplemented: Berth takes no checkpoints.
func (s *Service) CheckpointContainer(context.Context, *runtime.CheckpointContainerRequest) (*runtime.CheckpointContainerResponse, error) {
	return nil, fmt.Errorf("CheckpointContainer: %w", errdefs.ErrNotImplemented)
}
