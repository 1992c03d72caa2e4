package cri

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podResources is what the keeper records of a pod's update: CRI messages in
// protobuf's JSON form.
type podResources struct {
	Overhead  json.RawMessage `json:"overhead,omitempty"`
	Resources json.RawMessage `json:"resources,omitempty"`
}

// UpdatePodSandboxResources records a pod's new resources. The kubelet has
// changed the pod's cgroup before it calls.
func (s *Service) UpdatePodSandboxResources(ctx context.Context, r *runtime.UpdatePodSandboxResourcesRequest) (*runtime.UpdatePodSandboxResourcesResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !p.IsReady() {
		return nil, notReady("update", p)
	}
	raw, err := encodePodResources(r.GetOverhead(), r.GetResources())
	if err != nil {
		return nil, err
	}
	if err := s.keeper.UpdatePod(ctx, p.ID, raw); err != nil {
		return nil, err
	}
	return &runtime.UpdatePodSandboxResourcesResponse{}, nil
}

func encodePodResources(overhead, resources *runtime.LinuxContainerResources) (json.RawMessage, error) {
	var (
		r   podResources
		err error
	)
	for _, f := range []struct {
		to  *json.RawMessage
		msg *runtime.LinuxContainerResources
	}{{&r.Overhead, overhead}, {&r.Resources, resources}} {
		if f.msg == nil {
			continue
		}
		if *f.to, err = protojson.Marshal(f.msg); err != nil {
			return nil, fmt.Errorf("encode pod resources: %w", err)
		}
	}
	return json.Marshal(&r)
}

// decodePodResources reads what was recorded last; nil for what was never set.
func decodePodResources(raw json.RawMessage) (overhead, resources *runtime.LinuxContainerResources) {
	var r podResources
	if len(raw) == 0 || json.Unmarshal(raw, &r) != nil {
		return nil, nil
	}
	decode := func(b json.RawMessage) *runtime.LinuxContainerResources {
		m := &runtime.LinuxContainerResources{}
		if len(b) == 0 || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m) != nil {
			return nil
		}
		return m
	}
	return decode(r.Overhead), decode(r.Resources)
}
