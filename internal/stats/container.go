package stats

import (
	"context"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// Container tells what a container uses. One that does not run has zeros.
// NotFound when there is none.
func (c *Collector) Container(ctx context.Context, id string) (*runtime.ContainerStats, error) {
	_, k, err := c.pods.Container(id)
	if err != nil {
		return nil, err
	}
	return c.container(ctx, k), nil
}

func (c *Collector) container(ctx context.Context, k *keeper.Container) *runtime.ContainerStats {
	cfg, at := containerRecord(k).Config, place(k)
	var s *sample
	if running(k) {
		s = c.sample(ctx, containerCgroup(at.CgroupsPath), k.StartedAt)
	}
	out := &runtime.ContainerStats{
		Attributes: &runtime.ContainerAttributes{
			Id:          k.ID,
			Metadata:    cfg.GetMetadata(),
			Labels:      cfg.GetLabels(),
			Annotations: cfg.GetAnnotations(),
		},
		WritableLayer: c.layer(ctx, at.Snapshot),
	}
	out.Cpu, out.Memory, out.Swap, out.Io = messages(s)
	return out
}

// messages puts a sample into CRI's words; nil is all zeros, as of now.
func messages(s *sample) (*runtime.CpuUsage, *runtime.MemoryUsage, *runtime.SwapUsage, *runtime.IoUsage) {
	if s == nil {
		s = &sample{usage: &usage{at: time.Now()}}
	}
	at := s.at.UnixNano()
	cpu := &runtime.CpuUsage{
		Timestamp:            at,
		UsageCoreNanoSeconds: value(s.cpu),
		UsageNanoCores:       value(s.rate),
		Psi:                  pressureMessage(s.cpuPSI),
	}
	memory := &runtime.MemoryUsage{
		Timestamp:       at,
		WorkingSetBytes: value(s.workingSet),
		UsageBytes:      value(s.memory),
		RssBytes:        value(s.rss),
		PageFaults:      value(s.faults),
		MajorPageFaults: value(s.majorFaults),
		Psi:             pressureMessage(s.memoryPSI),
	}
	if s.memoryLimit > 0 {
		memory.AvailableBytes = value(left(s.memoryLimit, s.workingSet))
	}
	swap := &runtime.SwapUsage{Timestamp: at, SwapUsageBytes: value(s.swap)}
	if s.swapLimited {
		swap.SwapAvailableBytes = value(left(s.swapLimit, s.swap))
	}
	var io *runtime.IoUsage
	if s.ioPSI != nil {
		io = &runtime.IoUsage{Timestamp: at, Psi: pressureMessage(s.ioPSI)}
	}
	return cpu, memory, swap, io
}

func left(limit, used uint64) uint64 {
	if used > limit {
		return 0
	}
	return limit - used
}

func value(v uint64) *runtime.UInt64Value { return &runtime.UInt64Value{Value: v} }

func pressureMessage(p *psi) *runtime.PsiStats {
	if p == nil {
		return nil
	}
	one := func(p pressure) *runtime.PsiData {
		return &runtime.PsiData{Total: p.total, Avg10: p.avg10, Avg60: p.avg60, Avg300: p.avg300}
	}
	return &runtime.PsiStats{Some: one(p.some), Full: one(p.full)}
}

// layer tells what a container wrote, as of the last measurement.
func (c *Collector) layer(ctx context.Context, snapshot string) *runtime.FilesystemUsage {
	l := c.layers.get(ctx, snapshot)
	return &runtime.FilesystemUsage{
		Timestamp:  l.at.UnixNano(),
		FsId:       &runtime.FilesystemIdentifier{Mountpoint: c.storage},
		UsedBytes:  value(l.bytes),
		InodesUsed: value(l.inodes),
	}
}
