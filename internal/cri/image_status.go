package cri

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageStatus tells about an image. One that is not there is no error: the
// response has no image then.
func (s *Service) ImageStatus(ctx context.Context, r *runtime.ImageStatusRequest) (*runtime.ImageStatusResponse, error) {
	if err := s.checkImage(r.GetImage()); err != nil {
		return nil, err
	}
	i, err := s.images.Get(ctx, r.Image.Image)
	if errdefs.IsNotFound(err) {
		return &runtime.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &runtime.ImageStatusResponse{Image: criImage(i)}
	if r.GetVerbose() {
		b, err := json.Marshal(&imageInfo{ChainID: i.ChainID, ImageSpec: &i.Config})
		if err != nil {
			return nil, fmt.Errorf("encode info of image %s: %w", i.ID, err)
		}
		resp.Info = map[string]string{infoKey: string(b)}
	}
	return resp, nil
}

// imageInfo has the fields that containerd's has.
type imageInfo struct {
	ChainID   string           `json:"chainID"`
	ImageSpec *imagespec.Image `json:"imageSpec"`
}
