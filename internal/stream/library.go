package stream

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"

	"berth/internal/ocispec"
	"berth/internal/stdio"
)

// library is the side of Server that the streaming library calls.
type library Server

// Exec runs a command with the client's streams. It returns when the process
// ended; an end other than 0 is the library's own kind of error.
func (l *library) Exec(ctx context.Context, key string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	t, target, err := l.target(ctx, key)
	if err != nil {
		return err
	}
	r, err := execRequest(target.ContainerID, ocispec.ExecProcess(target.Spec, cmd, tty))
	if err != nil {
		return err
	}
	r.Drain = l.drain
	exit, err := run(ctx, target, r, t, in, out, errOut, resize)
	if err != nil {
		return err
	}
	if exit.Code != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", exit.Code), Code: int(exit.Code)}
	}
	return nil
}

// Attach connects the client to the container's own process. It returns when
// that ended, or the client left.
func (l *library) Attach(ctx context.Context, key string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	t, target, err := l.target(ctx, key)
	if err != nil {
		return err
	}
	r := &stdio.SessionRequest{Op: stdio.OpAttach, Container: target.ContainerID, Terminal: target.TTY, Replay: t.replay}
	if !target.Stdin {
		in = nil
	}
	_, err = run(ctx, target, r, t, in, out, errOut, resize)
	return err
}

func (l *library) target(ctx context.Context, key string) (*ticket, *Target, error) {
	t, err := l.tickets.get(key)
	if err != nil {
		return nil, nil, err
	}
	target, err := l.containers.Session(ctx, t.id)
	return t, target, err
}

// run has a session with the shim, with those streams that the client asked for.
func run(ctx context.Context, target *Target, r *stdio.SessionRequest, t *ticket, in io.Reader, out, errOut io.Writer, resize <-chan remotecommand.TerminalSize) (*stdio.Exit, error) {
	var stdin io.Reader
	var stdout, stderr io.Writer
	if t.stdin && in != nil {
		stdin, r.Stdin = in, true
	}
	if t.stdout && out != nil {
		stdout, r.Stdout = out, true
	}
	if t.stderr && errOut != nil && !r.Terminal {
		stderr, r.Stderr = errOut, true
	}
	s, err := stdio.DialSession(ctx, target.SessionSocket, r)
	if err != nil {
		return nil, err
	}
	var sizes chan stdio.Size
	if r.Terminal && resize != nil {
		sizes = make(chan stdio.Size)
		end := make(chan struct{})
		defer close(end)
		go func() {
			defer close(sizes)
			for size := range resize {
				select {
				case sizes <- stdio.Size{Width: size.Width, Height: size.Height}:
				case <-end:
					return
				}
			}
		}()
	}
	return s.Run(ctx, stdin, stdout, stderr, sizes)
}

// execRequest is a request to run p, under an id of its own.
func execRequest(container string, p *specs.Process) (*stdio.SessionRequest, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode exec process: %w", err)
	}
	var id [16]byte
	rand.Read(id[:])
	return &stdio.SessionRequest{Op: stdio.OpExec, Container: container, Exec: hex.EncodeToString(id[:]), Process: b, Terminal: p.Terminal}, nil
}
