package stats

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// metricsRun is one collection of all metrics.
type metricsRun struct {
	at   time.Time
	pods []*runtime.PodSandboxMetrics
}

// Metrics are those of all ready pods and their running containers. They are at
// most a second old and shared: never change them. The error is ctx's.
func (c *Collector) Metrics(ctx context.Context) ([]*runtime.PodSandboxMetrics, error) {
	c.mu.Lock()
	last := c.lastMetrics
	c.mu.Unlock()
	if last != nil && time.Since(last.at) < fresh {
		return last.pods, nil
	}
	ch := c.flight.DoChan("metrics", func() (any, error) {
		// The work is everybody's who waits for it: no caller's context ends it.
		run := &metricsRun{at: time.Now(), pods: c.collect(context.Background())}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lastMetrics = run
		return run, nil
	})
	select {
	case r := <-ch:
		return r.Val.(*metricsRun).pods, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Collector) collect(ctx context.Context) []*runtime.PodSandboxMetrics {
	pods := slices.DeleteFunc(slices.Clone(c.pods.Pods()), func(p *keeper.Pod) bool { return !p.IsReady() })
	out := make([]*runtime.PodSandboxMetrics, len(pods))
	fs := statFilesystem(c.storage)
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, p := range pods {
		g.Go(func() error {
			out[i] = c.podMetrics(ctx, p, fs)
			return nil
		})
	}
	_ = g.Wait() // what fails is a metric that is missing
	return out
}

func (c *Collector) podMetrics(ctx context.Context, p *keeper.Pod, fs filesystem) *runtime.PodSandboxMetrics {
	meta := podRecord(p).Config.GetMetadata()
	out := &runtime.PodSandboxMetrics{PodSandboxId: p.ID}
	labels := []string{meta.GetName(), meta.GetNamespace(), "", p.ID, ""}
	if n := c.network(ctx, netPath(p)); n != nil {
		for _, m := range netMetrics {
			for _, i := range n.ifaces {
				out.Metrics = append(out.Metrics, &runtime.Metric{
					Name:        m.name,
					Timestamp:   n.at.UnixNano(),
					MetricType:  runtime.MetricType_COUNTER,
					LabelValues: append(slices.Clip(labels), i.name),
					Value:       value(m.of(i)),
				})
			}
		}
	}
	for _, k := range p.Containers {
		if !running(k) {
			continue
		}
		if m := c.containerMetrics(ctx, p, k, fs); m != nil {
			out.ContainerMetrics = append(out.ContainerMetrics, m)
		}
	}
	return out
}

// containerMetrics are nil for a container that went away.
func (c *Collector) containerMetrics(ctx context.Context, p *keeper.Pod, k *keeper.Container, fs filesystem) *runtime.ContainerMetrics {
	at := place(k)
	path := containerCgroup(at.CgroupsPath)
	s := c.sample(ctx, path, k.StartedAt)
	if s == nil {
		return nil
	}
	r := &reading{
		sample:  s,
		now:     time.Now(),
		started: k.StartedAt,
		layer:   c.layers.get(ctx, at.Snapshot),
		fs:      fs,
		open:    c.cgroups.descriptors(path, k.Pid),
	}
	cfg, pod := containerRecord(k).Config, podRecord(p).Config.GetMetadata()
	image := cfg.GetImage().GetUserSpecifiedImage()
	if image == "" {
		image = cfg.GetImage().GetImage()
	}
	labels := []string{pod.GetName(), pod.GetNamespace(), cfg.GetMetadata().GetName(), k.ID, image}
	out := &runtime.ContainerMetrics{ContainerId: k.ID}
	for _, m := range c.metrics() {
		kind := runtime.MetricType_COUNTER
		if m.gauge {
			kind = runtime.MetricType_GAUGE
		}
		for _, pt := range m.points(r) {
			out.Metrics = append(out.Metrics, &runtime.Metric{
				Name:        m.name,
				Timestamp:   s.at.UnixNano(),
				MetricType:  kind,
				LabelValues: append(slices.Clip(labels), pt.labels...),
				Value:       value(pt.value),
			})
		}
	}
	return out
}
