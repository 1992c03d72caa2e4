package main

import (
	"context"
	"fmt"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// find looks for a pod by its name or else the start of its id, and for the newest
// container in it. word may also be the start of a container's id. The container
// is nil when the pod has none.
func (c *client) find(ctx context.Context, word string) (*runtime.PodSandbox, *runtime.Container, error) {
	ps, err := c.pods.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, err
	}
	cs, err := c.pods.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, nil, err
	}
	byID := map[string]*runtime.PodSandbox{}
	var pods, named []*runtime.PodSandbox
	for _, p := range ps.Items {
		byID[p.Id] = p
		if p.Metadata.GetName() == word {
			named = append(named, p)
		}
		if strings.HasPrefix(p.Id, word) {
			pods = append(pods, p)
		}
	}
	var found []*runtime.Container
	for _, k := range cs.Containers {
		if strings.HasPrefix(k.Id, word) {
			found = append(found, k)
		}
	}
	if len(named) > 0 {
		pods, found = named, nil
	}
	switch {
	case len(pods) == 0 && len(found) == 0:
		return nil, nil, fmt.Errorf("no pod or container is called %q (berth ps shows what there is)", word)
	case len(pods) > 1 || len(pods) == 0 && len(found) > 1:
		return nil, nil, fmt.Errorf("%q is not clear: it fits %d pods and %d containers; give more of the id", word, len(pods), len(found))
	case len(pods) == 0:
		return byID[found[0].PodSandboxId], found[0], nil
	}
	var newest *runtime.Container
	for _, k := range cs.Containers {
		if k.PodSandboxId == pods[0].Id && (newest == nil || k.CreatedAt > newest.CreatedAt) {
			newest = k
		}
	}
	return pods[0], newest, nil
}

// findContainer is find for commands that need a container.
func (c *client) findContainer(ctx context.Context, word string) (*runtime.Container, error) {
	p, k, err := c.find(ctx, word)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, fmt.Errorf("pod %s has no container", p.Metadata.GetName())
	}
	return k, nil
}
