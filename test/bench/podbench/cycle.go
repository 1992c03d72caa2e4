package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cycle runs one pod from RunPodSandbox to RemovePodSandbox.
func (s *subject) cycle(ctx context.Context, id string, to *samples) error {
	uid := fmt.Sprintf("podbench-%d-%s", os.Getpid(), id)
	dir := filepath.Join(*logs, uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cfg := podConfig(uid, dir)

	begin := time.Now()
	timed := func(k string, f func() error) error {
		t := time.Now()
		err := f()
		to.add(k, time.Since(t))
		if err != nil {
			return fmt.Errorf("%s: %s: %w", uid, k, err)
		}
		return nil
	}
	var pod, ctr string
	if err := timed("1 RunPodSandbox", func() error {
		r, err := s.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: *handler})
		pod = r.GetPodSandboxId()
		return err
	}); err != nil {
		return err
	}
	if err := timed("2 CreateContainer", func() error {
		r, err := s.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: container()})
		ctr = r.GetContainerId()
		return err
	}); err != nil {
		return err
	}
	if err := timed("3 StartContainer", func() error {
		_, err := s.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: ctr})
		return err
	}); err != nil {
		return err
	}
	path := filepath.Join(dir, "c.log")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte("ready")) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: no log line after a minute", uid)
		}
	}
	to.add("0 pod to first log line", time.Since(begin))
	if err := timed("4 ExecSync", func() error {
		r, err := s.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"true"}, Timeout: 30})
		if err == nil && r.ExitCode != 0 {
			return fmt.Errorf("exit code %d", r.ExitCode)
		}
		return err
	}); err != nil {
		return err
	}
	steps := []struct {
		k string
		f func() error
	}{
		{"5 StopContainer", func() error {
			_, err := s.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: ctr, Timeout: 10})
			return err
		}},
		{"6 RemoveContainer", func() error {
			_, err := s.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: ctr})
			return err
		}},
		{"7 StopPodSandbox", func() error {
			_, err := s.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod})
			return err
		}},
		{"8 RemovePodSandbox", func() error {
			_, err := s.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod})
			return err
		}},
	}
	for _, st := range steps {
		if err := timed(st.k, st.f); err != nil {
			return err
		}
	}
	to.add("9 whole cycle", time.Since(begin))
	return nil
}

func podConfig(uid, dir string) *cri.PodSandboxConfig {
	cfg := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: uid, Namespace: "podbench", Uid: uid},
		LogDirectory: dir,
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}
	return cfg
}

func container() *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"},
		Image:    &cri.ImageSpec{Image: *image},
		Command:  []string{"sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 3600 & wait $!; done"},
		LogPath:  "c.log",
		Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: podConfig("", "").Linux.SecurityContext.NamespaceOptions}},
	}
}
