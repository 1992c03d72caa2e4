package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxStats is ListPodSandboxStats in messages of bounded size.
func (s *Service) StreamPodSandboxStats(r *runtime.StreamPodSandboxStatsRequest, st grpc.ServerStreamingServer[runtime.StreamPodSandboxStatsResponse]) error {
	items, err := s.listPodStats(st.Context(), r.GetFilter())
	if err != nil {
		return err
	}
	return sendAll(st.Context(), items, func(batch []*runtime.PodSandboxStats) error {
		return st.Send(&runtime.StreamPodSandboxStatsResponse{PodSandboxStats: batch})
	})
}
