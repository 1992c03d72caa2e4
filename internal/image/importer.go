package image

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// namelessRepo is the repository of imported images that carry no name.
const namelessRepo = "localhost/imported"

// Import reads an OCI layout or docker archive (tar) and makes its images
// usable. Names come from the annotation io.containerd.image.name, a whole name
// in org.opencontainers.image.ref.name, or docker's RepoTags; an image without
// one gets a name by digest. Images for other platforms are left out; an archive
// with none for this one is errdefs.ErrNotFound.
func (s *Service) Import(ctx context.Context, r io.Reader) ([]*Image, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("import: image service is closed: %w", errdefs.ErrUnavailable)
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()

	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()

	p := newProgress("import")
	ctx, release, err := s.leasePull(ctx, fmt.Sprintf("import %p", p))
	if err != nil {
		return nil, fmt.Errorf("import: lease: %w", err)
	}
	// An archive cannot be gone on with, so nothing is kept after a failure.
	defer release(true)

	target, err := archive.ImportIndex(ctx, &apart{s.cs, fmt.Sprintf("import-%p-", p)}, r)
	if err != nil {
		return nil, fmt.Errorf("import: read archive: %w", err)
	}
	var index ocispec.Index
	if err := s.readJSON(ctx, target, &index); err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	names, order := map[string][]string{}, []ocispec.Descriptor(nil)
	for _, m := range index.Manifests {
		id := m.Digest.String()
		if _, seen := names[id]; !seen {
			order = append(order, m)
		}
		found, err := importNames(m)
		if err != nil {
			return nil, fmt.Errorf("import: %w", err)
		}
		names[id] = append(names[id], found...)
	}
	var list []*Image
	for _, m := range order {
		if m.Platform != nil && !s.platform.Match(*m.Platform) || !images.IsManifestType(m.MediaType) && !images.IsIndexType(m.MediaType) {
			continue
		}
		img, err := s.importOne(ctx, m, names[m.Digest.String()], p)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", m.Digest, err)
		}
		list = append(list, img)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("import: archive has no image for this platform: %w", errdefs.ErrNotFound)
	}
	return list, nil
}

func (s *Service) importOne(ctx context.Context, m ocispec.Descriptor, names []string, p *progress) (*Image, error) {
	m = ocispec.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: m.Size}
	here := func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) { return nil, nil }
	if err := s.dispatch(ctx, m, p, here); err != nil {
		return nil, err
	}
	d, err := s.describe(ctx, m)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = []string{namelessRepo + "@" + m.Digest.String()}
	}
	return s.finish(ctx, d, p, names, nil)
}

// apart keeps the partial content of one import from that of others: in an
// archive, names of files say nothing about what is in them.
type apart struct {
	content.Store
	prefix string
}

func (a *apart) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	return a.Store.Writer(ctx, append(opts, func(o *content.WriterOpts) error {
		o.Ref = a.prefix + o.Ref
		return nil
	})...)
}

// importNames are the names an archive gives to an entry of its index.
func importNames(m ocispec.Descriptor) ([]string, error) {
	name := m.Annotations[images.AnnotationImageName]
	if name == "" {
		name = m.Annotations[ocispec.AnnotationRefName]
		if !strings.ContainsAny(name, "/:@") {
			return nil, nil // a tag alone names no image
		}
	}
	named, err := parseRef(name)
	if err != nil {
		return nil, err
	}
	return refNames(named, m.Digest), nil
}
