package stats

import (
	"slices"
	"strconv"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// metric is one of CRI's metrics: how it is declared, and how it is made. One
// table for both, so that what is declared is emitted, with the labels declared.
// Names and labels are cAdvisor's, which the kubelet would serve otherwise.
type metric struct {
	name, help string
	gauge      bool
	labels     []string // after baseLabels
	points     func(r *reading) []point
}

// point is one value of a metric, with the values of its own labels.
type point struct {
	value  uint64
	labels []string
}

// baseLabels are first in every metric.
var baseLabels = []string{"pod", "namespace", "container", "id", "image"}

// reading is all that a container's metrics are made of.
type reading struct {
	*sample
	now     time.Time
	started time.Time
	layer   layer
	fs      filesystem
	open    descriptors
}

// seconds are what CRI can carry of a time: whole ones.
func seconds(ns uint64) uint64 { return ns / uint64(time.Second) }

func counter(name, help string, v func(*reading) uint64) *metric {
	return &metric{name: name, help: help, points: func(r *reading) []point { return []point{{value: v(r)}} }}
}

func gauge(name, help string, v func(*reading) uint64) *metric {
	m := counter(name, help, v)
	m.gauge = true
	return m
}

// fsGauge is about the file system that the writable layer is on.
func fsGauge(name, help string, v func(*reading) uint64) *metric {
	return &metric{name: name, help: help, gauge: true, labels: []string{"device"},
		points: func(r *reading) []point { return []point{{v(r), []string{r.fs.device}}} }}
}

// deviceCounter has a point for each block device that the container used.
func deviceCounter(name, help string, v func(device) uint64) *metric {
	return &metric{name: name, help: help, labels: []string{"device"}, points: func(r *reading) []point {
		var out []point
		for _, d := range r.used() {
			out = append(out, point{v(d), []string{deviceName(d.major, d.minor)}})
		}
		return out
	}}
}

// used are the block devices that a container used; before the first use that is
// the one of its writable layer.
func (r *reading) used() devices {
	if len(r.devices) > 0 {
		return r.devices
	}
	return devices{{major: r.fs.major, minor: r.fs.minor}}
}

var containerMetrics = []*metric{
	counter("container_cpu_usage_seconds_total", "Cumulative CPU time consumed, in seconds", func(r *reading) uint64 { return seconds(r.cpu) }),
	counter("container_cpu_user_seconds_total", "Cumulative user CPU time consumed, in seconds", func(r *reading) uint64 { return seconds(r.cpuUser) }),
	counter("container_cpu_system_seconds_total", "Cumulative system CPU time consumed, in seconds", func(r *reading) uint64 { return seconds(r.cpuSystem) }),
	counter("container_cpu_cfs_periods_total", "Number of elapsed enforcement periods of the CPU quota", func(r *reading) uint64 { return r.periods }),
	counter("container_cpu_cfs_throttled_periods_total", "Number of periods in which the CPU quota was used up", func(r *reading) uint64 { return r.throttledPeriods }),
	counter("container_cpu_cfs_throttled_seconds_total", "Total time that the CPU quota held the container back, in seconds", func(r *reading) uint64 { return seconds(r.throttled) }),

	gauge("container_memory_cache", "Page cache memory, in bytes", func(r *reading) uint64 { return r.cache }),
	gauge("container_memory_rss", "Anonymous memory, in bytes", func(r *reading) uint64 { return r.rss }),
	gauge("container_memory_kernel_usage", "Kernel memory, in bytes", func(r *reading) uint64 { return r.kernel }),
	gauge("container_memory_mapped_file", "Memory of mapped files, in bytes", func(r *reading) uint64 { return r.mapped }),
	gauge("container_memory_swap", "Swap in use, in bytes", func(r *reading) uint64 { return r.swap }),
	counter("container_memory_failcnt", "Number of times that memory usage hit its limit", func(r *reading) uint64 { return r.failures }),
	gauge("container_memory_usage_bytes", "Memory in use, whenever it was last touched, in bytes", func(r *reading) uint64 { return r.memory }),
	gauge("container_memory_max_usage_bytes", "Highest memory usage seen, in bytes", func(r *reading) uint64 { return r.memoryPeak }),
	gauge("container_memory_working_set_bytes", "Memory in use without inactive page cache, in bytes", func(r *reading) uint64 { return r.workingSet }),
	gauge("container_memory_total_active_file_bytes", "Active page cache memory, in bytes", func(r *reading) uint64 { return r.activeFile }),
	gauge("container_memory_total_inactive_file_bytes", "Inactive page cache memory, in bytes", func(r *reading) uint64 { return r.inactiveFile }),
	{name: "container_memory_failures_total", help: "Number of page faults", labels: []string{"failure_type", "scope"}, points: func(r *reading) []point {
		return []point{{r.faults, []string{"pgfault", "container"}}, {r.majorFaults, []string{"pgmajfault", "container"}}}
	}},
	counter("container_oom_events_total", "Number of processes that the OOM killer killed", func(r *reading) uint64 { return r.oomKills }),

	fsGauge("container_fs_inodes_free", "Free inodes of the file system", func(r *reading) uint64 { return r.fs.inodesFree }),
	fsGauge("container_fs_inodes_total", "Inodes of the file system", func(r *reading) uint64 { return r.fs.inodes }),
	fsGauge("container_fs_limit_bytes", "Size of the file system, in bytes", func(r *reading) uint64 { return r.fs.size }),
	fsGauge("container_fs_usage_bytes", "What the container wrote to its file system, in bytes", func(r *reading) uint64 { return r.layer.bytes }),
	deviceCounter("container_fs_reads_bytes_total", "Bytes read from the device", func(d device) uint64 { return d.readBytes }),
	deviceCounter("container_fs_reads_total", "Reads from the device", func(d device) uint64 { return d.reads }),
	deviceCounter("container_fs_writes_bytes_total", "Bytes written to the device", func(d device) uint64 { return d.writeBytes }),
	deviceCounter("container_fs_writes_total", "Writes to the device", func(d device) uint64 { return d.writes }),
	{name: "container_blkio_device_usage_total", help: "Bytes moved to and from the device", labels: []string{"device", "major", "minor", "operation"}, points: func(r *reading) []point {
		var out []point
		for _, d := range r.used() {
			name, major, minor := deviceName(d.major, d.minor), strconv.FormatUint(d.major, 10), strconv.FormatUint(d.minor, 10)
			out = append(out, point{d.readBytes, []string{name, major, minor, "Read"}}, point{d.writeBytes, []string{name, major, minor, "Write"}})
		}
		return out
	}},

	gauge("container_processes", "Number of processes", func(r *reading) uint64 { return r.processes }),
	gauge("container_threads", "Number of threads", func(r *reading) uint64 { return r.threads }),
	gauge("container_threads_max", "Most threads allowed; 0 for no limit", func(r *reading) uint64 { return r.threadsMax }),
	gauge("container_file_descriptors", "Number of open file descriptors", func(r *reading) uint64 { return r.open.files }),
	gauge("container_sockets", "Number of open sockets", func(r *reading) uint64 { return r.open.sockets }),
	{name: "container_ulimits_soft", help: "Soft limits of the first process; the highest number for no limit", gauge: true, labels: []string{"ulimit"}, points: func(r *reading) []point {
		return []point{{r.open.limit, []string{"max_open_files"}}}
	}},

	gauge("container_last_seen", "When the container was last seen, in seconds since the epoch", func(r *reading) uint64 { return uint64(r.now.Unix()) }),
	gauge("container_start_time_seconds", "When the container was started, in seconds since the epoch", func(r *reading) uint64 { return uint64(r.started.Unix()) }),
	gauge("container_spec_cpu_period", "Period of the CPU quota, in microseconds", func(r *reading) uint64 { return r.period }),
	gauge("container_spec_cpu_quota", "CPU quota in a period, in microseconds; 0 for no limit", func(r *reading) uint64 { return r.quota }),
	gauge("container_spec_cpu_shares", "CPU shares", func(r *reading) uint64 { return r.shares }),
	gauge("container_spec_memory_limit_bytes", "Memory limit, in bytes; 0 for no limit", func(r *reading) uint64 { return r.memoryLimit }),
	gauge("container_spec_memory_reservation_limit_bytes", "Memory that is reserved, in bytes; 0 for none", func(r *reading) uint64 { return r.memoryReserved }),
	gauge("container_spec_memory_swap_limit_bytes", "Swap limit, in bytes; 0 for no limit", func(r *reading) uint64 { return r.swapLimit }),
}

// pressureMetrics are declared where the kernel has them for cgroups.
var pressureMetrics = []*metric{
	pressureCounter("container_pressure_cpu_waiting_seconds_total", "Time in which some tasks waited for CPU, in seconds", func(u *usage) *psi { return u.cpuPSI }, false),
	pressureCounter("container_pressure_cpu_stalled_seconds_total", "Time in which all tasks waited for CPU, in seconds", func(u *usage) *psi { return u.cpuPSI }, true),
	pressureCounter("container_pressure_memory_waiting_seconds_total", "Time in which some tasks waited for memory, in seconds", func(u *usage) *psi { return u.memoryPSI }, false),
	pressureCounter("container_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory, in seconds", func(u *usage) *psi { return u.memoryPSI }, true),
	pressureCounter("container_pressure_io_waiting_seconds_total", "Time in which some tasks waited for I/O, in seconds", func(u *usage) *psi { return u.ioPSI }, false),
	pressureCounter("container_pressure_io_stalled_seconds_total", "Time in which all tasks waited for I/O, in seconds", func(u *usage) *psi { return u.ioPSI }, true),
}

func pressureCounter(name, help string, of func(*usage) *psi, full bool) *metric {
	return &metric{name: name, help: help, points: func(r *reading) []point {
		p := of(r.usage)
		switch {
		case p == nil:
			return nil
		case full:
			return []point{{value: seconds(p.full.total)}}
		}
		return []point{{value: seconds(p.some.total)}}
	}}
}

// netMetric is a pod's, with a point for each interface.
type netMetric struct {
	name, help string
	of         func(iface) uint64
}

var netLabels = []string{"interface"}

var netMetrics = []netMetric{
	{"container_network_receive_bytes_total", "Cumulative count of bytes received", func(i iface) uint64 { return i.rxBytes }},
	{"container_network_receive_packets_total", "Cumulative count of packets received", func(i iface) uint64 { return i.rxPackets }},
	{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", func(i iface) uint64 { return i.rxDrop }},
	{"container_network_receive_errors_total", "Cumulative count of errors while receiving", func(i iface) uint64 { return i.rxErrs }},
	{"container_network_transmit_bytes_total", "Cumulative count of bytes sent", func(i iface) uint64 { return i.txBytes }},
	{"container_network_transmit_packets_total", "Cumulative count of packets sent", func(i iface) uint64 { return i.txPackets }},
	{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while sending", func(i iface) uint64 { return i.txDrop }},
	{"container_network_transmit_errors_total", "Cumulative count of errors while sending", func(i iface) uint64 { return i.txErrs }},
}

// metrics are those of a container that this machine has.
func (c *Collector) metrics() []*metric {
	if c.psi {
		return slices.Concat(containerMetrics, pressureMetrics)
	}
	return containerMetrics
}

// Descriptors declare the metrics; they never change.
func (c *Collector) Descriptors() []*runtime.MetricDescriptor {
	var out []*runtime.MetricDescriptor
	for _, m := range c.metrics() {
		out = append(out, &runtime.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: slices.Concat(baseLabels, m.labels)})
	}
	for _, m := range netMetrics {
		out = append(out, &runtime.MetricDescriptor{Name: m.name, Help: m.help, LabelKeys: slices.Concat(baseLabels, netLabels)})
	}
	return out
}
