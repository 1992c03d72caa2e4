package stats

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// required are the metrics that critest 1.37 looks for (pkg/validate/pod.go)
// with values, and those that it leaves to the runtime.
var required = []string{
	"container_blkio_device_usage_total", "container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total",
	"container_cpu_cfs_throttled_seconds_total", "container_cpu_system_seconds_total", "container_cpu_usage_seconds_total",
	"container_cpu_user_seconds_total", "container_file_descriptors", "container_fs_inodes_free", "container_fs_inodes_total",
	"container_fs_limit_bytes", "container_fs_reads_bytes_total", "container_fs_reads_total", "container_fs_usage_bytes",
	"container_fs_writes_bytes_total", "container_fs_writes_total", "container_last_seen", "container_memory_cache",
	"container_memory_failcnt", "container_memory_failures_total", "container_memory_kernel_usage", "container_memory_mapped_file",
	"container_memory_max_usage_bytes", "container_memory_rss", "container_memory_swap", "container_memory_usage_bytes",
	"container_memory_working_set_bytes", "container_network_receive_bytes_total", "container_network_receive_errors_total",
	"container_network_receive_packets_dropped_total", "container_network_receive_packets_total",
	"container_network_transmit_bytes_total", "container_network_transmit_errors_total",
	"container_network_transmit_packets_dropped_total", "container_network_transmit_packets_total", "container_oom_events_total",
	"container_processes", "container_sockets", "container_spec_cpu_period", "container_spec_cpu_quota", "container_spec_cpu_shares",
	"container_spec_memory_limit_bytes", "container_spec_memory_reservation_limit_bytes", "container_spec_memory_swap_limit_bytes",
	"container_start_time_seconds", "container_threads", "container_threads_max", "container_ulimits_soft",
}

// metricsOf collects one pod's, by name.
func metricsOf(t *testing.T, c *Collector, pod string) map[string][]*cri.Metric {
	t.Helper()
	all, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]*cri.Metric{}
	for _, p := range all {
		if p.PodSandboxId != pod {
			continue
		}
		for _, m := range p.Metrics {
			out[m.Name] = append(out[m.Name], m)
		}
		for _, k := range p.ContainerMetrics {
			for _, m := range k.Metrics {
				out[m.Name] = append(out[m.Name], m)
			}
		}
	}
	return out
}

// Every metric that is declared is emitted, every one that is emitted is
// declared, with as many labels; what critest looks for is among them.
func TestDeclaredIsEmitted(t *testing.T) {
	for name, fill := range map[string]func(root string){
		"v1":      func(root string) { fakeV1(t, root, "c1") },
		"unified": func(root string) { write(t, filepath.Join(root, "c1"), v2Files) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if name == "unified" {
				root = fakeV2(t)
			}
			fill(root)
			pods := &fakePods{}
			p := pods.addPod("p1", "", netWithLinks(t))
			addContainer(p, "c1", "/c1")
			c := New(&Options{Pods: pods, CgroupRoot: root, Storage: t.TempDir()})
			got := metricsOf(t, c, "p1")
			declared := map[string]*cri.MetricDescriptor{}
			for _, d := range c.Descriptors() {
				if declared[d.Name] != nil {
					t.Errorf("%s is declared twice", d.Name)
				}
				if d.Help == "" || len(d.LabelKeys) == 0 {
					t.Errorf("%s has no help or no labels", d.Name)
				}
				declared[d.Name] = d
				if len(got[d.Name]) == 0 {
					t.Errorf("%s is declared and not emitted", d.Name)
				}
			}
			for name, ms := range got {
				for _, m := range ms {
					if d := declared[name]; d == nil || len(d.LabelKeys) != len(m.LabelValues) {
						t.Errorf("%s: %d labels, declared %v", name, len(m.LabelValues), d)
					}
					if m.Timestamp == 0 || m.Value == nil {
						t.Errorf("%s: %v", name, m)
					}
				}
			}
			for _, name := range required {
				if declared[name] == nil {
					t.Errorf("%s is not declared", name)
				}
			}
			if name == "unified" != (declared["container_pressure_io_stalled_seconds_total"] != nil) {
				t.Error("pressure is declared where it is not, or the other way round")
			}
		})
	}
}

