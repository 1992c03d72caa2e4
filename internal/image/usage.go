package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// calm is how many times longer the usage loop rests than it worked.
const calm = 10

// Usage is what images and writable layers take on their file system.
type Usage struct {
	Bytes, Inodes uint64
	// Mountpoint is the folder whose file system they are on.
	Mountpoint string
	// At is when it was measured.
	At time.Time
}

// usageCache is the last measurement.
type usageCache struct {
	mu    sync.Mutex
	total *Usage
	roots map[string]rootUsage
	first chan struct{} // closed after the first measurement
}

type rootUsage struct{ bytes, inodes uint64 }

// Usage gives the last measurement, which the background makes again every
// UsageInterval. Only before the first one does it wait, for ctx at most.
func (s *Service) Usage(ctx context.Context) (*Usage, error) {
	select {
	case <-s.usage.begun():
	case <-s.ctx.Done():
		return nil, fmt.Errorf("image service is closed: %w", errdefs.ErrUnavailable)
	case <-ctx.Done():
		return nil, fmt.Errorf("disk usage was not measured yet: %w", ctxErr(ctx))
	}
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	u := *s.usage.total
	return &u, nil
}

// RootfsUsage gives what a root file system's writable layer takes: the last
// measurement, or a new one if there is none yet.
func (s *Service) RootfsUsage(ctx context.Context, key string) (bytes, inodes uint64, err error) {
	s.usage.mu.Lock()
	u, ok := s.usage.roots[key]
	s.usage.mu.Unlock()
	if ok {
		return u.bytes, u.inodes, nil
	}
	return s.rootfs.usage(inNamespace(ctx), key)
}

func (u *usageCache) begun() chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.first == nil {
		u.first = make(chan struct{})
	}
	return u.first
}

func (u *usageCache) forget(key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.roots, key)
}

func (s *Service) usageLoop() {
	rest := time.Duration(0)
	for {
		select {
		case <-time.After(rest):
		case <-s.ctx.Done():
			return
		}
		begin := time.Now()
		if err := s.measure(s.ctx); err != nil && s.ctx.Err() == nil {
			log.L.WithError(err).Warn("image: disk usage cannot be measured")
		}
		rest = max(s.cfg.UsageInterval, calm*time.Since(begin))
	}
}

// measure adds up content, layers (from the snapshotter's database) and the
// writable layers, which are walked.
func (s *Service) measure(ctx context.Context) error {
	total := &Usage{Mountpoint: s.snRoot, At: time.Now()}
	err := s.blobs.Walk(ctx, func(info content.Info) error {
		total.Bytes += uint64(info.Size)
		total.Inodes++
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing was pulled yet
		return fmt.Errorf("measure content: %w", err)
	}
	err = s.sn.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if s.cfg.Snapshotter == Overlay && info.Kind != snapshots.KindCommitted {
			return nil
		}
		u, err := s.sn.Usage(ctx, info.Name)
		if errdefs.IsNotFound(err) {
			return nil
		}
		total.Bytes += uint64(u.Size)
		total.Inodes += uint64(u.Inodes)
		return err
	})
	if err != nil {
		return fmt.Errorf("measure layers: %w", err)
	}
	roots := map[string]rootUsage{}
	for _, key := range s.rootfs.keys() {
		bytes, inodes, err := s.rootfs.usage(ctx, key)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("measure root file system %s: %w", key, err)
		}
		roots[key] = rootUsage{bytes, inodes}
		total.Bytes += bytes
		total.Inodes += inodes
	}
	first := s.usage.begun()
	s.usage.mu.Lock()
	defer s.usage.mu.Unlock()
	if s.usage.total == nil {
		close(first)
	}
	s.usage.total, s.usage.roots = total, roots
	return nil
}

// diskUsage adds up the blocks and inodes below dir. Files that go while it
// looks are left out; a dir that does not exist is zero.
func diskUsage(ctx context.Context, dir string) (bytes, inodes uint64, err error) {
	linked := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return skipGone(err)
		}
		info, err := e.Info()
		if err != nil {
			return skipGone(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !e.IsDir() {
			if linked[st.Ino] {
				return nil
			}
			linked[st.Ino] = true
		}
		bytes += uint64(st.Blocks) * 512
		inodes++
		return nil
	})
	return bytes, inodes, err
}

func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
