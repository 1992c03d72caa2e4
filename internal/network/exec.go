package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

const (
	maxStdout = 1 << 20 // a plugin's answer
	maxStderr = 4 << 10 // the end of what it complained
	// ioGrace is how long a pipe is read on after its process ended, for the
	// sake of children that still hold it.
	ioGrace = 2 * time.Second
	// killGrace is how long a killed process may take to go. One that waits
	// for a dead disk takes for ever.
	killGrace = 5 * time.Second
	// cldExited is si_code of a process that ended by itself (CLD_EXITED in
	// waitid(2)).
	cldExited = 1
)

// runner runs plugins for libcni, each in a process group of its own that does
// not outlive the deadline, at most so many at a time.
type runner struct {
	version.PluginDecoder
	timeout time.Duration
	slots   chan struct{}
}

var _ invoke.Exec = (*runner)(nil)

func newRunner(timeout time.Duration, most int) *runner {
	return &runner{timeout: timeout, slots: make(chan struct{}, most)}
}

// FindInPath implements invoke.Exec.
func (r *runner) FindInPath(plugin string, dirs []string) (string, error) {
	return invoke.FindInPath(plugin, dirs)
}

// ExecPlugin implements invoke.Exec. The deadline starts when the plugin does,
// not while it waits for its turn.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	return r.run(ctx, []string{path}, stdin, env)
}

func (r *runner) run(ctx context.Context, argv []string, stdin []byte, env []string) ([]byte, error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a free plugin slot: %w", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var stdout head
	var stderr tail
	cmd, err := start(ctx, argv, stdin, env, &stdout, &stderr)
	if err != nil {
		<-r.slots
		return nil, err
	}

	// Waiting leaves the process a zombie: its pid, and with it the name of
	// its group, stays its own until it is reaped below.
	var end unix.Siginfo
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		for unix.Waitid(unix.P_PID, cmd.Process.Pid, &end, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	killGroup := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	reap := func() error {
		defer func() { <-r.slots }()
		return cmd.Wait()
	}
	select {
	case <-exited:
	case <-ctx.Done():
		killGroup()
		select {
		case <-exited:
		case <-time.After(killGrace):
			// Its slot stays taken: it counts as long as it is there.
			go func() { <-exited; _ = reap() }()
			return nil, fmt.Errorf("unanswered for %s and does not die when killed: %w", r.timeout, ctx.Err())
		}
	}
	overdue := ctx.Err()
	if overdue != nil || end.Code != cldExited {
		killGroup() // what a plugin started must not go on when it was cut off
	}
	err = reap()
	switch {
	case overdue != nil && cmd.ProcessState.ExitCode() != 0:
		what := "killed"
		if errors.Is(overdue, context.DeadlineExceeded) {
			what = fmt.Sprintf("unanswered for %s, killed with its children", r.timeout)
		}
		return nil, fmt.Errorf("%s: %w%s", what, overdue, stderr.quoted())
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, pluginError(err, stdout.buf.Bytes(), &stderr)
	case stdout.cut:
		return nil, fmt.Errorf("answer is longer than %d bytes: %w", maxStdout, errdefs.ErrUnknown)
	}
	if stderr.buf.Len() > 0 {
		log.G(ctx).WithField("plugin", filepath.Base(argv[0])).Debugf("plugin said%s", stderr.quoted())
	}
	return stdout.buf.Bytes(), nil
}

// start starts argv. A plugin that is being replaced at the moment is tried again.
func start(ctx context.Context, argv []string, stdin []byte, env []string, stdout *head, stderr *tail) (*exec.Cmd, error) {
	for {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = env
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), stdout, stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.WaitDelay = ioGrace
		err := cmd.Start()
		if !errors.Is(err, syscall.ETXTBSY) {
			return cmd, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// pluginError is the error that the plugin wrote to stdout, or else what is
// known. Code 11 ("try again later") is Unavailable.
func pluginError(err error, stdout []byte, stderr *tail) error {
	var e types.Error
	if json.Unmarshal(stdout, &e) == nil && (e.Msg != "" || e.Code != 0) {
		if e.Code == types.ErrTryAgainLater {
			return fmt.Errorf("%w: %w", &e, errdefs.ErrUnavailable)
		}
		return &e
	}
	return fmt.Errorf("%w%s", err, stderr.quoted())
}

// head keeps the first maxStdout bytes written to it. The buffers are no
// embedded ones: io.Copy would find their ReadFrom, which has no bound.
type head struct {
	buf bytes.Buffer
	cut bool
}

func (h *head) Write(p []byte) (int, error) {
	keep := p[:min(len(p), maxStdout-h.buf.Len())]
	h.cut = h.cut || len(keep) < len(p)
	h.buf.Write(keep)
	return len(p), nil
}

// tail keeps the last maxStderr bytes written to it.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p[max(0, len(p)-maxStderr):])
	if over := t.buf.Len() - maxStderr; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

// quoted is ": "…"", or nothing.
func (t *tail) quoted() string {
	if s := strings.TrimSpace(t.buf.String()); s != "" {
		return fmt.Sprintf(": %q", s)
	}
	return ""
}
