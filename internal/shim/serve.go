package shim

import (
	"context"

	shimv1 "berth/api/shim/v1"
	"berth/internal/rpcerr"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/ttrpc"
)

// Register puts all that the shim serves on one server: containerd's task
// service in versions 2 and 3, its sandbox service, and berth.shim.v1.
func (c *Core) Register(s *ttrpc.Server) {
	desc := &ttrpc.ServiceDesc{Methods: (&taskService{c}).methods()}
	// The two versions differ in nothing but the name.
	s.RegisterService("containerd.task.v2.Task", desc)
	s.RegisterService("containerd.task.v3.Task", desc)
	sandboxapi.RegisterTTRPCSandboxService(s, &sandboxService{c})
	shimv1.RegisterShimService(s, &berthService{c})
}

// method makes an RPC of a function, and gives its errors their class.
func method[Req, Resp any](f func(context.Context, *Req) (*Resp, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		req := new(Req)
		if err := unmarshal(req); err != nil {
			return nil, err
		}
		resp, err := f(ctx, req)
		if err != nil {
			return nil, rpcerr.ToGRPC(err)
		}
		return resp, nil
	}
}
