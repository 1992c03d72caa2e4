package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Root file systems.
//
// A pod starts at the pace of PrepareRootfs, and a snapshot of containerd's
// costs it three database transactions (two in meta.db, one in the overlay
// snapshotter's own), each two fdatasyncs behind one writer lock that a pull, a
// garbage collection and every other pod take too. None of that buys anything:
// a writable layer is worthless after a power cut. So with overlayfs (layers.go)
// a writable layer is three folders of ours and no transaction. What containerd
// keeps is one read-only view of an image's layers, made when the image is
// pulled, which holds the layers for as long as a root file system stands on
// them. Other snapshotters (snapshots.go) take the long way.

// leaseRootfs is the one lease of all snapshots that stand for containers. It
// has no end: what is under it goes with RemoveRootfs.
const leaseRootfs = "berth-rootfs"

// RootfsOptions say how a root file system is to be made.
type RootfsOptions struct {
	// ReadOnly makes a mount of the image without a writable layer. A runtime
	// that has to make mount points in the root needs one, even for a
	// container whose root is read-only.
	ReadOnly bool
	// UIDs and GIDs map the ids of a user namespace; both or none. Container
	// id 0 must be mapped.
	UIDs, GIDs []specs.LinuxIDMapping
}

// rootfsStore makes and removes root file systems with one kind of snapshotter.
type rootfsStore interface {
	// ready does ahead of time what the first use of a chain would have to do.
	ready(ctx context.Context, chainID string) error
	prepare(ctx context.Context, key string, img *Image, o *RootfsOptions) ([]mount.Mount, error)
	remove(ctx context.Context, key string) error
	usage(ctx context.Context, key string) (bytes, inodes uint64, err error)
	// keys are the root file systems that have a writable layer to measure.
	keys() []string
	// sweep lets go of layers that neither an image nor a container needs.
	sweep(ctx context.Context) error
}

func (s *Service) openRootfs() error {
	_, err := s.lm.Create(s.ctx, leases.WithID(leaseRootfs))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("lease of root file systems: %w", err)
	}
	if s.cfg.Snapshotter != Overlay {
		s.rootfs = &snapshotRoots{s: s}
		return nil
	}
	s.rootfs, err = openLayerRoots(s)
	return err
}

