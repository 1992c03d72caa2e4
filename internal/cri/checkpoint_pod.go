package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CheckpointPod answers Unimplemented: Berth takes no checkpoints.
func (s *Service) CheckpointPod(context.Context, *runtime.CheckpointPodRequest) (*runtime.CheckpointPodResponse, error) {
	return nil, fmt.Errorf("CheckpointPod: %w", errdefs.ErrNotImplemented)
}
