package cri

import (
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
)

// criImage is i as lists and statuses have it.
func criImage(i *image.Image) *runtime.Image {
	m := &runtime.Image{
		Id:          i.ID,
		RepoTags:    i.Tags,
		RepoDigests: i.Digests,
		Size:        uint64(i.Size),
		Username:    i.Username,
		Pinned:      i.Pinned,
	}
	if i.UID != nil {
		m.Uid = &runtime.Int64Value{Value: *i.UID}
	}
	return m
}

// checkImage checks what every call about an image asks of its spec.
func (s *Service) checkImage(spec *runtime.ImageSpec) error {
	if spec.GetImage() == "" {
		return invalid("image.image", "it is empty")
	}
	if h := spec.GetRuntimeHandler(); h != "" {
		if _, err := s.handler("image.runtime_handler", h); err != nil {
			return err
		}
	}
	return nil
}
