package namespaces

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stageSuffix names the directory in which a set is put together. A directory
// without it is a finished set.
const stageSuffix = ".new"

// nsfsMagic is the file system type of namespace files (NSFS_MAGIC in
// linux/magic.h).
const nsfsMagic = 0x6e736673

// pin makes an empty file at target and binds the namespace at source over it,
// in the process's mount namespace: everybody who shares it sees the pin.
func pin(source, target string) error {
	fd, err := unix.Open(target, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("pin %s: %w", target, err)
	}
	unix.Close(fd)
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin %s at %s: %w", source, target, err)
	}
	return nil
}

// Load tells what is pinned under dir: only files that are namespaces of the
// right kind. The bool is false when there is none. A missing dir is no error.
func Load(dir string) (*Paths, bool, error) {
	p, found := &Paths{}, false
	for _, k := range kinds {
		path := filepath.Join(dir, k.name)
		ok, err := pinned(path, k)
		if err != nil {
			return nil, false, fmt.Errorf("look for a namespace at %s: %w", path, err)
		}
		if ok {
			*p.at(k), found = path, true
		}
	}
	return p, found, nil
}

// pinned tells whether path is a namespace of that kind.
func pinned(path string, k kind) (bool, error) {
	var st unix.Statfs_t
	switch err := unix.Statfs(path, &st); {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err != nil:
		return false, err
	case int64(st.Type) != nsfsMagic:
		return false, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	flag, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return false, err
	}
	return flag == k.flag, nil
}

// Remove gives back what is pinned under dir, whoever pinned it there, and the
// directory. It can be called again, and for a dir that never was. Whoever is
// inside a namespace keeps it alive until he leaves.
func Remove(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove namespaces in %s: %w", dir, err)
	}
	if err := errors.Join(removeDir(dir), removeDir(dir+stageSuffix)); err != nil {
		return fmt.Errorf("remove namespaces in %s: %w", dir, err)
	}
	return nil
}

// removeDir unpins and removes dir. It goes one level deep and removes only
// files: a tree that somebody mounted below is never walked.
func removeDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, unpin(filepath.Join(dir, e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unpin takes every mount off path and removes it.
func unpin(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			break // no mount, or no mount any more
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
