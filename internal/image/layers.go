package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// viewPrefix begins the key of the snapshot that holds a chain's layers.
const viewPrefix = "berth-view-"

// layerRoots makes root file systems with overlayfs: a folder
//
//	<Root>/rootfs/<key>/{fs,work,rootfs.json}
//
// on top of the layers of an image, which a view snapshot holds.
type layerRoots struct {
	s          *Service
	dir, trash string
	options    []string // of every overlay mount
	volatile   bool
	swept      chan struct{}

	mu     sync.Mutex
	chains map[string]*chain // by chain id
	roots  map[string]*layerRoot
}

// chain is the layers of an image that is here or in use.
type chain struct {
	lower []string // folders, uppermost first; nil until the view is known
	users int      // root file systems on it
}

// layerRoot is what rootfs.json says.
type layerRoot struct {
	Image string
	Chain string
	View  bool                   `json:",omitempty"`
	UIDs  []specs.LinuxIDMapping `json:",omitempty"`
	GIDs  []specs.LinuxIDMapping `json:",omitempty"`
}

func openLayerRoots(s *Service) (*layerRoots, error) {
	l := &layerRoots{
		s:      s,
		dir:    filepath.Join(s.cfg.Root, "rootfs"),
		trash:  filepath.Join(s.cfg.Root, "trash"),
		swept:  make(chan struct{}, 1),
		chains: map[string]*chain{},
		roots:  map[string]*layerRoot{},
	}
	for _, dir := range []string{l.dir, l.trash} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("folder of root file systems: %w", err)
		}
	}
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		l.options = append(l.options, "index=off")
	}
	if !s.cfg.DurableRootfs {
		l.volatile = probeVolatile(l.trash)
	}
	if err := l.load(); err != nil {
		return nil, err
	}
	s.work.Go(l.deleteLoop)
	l.deleteSoon()
	return l, nil
}

// load reads what root file systems there are. What cannot be read was cut off
// by a power cut; it goes.
func (l *layerRoots) load() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("list root file systems: %w", err)
	}
	for _, e := range entries {
		var r layerRoot
		data, err := os.ReadFile(filepath.Join(l.dir, e.Name(), "rootfs.json"))
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil || !validKey.MatchString(e.Name()) {
			log.L.WithError(err).Warnf("image: root file system %s was not finished, it is deleted", e.Name())
			if err := l.discard(e.Name()); err != nil {
				return err
			}
			continue
		}
		l.roots[e.Name()] = &r
		l.chain(r.Chain).users++
	}
	return l.s.sn.Walk(l.s.ctx, func(_ context.Context, info snapshots.Info) error {
		if id, ok := strings.CutPrefix(info.Name, viewPrefix); ok {
			l.chain(chainOfKey(id))
		}
		return nil
	})
}

func (l *layerRoots) prepare(ctx context.Context, key string, img *Image, o *RootfsOptions) ([]mount.Mount, error) {
	lock := "rootfs:" + key
	if err := l.s.locks.Lock(ctx, lock); err != nil {
		return nil, err
	}
	defer l.s.locks.Unlock(lock)
	l.mu.Lock()
	r := l.roots[key]
	l.mu.Unlock()
	if r != nil {
		if r.Chain != img.ChainID || r.View != o.ReadOnly {
			return nil, fmt.Errorf("it was made from image %s: %w", r.Image, errdefs.ErrAlreadyExists)
		}
		lower, err := l.lower(ctx, r.Chain, 0)
		if err != nil {
			return nil, err
		}
		return l.mounts(key, r, lower), nil
	}
	lower, err := l.lower(ctx, img.ChainID, 1)
	if err != nil {
		return nil, err
	}
	r = &layerRoot{Image: img.ID, Chain: img.ChainID, View: o.ReadOnly, UIDs: o.UIDs, GIDs: o.GIDs}
	if err := l.make(key, r, lower); err != nil {
		l.release(img.ChainID)
		return nil, err
	}
	l.mu.Lock()
	l.roots[key] = r
	l.mu.Unlock()
	return l.mounts(key, r, lower), nil
}

// make makes the folders of a root file system under a passing name first, so
// that what has the real name is whole.
func (l *layerRoots) make(key string, r *layerRoot, lower []string) (err error) {
	temp, err := os.MkdirTemp(l.dir, ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if !r.View {
		if err := os.Mkdir(filepath.Join(temp, "work"), 0o711); err != nil {
			return err
		}
		upper := filepath.Join(temp, "fs")
		if err := os.Mkdir(upper, 0o755); err != nil {
			return err
		}
		// The upper folder is the root that the container sees; it belongs to
		// who owns the image's, or to root of the user namespace.
		uid, gid, err := ownerOf(lower[0])
		if err != nil {
			return err
		}
		if len(r.UIDs) > 0 {
			uid, gid = mappedOwner(r.UIDs, uid), mappedOwner(r.GIDs, gid)
		}
		if uid != 0 || gid != 0 {
			if err := os.Lchown(upper, uid, gid); err != nil {
				return err
			}
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(temp, "rootfs.json"), data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(l.dir, key))
}

func (l *layerRoots) mounts(key string, r *layerRoot, lower []string) []mount.Mount {
	var options []string
	if len(r.UIDs) > 0 {
		options = append(options, "uidmap="+mappingText(r.UIDs), "gidmap="+mappingText(r.GIDs))
	}
	if r.View && len(lower) == 1 {
		return []mount.Mount{{Type: "bind", Source: lower[0], Options: append(options, "ro", "rbind")}}
	}
	if r.View {
		options = append(options, "ro")
	} else {
		dir := filepath.Join(l.dir, key)
		options = append(options, "workdir="+filepath.Join(dir, "work"), "upperdir="+filepath.Join(dir, "fs"))
		if l.volatile {
			options = append(options, "volatile")
		}
	}
	options = append(options, "lowerdir="+strings.Join(lower, ":"))
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: append(options, l.options...)}}
}

func (l *layerRoots) remove(ctx context.Context, key string) error {
	lock := "rootfs:" + key
	if err := l.s.locks.Lock(ctx, lock); err != nil {
		return err
	}
	defer l.s.locks.Unlock(lock)
	l.mu.Lock()
	r := l.roots[key]
	l.mu.Unlock()
	// What is not known is looked for all the same: a folder is never left.
	if err := l.discard(key); err != nil {
		return err
	}
	l.deleteSoon()
	if r == nil {
		return nil
	}
	l.mu.Lock()
	delete(l.roots, key)
	l.mu.Unlock()
	l.release(r.Chain)
	return nil
}

func (l *layerRoots) usage(ctx context.Context, key string) (bytes, inodes uint64, err error) {
	l.mu.Lock()
	r := l.roots[key]
	l.mu.Unlock()
	if r == nil {
		return 0, 0, fmt.Errorf("root file system %s: %w", key, errdefs.ErrNotFound)
	}
	if r.View {
		return 0, 0, nil
	}
	return diskUsage(ctx, filepath.Join(l.dir, key, "fs"))
}

func (l *layerRoots) keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.roots))
}
