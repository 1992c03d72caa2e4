package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// kill ends the process, if it still is the one that was seen, and waits for its
// end. A shim that dies takes nothing with it: its containers are found apart.
func (p *proc) kill(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", p.pid, err)
	}
	defer unix.Close(fd)
	if startTime(p.pid) != p.start {
		return nil // it is gone, and the pid is another's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", p.pid, err)
	}
	for range 100 {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of %d: %w", p.pid, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("process %d does not end after SIGKILL: %w", p.pid, context.DeadlineExceeded)
}

// removeCgroup removes a cgroup that is empty, with those in it.
func removeCgroup(path string) func(context.Context) error {
	return func(context.Context) error {
		var dirs []string
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
			for range 20 { // what was killed leaves in its own time
				if err = unix.Rmdir(dirs[i]); !errors.Is(err, unix.EBUSY) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if errors.Is(err, unix.ENOENT) {
				err = nil
			}
		}
		if err != nil {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
		return nil
	}
}

func unmount(path string) func(context.Context) error {
	return func(context.Context) error {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		return nil
	}
}

func remove(path string) func(context.Context) error {
	return func(context.Context) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
}

// removeFolder removes a folder, unless something is mounted in it: nothing is
// ever removed through a mount.
func removeFolder(path string) func(context.Context) error {
	return func(context.Context) error {
		ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
		if err != nil {
			return fmt.Errorf("list mounts: %w", err)
		}
		if len(ms) > 0 {
			return fmt.Errorf("%s is mounted: unmount it first", ms[0].Mountpoint)
		}
		return os.RemoveAll(path)
	}
}
