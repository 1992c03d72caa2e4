package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The kubelet refuses any other version of its API.
const (
	kubeAPIVersion = "0.1.0"
	runtimeName    = "berth"
	criAPIVersion  = "v1"
)

// Version names the runtime. It works before anything else does.
func (s *Service) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{
		Version:           kubeAPIVersion,
		RuntimeName:       runtimeName,
		RuntimeVersion:    s.d.Version,
		RuntimeApiVersion: criAPIVersion,
	}, nil
}
