package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subject is a runtime under measurement.
type subject struct {
	rt       cri.RuntimeServiceClient
	endpoint string
	name     string
	series   map[string]*series
	order    []string
}

func connect(ctx context.Context, endpoint string) (*subject, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	s := &subject{rt: cri.NewRuntimeServiceClient(conn), endpoint: endpoint, series: map[string]*series{}}
	v, err := s.rt.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, err
	}
	s.name = v.RuntimeName + " " + v.RuntimeVersion
	if _, err := cri.NewImageServiceClient(conn).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: *image}}); err != nil {
		return nil, fmt.Errorf("pull %s: %w", *image, err)
	}
	return s, nil
}

// pod is one pod of a subject, with a folder that its containers see as /bench.
type pod struct {
	s       *subject
	id, dir string
	cfg     *cri.PodSandboxConfig
	n       int
}

func (s *subject) pod(ctx context.Context, uid string) (*pod, error) {
	dir := filepath.Join(*logs, uid)
	if err := os.MkdirAll(dir+"/bench", 0o755); err != nil {
		return nil, err
	}
	p := &pod{s: s, dir: dir, cfg: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: uid, Namespace: "logbench", Uid: uid},
		LogDirectory: dir,
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}}
	r, err := s.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.cfg, RuntimeHandler: *handler})
	if err != nil {
		return nil, err
	}
	p.id = r.PodSandboxId
	return p, nil
}

func (p *pod) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p.s.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	p.s.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	os.RemoveAll(p.dir)
}

// container is one that waits until it may go.
type container struct {
	p            *pod
	id, log, key string
}

// run starts a container; the last word of its command names what it waits for.
func (p *pod) run(ctx context.Context, cmd ...string) (*container, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p.n++
	c := &container{p: p, key: strconv.Itoa(p.n)}
	if cmd == nil {
		cmd = []string{"sleep", "3600"}
	} else {
		cmd = append(append([]string{"/logbench", "write"}, cmd...), c.key)
	}
	cfg := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c" + c.key},
		Image:    &cri.ImageSpec{Image: *image},
		Command:  cmd,
		LogPath:  c.key + ".log",
		Mounts: []*cri.Mount{
			{ContainerPath: "/logbench", HostPath: self, Readonly: true},
			{ContainerPath: "/bench", HostPath: p.dir + "/bench", Readonly: true},
		},
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: p.cfg.Linux.SecurityContext.NamespaceOptions}},
	}
	r, err := p.s.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.cfg, Config: cfg})
	if err != nil {
		return nil, err
	}
	c.id, c.log = r.ContainerId, filepath.Join(p.dir, cfg.LogPath)
	if _, err := p.s.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id}); err != nil {
		return nil, err
	}
	time.Sleep(200 * time.Millisecond) // its program is up, and the machine calm
	return c, nil
}

func (c *container) begin() error {
	return os.WriteFile(filepath.Join(c.p.dir, "bench", "go-"+c.key), nil, 0o644)
}

func (c *container) remove(ctx context.Context) error {
	defer os.Remove(c.log)
	if _, err := c.p.s.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: 1}); err != nil {
		return err
	}
	// containerd needs a moment to see that a container has ended.
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := c.p.s.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
		if err == nil || time.Now().After(until) {
			return err
		}
	}
}
