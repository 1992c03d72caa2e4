package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Attach prepares a session with a running container's own process.
func (s *Service) Attach(_ context.Context, r *runtime.AttachRequest) (*runtime.AttachResponse, error) {
	if err := checkStreams(r.GetTty(), r.GetStdin(), r.GetStdout(), r.GetStderr()); err != nil {
		return nil, err
	}
	_, c, err := s.findRunning(r.GetContainerId(), "attach to")
	if err != nil {
		return nil, err
	}
	return s.d.Streams.Attach(&runtime.AttachRequest{
		ContainerId: c.ID, Tty: r.Tty, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
}
