package cri

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Reasons of conditions that do not hold; the kubelet shows them.
const (
	reasonNetwork    = "NetworkPluginNotReady" // as containerd's
	reasonRecovering = "Recovering"
)

// Status tells whether pods can be run, and what the handlers can do.
func (s *Service) Status(ctx context.Context, r *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	ready := &runtime.RuntimeCondition{Type: runtime.RuntimeReady, Status: true}
	if !s.keeper.Recovered() {
		ready.Status, ready.Reason, ready.Message = false, reasonRecovering, "the journals of pods are being read"
	}
	network := &runtime.RuntimeCondition{Type: runtime.NetworkReady, Status: true}
	if err := s.d.Network.Status(ctx); err != nil {
		network.Status, network.Reason, network.Message = false, reasonNetwork, err.Error()
	}
	resp := &runtime.StatusResponse{
		Status:          &runtime.RuntimeStatus{Conditions: []*runtime.RuntimeCondition{ready, network}},
		RuntimeHandlers: s.runtimeHandlers(),
		Features: &runtime.RuntimeFeatures{
			SupplementalGroupsPolicy:  true,
			UserNamespacesHostNetwork: false,
			MountOptions:              true,
		},
	}
	if !r.GetVerbose() {
		return resp, nil
	}
	var err error
	resp.Info, err = s.statusInfo(network)
	return resp, err
}

// runtimeHandlers are the configured handlers, and the default one a second time
// under the empty name: that is where the kubelet looks for it.
func (s *Service) runtimeHandlers() []*runtime.RuntimeHandler {
	out := make([]*runtime.RuntimeHandler, 0, len(s.d.Handlers)+1)
	add := func(name string, h *Handler) {
		out = append(out, &runtime.RuntimeHandler{Name: name, Features: &runtime.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: h.RecursiveReadOnly,
			UserNamespaces:          h.UserNamespaces,
		}})
	}
	add("", s.handlers[s.d.Default])
	for i := range s.d.Handlers {
		add(s.d.Handlers[i].Name, &s.d.Handlers[i])
	}
	return out
}

// statusInfo has the keys that containerd's has, each JSON. Tools look for
// rootDir and stateDir in config.
func (s *Service) statusInfo(network *runtime.RuntimeCondition) (map[string]string, error) {
	config := map[string]any{}
	b, err := json.Marshal(s.d.Config)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	if s.d.Config != nil {
		if err := json.Unmarshal(b, &config); err != nil {
			return nil, fmt.Errorf("encode the configuration: %w", err)
		}
	}
	config["rootDir"], config["stateDir"] = s.d.Root, s.d.State
	last := "OK"
	if !network.Status {
		last = network.Message
	}
	out := map[string]string{}
	for k, v := range map[string]any{
		"config":            config,
		"golang":            goruntime.Version(),
		"cniconfig":         s.d.Network.Info(),
		"lastCNILoadStatus": last,
	} {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", k, err)
		}
		out[k] = string(b)
	}
	return out, nil
}
