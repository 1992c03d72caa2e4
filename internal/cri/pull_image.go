package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
)

// PullImage pulls an image and answers with its id. The same pull joins one that
// is under way.
func (s *Service) PullImage(ctx context.Context, r *runtime.PullImageRequest) (*runtime.PullImageResponse, error) {
	if err := s.checkImage(r.GetImage()); err != nil {
		return nil, err
	}
	i, err := s.images.Pull(ctx, r.Image.Image, &image.PullOptions{Auth: auth(r.GetAuth())})
	if err != nil {
		return nil, err
	}
	return &runtime.PullImageResponse{ImageRef: i.ID}, nil
}

func auth(a *runtime.AuthConfig) *image.Auth {
	if a == nil {
		return nil
	}
	return &image.Auth{
		Username:      a.Username,
		Password:      a.Password,
		Auth:          a.Auth,
		ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken,
		RegistryToken: a.RegistryToken,
	}
}
