package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStatus tells about a container, as it was published last.
func (s *Service) ContainerStatus(ctx context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	p, c, err := s.findCreated(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &runtime.ContainerStatusResponse{Status: s.translator(ctx).status(c)}
	if r.GetVerbose() {
		resp.Info, err = info(containerInfo(p, c))
	}
	return resp, err
}
