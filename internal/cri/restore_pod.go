package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RestorePod answers Unimplemented: Berth takes no checkpoints.
func (s *Service) RestorePod(context.Context, *runtime.RestorePodRequest) (*runtime.RestorePodResponse, error) {
	return nil, fmt.Errorf("RestorePod: %w", errdefs.ErrNotImplemented)
}
