// Package stats tells what pods and containers use. It promises that asking is
// cheap and never waits for a shim: figures come from cgroup files and the pods'
// network namespaces, and are kept for a second; that counters never run
// backwards; that every figure carries the time of its reading; and that what
// ended, or goes while it is read, is a message with zeros and spoils nothing
// else.
//
// The CRI front imports it.
package stats

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"berth/internal/keeper"
	"berth/internal/namespaces"
	"berth/internal/pod"
	"berth/internal/record"
)

const (
	// fresh is how long a reading is good.
	fresh = time.Second
	// forget is how long one is kept that nobody asks for.
	forget = 5 * time.Minute
	// parallel bounds how many cgroups are read at once.
	parallel = 4
)

// Pods is where pods are found (a keeper).
type Pods interface {
	Pods() []*keeper.Pod
	Pod(id string) (*keeper.Pod, error)
	Container(id string) (*keeper.Pod, *keeper.Container, error)
}

// Options say where figures come from.
type Options struct {
	Pods Pods
	// Layer measures a container's writable layer by its snapshot key. It may be
	// slow; it is not waited for.
	Layer func(ctx context.Context, snapshot string) (bytes, inodes uint64, err error)
	// Storage is a folder on the file system that writable layers are on.
	Storage string
	// CgroupRoot is where cgroups are mounted; "" is /sys/fs/cgroup.
	CgroupRoot string
}

// Collector reads and keeps figures.
type Collector struct {
	pods    Pods
	storage string
	cgroups *hierarchy
	psi     bool
	layers  *layers
	flight  singleflight.Group
	slots   chan struct{} // held while a cgroup is read

	mu          sync.Mutex
	samples     map[string]*sample // by cgroup path
	sums        map[string]*podSum // by pod id
	nets        map[string]*netUse // by namespace path
	lastMetrics *metricsRun
	swept       time.Time
}

// sample is the last reading of a cgroup, and the rate since the one before.
// What it points to is never changed.
type sample struct {
	*usage
	rate  uint64 // nanoseconds of CPU a second
	asked time.Time
}

// New looks at the machine's cgroups once.
func New(o *Options) *Collector {
	root := o.CgroupRoot
	if root == "" {
		root = "/sys/fs/cgroup"
	}
	h := findHierarchy(root)
	if len(h.dirs) == 0 {
		slog.Warn("no cgroups: there will be no usage figures", "path", root)
	}
	return &Collector{
		pods:    o.Pods,
		storage: o.Storage,
		cgroups: h,
		psi:     h.hasPSI(),
		layers:  newLayers(o.Layer),
		slots:   make(chan struct{}, parallel),
		samples: map[string]*sample{},
		sums:    map[string]*podSum{},
		nets:    map[string]*netUse{},
	}
}

// sample returns a reading of a cgroup that is at most a second old; nil when it
// is not there, or when ctx ended. started is when its processes began: what
// the first rate is counted from.
func (c *Collector) sample(ctx context.Context, path string, started time.Time) *sample {
	if path == "" || path == "/" {
		return nil
	}
	now := time.Now()
	c.mu.Lock()
	c.sweep(now)
	s := c.samples[path]
	if s != nil {
		s.asked = now
	}
	c.mu.Unlock()
	if s != nil && now.Sub(s.at) < fresh {
		return s
	}
	ch := c.flight.DoChan("cgroup "+path, func() (any, error) { return c.refresh(path, started), nil })
	select {
	case r := <-ch:
		return r.Val.(*sample)
	case <-ctx.Done():
		return nil
	}
}

func (c *Collector) refresh(path string, started time.Time) *sample {
	c.slots <- struct{}{}
	u := c.cgroups.read(path)
	<-c.slots
	c.mu.Lock()
	defer c.mu.Unlock()
	if u == nil {
		delete(c.samples, path)
		return nil
	}
	s := follow(c.samples[path], u, started)
	c.samples[path] = s
	return s
}

// follow makes a sample of a reading and the one before.
func follow(old *sample, u *usage, started time.Time) *sample {
	s := &sample{usage: u, asked: u.at}
	if old == nil {
		if !started.IsZero() {
			s.rate = rate(u.cpu, u.at.Sub(started))
		}
		return s
	}
	if u.cpu < old.cpu {
		// Some kernels let the sum over CPUs waver.
		u.cpu = old.cpu
	}
	u.cpuUser, u.cpuSystem = max(u.cpuUser, old.cpuUser), max(u.cpuSystem, old.cpuSystem)
	s.rate = rate(u.cpu-old.cpu, u.at.Sub(old.at))
	return s
}

// rate is CPU time a second.
func rate(cpu uint64, span time.Duration) uint64 {
	if span <= 0 {
		return 0
	}
	return uint64(float64(cpu) / span.Seconds())
}

// sweep forgets what nobody asked for. mu is held.
func (c *Collector) sweep(now time.Time) {
	if now.Sub(c.swept) < forget/5 {
		return
	}
	c.swept = now
	for k, s := range c.samples {
		if now.Sub(s.asked) > forget {
			delete(c.samples, k)
		}
	}
	for k, s := range c.sums {
		if now.Sub(s.asked) > forget {
			delete(c.sums, k)
		}
	}
	for k, n := range c.nets {
		if now.Sub(n.at) > forget {
			delete(c.nets, k)
		}
	}
	c.layers.sweep(now)
}

// where is what the ledger says of a container's place on the machine.
type where struct {
	CgroupsPath string `json:"cgroupsPath"`
	Snapshot    string `json:"snapshot"`
}

// place reads the ledger; it is empty when the container holds nothing (any
// more).
func place(c *keeper.Container) where {
	var w where
	if d := c.Holdings[pod.Rootfs].Data; len(d) > 0 {
		_ = json.Unmarshal(d, &w) // an unreadable entry is a container without figures
	}
	return w
}

// netPath is the path of a pod's network namespace, "" when it is the host's or
// there is none any more.
func netPath(p *keeper.Pod) string {
	if p.Traits.HostNetwork {
		return ""
	}
	var paths namespaces.Paths
	if d := p.Holdings[pod.Namespaces].Data; len(d) > 0 {
		_ = json.Unmarshal(d, &paths)
	}
	return paths.Net
}

// running tells whether a container has processes to measure.
func running(c *keeper.Container) bool {
	return c.Status() == pod.ContainerStateRunning
}

func podRecord(p *keeper.Pod) *record.Pod {
	if r, ok := p.Decoded.(*record.Pod); ok && r != nil {
		return r
	}
	return &record.Pod{}
}

func containerRecord(c *keeper.Container) *record.Container {
	if r, ok := c.Decoded.(*record.Container); ok && r != nil {
		return r
	}
	return &record.Container{}
}
