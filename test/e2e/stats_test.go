package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStats(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	busy := p.run("busy", script("head -c 20000000 /dev/zero > /written; echo written; while :; do :; done"), func(c *cri.ContainerConfig) {
		c.Labels = map[string]string{"of": t.Name()}
		c.Linux.Resources.MemoryLimitInBytes = 128 << 20
		c.Linux.Resources.CpuQuota, c.Linux.Resources.CpuPeriod = 20000, 100000
	})
	idle := p.run("idle", []string{"probe", "eat", "30"}, func(c *cri.ContainerConfig) { c.Labels = map[string]string{"of": t.Name()} })
	busy.waitLog("written")
	idle.waitLog("ate")
	get := func(c *container) *cri.ContainerStats {
		t.Helper()
		return must[*cri.ContainerStatsResponse](t)(shared.rt.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: c.id})).Stats
	}
	first := get(busy)
	if first.Attributes.Id != busy.id || first.Attributes.Metadata.Name != "busy" || first.Attributes.Labels["of"] != t.Name() {
		t.Errorf("attributes: %v", first.Attributes)
	}
	eventually(t, patience, func() error {
		s := get(busy)
		switch {
		case s.Cpu.UsageCoreNanoSeconds.Value <= first.Cpu.UsageCoreNanoSeconds.Value || s.Cpu.Timestamp <= first.Cpu.Timestamp:
			return fmt.Errorf("CPU stands still: %v, before %v", s.Cpu, first.Cpu)
		case s.Cpu.UsageNanoCores.GetValue() == 0:
			return fmt.Errorf("no rate: %v", s.Cpu)
		case s.WritableLayer.UsedBytes.GetValue() < 20000000 || s.WritableLayer.FsId.GetMountpoint() == "":
			return fmt.Errorf("the layer: %v", s.WritableLayer)
		case s.Memory.AvailableBytes.GetValue() == 0:
			return fmt.Errorf("nothing available below the limit: %v", s.Memory)
		}
		return nil
	})
	m := get(idle).Memory
	if m.WorkingSetBytes.Value < 30<<20 || m.WorkingSetBytes.Value > 200<<20 || m.UsageBytes.Value < m.WorkingSetBytes.Value || m.RssBytes.Value < 25<<20 {
		t.Errorf("memory: %v", m)
	}
	l := must[*cri.ListContainerStatsResponse](t)(shared.rt.ListContainerStats(t.Context(), &cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{LabelSelector: map[string]string{"of": t.Name()}}}))
	var got []string
	for _, s := range l.Stats {
		got = append(got, s.Attributes.Id)
	}
	sameSet(t, "list", got, []string{busy.id, idle.id})

	ps := must[*cri.PodSandboxStatsResponse](t)(shared.rt.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: p.id})).Stats
	if ps.Attributes.Id != p.id || ps.Linux.Memory.WorkingSetBytes.Value < 30<<20 || len(ps.Linux.Containers) != 2 || ps.Linux.Process.ProcessCount.Value < 2 {
		t.Errorf("pod: %v", ps)
	}
	if n := ps.Linux.Network.GetDefaultInterface(); n.GetName() != "eth0" || n.RxBytes == nil || n.TxBytes == nil {
		t.Errorf("network: %v", ps.Linux.Network)
	}
	pl := must[*cri.ListPodSandboxStatsResponse](t)(shared.rt.ListPodSandboxStats(t.Context(), &cri.ListPodSandboxStatsRequest{Filter: &cri.PodSandboxStatsFilter{LabelSelector: map[string]string{"test": t.Name()}}}))
	if len(pl.Stats) != 1 || pl.Stats[0].Attributes.Id != p.id {
		t.Errorf("list of pods: %v", pl.Stats)
	}
	// What has ended uses nothing, and can be asked.
	busy.stop(0)
	if s := get(busy); s.Memory.WorkingSetBytes.GetValue() != 0 {
		t.Errorf("after the end: %v", s.Memory)
	}
}

// Every metric that is described is reported for a container with a memory
// limit, and none that is not; each has a value for each label.
func TestMetrics(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script("while :; do sleep 0.1; done"), func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes = 64 << 20
		c.Linux.Resources.CpuQuota, c.Linux.Resources.CpuPeriod = 50000, 100000
	})
	d := must[*cri.ListMetricDescriptorsResponse](t)(shared.rt.ListMetricDescriptors(t.Context(), &cri.ListMetricDescriptorsRequest{}))
	labels := map[string]int{}
	for _, m := range d.Descriptors {
		if labels[m.Name] != 0 || m.Help == "" || len(m.LabelKeys) == 0 {
			t.Errorf("descriptor %v", m)
		}
		labels[m.Name] = len(m.LabelKeys)
	}
	if len(labels) < 20 {
		t.Errorf("only %d descriptors", len(labels))
	}
	eventually(t, patience, func() error {
		r := must[*cri.ListPodSandboxMetricsResponse](t)(shared.rt.ListPodSandboxMetrics(t.Context(), &cri.ListPodSandboxMetricsRequest{}))
		seen := map[string]bool{}
		for _, pm := range r.PodMetrics {
			if pm.PodSandboxId != p.id {
				continue
			}
			all := pm.Metrics
			for _, cm := range pm.ContainerMetrics {
				if cm.ContainerId != c.id {
					return fmt.Errorf("container %s", cm.ContainerId)
				}
				all = append(all, cm.Metrics...)
			}
			for _, m := range all {
				seen[m.Name] = true
				if labels[m.Name] != len(m.LabelValues) || m.Timestamp == 0 || m.Value == nil {
					return fmt.Errorf("%v: its descriptor has %d labels", m, labels[m.Name])
				}
			}
		}
		var missing []string
		for name := range labels {
			if !seen[name] && !machineHasNo(name) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("described, not reported: %s", strings.Join(missing, " "))
		}
		return nil
	})
}

func TestImageFilesystem(t *testing.T) {
	t.Parallel()
	eventually(t, patience, func() error { // it is measured now and then
		r := must[*cri.ImageFsInfoResponse](t)(shared.im.ImageFsInfo(t.Context(), &cri.ImageFsInfoRequest{}))
		if len(r.ImageFilesystems) != 1 {
			t.Fatalf("%v", r)
		}
		f := r.ImageFilesystems[0]
		if f.UsedBytes.GetValue() < 1<<20 || f.InodesUsed.GetValue() == 0 || !strings.HasPrefix(f.FsId.GetMountpoint(), shared.dir) || time.Since(time.Unix(0, f.Timestamp)) > time.Minute {
			return fmt.Errorf("%v", f)
		}
		return nil
	})
}
