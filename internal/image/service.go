// Package image keeps the images of a node and the root file systems made from
// them: pull, import, list, remove, unpack, mount, garbage collection.
//
// Storage is containerd's own, in this process and on a root of ours: content
// store, bolt metadata, snapshotter, unpacker and registry resolver. The package
// adds what its users miss:
//
//   - a pull counts what it fetched and unpacked, tells a stalled connection from
//     slow work, resumes where it was cut, and says in its error which host failed
//     at which step;
//   - credentials go to the host they were given for, never to a mirror and never
//     along a redirect;
//   - data is on disk before the metadata that names it;
//   - Get and List read memory only;
//   - a container's writable layer costs no database transaction (see rootfs.go).
//
// It knows nothing of pods. internal/cri imports it for the image service, the
// keeper's effects for root file systems, cmd/berthd for wiring.
package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
)

// namespace is the metadata namespace of everything here; containerd's CRI uses
// the same, so its tools can read our root when berthd is down.
const namespace = "k8s.io"

// Snapshotters that Config.Snapshotter may name.
const (
	Overlay = "overlayfs"
	Native  = "native"
)

// Config says where images live and how they are pulled.
type Config struct {
	// Root holds content, meta.db, snapshots and writable layers. It must
	// survive a reboot.
	Root string
	// State holds what may vanish at a reboot: mount points of unpacking.
	// Empty is the system's folder for temporary files.
	State string
	// Snapshotter is Overlay or Native; empty is Overlay.
	Snapshotter string
	// RegistryDirs are folders in containerd's hosts.toml layout. The first
	// one that has an entry for a registry (or a _default) decides alone.
	RegistryDirs []string
	// StallTimeout is how long a registry may stay silent, at any step of a
	// pull, before the pull moves to the next host or fails. Work on our own
	// side (hashing, writing, unpacking) never counts. 0 is two minutes.
	StallTimeout time.Duration
	// MaxConcurrentDownloads bounds the layers one pull fetches at a time.
	// 0 is 3.
	MaxConcurrentDownloads int
	// SyncFS writes a pulled image's files to disk before the image is named
	// in the metadata. Off, a power cut may leave empty files in an image.
	SyncFS bool
	// DurableRootfs lets fsync in a container's writable layer reach the disk.
	// Off (the default), layers are mounted volatile: a writable layer does
	// not outlive a reboot anyway, and unmounting one does not have to sync
	// the whole file system.
	DurableRootfs bool
	// Pinned are image references that the kubelet must not collect. A
	// trailing * matches any rest.
	Pinned []string
	// CollectDelay is the time between a deletion and the garbage collection
	// it causes. 0 is one second.
	CollectDelay time.Duration
	// UsageInterval is the time between two measurements of the disk usage.
	// 0 is ten seconds.
	UsageInterval time.Duration
}

func (c *Config) withDefaults() (*Config, error) {
	d := *c
	if d.Root == "" {
		return nil, fmt.Errorf("image root is not set: %w", errdefs.ErrInvalidArgument)
	}
	switch d.Snapshotter {
	case "":
		d.Snapshotter = Overlay
	case Overlay, Native:
	default:
		return nil, fmt.Errorf("snapshotter %q is not one of %s, %s: %w", d.Snapshotter, Overlay, Native, errdefs.ErrInvalidArgument)
	}
	if d.Snapshotter == Overlay && strings.ContainsAny(d.Root, `,:\`) {
		return nil, fmt.Errorf("image root %s: overlayfs takes no path with a comma, colon or backslash: %w", d.Root, errdefs.ErrInvalidArgument)
	}
	if d.StallTimeout <= 0 {
		d.StallTimeout = 2 * time.Minute
	}
	if d.MaxConcurrentDownloads <= 0 {
		d.MaxConcurrentDownloads = 3
	}
	if d.CollectDelay <= 0 {
		d.CollectDelay = time.Second
	}
	if d.UsageInterval <= 0 {
		d.UsageInterval = 10 * time.Second
	}
	return &d, nil
}

// Service is the image service. All its methods may be called at once.
type Service struct {
	cfg      *Config
	platform platforms.MatchComparer

	db     *metadata.DB
	blobs  content.Store // the store below the metadata, for repairs
	cs     content.Store
	is     images.Store
	lm     leases.Manager
	sn     snapshots.Snapshotter
	snRoot string

	catalog *catalog
	// writes holds one token. Who changes image records takes it, so that the
	// catalog sees changes in the order the metadata store made them.
	writes chan struct{}

	locks   keyLocks
	down    downHosts
	rootfs  rootfsStore
	usage   usageCache
	collect chan struct{}

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // pulls and background loops
	closer []io.Closer    // in the order of opening

	mu      sync.Mutex
	closed  bool
	flights map[string]*flight
	leased  map[string]*pullLease
}

// New opens the image service on cfg.Root. A damaged database is set aside and
// a damaged image is left out; both are named in the log and neither is an
// error. It fails with errdefs.ErrUnavailable when another process has the root.
func New(ctx context.Context, cfg *Config) (_ *Service, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg:      cfg,
		platform: platforms.Default(),
		catalog:  newCatalog(cfg.Pinned),
		writes:   make(chan struct{}, 1),
		collect:  make(chan struct{}, 1),
		flights:  map[string]*flight{},
		leased:   map[string]*pullLease{},
	}
	s.ctx, s.cancel = context.WithCancel(namespaces.WithNamespace(context.WithoutCancel(ctx), namespace))
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := os.MkdirAll(cfg.Root, 0o711); err != nil {
		return nil, fmt.Errorf("image root: %w", err)
	}
	if cfg.State != "" {
		if err := mount.SetTempMountLocation(filepath.Join(cfg.State, "mounts")); err != nil {
			return nil, fmt.Errorf("folder for temporary mounts: %w", err)
		}
		if warn, err := mount.CleanupTempMounts(0); err != nil || len(warn) > 0 {
			log.G(ctx).WithError(err).Warnf("image: temporary mounts of an earlier run: %v", warn)
		}
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := s.afterReboot(); err != nil {
		return nil, err
	}
	if err := s.load(s.ctx); err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	if err := s.openRootfs(); err != nil {
		return nil, err
	}
	s.work.Go(s.collectLoop)
	s.work.Go(s.usageLoop)
	return s, nil
}

// Close ends pulls and background work, waits for them and closes the
// databases. Mounts and writable layers stay.
func (s *Service) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()

	s.cancel()
	s.work.Wait()
	var first error
	for i := len(s.closer) - 1; i >= 0; i-- {
		if err := s.closer[i].Close(); err != nil && first == nil {
			first = fmt.Errorf("close image store: %w", err)
		}
	}
	return first
}

// inNamespace gives ctx the namespace that the metadata store asks for.
func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}
