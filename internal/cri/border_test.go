package cri

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestErrorsBecomeCodesAtTheBorder(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrAlreadyExists, codes.AlreadyExists},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
		{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
		{errdefs.ErrNotImplemented, codes.Unimplemented},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{errors.New("plain"), codes.Unknown},
		// The outermost class counts.
		{fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, errdefs.ErrNotFound), codes.InvalidArgument},
		{errors.Join(errors.New("first"), context.DeadlineExceeded), codes.DeadlineExceeded},
		// A status of another server keeps its code and gains our words.
		{status.Error(codes.PermissionDenied, "registry"), codes.PermissionDenied},
	} {
		r := newRig(t)
		client, _ := r.dial(t)
		r.keeper.err = fmt.Errorf("start it: %w", c.err)
		_, err := client.StartContainer(t.Context(), &runtime.StartContainerRequest{ContainerId: ctrMade})
		if got := status.Code(err); got != c.want {
			t.Errorf("%v: code %s, want %s", c.err, got, c.want)
		}
		if msg := status.Convert(err).Message(); len(msg) < len("start it: ") || msg[:10] != "start it: " {
			t.Errorf("%v: message %q lost what failed", c.err, msg)
		}
	}
}

func TestAPanicFailsOneCall(t *testing.T) {
	r := newRig(t)
	info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Version"}
	_, err := r.unaryBorder(t.Context(), nil, info, func(context.Context, any) (any, error) { panic("boom") })
	if status.Code(err) != codes.Internal {
		t.Fatalf("a call that panicked answered %v", err)
	}
}
