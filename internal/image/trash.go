package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// discard takes a root file system's folder away under its name; deleting the
// files is for deleteLoop. A folder that is not there is success.
func (l *layerRoots) discard(name string) error {
	place := fmt.Sprintf("%s-%d", strings.TrimPrefix(name, "."), time.Now().UnixNano())
	err := os.Rename(filepath.Join(l.dir, name), filepath.Join(l.trash, place))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (l *layerRoots) deleteSoon() {
	select {
	case l.swept <- struct{}{}:
	default:
	}
}

// deleteLoop deletes what was discarded. What cannot be deleted is named in the
// log once and tried again with what comes later.
func (l *layerRoots) deleteLoop() {
	named := map[string]bool{}
	for {
		select {
		case <-l.swept:
		case <-l.s.ctx.Done():
			return
		}
		entries, err := os.ReadDir(l.trash)
		if err != nil {
			log.L.WithError(err).Warn("image: discarded root file systems cannot be listed")
			continue
		}
		for _, e := range entries {
			if l.s.ctx.Err() != nil {
				return
			}
			path := filepath.Join(l.trash, e.Name())
			if strings.HasPrefix(e.Name(), probePrefix) { // cut off in its middle, it may be mounted
				_ = unix.Unmount(filepath.Join(path, "merged"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
			if err := os.RemoveAll(path); err != nil && !named[path] {
				named[path] = true
				log.L.WithError(err).Warn("image: a discarded root file system cannot be deleted")
			}
		}
	}
}

const probePrefix = "probe-"

// probeVolatile reports whether this kernel's overlayfs can be mounted without
// syncing (Linux 5.10).
func probeVolatile(scratch string) bool {
	dir, err := os.MkdirTemp(scratch, probePrefix)
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	data := "volatile"
	for _, part := range []string{"lower", "upper", "work"} {
		path := filepath.Join(dir, part)
		if err := os.Mkdir(path, 0o700); err != nil {
			return false
		}
		data += fmt.Sprintf(",%sdir=%s", part, path)
	}
	target := filepath.Join(dir, "merged")
	if err := os.Mkdir(target, 0o700); err != nil {
		return false
	}
	if err := unix.Mount("overlay", target, "overlay", 0, data); err != nil {
		log.L.WithError(err).Info("image: overlayfs cannot be mounted volatile, unmounting syncs")
		return false
	}
	for unix.Unmount(target, unix.UMOUNT_NOFOLLOW) == unix.EBUSY {
		time.Sleep(time.Millisecond)
	}
	return true
}

func ownerOf(path string) (uid, gid int, err error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("layer %s: %w", path, errdefs.ErrNotFound)
	}
	if err != nil {
		return 0, 0, err
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid), nil
}
