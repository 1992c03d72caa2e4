package cri

import (
	"context"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodSandboxStatus tells about a pod and its containers, as they were published
// last.
func (s *Service) PodSandboxStatus(ctx context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	at := time.Now() // before the snapshot is taken: what is newer is not claimed
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtime.PodSandboxStatusResponse{
		Status:             podStatus(p),
		ContainersStatuses: s.translator(ctx).statuses(p),
		Timestamp:          nanos(at),
	}
	if r.GetVerbose() {
		resp.Info, err = info(podInfo(p))
	}
	return resp, err
}
