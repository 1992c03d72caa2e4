package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListPodSandboxMetrics tells the metrics of all pods that are ready.
func (s *Service) ListPodSandboxMetrics(ctx context.Context, _ *runtime.ListPodSandboxMetricsRequest) (*runtime.ListPodSandboxMetricsResponse, error) {
	m, err := s.d.Stats.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	return &runtime.ListPodSandboxMetricsResponse{PodMetrics: m}, nil
}
