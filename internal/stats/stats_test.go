package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestContainerUnified(t *testing.T) {
	root := fakeV2(t)
	dir := filepath.Join(root, "kubepods/pod1/c1")
	write(t, dir, v2Files)
	write(t, filepath.Join(dir, "made-by-the-container"), map[string]string{"cgroup.procs": "7\n8\n"})
	pods := &fakePods{}
	p := pods.addPod("p1", "", "")
	addContainer(p, "c1", "/kubepods/pod1/c1")
	c := New(&Options{Pods: pods, CgroupRoot: root, Storage: "/images",
		Layer: func(_ context.Context, key string) (uint64, uint64, error) {
			if key != "snap-c1" {
				t.Errorf("measured %q", key)
			}
			return 4096, 3, nil
		}})
	before := time.Now().UnixNano()
	s, err := c.Container(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if s.Attributes.Id != "c1" || s.Attributes.Metadata.Name != "c1-name" || s.Attributes.Labels["l"] != "v" {
		t.Errorf("attributes %v", s.Attributes)
	}
	number(t, "cpu", s.Cpu.UsageCoreNanoSeconds, 5e9)
	if r := s.Cpu.UsageNanoCores.Value; r < 4e8 || r > 5e8 { // 5 s of CPU in 10 s
		t.Errorf("the first rate is %d", r)
	}
	number(t, "memory", s.Memory.UsageBytes, 10000000)
	number(t, "working set", s.Memory.WorkingSetBytes, 6000000)
	number(t, "available", s.Memory.AvailableBytes, 58000000)
	number(t, "rss", s.Memory.RssBytes, 3000000)
	number(t, "faults", s.Memory.PageFaults, 77)
	number(t, "major faults", s.Memory.MajorPageFaults, 5)
	number(t, "swap", s.Swap.SwapUsageBytes, 4096)
	if s.Swap.SwapAvailableBytes != nil {
		t.Errorf("swap without a limit has %v left", s.Swap.SwapAvailableBytes)
	}
	number(t, "layer", s.WritableLayer.UsedBytes, 4096)
	number(t, "layer inodes", s.WritableLayer.InodesUsed, 3)
	if s.WritableLayer.FsId.Mountpoint != "/images" {
		t.Errorf("file system %v", s.WritableLayer.FsId)
	}
	if p := s.Cpu.Psi; p.GetSome().GetTotal() != 7e9 || p.GetFull().GetTotal() != 2e9 || p.GetSome().GetAvg10() != 1.5 || p.GetSome().GetAvg60() != 0.3 {
		t.Errorf("cpu pressure %v", p)
	}
	if s.Memory.Psi.GetSome().GetTotal() != 3e9 || s.Io.GetPsi().GetFull().GetTotal() != 4e9 {
		t.Errorf("pressure %v %v", s.Memory.Psi, s.Io)
	}
	for what, at := range map[string]int64{"cpu": s.Cpu.Timestamp, "memory": s.Memory.Timestamp, "swap": s.Swap.Timestamp, "io": s.Io.Timestamp, "layer": s.WritableLayer.Timestamp} {
		if at < before || at > time.Now().UnixNano() {
			t.Errorf("%s is of %d", what, at)
		}
	}
	if u := c.cgroups.read("/kubepods/pod1/c1"); u.processes != 2 || u.threads != 6 || u.shares != 305 {
		t.Errorf("%+v", u)
	}
}

func TestContainerV1(t *testing.T) {
	root := t.TempDir()
	fakeV1(t, root, "a.slice/a-b.slice/berth-c1.scope")
	pods := &fakePods{}
	p := pods.addPod("p1", "", "")
	addContainer(p, "c1", "a-b.slice:berth:c1")
	c := New(&Options{Pods: pods, CgroupRoot: root})
	s, err := c.Container(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	number(t, "cpu", s.Cpu.UsageCoreNanoSeconds, 5e9)
	number(t, "memory", s.Memory.UsageBytes, 10000000)
	number(t, "working set", s.Memory.WorkingSetBytes, 6000000)
	number(t, "available", s.Memory.AvailableBytes, 58000000)
	number(t, "rss", s.Memory.RssBytes, 3000000)
	number(t, "swap", s.Swap.SwapUsageBytes, 4096)
	number(t, "swap left", s.Swap.SwapAvailableBytes, 16000000-4096)
	if s.Cpu.Psi != nil || s.Io != nil {
		t.Errorf("pressure from nowhere: %v %v", s.Cpu.Psi, s.Io)
	}
	u := c.cgroups.read("/a.slice/a-b.slice/berth-c1.scope")
	if u.processes != 3 || u.threadsMax != 0 || u.quota != 0 || u.period != 100000 || u.memoryReserved != 0 || u.oomKills != 2 || u.throttled != 6e9 {
		t.Errorf("%+v", u)
	}
	if d := u.devices; len(d) != 1 || d[0] != (device{253, 0, 1000, 2000, 3, 4}) {
		t.Errorf("devices %v", d)
	}
}

// What ended or vanished is zeros, with a time, and no error; what never was is
// NotFound.
func TestGone(t *testing.T) {
	root := fakeV2(t)
	write(t, filepath.Join(root, "exited"), v2Files)
	pods := &fakePods{}
	p := pods.addPod("p1", "", "/nonexistent/netns")
	addContainer(p, "exited", "/exited").FinishedAt = time.Now()
	addContainer(p, "vanished", "/vanished")
	addContainer(p, "released", "/x").Holdings = nil
	addContainer(p, "undecodable", "/x").Decoded = nil
	c := New(&Options{Pods: pods, CgroupRoot: root})
	for _, k := range p.Containers {
		s, err := c.Container(t.Context(), k.ID)
		if err != nil {
			t.Errorf("%s: %v", k.ID, err)
			continue
		}
		number(t, k.ID+" cpu", s.Cpu.UsageCoreNanoSeconds, 0)
		number(t, k.ID+" memory", s.Memory.WorkingSetBytes, 0)
		if s.Attributes.Id != k.ID || s.Cpu.Timestamp == 0 || s.Memory.Timestamp == 0 || s.WritableLayer.Timestamp == 0 {
			t.Errorf("%s: %v", k.ID, s)
		}
	}
	s, err := c.Pod(t.Context(), "p1")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Linux.Containers) != 4 || s.Linux.Network != nil {
		t.Errorf("pod %v", s)
	}
	number(t, "pod cpu", s.Linux.Cpu.UsageCoreNanoSeconds, 0)
	if _, err := c.Container(t.Context(), "none"); !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Pod(t.Context(), "none"); !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestFollow(t *testing.T) {
	at := time.Now()
	use := func(cpu uint64, after time.Duration) *usage { return &usage{cpu: cpu, at: at.Add(after)} }
	s := follow(nil, use(3e9, 0), at.Add(-2*time.Second))
	if s.rate != 15e8 {
		t.Errorf("first rate %d", s.rate)
	}
	if s := follow(nil, use(3e9, 0), time.Time{}); s.rate != 0 {
		t.Errorf("a rate out of nowhere: %d", s.rate)
	}
	s = follow(s, use(4e9, 2*time.Second), time.Time{})
	if s.rate != 5e8 {
		t.Errorf("rate %d", s.rate)
	}
	// Backwards: held, and no huge number comes of it.
	s = follow(s, use(4e9-1000, 3*time.Second), time.Time{})
	if s.cpu != 4e9 || s.rate != 0 {
		t.Errorf("cpu %d, rate %d", s.cpu, s.rate)
	}
	if s = follow(s, use(5e9, 3*time.Second), time.Time{}); s.rate != 0 {
		t.Errorf("a rate over no time: %d", s.rate)
	}
}

func TestPodSum(t *testing.T) {
	p := &podSum{last: map[string]uint64{}}
	part := func(cpu uint64) *sample { return &sample{usage: &usage{cpu: cpu, memory: 10, at: time.Now()}, rate: 5} }
	if s := p.add(map[string]*sample{"a": part(100), "b": part(50)}); s.cpu != 150 || s.memory != 20 || s.rate != 10 {
		t.Errorf("%+v", s)
	}
	// b is gone, with its memory; what it used stays counted.
	if s := p.add(map[string]*sample{"a": part(120)}); s.cpu != 170 || s.memory != 10 {
		t.Errorf("%+v", s)
	}
	if s := p.add(map[string]*sample{"a": part(120), "c": part(7)}); s.cpu != 177 {
		t.Errorf("%+v", s)
	}
}

// The kubelet's cgroup is the pod's; a parent that pods share is not.
func TestPodCgroup(t *testing.T) {
	root := fakeV2(t)
	write(t, filepath.Join(root, "kubepods.slice/kubepods-poduid_p1.slice"), v2Files)
	write(t, filepath.Join(root, "shared"), v2Files)
	small := map[string]string{"cpu.stat": "usage_usec 1000\n", "memory.current": "500\n", "cgroup.procs": "1\n"}
	write(t, filepath.Join(root, "shared/c2"), small)
	write(t, filepath.Join(root, "shared/c3"), small)
	pods := &fakePods{}
	pods.addPod("p1", "kubepods-poduid_p1.slice", "")
	p2 := pods.addPod("p2", "/shared", "")
	addContainer(p2, "c2", "/shared/c2")
	addContainer(p2, "c3", "/shared/c3")
	c := New(&Options{Pods: pods, CgroupRoot: root})
	s, err := c.Pod(t.Context(), "p1")
	if err != nil {
		t.Fatal(err)
	}
	number(t, "own cgroup", s.Linux.Cpu.UsageCoreNanoSeconds, 5e9)
	if s.Attributes.Metadata.Name != "p1-name" || s.Attributes.Annotations["a"] != "v" {
		t.Errorf("attributes %v", s.Attributes)
	}
	if s, err = c.Pod(t.Context(), "p2"); err != nil {
		t.Fatal(err)
	}
	number(t, "summed cpu", s.Linux.Cpu.UsageCoreNanoSeconds, 2000000)
	number(t, "summed memory", s.Linux.Memory.UsageBytes, 1000)
	number(t, "processes", s.Linux.Process.ProcessCount, 2)
	if len(s.Linux.Containers) != 2 || s.Linux.Process.Timestamp == 0 {
		t.Errorf("%v", s.Linux)
	}
}

func TestPaths(t *testing.T) {
	for in, want := range map[string]string{
		"/kubepods/x/c": "/kubepods/x/c", "x/c": "/x/c", "system.slice:berth:c": "/system.slice/berth-c.scope",
		"a-b-c.slice::c": "/a.slice/a-b.slice/a-b-c.slice/c.scope", "-.slice:p:c": "/p-c.scope",
	} {
		if got := containerCgroup(in); got != want {
			t.Errorf("container %q: %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"": "", "/kubepods/burstable/podx": "/kubepods/burstable/podx", "kubepods-burstable.slice": "/kubepods.slice/kubepods-burstable.slice",
		"/a.slice/a-b.slice": "/a.slice/a-b.slice",
	} {
		if got := podCgroup(in); got != want {
			t.Errorf("pod %q: %q, want %q", in, got, want)
		}
	}
}

// A reading is good for a second, then it is made anew; many who ask at once
// share one.
func TestFreshness(t *testing.T) {
	root := fakeV2(t)
	dir := filepath.Join(root, "c1")
	write(t, dir, v2Files)
	pods := &fakePods{}
	addContainer(pods.addPod("p1", "", ""), "c1", "/c1")
	c := New(&Options{Pods: pods, CgroupRoot: root})
	ask := func() (uint64, int64) {
		s, err := c.Container(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		return s.Memory.UsageBytes.Value, s.Memory.Timestamp
	}
	_, first := ask()
	write(t, dir, map[string]string{"memory.current": "11\n"})
	if v, at := ask(); v != 10000000 || at != first {
		t.Errorf("not the kept reading: %d of %d", v, at)
	}
	time.Sleep(fresh + 10*time.Millisecond)
	var wg sync.WaitGroup
	var times sync.Map
	for range 50 {
		wg.Go(func() {
			v, at := ask()
			if v != 11 {
				t.Errorf("an old reading: %d", v)
			}
			times.Store(at, true)
		})
	}
	wg.Wait()
	n := 0
	times.Range(func(any, any) bool { n++; return true })
	if n > 3 { // one, unless the machine is too busy to ask 50 times in a second
		t.Errorf("%d readings for 50 at once", n)
	}
	// A caller whose time is up waits no longer.
	time.Sleep(fresh + 10*time.Millisecond)
	for range parallel {
		c.slots <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if s, err := c.Container(ctx, "c1"); err != nil || s.Memory.UsageBytes.Value != 0 {
		t.Errorf("%v %v", s, err)
	}
	for range parallel {
		<-c.slots
	}
}

// Measuring a writable layer is nobody's wait but the first one's, which is
// short; its figure is kept.
func TestLayers(t *testing.T) {
	var calls atomic.Int32
	release := make(chan struct{})
	ls := newLayers(func(ctx context.Context, key string) (uint64, uint64, error) {
		if key == "bad" {
			return 0, 0, fmt.Errorf("no such snapshot: %w", errdefs.ErrNotFound)
		}
		if calls.Add(1); key == "slow" {
			<-release
		}
		return 7, 2, nil
	})
	if l := ls.get(t.Context(), "quick"); l.bytes != 7 || l.inodes != 2 || l.at.IsZero() {
		t.Errorf("%+v", l)
	}
	start := time.Now()
	if l := ls.get(t.Context(), "slow"); l.bytes != 0 || l.at.IsZero() {
		t.Errorf("%+v", l)
	}
	if d := time.Since(start); d < firstWait || d > 20*firstWait {
		t.Errorf("waited %s", d)
	}
	for range 10 {
		ls.get(t.Context(), "quick")
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("measured %d times", n)
	}
	close(release)
	deadline := time.Now().Add(10 * time.Second)
	for ls.get(t.Context(), "slow").bytes != 7 {
		if time.Now().After(deadline) {
			t.Fatal("the slow one never came")
		}
		time.Sleep(time.Millisecond)
	}
	if l := ls.get(t.Context(), "bad"); l.bytes != 0 || l.at.IsZero() {
		t.Errorf("%+v", l)
	}
	if l := ls.get(t.Context(), ""); l.at.IsZero() {
		t.Errorf("%+v", l)
	}
	ls.sweep(time.Now().Add(2 * forget))
	if len(ls.byID) != 0 {
		t.Errorf("%d are kept", len(ls.byID))
	}
}

// What nobody asks for is forgotten.
func TestSweep(t *testing.T) {
	root := fakeV2(t)
	write(t, filepath.Join(root, "c1"), v2Files)
	pods := &fakePods{}
	p := pods.addPod("p1", "", "")
	addContainer(p, "c1", "/c1")
	c := New(&Options{Pods: pods, CgroupRoot: root})
	if _, err := c.Pod(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if len(c.samples) != 1 || len(c.sums) != 1 {
		t.Fatalf("%d samples, %d sums", len(c.samples), len(c.sums))
	}
	c.mu.Lock()
	c.sweep(time.Now().Add(2 * forget))
	c.mu.Unlock()
	if len(c.samples) != 0 || len(c.sums) != 0 {
		t.Errorf("%d samples, %d sums", len(c.samples), len(c.sums))
	}
}

func BenchmarkContainer300(b *testing.B) {
	root := fakeV2(b)
	pods := &fakePods{}
	for i := range 300 {
		path := fmt.Sprintf("/kubepods/pod%d/c", i)
		write(b, filepath.Join(root, path), v2Files)
		addContainer(pods.addPod(fmt.Sprintf("p%d", i), "", ""), fmt.Sprintf("c%d", i), path)
	}
	list := func(c *Collector) {
		for i := range 300 {
			if s, err := c.Container(b.Context(), fmt.Sprintf("c%d", i)); err != nil || s.Cpu.UsageCoreNanoSeconds.Value == 0 {
				b.Fatal(s, err)
			}
		}
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			list(New(&Options{Pods: pods, CgroupRoot: root}))
		}
	})
	b.Run("kept", func(b *testing.B) {
		c := New(&Options{Pods: pods, CgroupRoot: root})
		list(c)
		for _, s := range c.samples {
			s.at = s.at.Add(time.Hour) // good for the whole run
		}
		for b.Loop() {
			list(c)
		}
	})
	b.Run("metrics", func(b *testing.B) {
		for b.Loop() {
			c := New(&Options{Pods: pods, CgroupRoot: root, Storage: os.TempDir()})
			if m, err := c.Metrics(b.Context()); err != nil || len(m) != 300 {
				b.Fatal(len(m), err)
			}
		}
	})
}
