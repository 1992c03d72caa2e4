package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamPodSandboxes is ListPodSandbox in messages of bounded size.
func (s *Service) StreamPodSandboxes(r *runtime.StreamPodSandboxesRequest, st grpc.ServerStreamingServer[runtime.StreamPodSandboxesResponse]) error {
	return sendAll(st.Context(), s.listPods(r.GetFilter()), func(batch []*runtime.PodSandbox) error {
		return st.Send(&runtime.StreamPodSandboxesResponse{PodSandboxes: batch})
	})
}
