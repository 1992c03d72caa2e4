package cri

import (
	"context"
	"math"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopContainer sends the container's stop signal and, when the timeout is over,
// SIGKILL; it returns when the container has ended. The grace goes on when the
// caller leaves. What ended, or is not there, is success.
func (s *Service) StopContainer(ctx context.Context, r *runtime.StopContainerRequest) (*runtime.StopContainerResponse, error) {
	grace, err := seconds("timeout", r.GetTimeout())
	if err != nil {
		return nil, err
	}
	_, c, err := s.findContainer(r.GetContainerId())
	if err == nil {
		err = s.keeper.StopContainer(ctx, c.ID, containerRecord(c).StopSignal, grace)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &runtime.StopContainerResponse{}, nil
}

// seconds is a CRI timeout. One that no clock can hold is the longest there is.
func seconds(field string, n int64) (time.Duration, error) {
	if n < 0 {
		return 0, invalid(field, "%d is negative", n)
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second, nil
}
