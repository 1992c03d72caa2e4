package image

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// extraction is the beginning of the keys the unpacker uses (snapshots.UnpackKeyFormat).
const extraction = snapshots.UnpackKeyPrefix + "-"

func (s *Service) unpacker(ctx context.Context, p *progress, limit unpack.Limiter) (*unpack.Unpacker, error) {
	u, err := unpack.NewUnpacker(ctx, s.cs,
		unpack.WithUnpackPlatform(unpack.Platform{
			// What fits this machine was chosen with the manifest.
			Platform:       platforms.All,
			SnapshotterKey: s.cfg.Snapshotter,
			Snapshotter:    s.sn,
			Applier:        &applier{Applier: apply.NewFileSystemApplier(s.cs), direct: s.cfg.Snapshotter == Overlay},
			ApplyOpts:      []diff.ApplyOpt{diff.WithProgress(p.applied)},
		}),
		unpack.WithLimiter(limit),
		unpack.WithDuplicationSuppressor(&s.locks),
	)
	if err != nil {
		return nil, fmt.Errorf("unpacker: %w", err)
	}
	return u, nil
}

// applier unpacks a layer. The lowest layer comes as a bind mount, which would
// be mounted for the time of unpacking and left over by a crash; named as an
// overlay's upper folder, it is written to directly.
type applier struct {
	diff.Applier
	direct bool
}

func (a *applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if a.direct && len(mounts) == 1 && mounts[0].Type == "bind" {
		mounts = []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"upperdir=" + mounts[0].Source}}}
	}
	return a.Applier.Apply(ctx, desc, mounts, opts...)
}

// unpacked reports whether the layers of a chain are there as a snapshot.
func (s *Service) unpacked(ctx context.Context, chainID string) (bool, error) {
	if chainID == "" {
		return true, nil
	}
	_, err := s.sn.Stat(ctx, chainID)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("snapshot %s: %w", chainID, err)
	}
	return true, nil
}

// ensureUnpacked unpacks an image from its content if its snapshot is missing.
// ctx carries a lease.
func (s *Service) ensureUnpacked(ctx context.Context, target ocispec.Descriptor, chainID string, p *progress) error {
	if ok, err := s.unpacked(ctx, chainID); err != nil || ok {
		return err
	}
	p.enter(StageUnpack)
	here := func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) { return nil, nil }
	if err := s.dispatch(ctx, target, p, here); err != nil {
		return fmt.Errorf("unpack %s: %w", target.Digest, err)
	}
	ok, err := s.unpacked(ctx, chainID)
	if err == nil && !ok {
		err = fmt.Errorf("unpack %s: no snapshot %s came of it: %w", target.Digest, chainID, errdefs.ErrInternal)
	}
	return err
}

// finish makes an image whose content is here usable: unpacked, on disk, then
// recorded under names and visible.
func (s *Service) finish(ctx context.Context, d *described, p *progress, names []string, labels map[string]string) (*Image, error) {
	if err := s.ensureUnpacked(ctx, d.target, d.chainID, p); err != nil {
		return nil, err
	}
	if s.cfg.SyncFS && !s.hasChain(d.chainID) { // else it was synced with the image that has it
		p.enter(StageSync)
		if err := s.syncSnapshots(); err != nil {
			return nil, err
		}
	}
	if err := s.rootfs.ready(ctx, d.chainID); err != nil {
		return nil, err
	}
	p.enter(StageRecord)
	return s.record(ctx, d, names, labels)
}

// syncSnapshots writes everything unpacked to disk. One call serves all layers
// of a pull, and those that it shares with a pull that still runs.
func (s *Service) syncSnapshots() error {
	dir, err := os.Open(s.snRoot)
	if err != nil {
		return fmt.Errorf("sync snapshots: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync snapshots: %w", err)
	}
	return nil
}

// record names an image, all names in one transaction, and shows it.
func (s *Service) record(ctx context.Context, d *described, names []string, labels map[string]string) (*Image, error) {
	if err := s.lockWrites(ctx); err != nil {
		return nil, err
	}
	defer s.unlockWrites()
	var records []images.Image
	err := s.db.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			img := images.Image{Name: name, Target: d.target, Labels: labels}
			saved, err := s.is.Update(ctx, img, "target")
			if err == nil && len(labels) > 0 {
				saved, err = s.is.Update(ctx, images.Image{Name: name, Labels: labels}, labelPaths(labels)...)
			}
			if errdefs.IsNotFound(err) {
				saved, err = s.is.Create(ctx, img)
			}
			if err != nil {
				return fmt.Errorf("record image %s: %w", name, err)
			}
			records = append(records, saved)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.catalog.put(d, records...)
	s.catalog.publish()
	return s.catalog.now.Load().byID[d.id], nil
}

func labelPaths(labels map[string]string) []string {
	var paths []string
	for k := range labels {
		paths = append(paths, "labels."+k)
	}
	slices.Sort(paths)
	return paths
}

// dropExtractions removes what an unpacking left that a crash cut off. It runs
// before any pull does.
func (s *Service) dropExtractions() error {
	var keys []string
	err := s.sn.Walk(s.ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted && strings.HasPrefix(info.Name, extraction) {
			keys = append(keys, info.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for _, key := range keys {
		if err := s.sn.Remove(s.ctx, key); err != nil {
			log.L.WithError(err).Warnf("image: remains of an unpacking cannot be removed: %s", key)
		}
	}
	return nil
}
