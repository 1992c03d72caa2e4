package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// UpdateContainerResources changes a container's limits. What the request leaves
// out (zero, in CRI) stays as it was: only what it names goes to the runtime; the
// sum of both is recorded and reported.
func (s *Service) UpdateContainerResources(ctx context.Context, r *runtime.UpdateContainerResourcesRequest) (*runtime.UpdateContainerResourcesResponse, error) {
	_, c, err := s.findCreated(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status() == pod.ContainerStateExited {
		return nil, precondition("update container %s: it has exited", c.ID)
	}
	if r.GetLinux() == nil {
		return &runtime.UpdateContainerResourcesResponse{}, nil // nothing for us to do
	}
	res, err := ocispec.Resources(r.Linux, s.d.Host)
	if err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, err)
	}
	linux, err := json.Marshal(res)
	if err != nil {
		return nil, fmt.Errorf("encode resources: %w", err)
	}
	// The keeper asks for the sum when it is this update's turn.
	sum := func(c *keeper.Container) (json.RawMessage, error) {
		return protojson.Marshal(mergeResources(linuxResources(c, containerRecord(c)), r.Linux))
	}
	if err := s.keeper.UpdateContainer(ctx, c.ID, linux, sum); err != nil {
		return nil, err
	}
	return &runtime.UpdateContainerResourcesResponse{}, nil
}

// mergeResources is old with what change sets.
func mergeResources(old, change *runtime.LinuxContainerResources) *runtime.LinuxContainerResources {
	m := &runtime.LinuxContainerResources{}
	if old != nil {
		m = proto.CloneOf(old)
	}
	// proto.Merge replaces scalars that are set and adds to maps, as wanted, but
	// appends to lists.
	limits := slices.Clone(m.HugepageLimits)
	for _, n := range change.HugepageLimits {
		i := slices.IndexFunc(limits, func(l *runtime.HugepageLimit) bool { return l.PageSize == n.PageSize })
		if i < 0 {
			limits = append(limits, n)
		} else {
			limits[i] = n
		}
	}
	proto.Merge(m, change)
	m.HugepageLimits = limits
	return m
}
