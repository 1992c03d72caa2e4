package v2

import (
	"fmt"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (c *container) stats(t *testing.T) *cri.ContainerStats {
	t.Helper()
	r, err := daemon.rt.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: c.id})
	if err != nil {
		t.Fatal(err)
	}
	return r.Stats
}

func podStats(t *testing.T, p *pod) *cri.PodSandboxStats {
	t.Helper()
	r, err := daemon.rt.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: p.id})
	if err != nil {
		t.Fatal(err)
	}
	return r.Stats
}

func TestStats(t *testing.T) {
	p := runPod(t)
	busy := p.run("busy", sh("while :; do :; done"), memory(64<<20, 64<<20), func(c *cri.ContainerConfig) {
		c.Linux.Resources.CpuQuota, c.Linux.Resources.CpuPeriod = 10000, 100000
	})
	// More than its memory: the rest is swapped out.
	eats := p.run("eats", []string{"probe", "eat", "40"}, memory(32<<20, 96<<20))
	eats.waitLog("ate")
	if s := eats.stats(t); s.Swap.GetSwapUsageBytes().GetValue() < 4<<20 || s.Swap.GetSwapAvailableBytes().GetValue() > 60<<20 ||
		s.Memory.UsageBytes.GetValue() > 32<<20 || s.Memory.WorkingSetBytes.GetValue() < 16<<20 || s.Memory.RssBytes.GetValue() < 16<<20 {
		t.Errorf("memory %v, swap %v", s.Memory, s.Swap)
	}
	eventually(t, func() error {
		s := busy.stats(t)
		ps := podStats(t, p).Linux
		switch {
		case s.Cpu.UsageCoreNanoSeconds.GetValue() < 1e8 || s.Cpu.UsageNanoCores.GetValue() == 0:
			return fmt.Errorf("cpu: %v", s.Cpu)
		case s.Cpu.Psi.GetSome().GetTotal() == 0: // a throttled task waits
			return fmt.Errorf("no pressure: %v", s.Cpu)
		case s.Memory.Psi == nil || s.Io.GetPsi() == nil:
			return fmt.Errorf("memory %v, io %v", s.Memory, s.Io)
		case s.Swap.SwapAvailableBytes == nil || s.Swap.SwapAvailableBytes.Value != 0:
			return fmt.Errorf("swap that is not allowed: %v", s.Swap)
		case s.Memory.AvailableBytes.GetValue() == 0 || s.Memory.AvailableBytes.GetValue() > 64<<20:
			return fmt.Errorf("available: %v", s.Memory)
		case ps.Cpu.UsageCoreNanoSeconds.GetValue() < s.Cpu.UsageCoreNanoSeconds.GetValue() || ps.Memory.WorkingSetBytes.GetValue() < 16<<20:
			return fmt.Errorf("the pod uses less than its containers: %v %v", ps.Cpu, ps.Memory)
		case ps.Process.ProcessCount.GetValue() != 2:
			return fmt.Errorf("processes: %v", ps.Process)
		}
		return nil
	})
	metrics(t, busy, map[string]func(uint64) bool{
		"container_cpu_usage_seconds_total":               nil,
		"container_cpu_cfs_throttled_periods_total":       func(v uint64) bool { return v > 0 },
		"container_spec_cpu_quota":                        func(v uint64) bool { return v == 10000 },
		"container_spec_memory_limit_bytes":               func(v uint64) bool { return v == 64<<20 },
		"container_processes":                             func(v uint64) bool { return v == 1 },
		"container_pressure_cpu_waiting_seconds_total":    nil,
		"container_pressure_memory_waiting_seconds_total": nil,
		"container_oom_events_total":                      func(v uint64) bool { return v == 0 },
	})
	busy.stop(0)
	eats.stop(0)
	// What the pod's cgroup has counted stays when its containers are gone.
	eventually(t, func() error {
		if s := podStats(t, p).Linux; s.Cpu.UsageCoreNanoSeconds.GetValue() < 1e8 || s.Process.ProcessCount.GetValue() != 0 {
			return fmt.Errorf("the pod after its containers: %v %v", s.Cpu, s.Process)
		}
		return nil
	})
}

// metrics wants these of a container; nil only wants them there.
func metrics(t *testing.T, c *container, want map[string]func(uint64) bool) {
	t.Helper()
	eventually(t, func() error {
		r, err := daemon.rt.ListPodSandboxMetrics(t.Context(), &cri.ListPodSandboxMetricsRequest{})
		if err != nil {
			return err
		}
		seen := map[string]uint64{}
		for _, p := range r.PodMetrics {
			for _, k := range p.ContainerMetrics {
				for _, m := range k.Metrics {
					if k.ContainerId == c.id {
						seen[m.Name] = m.Value.GetValue()
					}
				}
			}
		}
		for name, ok := range want {
			v, there := seen[name]
			if !there || ok != nil && !ok(v) {
				return fmt.Errorf("%s: %d, %v", name, v, there)
			}
		}
		return nil
	})
}

// An OOM kill that the container outlived is counted.
func TestOOMMetric(t *testing.T) {
	c := runPod(t).run("c", sh("probe eat 200; echo over; sleep 1000"), memory(small, small))
	c.waitLog("over")
	metrics(t, c, map[string]func(uint64) bool{"container_oom_events_total": func(v uint64) bool { return v == 1 }})
}
