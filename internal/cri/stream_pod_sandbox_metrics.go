package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxMetrics is ListPodSandboxMetrics in messages of bounded size.
func (s *Service) StreamPodSandboxMetrics(_ *runtime.StreamPodSandboxMetricsRequest, st grpc.ServerStreamingServer[runtime.StreamPodSandboxMetricsResponse]) error {
	items, err := s.d.Stats.Metrics(st.Context())
	if err != nil {
		return err
	}
	return sendAll(st.Context(), items, func(batch []*runtime.PodSandboxMetrics) error {
		return st.Send(&runtime.StreamPodSandboxMetricsResponse{PodSandboxMetrics: batch})
	})
}