var validKey = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,199}$`)

// PrepareRootfs makes a root file system from the image with this id and gives
// the mounts for Mount. It stays, through restarts, until RemoveRootfs. A key
// that exists gives its mounts again; with another image it is
// errdefs.ErrAlreadyExists. No such image is errdefs.ErrNotFound.
func (s *Service) PrepareRootfs(ctx context.Context, key, imageID string, o *RootfsOptions) ([]mount.Mount, error) {
	if o == nil {
		o = &RootfsOptions{}
	}
	if !validKey.MatchString(key) {
		return nil, fmt.Errorf("key %q of a root file system: %w", key, errdefs.ErrInvalidArgument)
	}
	if err := validMappings(o); err != nil {
		return nil, fmt.Errorf("root file system %s: %w", key, err)
	}
	img, err := s.Get(ctx, imageID)
	if err != nil {
		return nil, fmt.Errorf("root file system %s: %w", key, err)
	}
	ctx = inNamespace(ctx)
	mounts, err := s.rootfs.prepare(ctx, key, img, o)
	if errdefs.IsNotFound(err) {
		// The layers are gone, the image is not: unpack it again.
		if herr := s.unpackAgain(ctx, img); herr != nil {
			return nil, fmt.Errorf("root file system %s: %w", key, errors.Join(err, herr))
		}
		mounts, err = s.rootfs.prepare(ctx, key, img, o)
	}
	if err != nil {
		return nil, fmt.Errorf("root file system %s: %w", key, err)
	}
	return mounts, nil
}

// PrepareView is PrepareRootfs without a writable layer: an image volume.
func (s *Service) PrepareView(ctx context.Context, key, imageID string, o *RootfsOptions) ([]mount.Mount, error) {
	view := RootfsOptions{ReadOnly: true}
	if o != nil {
		view.UIDs, view.GIDs = o.UIDs, o.GIDs
	}
	return s.PrepareRootfs(ctx, key, imageID, &view)
}

// RemoveRootfs forgets a root file system, which must not be mounted; its files
// are deleted in the background. A key that does not exist is success.
func (s *Service) RemoveRootfs(ctx context.Context, key string) error {
	if !validKey.MatchString(key) {
		return fmt.Errorf("key %q of a root file system: %w", key, errdefs.ErrInvalidArgument)
	}
	if err := s.rootfs.remove(inNamespace(ctx), key); err != nil {
		return fmt.Errorf("remove root file system %s: %w", key, err)
	}
	s.usage.forget(key)
	return nil
}

// RootfsKeys are the keys of the root file systems that there are. (Those of the
// native snapshotter are not told: they cost nothing beyond their images.)
func (s *Service) RootfsKeys() []string { return s.rootfs.keys() }

func (s *Service) unpackAgain(ctx context.Context, img *Image) error {
	ctx, release, err := s.leasePull(ctx, "unpack "+img.ID)
	if err != nil {
		return err
	}
	err = s.ensureUnpacked(ctx, img.target, img.ChainID, newProgress(img.ID))
	release(true)
	return err
}

// validMappings checks id mappings before anything is made with them.
func validMappings(o *RootfsOptions) error {
	if (len(o.UIDs) == 0) != (len(o.GIDs) == 0) {
		return fmt.Errorf("uid and gid mappings come together: %w", errdefs.ErrInvalidArgument)
	}
	for _, list := range [][]specs.LinuxIDMapping{o.UIDs, o.GIDs} {
		for i, a := range list {
			if a.Size == 0 || uint64(a.ContainerID)+uint64(a.Size) > 1<<32 || uint64(a.HostID)+uint64(a.Size) > 1<<32 {
				return fmt.Errorf("id mapping %s is out of range: %w", mappingText(list[i:i+1]), errdefs.ErrInvalidArgument)
			}
			for _, b := range list[:i] {
				if overlap(a.ContainerID, b.ContainerID, a.Size, b.Size) || overlap(a.HostID, b.HostID, a.Size, b.Size) {
					return fmt.Errorf("id mappings %s overlap: %w", mappingText([]specs.LinuxIDMapping{b, a}), errdefs.ErrInvalidArgument)
				}
			}
		}
		if len(list) > 0 {
			if _, ok := hostID(list, 0); !ok {
				return fmt.Errorf("id mapping %s does not map 0: %w", mappingText(list), errdefs.ErrInvalidArgument)
			}
		}
	}
	return nil
}

func overlap(a, b, sizeA, sizeB uint32) bool {
	return uint64(a) < uint64(b)+uint64(sizeB) && uint64(b) < uint64(a)+uint64(sizeA)
}

// hostID maps an id of the container to the host's.
func hostID(list []specs.LinuxIDMapping, id uint32) (int, bool) {
	for _, m := range list {
		if id >= m.ContainerID && uint64(id) < uint64(m.ContainerID)+uint64(m.Size) {
			return int(m.HostID + id - m.ContainerID), true
		}
	}
	return 0, false
}

// mappedOwner maps the owner of a file; who is not mapped becomes root.
func mappedOwner(list []specs.LinuxIDMapping, id int) int {
	host, ok := hostID(list, uint32(id))
	if !ok {
		host, _ = hostID(list, 0)
	}
	return host
}

// mappingText writes mappings as containerd's mount options want them.
func mappingText(list []specs.LinuxIDMapping) string {
	text := ""
	for i, m := range list {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf("%d:%d:%d", m.ContainerID, m.HostID, m.Size)
	}
	return text
}
