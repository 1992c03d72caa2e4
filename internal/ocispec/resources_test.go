package ocispec

import (
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestResources(t *testing.T) {
	type in = runtime.LinuxContainerResources
	for name, tc := range map[string]struct {
		in   *in
		host Host
		want string
	}{
		"nil":            {nil, Host{}, `{}`},
		"empty":          {&in{}, Host{Swap: true}, `{}`},
		"cpu":            {&in{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, CpusetCpus: "0-1", CpusetMems: "0"}, Host{}, `{"cpu":{"shares":512,"quota":50000,"period":100000,"cpus":"0-1","mems":"0"}}`},
		"no quota":       {&in{CpuQuota: -1}, Host{}, `{"cpu":{"quota":-1}}`},
		"memory":         {&in{MemoryLimitInBytes: 100}, Host{}, `{"memory":{"limit":100}}`},
		"no swap":        {&in{MemoryLimitInBytes: 100}, Host{Swap: true}, `{"memory":{"limit":100,"swap":100}}`},
		"swap":           {&in{MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 150}, Host{Swap: true}, `{"memory":{"limit":100,"swap":150}}`},
		"swap not there": {&in{MemorySwapLimitInBytes: 150}, Host{}, `{}`},
		"hugepages":      {&in{HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 4}}}, Host{Hugetlb: true}, `{"hugepageLimits":[{"pageSize":"2MB","limit":4}]}`},
		"no hugepages":   {&in{HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 4}}}, Host{}, `{}`},
		"unified":        {&in{Unified: map[string]string{"memory.high": "5"}}, Host{CgroupV2: true}, `{"unified":{"memory.high":"5"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Resources(tc.in, &tc.host)
			if err != nil {
				t.Fatal(err)
			}
			if s := jsonOf(t, got); s != tc.want {
				t.Errorf("%s, want %s", s, tc.want)
			}
		})
	}
	for field, l := range map[string]*in{
		"cpu_period":                 {CpuPeriod: -1},
		"cpu_quota":                  {CpuQuota: -2},
		"cpu_shares":                 {CpuShares: -1},
		"memory_limit_in_bytes":      {MemoryLimitInBytes: -2},
		"memory_swap_limit_in_bytes": {MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 50},
		"oom_score_adj":              {OomScoreAdj: -1001},
		"unified":                    {Unified: map[string]string{"../x": "1"}},
		"cpuset":                     {CpusetCpus: "0\n1"},
	} {
		r := testRequest(t)
		r.Host.CgroupV2 = true
		r.Container.Linux.Resources = l
		wantInvalid(t, r, field)
	}
	if _, err := Resources(&in{Unified: map[string]string{"memory.high": "5"}}, &Host{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unified on v1: %v", err)
	}
}

func TestCgroupsPath(t *testing.T) {
	for _, tc := range []struct {
		parent  string
		systemd bool
		want    string
	}{
		{"/kubepods/burstable/pod1", false, "/kubepods/burstable/pod1/id"},
		{"kubepods", false, "/kubepods/id"},
		{"", false, "/id"},
		{"/kubepods.slice/kubepods-pod1.slice", true, "kubepods-pod1.slice:berth:id"},
		{"kubepods-pod1.slice", true, "kubepods-pod1.slice:berth:id"},
		{"", true, "system.slice:berth:id"},
		{"/kubepods/pod1", true, ""},
	} {
		got, err := CgroupsPath(tc.parent, "id", tc.systemd)
		if got != tc.want || (tc.want == "") != errdefs.IsInvalidArgument(err) {
			t.Errorf("%q, systemd %v: %q, %v; want %q", tc.parent, tc.systemd, got, err, tc.want)
		}
	}
	r := testRequest(t)
	if got := mustBuild(t, r).Linux.CgroupsPath; got != "/berth/"+r.PodID+"/"+r.ContainerID {
		t.Errorf("without a parent: %q", got)
	}
	r.CgroupsPath = "/as/given"
	if got := mustBuild(t, r).Linux.CgroupsPath; got != "/as/given" {
		t.Errorf("given: %q", got)
	}
	r.Pod.Linux.CgroupParent = "/a/../../b"
	wantInvalid(t, r, "cgroup_parent")
}
