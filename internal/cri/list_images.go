package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListImages lists images from memory.
func (s *Service) ListImages(ctx context.Context, r *runtime.ListImagesRequest) (*runtime.ListImagesResponse, error) {
	return &runtime.ListImagesResponse{Images: s.listImages(ctx, r.GetFilter())}, nil
}

// listImages lists all images, or the one that the filter names.
func (s *Service) listImages(ctx context.Context, f *runtime.ImageFilter) []*runtime.Image {
	if ref := f.GetImage().GetImage(); ref != "" {
		i, err := s.images.Get(ctx, ref)
		if err != nil {
			return nil // a name that means nothing lists nothing
		}
		return []*runtime.Image{criImage(i)}
	}
	all := s.images.List(ctx)
	out := make([]*runtime.Image, len(all))
	for n, i := range all {
		out[n] = criImage(i)
	}
	return out
}
