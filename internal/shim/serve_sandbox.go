package shim

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"berth/internal/rpcerr"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sandboxService is containerd's sandbox service, for a stock containerd whose
// runtime has `sandboxer = "shim"`. That containerd finds a pod's namespaces
// under /proc/<pid of the sandbox>/ns, so here the sandbox has a holder.
type sandboxService struct{ core *Core }

func (s *sandboxService) CreateSandbox(_ context.Context, r *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	var o options.Options
	if err := readOptions(r.Options, &o); err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	err := s.core.CreateSandbox(&SandboxSpec{
		ID:   r.SandboxID,
		Host: RuncOptions(&o, s.core.cfg.Namespace),
		Hold: &HoldRequest{NetNS: r.NetnsPath, IPC: true, UTS: true},
	})
	return &sandboxapi.CreateSandboxResponse{}, rpcerr.ToGRPC(err)
}

func (s *sandboxService) StartSandbox(ctx context.Context, r *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	st, err := s.core.StartSandbox(ctx, r.SandboxID)
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &sandboxapi.StartSandboxResponse{Pid: uint32(st.Pid), CreatedAt: timestamppb.New(st.CreatedAt)}, nil
}

func (s *sandboxService) Platform(_ context.Context, r *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	if _, err := s.core.SandboxStatus(r.SandboxID); err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: "linux", Architecture: runtime.GOARCH}}, nil
}

func (s *sandboxService) StopSandbox(ctx context.Context, r *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	if r.TimeoutSecs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.TimeoutSecs)*time.Second)
		defer cancel()
	}
	return &sandboxapi.StopSandboxResponse{}, rpcerr.ToGRPC(s.core.StopSandbox(ctx, r.SandboxID))
}

func (s *sandboxService) WaitSandbox(ctx context.Context, r *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	st, err := s.core.WaitSandbox(ctx, r.SandboxID)
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	return &sandboxapi.WaitSandboxResponse{ExitedAt: timestamppb.New(st.ExitedAt)}, nil
}

func (s *sandboxService) SandboxStatus(_ context.Context, r *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	st, err := s.core.SandboxStatus(r.SandboxID)
	if err != nil {
		return nil, rpcerr.ToGRPC(err)
	}
	state := "SANDBOX_NOTREADY"
	if st.State == Running {
		state = "SANDBOX_READY"
	}
	return &sandboxapi.SandboxStatusResponse{
		SandboxID: st.ID, Pid: uint32(st.Pid), State: state,
		CreatedAt: timestamppb.New(st.CreatedAt), ExitedAt: stamp(st.ExitedAt),
	}, nil
}

func (s *sandboxService) PingSandbox(_ context.Context, r *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	_, err := s.core.SandboxStatus(r.SandboxID)
	return &sandboxapi.PingResponse{}, rpcerr.ToGRPC(err)
}

func (s *sandboxService) ShutdownSandbox(ctx context.Context, r *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	if _, err := s.core.SandboxStatus(r.SandboxID); err != nil && !errdefs.IsNotFound(err) {
		return nil, rpcerr.ToGRPC(err)
	}
	return &sandboxapi.ShutdownSandboxResponse{}, rpcerr.ToGRPC(s.core.Finish(ctx))
}

func (s *sandboxService) SandboxMetrics(_ context.Context, r *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	return nil, rpcerr.ToGRPC(fmt.Errorf("metrics of sandbox %s: %w", r.SandboxID, errdefs.ErrNotImplemented))
}

func (s *sandboxService) UpdateSandbox(_ context.Context, r *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	return nil, rpcerr.ToGRPC(fmt.Errorf("update sandbox %s: %w", r.SandboxID, errdefs.ErrNotImplemented))
}
