package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ReopenContainerLog has the shim open the log file anew, after somebody moved
// it away. Only a running container has a log to open.
func (s *Service) ReopenContainerLog(ctx context.Context, r *runtime.ReopenContainerLogRequest) (*runtime.ReopenContainerLogResponse, error) {
	_, c, err := s.findRunning(r.GetContainerId(), "reopen the log of")
	if err != nil {
		return nil, err
	}
	if err := s.keeper.ReopenLog(ctx, c.ID); err != nil {
		return nil, err
	}
	return &runtime.ReopenContainerLogResponse{}, nil
}
