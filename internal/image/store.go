package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	clocal "github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	digest "github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	errbolt "go.etcd.io/bbolt/errors"
)

// lockTimeout is how long to wait for another process to let go of meta.db.
const lockTimeout = 5 * time.Second

// open composes the stores: bolt, content, snapshotter, metadata.
func (s *Service) open() error {
	root := s.cfg.Root
	bdb, lost, err := openBolt(filepath.Join(root, "meta.db"))
	if err != nil {
		return err
	}
	s.closer = append(s.closer, bdb)

	raw, err := clocal.NewStore(filepath.Join(root, "content"))
	if err != nil {
		return fmt.Errorf("open content store: %w", err)
	}
	s.blobs = &patientStore{Store: raw}

	s.snRoot = filepath.Join(root, "snapshots", s.cfg.Snapshotter)
	if err := s.quarantineSnapshots(lost); err != nil {
		return err
	}
	var sn snapshots.Snapshotter
	switch s.cfg.Snapshotter {
	case Overlay:
		sn, err = overlay.NewSnapshotter(s.snRoot, overlay.AsynchronousRemove, overlay.WithRemapIDs)
	case Native:
		sn, err = native.NewSnapshotter(s.snRoot)
	}
	if err != nil {
		return fmt.Errorf("open snapshotter %s: %w", s.cfg.Snapshotter, err)
	}
	s.closer = append(s.closer, sn)

	s.db = metadata.NewDB(bdb, s.blobs, map[string]snapshots.Snapshotter{s.cfg.Snapshotter: sn}, metadata.WithPolicyIsolated)
	if err := s.db.Init(s.ctx); err != nil {
		return fmt.Errorf("open image metadata: %w", err)
	}
	s.cs = s.db.ContentStore()
	s.sn = s.db.Snapshotter(s.cfg.Snapshotter)
	s.is = metadata.NewImageStore(s.db)
	s.lm = metadata.NewLeaseManager(s.db)
	if lost {
		if err := s.dropUnnamed(s.ctx); err != nil {
			return err
		}
	}
	return s.dropLost(bdb)
}

// dropUnnamed deletes files of the content store that the metadata does not
// name. They are not verified when a pull finds them, so they must not stay
// after a power cut or the loss of the metadata.
func (s *Service) dropUnnamed(ctx context.Context) error {
	var list []digest.Digest
	err := s.blobs.Walk(ctx, func(info content.Info) error {
		if _, err := s.cs.Info(ctx, info.Digest); errdefs.IsNotFound(err) {
			list = append(list, info.Digest)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list content: %w", err)
	}
	for _, dgst := range list {
		if err := s.blobs.Delete(ctx, dgst); err != nil {
			return err
		}
	}
	return nil
}

// dropLost removes from the metadata what the snapshotter does not have (any
// more): the metadata would not let it be made again.
func (s *Service) dropLost(bdb *bolt.DB) error {
	var lost []string
	err := bdb.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("v1")) // containerd's schema: core/metadata/buckets.go
		for _, name := range []string{namespace, "snapshots", s.cfg.Snapshotter} {
			if b != nil {
				b = b.Bucket([]byte(name))
			}
		}
		if b == nil {
			return nil
		}
		return b.ForEachBucket(func(key []byte) error {
			lost = append(lost, string(key))
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	lost = slices.DeleteFunc(lost, func(key string) bool {
		_, err := s.sn.Stat(s.ctx, key)
		return !errdefs.IsNotFound(err)
	})
	// A snapshot goes only after those that stand on it.
	for removed := true; removed && len(lost) > 0; {
		before := len(lost)
		lost = slices.DeleteFunc(lost, func(key string) bool { return s.sn.Remove(s.ctx, key) == nil })
		removed = len(lost) < before
	}
	if len(lost) > 0 {
		log.L.Errorf("image: snapshots %v are lost and cannot be forgotten", lost)
	}
	return nil
}

// quarantineSnapshots sets the snapshotter's folder aside when its database
// cannot be read, or when the metadata that names its snapshots was lost. Images
// are then unpacked again from their content. The old folder is kept, because
// containers that run may have it mounted.
func (s *Service) quarantineSnapshots(metadataLost bool) error {
	path := filepath.Join(s.snRoot, "metadata.db")
	damage := checkBolt(path)
	if damage == nil && metadataLost {
		if _, err := os.Stat(path); err == nil {
			damage = errors.New("the metadata that names its snapshots was lost")
		}
	}
	if damage == nil {
		return nil
	}
	aside := setAsideName(s.snRoot)
	log.L.WithError(damage).Errorf("image: %s cannot be used and is set aside as %s; images are unpacked again", s.snRoot, aside)
	if err := os.Rename(s.snRoot, aside); err != nil {
		return fmt.Errorf("set snapshots aside: %w", err)
	}
	return nil
}

func setAsideName(path string) string {
	return fmt.Sprintf("%s.damaged-%s", path, time.Now().UTC().Format("20060102T150405.000000"))
}

// openBolt opens a bolt database for writing and sets a damaged one aside. lost
// is whether the database is a new one.
func openBolt(path string) (db *bolt.DB, lost bool, err error) {
	if damage := checkBolt(path); damage != nil {
		if errors.Is(damage, errbolt.ErrTimeout) {
			return nil, false, fmt.Errorf("%s is in use by another process: %w", path, errdefs.ErrUnavailable)
		}
		aside := setAsideName(path)
		log.L.WithError(damage).Errorf("image: %s is damaged and set aside as %s; images have to be pulled again", path, aside)
		if err := os.Rename(path, aside); err != nil {
			return nil, false, fmt.Errorf("set damaged database aside: %w", err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Size() == 0 {
		lost = true
	}
	// The free list is written out (no NoFreelistSync): rebuilding it at open
	// panics in a goroutine of bolt's own when a page is bad.
	db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout})
	if errors.Is(err, errbolt.ErrTimeout) {
		return nil, false, fmt.Errorf("%s is in use by another process: %w", path, errdefs.ErrUnavailable)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open %s: %w", path, err)
	}
	return db, lost, nil
}

// checkBolt reads every page that a bolt database refers to. A bad page makes
// bolt panic, and a truncated file makes the kernel send SIGBUS; both become the
// error. A database that is not there is in order.
func checkBolt(path string) (err error) {
	if st, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() == 0 {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read %s: %v: %w", path, r, errdefs.ErrDataLoss)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			readBucket(b, 0)
			return nil
		})
	})
}

// readBucket reads every byte of a bucket; the sum makes sure that it does.
func readBucket(b *bolt.Bucket, sum uint32) uint32 {
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		sum = crc32.Update(sum, crc32.IEEETable, v)
		if v == nil {
			sum = readBucket(b.Bucket(k), sum)
		}
	}
	return sum
}

