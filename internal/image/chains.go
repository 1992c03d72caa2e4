package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
)

// An image without layers has no chain id, but its view needs a name.
func keyOfChain(id string) string {
	if id == "" {
		return "empty"
	}
	return id
}

func chainOfKey(key string) string {
	if key == "empty" {
		return ""
	}
	return key
}

// chain gives the entry of a chain. The caller holds mu, or is load.
func (l *layerRoots) chain(id string) *chain {
	c := l.chains[id]
	if c == nil {
		c = &chain{}
		l.chains[id] = c
	}
	return c
}

// ready makes the view of a chain, which is what costs time at its first use.
func (l *layerRoots) ready(ctx context.Context, id string) error {
	_, err := l.lower(ctx, id, 0)
	return err
}

// lower gives the folders of a chain and adds to its users.
func (l *layerRoots) lower(ctx context.Context, id string, users int) ([]string, error) {
	if lower := l.known(id, users); lower != nil {
		return lower, nil
	}
	lock := "chain:" + id
	if err := l.s.locks.Lock(ctx, lock); err != nil {
		return nil, err
	}
	defer l.s.locks.Unlock(lock)
	if lower := l.known(id, users); lower != nil {
		return lower, nil
	}
	key := viewPrefix + keyOfChain(id)
	mounts, err := l.s.sn.View(leases.WithLease(ctx, leaseRootfs), key, id)
	if errdefs.IsAlreadyExists(err) {
		mounts, err = l.s.sn.Mounts(ctx, key)
	}
	if err != nil {
		return nil, fmt.Errorf("view of layers %s: %w", id, err)
	}
	lower, err := lowerDirs(mounts)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.chain(id)
	c.lower = lower
	c.users += users
	return lower, nil
}

func (l *layerRoots) known(id string, users int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.chains[id]
	if c == nil || c.lower == nil {
		return nil
	}
	c.users += users
	return c.lower
}

func (l *layerRoots) release(id string) {
	l.mu.Lock()
	c := l.chain(id)
	c.users--
	last := c.users == 0
	l.mu.Unlock()
	if last && !l.s.hasChain(id) {
		l.s.collectSoon()
	}
}

// lowerDirs takes the folders out of the mounts of a view.
func lowerDirs(mounts []mount.Mount) ([]string, error) {
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return []string{mounts[0].Source}, nil
	}
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, o := range mounts[0].Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				return strings.Split(dirs, ":"), nil
			}
		}
	}
	return nil, fmt.Errorf("snapshotter gave mounts %v for a view: %w", mounts, errdefs.ErrInternal)
}

// sweep removes the views of layers that no image and no root file system needs;
// garbage collection takes the layers then.
func (l *layerRoots) sweep(ctx context.Context) error {
	l.mu.Lock()
	ids := slices.Collect(maps.Keys(l.chains))
	l.mu.Unlock()
	for _, id := range ids {
		if l.s.hasChain(id) {
			continue
		}
		if err := l.dropView(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (l *layerRoots) dropView(ctx context.Context, id string) error {
	lock := "chain:" + id
	if err := l.s.locks.Lock(ctx, lock); err != nil {
		return err
	}
	defer l.s.locks.Unlock(lock)
	l.mu.Lock()
	if l.chains[id].users > 0 {
		l.mu.Unlock()
		return nil
	}
	delete(l.chains, id)
	l.mu.Unlock()
	if err := l.s.sn.Remove(ctx, viewPrefix+keyOfChain(id)); err != nil && !errdefs.IsNotFound(err) {
		l.mu.Lock()
		l.chain(id) // to be tried again
		l.mu.Unlock()
		return fmt.Errorf("let go of layers %s: %w", id, err)
	}
	return nil
}

// hasChain reports whether an image has these layers.
func (s *Service) hasChain(id string) bool {
	for _, img := range s.catalog.now.Load().list {
		if img.ChainID == id {
			return true
		}
	}
	return false
}
