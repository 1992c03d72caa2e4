package image

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// errOldKernel says that this kernel cannot mount layers given as descriptors.
var errOldKernel = errors.New("kernel cannot map ids of layers that are not mounted")

// mountMapped mounts with the ids of a user namespace: layers are cloned and
// mapped as descriptors that no mount table shows, so a crash leaves nothing.
// Overlayfs takes those since Linux 6.13; before that it is errOldKernel.
func mountMapped(m *mount.Mount, target string) error {
	var (
		uids, gids string
		lower      []string
		rest       []string
		attrs      int
	)
	for _, o := range m.Options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "uidmap":
			uids = value
		case "gidmap":
			gids = value
		case "lowerdir":
			lower = strings.Split(value, ":")
		case "ro":
			attrs |= unix.MOUNT_ATTR_RDONLY
		case "rw", "rbind", "bind":
		default:
			rest = append(rest, o)
		}
	}
	userns, err := mount.GetUsernsFD(uids, gids)
	if err != nil {
		return fmt.Errorf("user namespace for uids %s, gids %s: %w", uids, gids, err)
	}
	defer userns.Close()

	if m.Type == "bind" {
		fd, err := mappedTree(m.Source, userns, attrs)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return attach(fd, target)
	}

	ovl, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: fsopen: %w", errOldKernel, err)
	}
	defer unix.Close(ovl)
	for _, dir := range lower {
		fd, err := mappedTree(dir, userns, 0)
		if err != nil {
			return err
		}
		// The clone lives as long as its descriptor, until overlayfs has its own.
		defer unix.Close(fd)
		if err := unix.FsconfigSetFd(ovl, "lowerdir+", fd); err != nil {
			return fmt.Errorf("%w: lowerdir+: %w", errOldKernel, err)
		}
	}
	for _, o := range rest {
		key, value, ok := strings.Cut(o, "=")
		if ok {
			err = unix.FsconfigSetString(ovl, key, value)
		} else {
			err = unix.FsconfigSetFlag(ovl, key)
		}
		if err != nil {
			return fmt.Errorf("overlay option %s: %w", o, err)
		}
	}
	if err := unix.FsconfigCreate(ovl); err != nil {
		return fmt.Errorf("overlay of mapped layers: %w%s", err, kernelSays(ovl))
	}
	fd, err := unix.Fsmount(ovl, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return fmt.Errorf("overlay of mapped layers: %w", err)
	}
	defer unix.Close(fd)
	return attach(fd, target)
}

// kernelSays reads what the kernel has to say about a mount that failed.
func kernelSays(fd int) string {
	text, buf := "", make([]byte, 512)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil || n <= 0 {
			return text
		}
		text += ": " + strings.TrimSpace(string(buf[:n]))
	}
}

// mappedTree clones the mount at dir and maps its ids.
func mappedTree(dir string, userns *os.File, attrs int) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open layer %s: %w", dir, err)
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_IDMAP | uint64(attrs),
		Propagation: unix.MS_PRIVATE,
		Userns_fd:   uint64(userns.Fd()),
	})
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("map ids of layer %s: %w", dir, err)
	}
	return fd, nil
}

func attach(fd int, target string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach mount to %s: %w", target, err)
	}
	return nil
}
