package stats

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

// fakePods is a keeper with what a test puts in.
type fakePods struct{ pods []*keeper.Pod }

func (f *fakePods) Pods() []*keeper.Pod { return f.pods }

func (f *fakePods) Pod(id string) (*keeper.Pod, error) {
	for _, p := range f.pods {
		if p.ID == id {
			return p, nil
		}
	}
	return nil, fmt.Errorf("pod %s: %w", id, errdefs.ErrNotFound)
}

func (f *fakePods) Container(id string) (*keeper.Pod, *keeper.Container, error) {
	for _, p := range f.pods {
		for _, c := range p.Containers {
			if c.ID == id {
				return p, c, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// addPod adds a pod that is ready.
func (f *fakePods) addPod(id, cgroupParent, netns string) *keeper.Pod {
	p := &keeper.Pod{
		State: &pod.State{ID: id, CreatedAt: time.Now().Add(-time.Minute), ReadyAt: time.Now(), Holdings: map[pod.Resource]pod.Holding{}},
		Decoded: &record.Pod{Config: &cri.PodSandboxConfig{
			Metadata:    &cri.PodSandboxMetadata{Name: id + "-name", Namespace: "ns", Uid: "uid-" + id},
			Labels:      map[string]string{"l": "v"},
			Annotations: map[string]string{"a": "v"},
			Linux:       &cri.LinuxPodSandboxConfig{CgroupParent: cgroupParent},
		}},
	}
	if netns != "" {
		p.Holdings[pod.Namespaces] = hold(map[string]string{"net": netns})
	}
	f.pods = append(f.pods, p)
	return p
}

// addContainer adds a container that runs in a cgroup.
func addContainer(p *keeper.Pod, id, cgroup string) *keeper.Container {
	c := &keeper.Container{
		Container: &pod.Container{ID: id, CreatedAt: time.Now(), StartedAt: time.Now().Add(-10 * time.Second), Pid: os.Getpid(),
			Holdings: map[pod.Resource]pod.Holding{pod.Rootfs: hold(&record.Rootfs{CgroupsPath: cgroup, Snapshot: "snap-" + id})}},
		PodID: p.ID,
		Decoded: &record.Container{Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: id + "-name"},
			Image:    &cri.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "app:1"},
			Labels:   map[string]string{"l": "v"},
		}},
	}
	p.Containers = append(p.Containers, c)
	return c
}

func hold(v any) pod.Holding {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return pod.Holding{Phase: pod.Held, Data: b}
}

// write makes files of a fake tree; a cgroup's counters are those of a container
// with numbers of its own.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var v2Files = map[string]string{
	"cpu.stat":            "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 6000000\n",
	"cpu.max":             "20000 100000\n",
	"cpu.weight":          "39\n",
	"cpu.pressure":        "some avg10=1.50 avg60=0.30 avg300=0.10 total=7000000\nfull avg10=0.50 avg60=0.20 avg300=0.00 total=2000000\n",
	"memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
	"io.pressure":         "some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4000000\n",
	"memory.current":      "10000000\n",
	"memory.peak":         "12000000\n",
	"memory.max":          "64000000\n",
	"memory.low":          "max\n",
	"memory.swap.current": "4096\n",
	"memory.swap.max":     "max\n",
	"memory.stat":         "anon 3000000\nfile 5000000\nkernel 700000\nfile_mapped 60000\ninactive_file 4000000\nactive_file 1000000\npgfault 77\npgmajfault 5\n",
	"memory.events":       "low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n",
	"io.stat":             "253:0 rbytes=1000 wbytes=2000 rios=3 wios=4 dbytes=0 dios=0\n7:0 rbytes=5 wbytes=6 rios=7 wios=8\n",
	"pids.current":        "6\n",
	"pids.max":            "100\n",
	"cgroup.procs":        "",
}

// fakeV2 is an empty unified hierarchy.
func fakeV2(t testing.TB) string {
	root := t.TempDir()
	write(t, root, map[string]string{"cgroup.controllers": "cpu memory io pids\n"})
	return root
}

// fakeV1 puts a cgroup into a v1 hierarchy at root.
func fakeV1(t testing.TB, root, path string) {
	for controller, files := range map[string]map[string]string{
		"cpu,cpuacct": {
			"cpuacct.usage": "5000000000\n", "cpuacct.usage_user": "3000000000\n", "cpuacct.usage_sys": "2000000000\n",
			"cpu.stat":         "nr_periods 10\nnr_throttled 4\nthrottled_time 6000000000\n",
			"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpu.shares": "1024\n",
		},
		"memory": {
			"memory.usage_in_bytes": "10000000\n", "memory.max_usage_in_bytes": "12000000\n",
			"memory.limit_in_bytes": "64000000\n", "memory.soft_limit_in_bytes": "9223372036854771712\n",
			"memory.failcnt": "9\n", "memory.kmem.usage_in_bytes": "700000\n",
			"memory.memsw.usage_in_bytes": "10004096\n", "memory.memsw.limit_in_bytes": "80000000\n",
			"memory.stat":        "rss 1\ntotal_rss 3000000\ntotal_cache 5000000\ntotal_mapped_file 60000\ntotal_inactive_file 4000000\ntotal_active_file 1000000\ntotal_pgfault 77\ntotal_pgmajfault 5\ntotal_swap 4096\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		},
		"pids": {"pids.current": "6\n", "pids.max": "max\n", "cgroup.procs": "1\n2\n3\n"},
		"blkio": {
			"blkio.throttle.io_service_bytes_recursive": "253:0 Read 1000\n253:0 Write 2000\n253:0 Sync 0\n253:0 Total 3000\nTotal 3000\n",
			"blkio.throttle.io_serviced_recursive":      "253:0 Read 3\n253:0 Write 4\nTotal 7\n",
		},
	} {
		write(t, filepath.Join(root, controller, path), files)
	}
}

func number(t *testing.T, what string, got *cri.UInt64Value, want uint64) {
	t.Helper()
	if got == nil || got.Value != want {
		t.Errorf("%s is %v, want %d", what, got, want)
	}
}
