package cri

import (
	"context"
	"net/netip"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdateRuntimeConfig takes the node's pod CIDRs, separated by commas.
func (s *Service) UpdateRuntimeConfig(_ context.Context, r *runtime.UpdateRuntimeConfigRequest) (*runtime.UpdateRuntimeConfigResponse, error) {
	const field = "runtime_config.network_config.pod_cidr"
	list := r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if list == "" {
		return &runtime.UpdateRuntimeConfigResponse{}, nil
	}
	cidrs := strings.Split(list, ",")
	for i, c := range cidrs {
		p, err := netip.ParsePrefix(strings.TrimSpace(c))
		if err != nil {
			return nil, invalid(field, "%q is no CIDR", c)
		}
		cidrs[i] = p.Masked().String()
	}
	if err := s.d.Network.SetPodCIDR(strings.Join(cidrs, ",")); err != nil {
		return nil, err
	}
	return &runtime.UpdateRuntimeConfigResponse{}, nil
}
