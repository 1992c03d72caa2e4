//go:build linux

package shims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	shimv1 "berth/api/shim/v1"
	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Task describes a container to run.
type Task struct {
	ID, Bundle                 string
	Terminal, Stdin, StdinOnce bool
	Log                        stdio.LogOptions
	// StopSignal is the caller's note; Stop names the signal.
	StopSignal string
}

// States of a task.
const (
	StateCreated = "created"
	StateRunning = "running"
	StateExited  = "exited"
)

// Status is a task as its shim sees it. Times are zero for "not yet".
type Status struct {
	ID        string
	Pid       int
	State     string
	StartedAt time.Time
	ExitedAt  time.Time
	ExitCode  int32 // valid when exited; 128+n for signal n
	Signal    int32
	OOM       bool
	Reason    string
}

// ErrStart is a command that could not be started. Nothing of the task is left.
type ErrStart struct {
	Code    int32 // 127 not found, 126 cannot be executed, else 128
	Message string
}

func (e *ErrStart) Error() string { return e.Message }

// Shim is one shim, as berthd talks to it.
type Shim struct {
	addr Address

	mu   sync.Mutex
	conn *ttrpc.Client // nil = to be dialled
}

// SessionSocket is where exec and attach sessions are served (stdio.DialSession).
func (s *Shim) SessionSocket() string { return s.addr.Sessions }

// client returns the connection, dialling if there is none. ErrGone when nobody
// listens.
func (s *Shim) client(ctx context.Context) (*ttrpc.Client, error) {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", s.addr.Socket)
	if err != nil {
		if refused(err) {
			return nil, fmt.Errorf("%w: %w: %w", ErrGone, err, errdefs.ErrUnavailable)
		}
		return nil, fmt.Errorf("dial shim: %w: %w", err, errdefs.ErrUnavailable)
	}
	made := ttrpc.NewClient(nc)
	s.mu.Lock()
	if c = s.conn; c == nil {
		s.conn = made
	}
	s.mu.Unlock()
	if c != nil { // somebody was faster
		made.Close()
		return c, nil
	}
	return made, nil
}

// drop forgets a connection that broke.
func (s *Shim) drop(c *ttrpc.Client) {
	s.mu.Lock()
	if s.conn == c {
		s.conn = nil
	}
	s.mu.Unlock()
	c.Close()
}

func (s *Shim) close() {
	s.mu.Lock()
	c := s.conn
	s.conn = nil
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// call makes one call, and again on a new connection when the old one had
// broken: every call of the protocol can be made twice.
func call[T any](ctx context.Context, s *Shim, f func(shimv1.ShimService) (T, error)) (T, error) {
	var zero T
	for try := 0; ; try++ {
		c, err := s.client(ctx)
		if err != nil {
			return zero, err
		}
		out, err := f(shimv1.NewShimClient(c))
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, ttrpc.ErrClosed) && !errors.Is(err, ttrpc.ErrStreamClosed) {
			return zero, native(ctx, err)
		}
		s.drop(c)
		if try > 0 {
			return zero, fmt.Errorf("connection to shim ended: %w: %w", err, errdefs.ErrUnavailable)
		}
	}
}

// native restores the class of an error that came over ttrpc. A deadline of
// ours stays one.
func native(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return err
	}
	return errgrpc.ToNative(err)
}

// Run creates and starts a container with one call of the runtime. *ErrStart
// when the user's command is to blame; on any failure nothing is left. Run for a
// container that runs already returns its status.
func (s *Shim) Run(ctx context.Context, t *Task) (*Status, error) {
	req := &shimv1.RunTaskRequest{
		Id: t.ID, Bundle: t.Bundle, Terminal: t.Terminal, Stdin: t.Stdin, StdinOnce: t.StdinOnce,
		Log: &shimv1.Log{
			Path: t.Log.Path, MaxLine: int32(t.Log.MaxLine), MaxSize: t.Log.MaxSize, MaxFiles: int32(t.Log.MaxFiles), Rate: t.Log.Rate,
		},
	}
	resp, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.RunTaskResponse, error) { return c.RunTask(ctx, req) })
	if err != nil {
		return nil, fmt.Errorf("run container %s: %w", t.ID, err)
	}
	if f := resp.GetFailure(); f != nil {
		return nil, &ErrStart{Code: f.Code, Message: f.Message}
	}
	return status(resp.GetTask()), nil
}

// Stop returns when the shim has accepted the stop. The shim sends the signal
// once and kills the container grace later; of two deadlines the sooner wins.
func (s *Shim) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	req := &shimv1.StopTaskRequest{Id: id, Signal: signal, Grace: int64(grace)}
	if _, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.StopTaskResponse, error) { return c.StopTask(ctx, req) }); err != nil {
		return fmt.Errorf("stop container %s: %w", id, err)
	}
	return nil
}

// Delete acknowledges an exit and gives the container back; one that runs is
// killed first. nil and no error when the shim knows no such container.
func (s *Shim) Delete(ctx context.Context, id string) (*Status, error) {
	req := &shimv1.DeleteTaskRequest{Id: id}
	resp, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.DeleteTaskResponse, error) { return c.DeleteTask(ctx, req) })
	if err != nil {
		return nil, fmt.Errorf("delete container %s: %w", id, err)
	}
	if resp.Task == nil {
		return nil, nil
	}
	return status(resp.Task), nil
}

// Update changes a container's resources.
func (s *Shim) Update(ctx context.Context, id string, r *specs.LinuxResources) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode resources of %s: %w", id, err)
	}
	req := &shimv1.UpdateTaskRequest{Id: id, Resources: b}
	if _, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.UpdateTaskResponse, error) { return c.UpdateTask(ctx, req) }); err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return nil
}

// ReopenLog opens a container's log file anew after a rotation.
func (s *Shim) ReopenLog(ctx context.Context, id string) error {
	req := &shimv1.ReopenLogRequest{Id: id}
	if _, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.ReopenLogResponse, error) { return c.ReopenLog(ctx, req) }); err != nil {
		return fmt.Errorf("reopen log of container %s: %w", id, err)
	}
	return nil
}

// Pids are all processes of a container.
func (s *Shim) Pids(ctx context.Context, id string) ([]int, error) {
	req := &shimv1.PidsRequest{Id: id}
	resp, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.PidsResponse, error) { return c.Pids(ctx, req) })
	if err != nil {
		return nil, fmt.Errorf("processes of container %s: %w", id, err)
	}
	pids := make([]int, len(resp.Pids))
	for i, p := range resp.Pids {
		pids[i] = int(p)
	}
	return pids, nil
}

func status(t *shimv1.Task) *Status {
	s := &Status{
		ID: t.GetId(), Pid: int(t.GetPid()), StartedAt: when(t.GetStartedAt()), ExitedAt: when(t.GetExitedAt()),
		ExitCode: t.GetCode(), Signal: t.GetSignal(), OOM: t.GetOom(), Reason: t.GetReason(),
	}
	switch t.GetState() {
	case shimv1.State_STATE_CREATED:
		s.State = StateCreated
	case shimv1.State_STATE_RUNNING:
		s.State = StateRunning
	case shimv1.State_STATE_EXITED:
		s.State = StateExited
	}
	return s
}

func when(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}
