// Package rpcerr gives an error its code at a border: gRPC's and ttrpc's codes
// are the same. It knows nothing of ours; the fronts and the shim import it.
package rpcerr

import (
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/status"
)

// ToGRPC returns err as a status with its whole text and the code of its errdefs
// class, or of the context's error in it. A status stays as it is; nil is nil.
//
// errgrpc.ToGRPC alone must not see foreign errors: it walks the chain and falls
// over a link that unwraps to nil, as that of a failed name lookup does
// (net.DNSError).
func ToGRPC(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return errgrpc.ToGRPC(&flat{err.Error(), errdefs.Resolve(err)})
}

// flat is an error with nothing of its chain but the class.
type flat struct {
	text  string
	class error
}

func (f *flat) Error() string { return f.text }
func (f *flat) Unwrap() error { return f.class }
