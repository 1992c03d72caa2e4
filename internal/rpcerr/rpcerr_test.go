package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestToGRPC(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
	}{
		{nil, codes.OK},
		{errors.New("plain"), codes.Unknown},
		{fmt.Errorf("pod: %w", errdefs.ErrNotFound), codes.NotFound},
		{errors.Join(errors.New("a"), fmt.Errorf("b: %w", errdefs.ErrAlreadyExists)), codes.AlreadyExists},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("wait: %w", context.Canceled), codes.Canceled},
		{status.Error(codes.ResourceExhausted, "slow"), codes.ResourceExhausted},
		// A link that unwraps to nil.
		{fmt.Errorf("pull: %w", &net.OpError{Op: "dial", Err: &net.DNSError{Name: "nosuch.invalid"}}), codes.Unknown},
		{fmt.Errorf("pull: %w: %w", &net.DNSError{Name: "nosuch.invalid"}, errdefs.ErrUnavailable), codes.Unavailable},
	} {
		got := ToGRPC(tc.err)
		if status.Code(got) != tc.code {
			t.Errorf("%v: code %v, want %v", tc.err, status.Code(got), tc.code)
		}
		if tc.err != nil && tc.code != codes.ResourceExhausted && status.Convert(got).Message() != tc.err.Error() {
			t.Errorf("message %q, want %q", status.Convert(got).Message(), tc.err)
		}
	}
}
