package ocispec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/containerd/continuity/fs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageVolume is the host path for a mount of an image: where it is mounted, or
// a directory inside.
func (b *builder) imageVolume(field string, m *runtime.Mount) (string, error) {
	root, ok := b.ImageVolumes[m.GetContainerPath()]
	if !ok {
		return "", unsupported(field+".image", "image %q is not mounted", m.GetImage().GetImage())
	}
	sub := m.GetImageSubPath()
	if sub == "" {
		return root, nil
	}
	// The image's symlinks are followed inside the image. It is read-only: what
	// is resolved now is what the runtime will find.
	at, err := fs.RootPath(root, sub)
	if err != nil {
		return "", invalid(field+".image_sub_path", "%q: %v", sub, err)
	}
	switch fi, err := os.Stat(at); {
	case errors.Is(err, iofs.ErrNotExist):
		return "", invalid(field+".image_sub_path", "the image has no %q", sub)
	case err != nil:
		return "", fmt.Errorf("%s.image_sub_path: %w", field, err)
	case !fi.IsDir(): // image volumes are directories, says KEP-4639
		return "", invalid(field+".image_sub_path", "%q is not a directory of the image", sub)
	}
	return at, nil
}

// volumes are binds for the image's VOLUMEs that the config does not mount
// over: directories of the container's own, with what the image has there.
func (b *builder) volumes(taken map[string]bool) ([]specs.Mount, error) {
	var list []specs.Mount
	for _, v := range slices.Sorted(maps.Keys(b.image.Volumes)) {
		target := path.Join("/", v)
		if target == "/" || taken[target] {
			continue
		}
		if b.VolumeDir == "" {
			return nil, fmt.Errorf("volume %q of the image: no directory for volumes was given", v)
		}
		dir, err := b.volume(target)
		if err != nil {
			return nil, fmt.Errorf("volume %q of the image: %w", v, err)
		}
		taken[target] = true
		list = append(list, specs.Mount{
			Destination: target, Source: dir, Type: "bind",
			// Ids are not mapped: the content comes from the root file system,
			// where the host already sees the user namespace's ids.
			Options: []string{"rbind", "rprivate", "rw"},
		})
	}
	return list, nil
}

// volume makes the directory for a VOLUME, once: its name follows from the
// path in the container, and it gets that name when it is complete. A repeated
// Build finds it.
func (b *builder) volume(target string) (string, error) {
	sum := sha256.Sum256([]byte(target))
	dir := filepath.Join(b.VolumeDir, hex.EncodeToString(sum[:16]))
	if _, err := os.Lstat(dir); err == nil {
		return dir, nil
	} else if !errors.Is(err, iofs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(b.VolumeDir, 0o755); err != nil {
		return "", err
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil { // left by an attempt that was cut short
		return "", err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return "", err
	}
	source, err := fs.RootPath(b.Rootfs, target) // inside the image, whatever its symlinks say
	if err != nil {
		return "", err
	}
	switch fi, err := os.Stat(source); {
	case err == nil && fi.IsDir():
		// The labels of the image's files are not the container's.
		if err := fs.CopyDir(part, source, fs.WithXAttrExclude("security.selinux")); err != nil {
			return "", fmt.Errorf("copy what the image has there: %w", err)
		}
	case err != nil && !errors.Is(err, iofs.ErrNotExist):
		return "", err
	case b.uids != nil:
		if err := os.Lchown(part, int(b.uids[0].HostID), int(b.gids[0].HostID)); err != nil {
			return "", err
		}
	}
	if b.mountLabel != "" {
		if err := relabel(part, b.mountLabel); err != nil {
			return "", err
		}
	}
	return dir, os.Rename(part, dir)
}
