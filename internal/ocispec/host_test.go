package ocispec

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

func TestProbe(t *testing.T) {
	h := testHost(t)
	if len(h.Capabilities) == 0 || len(h.CDIDirs) != 2 {
		t.Errorf("host %+v", h)
	}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	adj, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		t.Fatal(err)
	}
	if h.MinOOMScoreAdj > adj {
		t.Errorf("lowest oom_score_adj %d, but the process has %d", h.MinOOMScoreAdj, adj)
	}
	if os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(h.MinOOMScoreAdj)), 0) != nil {
		t.Errorf("oom_score_adj %d cannot be set", h.MinOOMScoreAdj)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", own, 0); err != nil {
		t.Error(err)
	}
}

func TestProbeControllers(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	h := &Host{}
	if err := h.probeControllers(v1, ""); err != nil || h.Swap || h.Hugetlb {
		t.Errorf("v1 with nothing: %+v, %v", h, err)
	}
	writeFile(t, v1+"/memory/memory.memsw.limit_in_bytes", "")
	writeFile(t, v1+"/hugetlb/tasks", "")
	if err := h.probeControllers(v1, ""); err != nil || !h.Swap || !h.Hugetlb {
		t.Errorf("v1: %+v, %v", h, err)
	}
	h = &Host{CgroupV2: true}
	if err := h.probeControllers(v2, "/own"); err == nil {
		t.Error("v2 without a list of controllers")
	}
	writeFile(t, v2+"/cgroup.controllers", "cpu\n")
	if err := h.probeControllers(v2, "/own"); err != nil || h.Swap || h.Hugetlb {
		t.Errorf("v2 with little: %+v, %v", h, err)
	}
	writeFile(t, v2+"/cgroup.controllers", "cpu hugetlb memory\n")
	// A kernel without swap limits, as our own cgroup shows, one above it, or one
	// beside it when we are in the root; and one with them.
	for _, swap := range []bool{false, true} {
		for _, where := range []string{"/own/below", "/own", "/beside"} {
			top := t.TempDir()
			writeFile(t, top+"/cgroup.controllers", "cpu hugetlb memory\n")
			writeFile(t, top+where+"/memory.max", "max\n")
			if swap {
				writeFile(t, top+where+"/memory.swap.max", "max\n")
			}
			own := "/own/below"
			if where == "/beside" {
				own = "/"
			}
			if err := h.probeControllers(top, own); err != nil || h.Swap != swap || !h.Hugetlb {
				t.Errorf("v2, %s, swap limits %v: %+v, %v", where, swap, h, err)
			}
		}
	}
}

func TestLimit(t *testing.T) {
	all := &Host{RecursiveReadOnly: true, IDMap: true, Seccomp: true, AppArmor: true, SELinux: true}
	yes, no := true, false
	can := func(b *bool) *features.Features {
		return &features.Features{
			MountOptions: []string{"ro", "rro"},
			Linux: &features.Linux{
				Seccomp: &features.Seccomp{Enabled: b}, Apparmor: &features.Apparmor{Enabled: b}, Selinux: &features.Selinux{Enabled: b},
				MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: b}},
			},
		}
	}
	if l := all.Limit(can(&yes)); !l.RecursiveReadOnly || !l.IDMap || !l.Seccomp || !l.AppArmor || !l.SELinux {
		t.Errorf("able runtime: %+v", l)
	}
	if l := all.Limit(can(&no)); l.IDMap || l.Seccomp || l.AppArmor || l.SELinux {
		t.Errorf("poor runtime: %+v", l)
	}
	if l := all.Limit(nil); l.RecursiveReadOnly || l.IDMap || !l.Seccomp {
		t.Errorf("silent runtime: %+v", l)
	}
	if l := (&Host{}).Limit(can(&yes)); l.RecursiveReadOnly || l.IDMap || l.Seccomp {
		t.Errorf("poor host: %+v", l)
	}
	if !all.IDMap {
		t.Error("Limit changed the host")
	}
}
