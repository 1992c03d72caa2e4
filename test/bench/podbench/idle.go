package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idle starts idle pods of one container each and sums the proportional set size
// of every process that came with them, by command.
func (s *subject) idle(ctx context.Context, count int) {
	before := procs()
	type pair struct{ pod, ctr string }
	var pods []pair
	for i := range count {
		uid := fmt.Sprintf("podbench-idle-%d-%d", os.Getpid(), i)
		dir := filepath.Join(*logs, uid)
		os.MkdirAll(dir, 0o755)
		cfg := podConfig(uid, dir)
		p, err := s.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: *handler})
		if err != nil {
			log.Fatal(err)
		}
		cr, err := s.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.PodSandboxId, SandboxConfig: cfg, Config: container()})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := s.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: cr.ContainerId}); err != nil {
			log.Fatal(err)
		}
		pods = append(pods, pair{p.PodSandboxId, cr.ContainerId})
	}
	time.Sleep(5 * time.Second)
	pss := map[string]int{}
	number := map[string]int{}
	for pid, comm := range procs() {
		if _, old := before[pid]; old || pid == os.Getpid() {
			continue
		}
		pss[comm] += readPss(pid)
		number[comm]++
	}
	comms := make([]string, 0, len(pss))
	for k := range pss {
		comms = append(comms, k)
	}
	sort.Slice(comms, func(i, j int) bool { return pss[comms[i]] > pss[comms[j]] })
	fmt.Printf("%s: %d idle pods\n", s.name, count)
	for _, k := range comms {
		fmt.Printf("%-20s %4d processes  %9.1f KiB PSS a pod\n", k, number[k], float64(pss[k])/float64(count))
	}
	for _, p := range pods {
		s.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.ctr, Timeout: 1})
		s.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: p.ctr})
		s.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.pod})
		s.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.pod})
	}
}

func procs() map[int]string {
	out := map[int]string{}
	es, _ := os.ReadDir("/proc")
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err != nil || len(b) == 0 {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err == nil {
			out[pid] = strings.TrimSpace(string(b))
		}
	}
	return out
}

func readPss(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "Pss:" {
			v, _ := strconv.Atoi(f[1])
			return v
		}
	}
	return 0
}
