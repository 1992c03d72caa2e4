package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamContainers is ListContainers in messages of bounded size.
func (s *Service) StreamContainers(r *runtime.StreamContainersRequest, st grpc.ServerStreamingServer[runtime.StreamContainersResponse]) error {
	return sendAll(st.Context(), s.listContainers(st.Context(), r.GetFilter()), func(batch []*runtime.Container) error {
		return st.Send(&runtime.StreamContainersResponse{Containers: batch})
	})
}