// patientStore is the content store below the metadata. A blob that cannot be
// deleted is named in the log and does not keep garbage collection from
// deleting the others.
type patientStore struct{ content.Store }

func (p *patientStore) Delete(ctx context.Context, dgst digest.Digest) error {
	if err := p.Store.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).Warnf("image: content %s cannot be deleted", dgst)
	}
	return nil
}

func (p *patientStore) Abort(ctx context.Context, ref string) error {
	if err := p.Store.Abort(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).Warnf("image: partial content %s cannot be deleted", ref)
	}
	return nil
}

// WalkStatusRefs is looked for by the metadata store's garbage collection.
func (p *patientStore) WalkStatusRefs(ctx context.Context, fn func(string) error) error {
	type walker interface {
		WalkStatusRefs(context.Context, func(string) error) error
	}
	if w, ok := p.Store.(walker); ok {
		return w.WalkStatusRefs(ctx, fn)
	}
	list, err := p.Store.ListStatuses(ctx)
	if err != nil {
		return err
	}
	for _, st := range list {
		if err := fn(st.Ref); err != nil {
			return err
		}
	}
	return nil
}

// dropBlob removes a blob that is not what its digest says, from the metadata
// and at once from the disk: the content store takes a file that is there for
// the content, so a bad file left in place would survive the next pull.
func (s *Service) dropBlob(ctx context.Context, dgst digest.Digest) error {
	if err := s.cs.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("forget damaged content %s: %w", dgst, err)
	}
	if err := s.blobs.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete damaged content %s: %w", dgst, err)
	}
	return nil
}

// afterReboot distrusts what a pull left unfinished before the machine went
// down: partial content and layers without an image were never synced. Within
// one boot they are kept, since then the page cache vouches for them.
func (s *Service) afterReboot() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read boot id: %w", err)
	}
	path := filepath.Join(s.cfg.Root, "boot_id")
	last, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read boot id of the last run: %w", err)
	}
	fresh := bytes.Equal(boot, last)
	list, err := s.lm.List(s.ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, l := range list {
		if _, ok := l.Labels[labelPull]; !ok {
			continue
		}
		if fresh {
			s.leased[l.ID] = &pullLease{idle: time.Now()}
			continue
		}
		if err := s.lm.Delete(s.ctx, leases.Lease{ID: l.ID}); err != nil {
			return fmt.Errorf("drop lease of an unfinished pull: %w", err)
		}
	}
	if err := s.dropExtractions(); err != nil {
		return err
	}
	if fresh {
		return nil
	}
	if _, err := s.db.GarbageCollect(s.ctx); err != nil {
		return fmt.Errorf("collect what unfinished pulls left: %w", err)
	}
	if err := s.dropUnnamed(s.ctx); err != nil {
		return err
	}
	if err := os.WriteFile(path, boot, 0o600); err != nil {
		return fmt.Errorf("write boot id: %w", err)
	}
	return nil
}