func TestMetricValues(t *testing.T) {
	root := fakeV2(t)
	write(t, filepath.Join(root, "c1"), v2Files)
	pods := &fakePods{}
	p := pods.addPod("p1", "", "")
	k := addContainer(p, "c1", "/c1")
	addContainer(p, "gone", "/gone")
	addContainer(p, "exited", "/c1").FinishedAt = time.Now()
	pods.addPod("stopping", "", "").Stopping = true
	c := New(&Options{Pods: pods, CgroupRoot: root, Storage: t.TempDir(),
		Layer: func(context.Context, string) (uint64, uint64, error) { return 4096, 1, nil }})
	got := metricsOf(t, c, "p1")
	for name, want := range map[string]uint64{
		"container_cpu_usage_seconds_total":               5,
		"container_cpu_cfs_throttled_seconds_total":       6,
		"container_memory_working_set_bytes":              6000000,
		"container_memory_failcnt":                        9,
		"container_oom_events_total":                      2,
		"container_spec_cpu_quota":                        20000,
		"container_spec_memory_limit_bytes":               64000000,
		"container_start_time_seconds":                    uint64(k.StartedAt.Unix()),
		"container_threads_max":                           100,
		"container_fs_usage_bytes":                        4096,
		"container_pressure_cpu_waiting_seconds_total":    7,
		"container_pressure_memory_stalled_seconds_total": 1,
	} {
		if ms := got[name]; len(ms) != 1 || ms[0].Value.Value != want {
			t.Errorf("%s: %v, want %d once", name, ms, want)
		}
	}
	labels := []string{"p1-name", "ns", "c1-name", "c1", "app:1"}
	if l := got["container_memory_rss"][0].LabelValues; !slices.Equal(l, labels) {
		t.Errorf("labels %v", l)
	}
	reads := map[uint64]string{}
	for _, m := range got["container_fs_reads_bytes_total"] {
		reads[m.Value.Value] = m.LabelValues[5]
	}
	if len(reads) != 2 || reads[1000] != deviceName(253, 0) || reads[5] != deviceName(7, 0) {
		t.Errorf("reads %v", reads)
	}
	if m := got["container_last_seen"][0]; m.MetricType != cri.MetricType_GAUGE {
		t.Errorf("%v", m)
	}
	if m := got["container_cpu_usage_seconds_total"][0]; m.MetricType != cri.MetricType_COUNTER {
		t.Errorf("%v", m)
	}
	if len(metricsOf(t, c, "stopping")) != 0 {
		t.Error("a pod that is not ready has metrics")
	}
	// They are kept for a second.
	write(t, filepath.Join(root, "c1"), map[string]string{"memory.current": "4000001\n"})
	if m := metricsOf(t, c, "p1")["container_memory_working_set_bytes"][0]; m.Value.Value != 6000000 {
		t.Errorf("not the kept ones: %v", m)
	}
	time.Sleep(fresh + 10*time.Millisecond)
	if m := metricsOf(t, c, "p1")["container_memory_working_set_bytes"][0]; m.Value.Value != 1 {
		t.Errorf("the kept ones: %v", m)
	}
}

// A pod on the host's network has no network figures, whatever its ledger says.
func TestHostNetwork(t *testing.T) {
	pods := &fakePods{}
	p := pods.addPod("p1", "", netWithLinks(t))
	p.Traits = pod.Traits{HostNetwork: true}
	c := New(&Options{Pods: pods, CgroupRoot: fakeV2(t)})
	s, err := c.Pod(t.Context(), "p1")
	if err != nil || s.Linux.Network != nil {
		t.Errorf("%v %v", s, err)
	}
}
