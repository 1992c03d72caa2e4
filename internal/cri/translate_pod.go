package cri

import (
	"encoding/json"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/pod"
)

// listed tells whether a client may see p: once it is ready, or when its making
// failed and is not undone yet. A pod that is being made has no caller who
// knows its id.
func listed(p *keeper.Pod) bool {
	return !p.Removed && (!p.ReadyAt.IsZero() || p.Stopping || p.Err != "")
}

func podState(p *keeper.Pod) runtime.PodSandboxState {
	if p.IsReady() {
		return runtime.PodSandboxState_SANDBOX_READY
	}
	return runtime.PodSandboxState_SANDBOX_NOTREADY
}

// podItem is p as lists have it.
func podItem(p *keeper.Pod) *runtime.PodSandbox {
	c := podConfig(p)
	return &runtime.PodSandbox{
		Id:             p.ID,
		Metadata:       c.Metadata,
		State:          podState(p),
		CreatedAt:      nanos(p.CreatedAt),
		Labels:         c.Labels,
		Annotations:    c.Annotations,
		RuntimeHandler: p.Handler,
	}
}

// podStatus is p in full.
func podStatus(p *keeper.Pod) *runtime.PodSandboxStatus {
	c := podConfig(p)
	return &runtime.PodSandboxStatus{
		Id:        p.ID,
		Metadata:  c.Metadata,
		State:     podState(p),
		CreatedAt: nanos(p.CreatedAt),
		Network:   podNetwork(p),
		Linux: &runtime.LinuxPodSandboxStatus{
			Namespaces: &runtime.Namespace{Options: c.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
		Labels:         c.Labels,
		Annotations:    c.Annotations,
		RuntimeHandler: p.Handler,
	}
}

// podNetwork is what the pod's addresses are. A pod on the host's network has
// none of its own: the kubelet knows the node's. Nor has one that gave them
// back.
func podNetwork(p *keeper.Pod) *runtime.PodSandboxNetworkStatus {
	var r network.Result
	n := &runtime.PodSandboxNetworkStatus{}
	if h := p.Holdings[pod.Network]; h.Phase != pod.Held || json.Unmarshal(h.Data, &r) != nil {
		return n
	}
	for i, ip := range r.IPs {
		if i == 0 {
			n.Ip = ip
			continue
		}
		n.AdditionalIps = append(n.AdditionalIps, &runtime.PodIP{Ip: ip})
	}
	return n
}

// nanos is a time as CRI has it: nanoseconds since 1970, 0 when it is unset.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
