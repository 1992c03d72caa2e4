package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamContainerStats is ListContainerStats in messages of bounded size.
func (s *Service) StreamContainerStats(r *runtime.StreamContainerStatsRequest, st grpc.ServerStreamingServer[runtime.StreamContainerStatsResponse]) error {
	items, err := s.listContainerStats(st.Context(), r.GetFilter())
	if err != nil {
		return err
	}
	return sendAll(st.Context(), items, func(batch []*runtime.ContainerStats) error {
		return st.Send(&runtime.StreamContainerStatsResponse{ContainerStats: batch})
	})
}
