package image

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// rootPrefix begins the keys of snapshots that are root file systems.
const rootPrefix = "berth-rootfs-"

// snapshotRoots makes root file systems as snapshots of containerd's, for every
// snapshotter that is not overlayfs.
type snapshotRoots struct{ s *Service }

func (r *snapshotRoots) ready(context.Context, string) error { return nil }
func (r *snapshotRoots) sweep(context.Context) error         { return nil }

func (r *snapshotRoots) prepare(ctx context.Context, key string, img *Image, o *RootfsOptions) ([]mount.Mount, error) {
	if len(o.UIDs) > 0 {
		return nil, fmt.Errorf("snapshotter %s cannot map ids: %w", r.s.cfg.Snapshotter, errdefs.ErrNotImplemented)
	}
	create := r.s.sn.Prepare
	if o.ReadOnly {
		create = r.s.sn.View
	}
	mounts, err := create(leases.WithLease(ctx, leaseRootfs), rootPrefix+key, img.ChainID)
	if !errdefs.IsAlreadyExists(err) {
		return mounts, err
	}
	info, err := r.s.sn.Stat(ctx, rootPrefix+key)
	if err != nil {
		return nil, err
	}
	if info.Parent != img.ChainID || (info.Kind == snapshots.KindView) != o.ReadOnly {
		return nil, fmt.Errorf("it was made from layers %s: %w", info.Parent, errdefs.ErrAlreadyExists)
	}
	return r.s.sn.Mounts(ctx, rootPrefix+key)
}

func (r *snapshotRoots) remove(ctx context.Context, key string) error {
	err := r.s.sn.Remove(ctx, rootPrefix+key)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil {
		r.s.collectSoon()
	}
	return err
}

func (r *snapshotRoots) usage(ctx context.Context, key string) (bytes, inodes uint64, err error) {
	u, err := r.s.sn.Usage(ctx, rootPrefix+key)
	return uint64(u.Size), uint64(u.Inodes), err
}

func (r *snapshotRoots) keys() []string { return nil }
