package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/record"
)

// CreateContainer makes a container in a pod that is ready. Its images are
// resolved to ids here, once and for all: a tag that moves later changes nothing.
// The pod's config is the one that the pod was made from, not the one that the
// request repeats.
func (s *Service) CreateContainer(ctx context.Context, r *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if !p.IsReady() {
		return nil, notReady("create container in", p)
	}
	rec, err := s.containerRecord(ctx, p, r.GetConfig())
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	name := containerName(rec.Config.Metadata, podConfig(p).Metadata)
	id, err := s.keeper.CreateContainer(ctx, &keeper.ContainerRequest{PodID: p.ID, Name: name, Config: raw})
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", name, err)
	}
	return &runtime.CreateContainerResponse{ContainerId: id}, nil
}

// containerRecord checks cfg and makes the record that the effects act on.
func (s *Service) containerRecord(ctx context.Context, p *keeper.Pod, cfg *runtime.ContainerConfig) (*record.Container, error) {
	cfg, err := s.validateContainer(p, cfg)
	if err != nil {
		return nil, err
	}
	img, err := s.images.Get(ctx, cfg.Image.Image)
	if err != nil {
		return nil, fmt.Errorf("config.image.image: %w", err)
	}
	rec := &record.Container{Config: cfg, ImageID: img.ID, ImageRef: cfg.Image.Image}
	if u := cfg.Image.UserSpecifiedImage; u != "" {
		rec.ImageRef = u
	}
	if rec.StopSignal, err = stopSignal("config.stop_signal", cfg.StopSignal, img.Config.Config.StopSignal); err != nil {
		return nil, err
	}
	if dir := podConfig(p).LogDirectory; dir != "" && cfg.LogPath != "" {
		rec.LogPath = filepath.Join(dir, cfg.LogPath)
	}
	for i, m := range cfg.Mounts {
		if m.Image == nil {
			continue
		}
		v, err := s.images.Get(ctx, m.Image.Image)
		if err != nil {
			return nil, fmt.Errorf("config.mounts[%d].image.image: %w", i, err)
		}
		if rec.ImageVolumes == nil {
			rec.ImageVolumes = map[int]string{}
		}
		rec.ImageVolumes[i] = v.ID
	}
	return rec, nil
}
