package e2e

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// all receives a stream to its end.
func all[T any](t *testing.T, st grpc.ServerStreamingClient[T], err error) []*T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var out []*T
	for {
		m, err := st.Recv()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
}

// The streaming lists give what the plain ones give.
func TestStreamingLists(t *testing.T) {
	t.Parallel()
	ctx, rt := t.Context(), shared.rt
	p := shared.pod(t)
	label := map[string]string{"stream": t.Name()}
	a := p.run("a", forever, func(c *cri.ContainerConfig) { c.Labels = label })
	b := p.run("b", forever, func(c *cri.ContainerConfig) { c.Labels = label })

	var got []string
	cs, err := rt.StreamContainers(ctx, &cri.StreamContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: label}})
	for _, m := range all(t, cs, err) {
		for _, c := range m.Containers {
			got = append(got, c.Id)
		}
	}
	sameSet(t, "containers", got, []string{a.id, b.id})

	got = nil
	pods, err := rt.StreamPodSandboxes(ctx, &cri.StreamPodSandboxesRequest{Filter: &cri.PodSandboxFilter{Id: p.id}})
	for _, m := range all(t, pods, err) {
		for _, s := range m.PodSandboxes {
			got = append(got, s.Id)
		}
	}
	sameSet(t, "pods", got, []string{p.id})

	got = nil
	stats, err := rt.StreamContainerStats(ctx, &cri.StreamContainerStatsRequest{Filter: &cri.ContainerStatsFilter{PodSandboxId: p.id}})
	for _, m := range all(t, stats, err) {
		for _, s := range m.ContainerStats {
			got = append(got, s.Attributes.Id)
		}
	}
	sameSet(t, "container stats", got, []string{a.id, b.id})

	got = nil
	podStats, err := rt.StreamPodSandboxStats(ctx, &cri.StreamPodSandboxStatsRequest{Filter: &cri.PodSandboxStatsFilter{Id: p.id}})
	for _, m := range all(t, podStats, err) {
		for _, s := range m.PodSandboxStats {
			got = append(got, s.Attributes.Id)
		}
	}
	sameSet(t, "pod stats", got, []string{p.id})

	eventually(t, patience, func() error { // they may be of a moment ago
		metrics, err := rt.StreamPodSandboxMetrics(ctx, &cri.StreamPodSandboxMetricsRequest{})
		for _, m := range all(t, metrics, err) {
			for _, s := range m.PodSandboxMetrics {
				if s.PodSandboxId == p.id {
					return nil
				}
			}
		}
		return errors.New("the pod has no metrics")
	})

	got = nil
	images, err := shared.im.StreamImages(ctx, &cri.StreamImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: filesImage}}})
	for _, m := range all(t, images, err) {
		for _, i := range m.Images {
			got = append(got, i.Id)
		}
	}
	sameSet(t, "images", got, []string{ids[filesImage]})
}
