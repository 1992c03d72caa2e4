package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExecSync runs a command in a running container and returns what it wrote, at
// most 16 MiB a stream, and its exit code. A command that cannot be started is
// an error; one that outlives the timeout is killed: DeadlineExceeded.
func (s *Service) ExecSync(ctx context.Context, r *runtime.ExecSyncRequest) (*runtime.ExecSyncResponse, error) {
	if len(r.GetCmd()) == 0 {
		return nil, invalid("cmd", "it is empty")
	}
	timeout, err := seconds("timeout", r.GetTimeout())
	if err != nil {
		return nil, err
	}
	_, c, err := s.findRunning(r.GetContainerId(), "exec in")
	if err != nil {
		return nil, err
	}
	return s.d.Streams.ExecSync(ctx, c.ID, r.Cmd, timeout)
}
