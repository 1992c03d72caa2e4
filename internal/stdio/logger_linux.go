package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// loggerReady is how long a logging binary may take to be ready.
	loggerReady = 10 * time.Second
	// loggerEnd is how long it may take after the end of its streams, before
	// SIGTERM, and again before SIGKILL.
	loggerEnd = 10 * time.Second
)

// startLogger runs a logging binary as containerd's shim documentation says:
// file descriptors 3 and 4 are stdout and stderr, 5 is closed when it is ready.
func startLogger(ctx context.Context, u *url.URL, o *URIOptions) (stdout, stderr io.WriteCloser, err error) {
	var files []*os.File
	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w
	}
	defer func() {
		if err != nil {
			closeAll(files...)
		}
	}()
	outR, outW := pipe()
	errR, errW := pipe()
	readyR, readyW := pipe()
	if err != nil {
		return nil, nil, err
	}

	cmd := exec.Command(u.Path, loggerArgs(u)...)
	cmd.Env = []string{"CONTAINER_ID=" + o.ContainerID, "CONTAINER_NAMESPACE=" + o.Namespace}
	cmd.ExtraFiles = []*os.File{outR, errR, readyW}
	if err = cmd.Start(); err != nil {
		return nil, nil, err
	}
	closeAll(outR, errR, readyW)
	if err = awaitReady(ctx, readyR, u.Scheme == "binary-v2"); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, nil, err
	}
	readyR.Close()

	l := &logger{cmd: cmd}
	l.open.Store(2)
	return &loggerPipe{outW, l}, &loggerPipe{errW, l}, nil
}

// loggerArgs are the query's keys and values in the order they stand in.
func loggerArgs(u *url.URL) []string {
	var args []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		for i, x := range []string{k, v} {
			if x == "" && i == 1 {
				continue
			}
			if y, err := url.QueryUnescape(x); err == nil {
				x = y
			}
			args = append(args, x)
		}
	}
	return args
}

// awaitReady waits for the logger to close the pipe; strict ones must write a
// byte first, which tells ready from crashed.
func awaitReady(ctx context.Context, r *os.File, strict bool) error {
	if err := r.SetReadDeadline(time.Now().Add(loggerReady)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })()
	n, err := r.Read(make([]byte, 1))
	switch {
	case n == 1:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return fmt.Errorf("wait until it is ready: %w", context.Cause(ctx))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("not ready after %v: %w", loggerReady, errdefs.ErrUnavailable)
	case !errors.Is(err, io.EOF):
		return err
	case strict:
		return fmt.Errorf("it ended without being ready: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// logger is a running logging binary. The end of both streams is its sign to
// write out what it has and to end.
type logger struct {
	cmd  *exec.Cmd
	open atomic.Int32 // pipes
}

type loggerPipe struct {
	*os.File
	l *logger
}

// Close ends one stream. Nobody waits for the binary's end: it may be slow,
// and a process's exit does not depend on it.
func (p *loggerPipe) Close() error {
	err := p.File.Close()
	if p.l.open.Add(-1) == 0 {
		go p.l.reap()
	}
	return err
}

func (l *logger) reap() {
	term := time.AfterFunc(loggerEnd, func() { _ = l.cmd.Process.Signal(syscall.SIGTERM) })
	kill := time.AfterFunc(2*loggerEnd, func() { _ = l.cmd.Process.Kill() })
	// An error is the logger's own exit status, or a reaper that was faster.
	_ = l.cmd.Wait()
	term.Stop()
	kill.Stop()
}
