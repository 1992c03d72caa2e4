package cri

import (
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StreamImages is ListImages in messages of bounded size.
func (s *Service) StreamImages(r *runtime.StreamImagesRequest, st grpc.ServerStreamingServer[runtime.StreamImagesResponse]) error {
	return sendAll(st.Context(), s.listImages(st.Context(), r.GetFilter()), func(batch []*runtime.Image) error {
		return st.Send(&runtime.StreamImagesResponse{Images: batch})
	})
}
