package cri

import (
	"context"
	"encoding/json"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

// RunPodSandbox makes a pod and waits until it is ready. The same request joins
// one that is under way; when the caller leaves, the work goes on.
func (s *Service) RunPodSandbox(ctx context.Context, r *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
	cfg := r.GetConfig()
	if err := validatePod(cfg); err != nil {
		return nil, err
	}
	h, err := s.handler("runtime_handler", r.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if hasUserNamespace(ns) && !h.UserNamespaces {
		return nil, precondition("config.linux.security_context.namespace_options.userns_options: runtime handler %q has no user namespaces on this host", h.Name)
	}
	raw, err := json.Marshal(&record.Pod{Config: cfg})
	if err != nil {
		return nil, err
	}
	name := podName(cfg.Metadata)
	id, err := s.keeper.RunPod(ctx, &keeper.PodRequest{
		Name:    name,
		Handler: h.Name,
		Traits:  pod.Traits{HostNetwork: ns.GetNetwork() == runtime.NamespaceMode_NODE},
		Config:  raw,
	})
	if err != nil {
		return nil, fmt.Errorf("run pod %s: %w", name, err)
	}
	return &runtime.RunPodSandboxResponse{PodSandboxId: id}, nil
}
