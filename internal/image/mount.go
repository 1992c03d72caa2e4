package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// busyPause is the first pause before a busy mount is unmounted again.
	busyPause = 2 * time.Millisecond
	// busyTries is how often that is tried, with pauses doubling (half a
	// second together), before the mount is detached.
	busyTries = 8
)

// Mount mounts what PrepareRootfs gave on target, which is made if it does not
// exist. A target that is a mount point already is success.
func (s *Service) Mount(ctx context.Context, mounts []mount.Mount, target string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if err := os.MkdirAll(target, 0o711); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	done, err := mountinfo.Mounted(target)
	if err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if done {
		return nil
	}
	for _, m := range mounts {
		if err := mountOne(&m, target); err != nil {
			return errors.Join(fmt.Errorf("mount %s: %w", target, err), s.Unmount(context.WithoutCancel(ctx), target))
		}
	}
	return nil
}

func mountOne(m *mount.Mount, target string) error {
	work, mapped := "", false
	for _, o := range m.Options {
		mapped = mapped || strings.HasPrefix(o, "uidmap=")
		if dir, ok := strings.CutPrefix(o, "workdir="); ok {
			work = dir
		}
	}
	if work != "" {
		// The kernel's mark that the layer was mounted volatile before. Within
		// one boot nothing was lost, so it may be mounted again.
		if err := os.RemoveAll(filepath.Join(work, "work", "incompat")); err != nil {
			return err
		}
	}
	if !mapped {
		return m.Mount(target)
	}
	err := mountMapped(m, target)
	if errors.Is(err, errOldKernel) {
		// containerd's way mounts the layers in the host's table for a moment.
		return m.Mount(target)
	}
	return err
}

// Unmount unmounts everything on target. A mount that stays busy is detached,
// so that it goes when its last user does. Nothing mounted there is success.
func (s *Service) Unmount(ctx context.Context, target string) error {
	pause, busy := busyPause, 0
	for {
		flags := unix.UMOUNT_NOFOLLOW
		if busy >= busyTries || ctx.Err() != nil {
			flags |= unix.MNT_DETACH
		}
		err := unix.Unmount(target, flags)
		switch {
		case err == nil:
			if flags&unix.MNT_DETACH != 0 {
				log.G(ctx).Warnf("image: %s was busy and is detached", target)
			}
			continue // there may be another mount below
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EBUSY), flags&unix.MNT_DETACH != 0:
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		busy++
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
		}
	}
}
