package effects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/ocispec"
	"berth/internal/record"
)

// rootfs is all that a container needs before it can start: its root file
// system, mounted, the images that it mounts, its volumes, and the OCI bundle.
type rootfs struct{ m *Machine }

// Take makes the bundle.
func (r *rootfs) Take(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	rec, err := containerRecord(j)
	if err != nil {
		return nil, err
	}
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	h, err := r.m.handler(j)
	if err != nil {
		return nil, err
	}
	img, err := r.m.d.Images.Get(ctx, rec.ImageID)
	if err != nil {
		return nil, fmt.Errorf("image %s of container %s: %w", rec.ImageRef, rec.Config.GetMetadata().GetName(), err)
	}
	uids, gids, err := ocispec.IDMappings(nsOptions(cfg))
	if err != nil {
		return nil, err
	}
	opts := &image.RootfsOptions{UIDs: uids, GIDs: gids}
	id, bundle := j.Container.ID, r.m.bundle(j.Pod.ID, j.Container.ID)
	data := &record.Rootfs{
		Bundle: bundle, Rootfs: filepath.Join(bundle, "rootfs"), Snapshot: id,
		Volumes:     filepath.Join(r.m.persistent(j.Pod.ID), "containers", id, "volumes"),
		ImageMounts: map[string]string{},
	}
	if err := os.MkdirAll(data.Rootfs, 0o711); err != nil {
		return nil, fmt.Errorf("create the bundle: %w", err)
	}
	mounts, err := r.m.d.Images.PrepareRootfs(ctx, id, rec.ImageID, opts)
	if err != nil {
		return nil, fmt.Errorf("prepare the root file system: %w", err)
	}
	if err := r.m.d.Images.Mount(ctx, mounts, data.Rootfs); err != nil {
		return nil, fmt.Errorf("mount the root file system: %w", err)
	}
	if err := r.imageVolumes(ctx, j, rec, data, opts); err != nil {
		return nil, err
	}
	ns, err := r.m.joined(j)
	if err != nil {
		return nil, err
	}
	target, err := r.m.target(ctx, j, rec.Config)
	if err != nil {
		return nil, err
	}
	req := &ocispec.Request{
		PodID: j.Pod.ID, ContainerID: id, Pod: cfg, Container: rec.Config, Image: &img.Config.Config,
		Rootfs: data.Rootfs, Namespaces: ns, TargetPIDNS: target,
		Files: ocispec.Files{
			Hostname: r.m.etc(j.Pod.ID, "hostname"), Hosts: r.m.etc(j.Pod.ID, "hosts"), ResolvConf: r.m.etc(j.Pod.ID, "resolv.conf"),
			Shm: r.m.shm(j.Pod.ID),
		},
		ImageVolumes: data.ImageMounts, VolumeDir: data.Volumes, Systemd: h.Systemd,
		CgroupsPath:                  cgroup(cfg, h, id),
		PrivilegedWithoutHostDevices: h.PrivilegedWithoutHostDevices, DefaultSeccomp: r.m.d.DefaultSeccomp, Host: h.Host,
	}
	spec, err := ocispec.Build(ctx, req)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the OCI spec: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600); err != nil {
		return nil, fmt.Errorf("write the OCI spec: %w", err)
	}
	data.CgroupsPath = spec.Linux.CgroupsPath
	data.User = ocispec.User(spec).GetLinux()
	return taken(data)
}

// cgroup names the cgroup of a container in a pod without a cgroup parent: one
// of its own at the top, so that no empty parent is left behind. Otherwise the
// spec finds the place.
func cgroup(cfg *runtime.PodSandboxConfig, h *Handler, id string) string {
	if cfg.GetLinux().GetCgroupParent() == "" && !h.Systemd {
		return "/berth-" + id
	}
	return ""
}

// imageVolumes mounts the images that the container mounts, each for itself.
func (r *rootfs) imageVolumes(ctx context.Context, j *keeper.Job, rec *record.Container, data *record.Rootfs, opts *image.RootfsOptions) error {
	for i, m := range rec.Config.GetMounts() {
		img, ok := rec.ImageVolumes[i]
		if !ok {
			continue
		}
		mounts, err := r.m.d.Images.PrepareView(ctx, imageKey(j.Container.ID, i), img, opts)
		if err != nil {
			return fmt.Errorf("prepare image volume %s for %s: %w", m.GetImage().GetImage(), m.GetContainerPath(), err)
		}
		target := r.imageMount(j, i)
		if err := os.MkdirAll(target, 0o711); err != nil {
			return fmt.Errorf("create the mount point of an image volume: %w", err)
		}
		if err := r.m.d.Images.Mount(ctx, mounts, target); err != nil {
			return fmt.Errorf("mount image volume %s for %s: %w", m.GetImage().GetImage(), m.GetContainerPath(), err)
		}
		data.ImageMounts[m.GetContainerPath()] = target
	}
	return nil
}

// imageInfix joins a container's id and the position of the mount in the key of
// an image volume.
const imageInfix = "-image-"

func imageKey(container string, i int) string { return container + imageInfix + strconv.Itoa(i) }

func (r *rootfs) imageMount(j *keeper.Job, i int) string {
	return filepath.Join(r.m.bundle(j.Pod.ID, j.Container.ID), "images", strconv.Itoa(i))
}

// Probe makes it anew: a bundle is cheap, and half of one is of no use.
func (r *rootfs) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	_, err := r.Give(ctx, j)
	return nil, err
}

// Give unmounts and removes everything that Take may have made.
func (r *rootfs) Give(ctx context.Context, j *keeper.Job) (*keeper.Exit, error) {
	bundle := r.m.bundle(j.Pod.ID, j.Container.ID)
	var errs []error
	if rec, err := containerRecord(j); err == nil {
		for i := range rec.ImageVolumes {
			errs = append(errs, r.m.d.Images.Unmount(ctx, r.imageMount(j, i)), r.m.d.Images.RemoveRootfs(ctx, imageKey(j.Container.ID, i)))
		}
	}
	errs = append(errs, r.m.d.Images.Unmount(ctx, filepath.Join(bundle, "rootfs")))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return nil, errors.Join(
		r.m.d.Images.RemoveRootfs(ctx, j.Container.ID),
		removeAll(bundle),
		removeAll(filepath.Join(r.m.persistent(j.Pod.ID), "containers", j.Container.ID)),
	)
}
