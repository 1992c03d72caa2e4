package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exec prepares a session that runs a command in a running container.
func (s *Service) Exec(_ context.Context, r *runtime.ExecRequest) (*runtime.ExecResponse, error) {
	if len(r.GetCmd()) == 0 {
		return nil, invalid("cmd", "it is empty")
	}
	if err := checkStreams(r.GetTty(), r.GetStdin(), r.GetStdout(), r.GetStderr()); err != nil {
		return nil, err
	}
	_, c, err := s.findRunning(r.GetContainerId(), "exec in")
	if err != nil {
		return nil, err
	}
	return s.d.Streams.Exec(&runtime.ExecRequest{
		ContainerId: c.ID, Cmd: r.Cmd, Tty: r.Tty, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
}

// checkStreams is what CRI asks of Exec and Attach.
func checkStreams(tty, stdin, stdout, stderr bool) error {
	if !stdin && !stdout && !stderr {
		return invalid("stdin, stdout, stderr", "one of them must be true")
	}
	if tty && stderr {
		return invalid("stderr", "a terminal has one output only")
	}
	return nil
}
