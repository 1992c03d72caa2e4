package cri

import (
	"context"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveImage removes an image and all its names. What is not there is success.
func (s *Service) RemoveImage(ctx context.Context, r *runtime.RemoveImageRequest) (*runtime.RemoveImageResponse, error) {
	if err := s.checkImage(r.GetImage()); err != nil {
		return nil, err
	}
	if err := s.images.Remove(ctx, r.Image.Image); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	return &runtime.RemoveImageResponse{}, nil
}
