package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	shimv1 "berth/api/shim/v1"
	"berth/internal/host"
	"berth/internal/rpcerr"
	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ProtocolVersion of berth.shim.v1, in Info. A newer peer asks before it uses
// what an older one cannot.
const ProtocolVersion = 1

// berthService is berth.shim.v1.
type berthService struct{ core *Core }

func (s *berthService) info() *shimv1.InfoResponse {
	c := s.core
	c.mu.Lock()
	defer c.mu.Unlock()
	i := &shimv1.InfoResponse{
		Id: c.cfg.ID, Namespace: c.cfg.Namespace, Pid: int32(c.cfg.Pid), StartTime: c.cfg.StartTime,
		Version: ProtocolVersion, Build: c.cfg.Build, Sandbox: c.sandbox.upLocked(),
	}
	if c.sandbox.holder != nil {
		i.HolderPid = int32(c.sandbox.holder.Pid())
	}
	return i
}

func (s *berthService) Info(context.Context, *shimv1.InfoRequest) (*shimv1.InfoResponse, error) {
	return s.info(), nil
}

func (s *berthService) StartSandbox(ctx context.Context, r *shimv1.StartSandboxRequest) (*shimv1.StartSandboxResponse, error) {
	spec := &SandboxSpec{
		ID: r.Id, ExitDir: r.ExitDir, Drain: time.Duration(r.Drain),
		Host: HostOptions{Runtime: r.Runtime, Root: r.RuntimeRoot, SystemdCgroup: r.SystemdCgroup},
	}
	if r.ExitDir == "" {
		return nil, rpcerr.ToGRPC(fmt.Errorf("sandbox %s has no directory for exits: %w", r.Id, errdefs.ErrInvalidArgument))
	}
	if r.OomScoreAdj != nil {
		n := int(*r.OomScoreAdj)
		spec.OOMScore = &n
	}
	if r.SharePid {
		if r.PidNs == "" {
			return nil, rpcerr.ToGRPC(fmt.Errorf("sandbox %s shares a pid namespace but names no place to pin it: %w", r.Id, errdefs.ErrInvalidArgument))
		}
		spec.Hold = &HoldRequest{UserNS: r.UserNs, PIDNS: r.PidNs, Cgroup: r.Cgroup}
	}
	if err := s.core.CreateSandbox(spec); err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	if _, err := s.core.StartSandbox(ctx, r.Id); err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &shimv1.StartSandboxResponse{Info: s.info()}, nil
}

func (s *berthService) RunTask(ctx context.Context, r *shimv1.RunTaskRequest) (*shimv1.RunTaskResponse, error) {
	spec := &TaskSpec{ID: r.Id, Bundle: r.Bundle, Terminal: r.Terminal, Stdin: r.Stdin, StdinOnce: r.StdinOnce}
	if l := r.Log; l != nil {
		spec.Log = stdio.LogOptions{Path: l.Path, MaxLine: int(l.MaxLine), MaxSize: l.MaxSize, MaxFiles: int(l.MaxFiles), Rate: l.Rate}
	}
	st, err := s.core.Run(ctx, spec)
	if e, ok := errors.AsType[*host.StartError](err); ok {
		return &shimv1.RunTaskResponse{Result: &shimv1.RunTaskResponse_Failure{
			Failure: &shimv1.StartError{Code: e.Code, Message: e.Message},
		}}, nil
	}
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &shimv1.RunTaskResponse{Result: &shimv1.RunTaskResponse_Task{Task: berthTask(st)}}, nil
}

func (s *berthService) StopTask(ctx context.Context, r *shimv1.StopTaskRequest) (*shimv1.StopTaskResponse, error) {
	return &shimv1.StopTaskResponse{}, rpcerr.ToGRPC(s.core.Stop(ctx, r.Id, r.Signal, time.Duration(r.Grace)))
}

func (s *berthService) DeleteTask(ctx context.Context, r *shimv1.DeleteTaskRequest) (*shimv1.DeleteTaskResponse, error) {
	st, err := s.core.Delete(ctx, r.Id, true)
	if errdefs.IsNotFound(err) {
		return &shimv1.DeleteTaskResponse{}, nil
	}
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &shimv1.DeleteTaskResponse{Task: berthTask(st)}, nil
}

func (s *berthService) UpdateTask(ctx context.Context, r *shimv1.UpdateTaskRequest) (*shimv1.UpdateTaskResponse, error) {
	var res specs.LinuxResources
	if err := json.Unmarshal(r.Resources, &res); err != nil {
		return nil, rpcerr.ToGRPC(fmt.Errorf("resources of %s: %w: %w", r.Id, errdefs.ErrInvalidArgument, err))
	}
	return &shimv1.UpdateTaskResponse{}, rpcerr.ToGRPC(s.core.Update(ctx, r.Id, &res))
}

func (s *berthService) ReopenLog(ctx context.Context, r *shimv1.ReopenLogRequest) (*shimv1.ReopenLogResponse, error) {
	return &shimv1.ReopenLogResponse{}, rpcerr.ToGRPC(s.core.ReopenLog(ctx, r.Id))
}

func (s *berthService) Pids(ctx context.Context, r *shimv1.PidsRequest) (*shimv1.PidsResponse, error) {
	pids, err := s.core.Pids(ctx, r.Id)
	out := &shimv1.PidsResponse{}
	for _, p := range pids {
		out.Pids = append(out.Pids, int32(p))
	}
	return out, rpcerr.ToGRPC(err)
}

func (s *berthService) Changes(ctx context.Context, r *shimv1.ChangesRequest) (*shimv1.ChangesResponse, error) {
	seq, snapshot, tasks, err := s.core.Changes(ctx, r.From)
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	out := &shimv1.ChangesResponse{Seq: seq, Snapshot: snapshot}
	for i := range tasks {
		out.Tasks = append(out.Tasks, berthTask(&tasks[i]))
	}
	return out, nil
}

func (s *berthService) Finish(ctx context.Context, _ *shimv1.FinishRequest) (*shimv1.FinishResponse, error) {
	return &shimv1.FinishResponse{}, rpcerr.ToGRPC(s.core.Finish(ctx))
}

func berthTask(s *Status) *shimv1.Task {
	t := &shimv1.Task{
		Id: s.ID, Pid: int32(s.Pid), State: shimv1.State(s.State), StartedAt: nanos(s.StartedAt), ExitedAt: nanos(s.ExitedAt),
		Oom: s.OOM, Reason: s.Reason,
	}
	if s.State == Exited {
		t.Code, t.Signal = s.Code, s.Signal
	}
	return t
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
