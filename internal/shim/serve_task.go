package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// defaultRuncRoot is where containerd's tools look for runc's state, with a
// folder a namespace.
const defaultRuncRoot = "/run/containerd/runc"

// taskService is containerd's task service, versions 2 and 3.
type taskService struct{ core *Core }

func (s *taskService) methods() map[string]ttrpc.Method {
	return map[string]ttrpc.Method{
		"State":      method(s.state),
		"Create":     method(s.create),
		"Start":      method(s.start),
		"Delete":     method(s.delete),
		"Pids":       method(s.pids),
		"Pause":      method(s.pause),
		"Resume":     method(s.resume),
		"Checkpoint": method(s.checkpoint),
		"Kill":       method(s.kill),
		"Exec":       method(s.exec),
		"ResizePty":  method(s.resize),
		"CloseIO":    method(s.closeIO),
		"Update":     method(s.update),
		"Wait":       method(s.wait),
		"Stats":      method(s.stats),
		"Connect":    method(s.connect),
		"Shutdown":   method(s.shutdown),
	}
}

func (s *taskService) create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	if r.Checkpoint != "" {
		return nil, fmt.Errorf("restore container %s: %w", r.ID, errdefs.ErrNotImplemented)
	}
	var o options.Options
	if err := readOptions(r.Options, &o); err != nil {
		return nil, err
	}
	stock := &StockSpec{
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
		Options:     RuncOptions(&o, s.core.cfg.Namespace),
		NoPivotRoot: o.NoPivotRoot, NoNewKeyring: o.NoNewKeyring,
		UID: -1, GID: -1,
	}
	if o.IoUid != 0 || o.IoGid != 0 {
		stock.UID, stock.GID = int(o.IoUid), int(o.IoGid)
	}
	for _, m := range r.Rootfs {
		stock.Rootfs = append(stock.Rootfs, Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	pid, err := s.core.Create(ctx, &TaskSpec{ID: r.ID, Bundle: r.Bundle, Terminal: r.Terminal, Stdin: r.Stdin != "", Stock: stock})
	if err != nil {
		return nil, err
	}
	return &taskapi.CreateTaskResponse{Pid: uint32(pid)}, nil
}

// readOptions reads containerd's runtime options; other kinds are ignored, as
// they come from a configuration that knows nothing of us.
func readOptions(a *anypb.Any, o *options.Options) error {
	if a == nil || !a.MessageIs(o) {
		return nil
	}
	if err := proto.Unmarshal(a.Value, o); err != nil {
		return fmt.Errorf("runtime options: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return nil
}

// RuncOptions are the host that containerd's runtime options choose.
func RuncOptions(o *options.Options, namespace string) HostOptions {
	root := o.Root
	if root == "" {
		root = defaultRuncRoot
	}
	return HostOptions{Runtime: o.BinaryName, Root: filepath.Join(root, namespace), SystemdCgroup: o.SystemdCgroup}
}

func (s *taskService) start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	pid, err := s.core.Start(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return &taskapi.StartResponse{Pid: uint32(pid)}, nil
}

func (s *taskService) delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	var (
		st  *Status
		err error
	)
	if r.ExecID != "" {
		st, err = s.core.DeleteExec(ctx, r.ID, r.ExecID)
	} else {
		st, err = s.core.Delete(ctx, r.ID, false)
	}
	if err != nil {
		return nil, err
	}
	return &taskapi.DeleteResponse{Pid: uint32(st.Pid), ExitStatus: uint32(st.Code), ExitedAt: stamp(st.ExitedAt)}, nil
}

func (s *taskService) state(ctx context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return s.core.stockState(ctx, r.ID, r.ExecID)
}

// stockState shows a task or an exec as containerd wants it.
func (c *Core) stockState(ctx context.Context, id, exec string) (*taskapi.StateResponse, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	p := &t.proc
	out := &taskapi.StateResponse{ID: id, Bundle: t.bundle, ExecID: exec, Terminal: t.spec.Terminal}
	if s := t.spec.Stock; s != nil {
		out.Stdin, out.Stdout, out.Stderr = s.Stdin, s.Stdout, s.Stderr
	}
	if exec != "" {
		if p, err = c.exec(t, exec); err != nil {
			return nil, err
		}
		out.ID, out.Stdin, out.Stdout, out.Stderr = exec, "", "", ""
		if s := p.spec; s != nil {
			out.Terminal, out.Stdin, out.Stdout, out.Stderr = s.Terminal, s.Stdin, s.Stdout, s.Stderr
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Pid = uint32(p.status.Pid)
	switch {
	case p.state == Exited:
		out.Status = tasktypes.Status_STOPPED
		out.ExitStatus, out.ExitedAt = uint32(p.status.Code), stamp(p.status.ExitedAt)
	case p.state == Running && exec == "" && t.paused:
		out.Status = tasktypes.Status_PAUSED
	case p.state == Running:
		out.Status = tasktypes.Status_RUNNING
	default:
		out.Status = tasktypes.Status_CREATED
	}
	return out, nil
}

func (s *taskService) exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	c := s.core
	c.mu.Lock()
	sandbox := c.sandbox.id == r.ID && c.tasks[r.ID] == nil && r.ID != ""
	c.mu.Unlock()
	if sandbox {
		return nil, fmt.Errorf("exec in sandbox %s, which has no process: %w", r.ID, errdefs.ErrNotImplemented)
	}
	var p specs.Process
	if r.Spec == nil {
		return nil, fmt.Errorf("exec %s names no process: %w", r.ExecID, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(r.Spec.Value, &p); err != nil {
		return nil, fmt.Errorf("exec %s: process: %w: %w", r.ExecID, errdefs.ErrInvalidArgument, err)
	}
	return &emptypb.Empty{}, c.AddExec(ctx, r.ID, &ExecSpec{
		ID: r.ExecID, Process: &p, Terminal: r.Terminal, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
}

func (s *taskService) pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	pids, err := s.core.Pids(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	out := &taskapi.PidsResponse{}
	for _, p := range pids {
		out.Processes = append(out.Processes, &tasktypes.ProcessInfo{Pid: uint32(p)})
	}
	return out, nil
}

func (s *taskService) pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.core.Pause(ctx, r.ID)
}

func (s *taskService) resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.core.Resume(ctx, r.ID)
}

func (s *taskService) checkpoint(_ context.Context, r *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return nil, fmt.Errorf("checkpoint container %s: %w", r.ID, errdefs.ErrNotImplemented)
}

func (s *taskService) kill(ctx context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.core.Kill(ctx, r.ID, r.ExecID, int(r.Signal), r.All)
}

func (s *taskService) resize(ctx context.Context, r *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.core.Resize(ctx, r.ID, r.ExecID, uint16(r.Width), uint16(r.Height))
}

func (s *taskService) closeIO(ctx context.Context, r *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	if !r.Stdin {
		return &emptypb.Empty{}, nil
	}
	return &emptypb.Empty{}, s.core.CloseStdin(ctx, r.ID, r.ExecID)
}

func (s *taskService) update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	var res specs.LinuxResources
	if r.Resources == nil {
		return nil, fmt.Errorf("update %s names no resources: %w", r.ID, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(r.Resources.Value, &res); err != nil {
		return nil, fmt.Errorf("resources of %s: %w: %w", r.ID, errdefs.ErrInvalidArgument, err)
	}
	return &emptypb.Empty{}, s.core.Update(ctx, r.ID, &res)
}

func (s *taskService) wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	st, err := s.core.Wait(ctx, r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	return &taskapi.WaitResponse{ExitStatus: uint32(st.Code), ExitedAt: stamp(st.ExitedAt)}, nil
}

func (s *taskService) stats(_ context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	return nil, fmt.Errorf("metrics of container %s: %w", r.ID, errdefs.ErrNotImplemented)
}

func (s *taskService) connect(ctx context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	out := &taskapi.ConnectResponse{ShimPid: uint32(s.core.cfg.Pid), Version: s.core.cfg.Build}
	if st, err := s.core.Task(ctx, r.ID); err == nil {
		out.TaskPid = uint32(st.Pid)
	}
	return out, nil
}

func (s *taskService) shutdown(_ context.Context, r *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	s.core.Shutdown(r.Now)
	return &emptypb.Empty{}, nil
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
