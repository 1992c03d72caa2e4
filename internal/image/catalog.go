package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// labelPinned is containerd's label for images that the kubelet must not collect.
const (
	labelPinned = "io.cri-containerd.pinned"
	valuePinned = "pinned"
)

// Image is one image with all its names. Images are shared between callers and
// must not be changed.
type Image struct {
	// ID is the digest of the image's config, "sha256:" and 64 hex digits.
	ID string
	// Tags are names like docker.io/library/busybox:1, sorted.
	Tags []string
	// Digests are names like docker.io/library/busybox@sha256:…, sorted.
	Digests []string
	// Size is what the image takes compressed, in bytes: layers, config and
	// manifests, as containerd counts.
	Size int64
	// Config is the image's config.
	Config ocispec.Image
	// ChainID names the unpacked layers. It is empty for an image without any.
	ChainID string
	// UID is the user of the config if it is a number, else nil.
	UID *int64
	// Username is the user of the config if it is a name, else empty.
	Username string
	// Pinned images are not to be collected by the kubelet.
	Pinned bool
	// Labels are those of the image's records.
	Labels map[string]string

	// target is the manifest or index that a record points to.
	target ocispec.Descriptor
}

// view is one state of the catalog. It is never changed.
type view struct {
	byID  map[string]*Image
	byRef map[string]*Image
	list  []*Image // by id
}

// catalog is the memory of all images. Readers load the current view without a
// lock; whoever holds Service.writes makes the next one.
type catalog struct {
	pinned []string
	now    atomic.Pointer[view]

	records map[string]images.Image      // by name; guarded by Service.writes
	content map[digest.Digest]*described // by target; guarded by Service.writes
}

func newCatalog(pinned []string) *catalog {
	c := &catalog{
		pinned:  pinned,
		records: map[string]images.Image{},
		content: map[digest.Digest]*described{},
	}
	c.now.Store(&view{})
	return c
}

// put adds or replaces records that all point to d.
func (c *catalog) put(d *described, records ...images.Image) {
	c.content[d.target.Digest] = d
	for _, r := range records {
		c.records[r.Name] = r
	}
}

// publish makes the records the view that readers see.
func (c *catalog) publish() {
	v := &view{byID: map[string]*Image{}, byRef: map[string]*Image{}}
	used := map[digest.Digest]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		r := c.records[name]
		d := c.content[r.Target.Digest]
		used[r.Target.Digest] = true
		img := v.byID[d.id]
		if img == nil {
			img = &Image{
				ID: d.id, Size: d.size, Config: d.config, ChainID: d.chainID,
				Labels: map[string]string{}, target: d.target,
			}
			img.UID, img.Username = parseUser(d.config.Config.User)
			v.byID[d.id] = img
			v.list = append(v.list, img)
		}
		tags, digests := splitNames([]string{name})
		img.Tags = append(img.Tags, tags...)
		img.Digests = append(img.Digests, digests...)
		maps.Copy(img.Labels, r.Labels)
		img.Pinned = img.Pinned || r.Labels[labelPinned] == valuePinned || matchesAny(name, c.pinned)
		v.byRef[name] = img
	}
	maps.DeleteFunc(c.content, func(d digest.Digest, _ *described) bool { return !used[d] })
	slices.SortFunc(v.list, func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
	c.now.Store(v)
}

// names are the record names of the image with this id. Caller holds Service.writes.
func (c *catalog) names(id string) []string {
	var names []string
	for name, r := range c.records {
		if c.content[r.Target.Digest].id == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Get finds an image by id, by a beginning of its id that is unique, by tag or
// by digest. References are normalised: "busybox" is docker.io/library/busybox:latest.
// It reads memory only. No such image is errdefs.ErrNotFound.
func (s *Service) Get(_ context.Context, ref string) (*Image, error) {
	v := s.catalog.now.Load()
	if img := v.byID[ref]; img != nil {
		return img, nil
	}
	if img := v.byRef[ref]; img != nil {
		return img, nil
	}
	if named, err := parseRef(ref); err == nil {
		if img := v.byRef[named.String()]; img != nil {
			return img, nil
		}
	}
	prefix := strings.TrimPrefix(ref, "sha256:")
	if prefix == "" {
		return nil, fmt.Errorf("image reference is empty: %w", errdefs.ErrInvalidArgument)
	}
	prefix = "sha256:" + prefix
	at, _ := slices.BinarySearchFunc(v.list, prefix, func(img *Image, p string) int { return strings.Compare(img.ID, p) })
	if at == len(v.list) || !strings.HasPrefix(v.list[at].ID, prefix) {
		return nil, fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound)
	}
	if at+1 < len(v.list) && strings.HasPrefix(v.list[at+1].ID, prefix) {
		return nil, fmt.Errorf("image id %q begins more than one id: %w", ref, errdefs.ErrInvalidArgument)
	}
	return v.list[at], nil
}

// List gives all images, ordered by id, from memory.
func (s *Service) List(context.Context) []*Image {
	return slices.Clone(s.catalog.now.Load().list)
}

// lockWrites takes the right to change image records.
func (s *Service) lockWrites(ctx context.Context) error {
	select {
	case s.writes <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Service) unlockWrites() { <-s.writes }

// load fills the catalog from the metadata store. An image that cannot be used
// is named in the log and left out; what is damaged of it is deleted, so that
// the next pull fetches it again.
func (s *Service) load(ctx context.Context) error {
	records, err := s.is.List(ctx)
	if err != nil {
		return err
	}
	known := map[digest.Digest]*described{}
	for _, r := range records {
		d, seen := known[r.Target.Digest]
		if !seen {
			if d, err = s.inspect(ctx, r.Target); err != nil {
				log.G(ctx).WithError(err).Errorf("image: %s cannot be used until it is pulled again", r.Name)
			}
			known[r.Target.Digest] = d
		} else if d == nil {
			log.G(ctx).Errorf("image: %s cannot be used either, it has the same content", r.Name)
		}
		if d != nil {
			s.catalog.put(d, r)
		}
	}
	s.catalog.publish()
	return nil
}
