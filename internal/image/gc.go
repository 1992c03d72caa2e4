package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	bolt "go.etcd.io/bbolt"
)

const (
	// labelPull marks the lease of a pull; its value is the reference.
	labelPull = "berth/pull"
	// resumeFor is how long what a failed pull fetched is kept for the next try.
	resumeFor = time.Hour
	// expireEvery is how often leases are looked at for that, and garbage
	// collected without being asked.
	expireEvery = 10 * time.Minute
)

// pullLease is a lease of pulls of one reference. Guarded by Service.mu.
type pullLease struct {
	users int
	idle  time.Time // since when users is 0
}

// leasePull protects everything made with the context it returns from garbage
// collection. release(true) ends the lease; release(false) keeps it for a while,
// so that the next pull of what can go on with what is here.
func (s *Service) leasePull(ctx context.Context, what string) (context.Context, func(done bool), error) {
	sum := sha256.Sum256([]byte(what))
	id := "pull-" + hex.EncodeToString(sum[:16])
	if err := s.locks.Lock(ctx, "lease:"+id); err != nil {
		return nil, nil, err
	}
	defer s.locks.Unlock("lease:" + id)
	_, err := s.lm.Create(ctx, leases.WithID(id), leases.WithLabel(labelPull, what))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, nil, err
	}
	s.mu.Lock()
	l := s.leased[id]
	if l == nil {
		l = &pullLease{}
		s.leased[id] = l
	}
	l.users++
	s.mu.Unlock()
	release := func(done bool) {
		s.mu.Lock()
		l.users--
		l.idle = time.Now()
		s.mu.Unlock()
		if done {
			s.endLease(id, 0)
		}
	}
	return leases.WithLease(ctx, id), release, nil
}

// endLease deletes a lease that nobody has used for idle.
func (s *Service) endLease(id string, idle time.Duration) {
	// The work that ends may have been cancelled; giving back may not.
	ctx := inNamespace(context.Background())
	if err := s.locks.Lock(ctx, "lease:"+id); err != nil {
		return
	}
	defer s.locks.Unlock("lease:" + id)
	s.mu.Lock()
	l := s.leased[id]
	if l == nil || l.users > 0 || time.Since(l.idle) < idle {
		s.mu.Unlock()
		return
	}
	delete(s.leased, id)
	s.mu.Unlock()
	if err := s.lm.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
		log.L.WithError(err).Warnf("image: lease %s cannot be deleted", id)
		s.mu.Lock()
		s.leased[id] = l
		s.mu.Unlock()
	}
	s.collectSoon()
}

func (s *Service) expireLeases() {
	s.mu.Lock()
	ids := make([]string, 0, len(s.leased))
	for id := range s.leased {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.endLease(id, resumeFor)
	}
}

// Remove deletes all names of the image that ref (a name, an id or the beginning
// of one) means, as containerd's CRI does. Its layers go in the background, and
// not before the last root file system made from them. No such image is
// errdefs.ErrNotFound.
func (s *Service) Remove(ctx context.Context, ref string) error {
	ctx = inNamespace(ctx)
	if err := s.lockWrites(ctx); err != nil {
		return fmt.Errorf("remove image %q: %w", ref, err)
	}
	defer s.unlockWrites()
	var names []string
	img, err := s.Get(ctx, ref)
	switch named, perr := parseRef(ref); {
	case err == nil:
		names = s.catalog.names(img.ID)
	case errdefs.IsNotFound(err) && perr == nil && s.isRecorded(ctx, named.String()):
		// An image that load left out: it can still be told to go.
		names = []string{named.String()}
	default:
		return fmt.Errorf("remove image: %w", err)
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			if err := s.is.Delete(ctx, name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("remove image %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		delete(s.catalog.records, name)
	}
	s.catalog.publish()
	s.collectSoon()
	return nil
}

func (s *Service) isRecorded(ctx context.Context, name string) bool {
	_, err := s.is.Get(ctx, name)
	return err == nil
}

// collectSoon asks for a garbage collection. Requests made before it begins are
// one.
func (s *Service) collectSoon() {
	select {
	case s.collect <- struct{}{}:
	default:
	}
}

func (s *Service) collectLoop() {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.collect:
		case <-tick.C:
			s.expireLeases()
		case <-s.ctx.Done():
			return
		}
		select {
		case <-time.After(s.cfg.CollectDelay):
		case <-s.ctx.Done():
			return
		}
		if err := s.collectNow(s.ctx); err != nil && s.ctx.Err() == nil {
			log.L.WithError(err).Warn("image: garbage collection failed")
		}
	}
}

// collectNow deletes what nothing names: layers, content, partial content.
func (s *Service) collectNow(ctx context.Context) error {
	if err := s.rootfs.sweep(ctx); err != nil {
		return err
	}
	// Its mark phase leaves a goroutine behind when its context ends.
	if _, err := s.db.GarbageCollect(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	return nil
}
