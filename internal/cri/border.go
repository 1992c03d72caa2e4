package cri

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"berth/internal/rpcerr"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// invalid is a bad request: it names the field, as the proto spells it.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// precondition is a request that is right, but not now or not here.
func precondition(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}

func (s *Service) unaryBorder(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	defer func() {
		err = s.leave(ctx, info.FullMethod, start, recover(), err)
	}()
	return next(ctx, req)
}

func (s *Service) streamBorder(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	start := time.Now()
	defer func() {
		err = s.leave(ss.Context(), info.FullMethod, start, recover(), err)
	}()
	return next(srv, ss)
}

// leave is the one place where an error gets its gRPC code. A call that
// panicked fails alone: the daemon serves the other pods.
func (s *Service) leave(ctx context.Context, method string, start time.Time, panicked any, err error) error {
	call := path.Base(method)
	if panicked != nil {
		s.log.Error("a call panicked", "call", call, "panic", panicked, "stack", string(debug.Stack()))
		return status.Errorf(codes.Internal, "%s failed inside: %v", call, panicked)
	}
	if err == nil {
		s.log.Debug("call done", "call", call, "took", time.Since(start))
		return nil
	}
	err = rpcerr.ToGRPC(err) // errdefs classes and the context's errors
	level := slog.LevelWarn
	switch status.Code(err) {
	case codes.NotFound, codes.Canceled, codes.Unimplemented:
		level = slog.LevelDebug
	}
	s.log.Log(ctx, level, "call failed", "call", call, "took", time.Since(start), "err", err)
	return err
}
