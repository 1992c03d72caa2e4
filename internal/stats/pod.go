package stats

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// Pod tells what a pod and its containers use. One that is not ready any more
// has zeros. NotFound when there is none.
func (c *Collector) Pod(ctx context.Context, id string) (*runtime.PodSandboxStats, error) {
	p, err := c.pods.Pod(id)
	if err != nil {
		return nil, err
	}
	cfg := podRecord(p).Config
	linux := &runtime.LinuxPodSandboxStats{}
	for _, k := range p.Containers {
		linux.Containers = append(linux.Containers, c.container(ctx, k))
	}
	s := c.podUsage(ctx, p)
	linux.Cpu, linux.Memory, _, linux.Io = messages(s)
	linux.Process = &runtime.ProcessUsage{Timestamp: linux.Cpu.Timestamp, ProcessCount: value(0)}
	if s != nil {
		linux.Process.ProcessCount.Value = s.processes
	}
	linux.Network = networkMessage(c.network(ctx, netPath(p)))
	return &runtime.PodSandboxStats{
		Attributes: &runtime.PodSandboxAttributes{
			Id:          p.ID,
			Metadata:    cfg.GetMetadata(),
			Labels:      cfg.GetLabels(),
			Annotations: cfg.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}

// podUsage is the usage of the pod's own cgroup, or where it has none the sum of
// its containers'.
func (c *Collector) podUsage(ctx context.Context, p *keeper.Pod) *sample {
	if path := ownCgroup(podRecord(p).Config); path != "" {
		return c.sample(ctx, path, p.CreatedAt)
	}
	parts := map[string]*sample{}
	for _, k := range p.Containers {
		if !running(k) {
			continue
		}
		if s := c.sample(ctx, containerCgroup(place(k).CgroupsPath), k.StartedAt); s != nil {
			parts[k.ID] = s
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.sums[p.ID]
	if sum == nil {
		sum = &podSum{last: map[string]uint64{}}
		c.sums[p.ID] = sum
	}
	return sum.add(parts)
}

// ownCgroup is the path of the cgroup that is the pod's alone: the kubelet makes
// one and names it by the pod's uid. Others hand in a parent that pods share.
func ownCgroup(cfg *runtime.PodSandboxConfig) string {
	parent, uid := podCgroup(cfg.GetLinux().GetCgroupParent()), cfg.GetMetadata().GetUid()
	name := filepath.Base(parent)
	if parent == "" || uid == "" {
		return ""
	}
	if strings.Contains(name, uid) || strings.Contains(name, strings.ReplaceAll(uid, "-", "_")) {
		return parent
	}
	return ""
}

// podSum adds up containers. What those that are gone used stays counted.
type podSum struct {
	cpu   uint64
	last  map[string]uint64 // CPU of each container when last seen
	asked time.Time
}

func (p *podSum) add(parts map[string]*sample) *sample {
	now := time.Now()
	p.asked = now
	out := &sample{usage: &usage{at: now}, asked: now}
	for id, s := range parts {
		if s.at.Before(out.at) {
			out.at = s.at // as old as its oldest part
		}
		if last := p.last[id]; s.cpu > last {
			p.cpu += s.cpu - last
		}
		p.last[id] = s.cpu
		out.rate += s.rate
		out.memory += s.memory
		out.workingSet += s.workingSet
		out.rss += s.rss
		out.faults += s.faults
		out.majorFaults += s.majorFaults
		out.processes += s.processes
	}
	for id := range p.last {
		if parts[id] == nil {
			delete(p.last, id)
		}
	}
	out.cpu = p.cpu
	return out
}
