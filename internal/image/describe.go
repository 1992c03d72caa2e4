package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxDocument bounds manifests, indexes and configs, which are read into memory.
const maxDocument = 8 << 20

// described is what the content of an image says.
type described struct {
	target  ocispec.Descriptor
	id      string
	size    int64
	config  ocispec.Image
	chainID string
	layers  []ocispec.Descriptor
}

// damagedError says that a blob is not what its digest or size says.
type damagedError struct {
	digest digest.Digest
	reason string
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("content %s is damaged: %s", e.digest, e.reason)
}
func (e *damagedError) Unwrap() error { return errdefs.ErrDataLoss }

// describe reads and verifies the documents of an image for our platform.
func (s *Service) describe(ctx context.Context, target ocispec.Descriptor) (*described, error) {
	d := &described{target: target, size: target.Size}
	desc := target
	for depth := 0; images.IsIndexType(desc.MediaType); depth++ {
		if depth > 3 {
			return nil, fmt.Errorf("index %s nests too deep: %w", target.Digest, errdefs.ErrInvalidArgument)
		}
		var index ocispec.Index
		if err := s.readJSON(ctx, desc, &index); err != nil {
			return nil, err
		}
		next, err := s.choose(ctx, index.Manifests)
		if err != nil {
			return nil, fmt.Errorf("index %s: %w", desc.Digest, err)
		}
		desc = next
		d.size += desc.Size
	}
	if !images.IsManifestType(desc.MediaType) {
		return nil, fmt.Errorf("%s is a %q, not an image: %w", desc.Digest, desc.MediaType, errdefs.ErrInvalidArgument)
	}
	var manifest ocispec.Manifest
	if err := s.readJSON(ctx, desc, &manifest); err != nil {
		return nil, err
	}
	if err := s.readJSON(ctx, manifest.Config, &d.config); err != nil {
		return nil, err
	}
	d.id = manifest.Config.Digest.String()
	d.layers = manifest.Layers
	d.size += manifest.Config.Size
	for _, l := range manifest.Layers {
		d.size += l.Size
	}
	if n := len(d.config.RootFS.DiffIDs); n != len(d.layers) {
		return nil, fmt.Errorf("image %s has %d layers but %d diff ids: %w", d.id, len(d.layers), n, errdefs.ErrInvalidArgument)
	}
	d.chainID = identity.ChainID(d.config.RootFS.DiffIDs).String()
	return d, nil
}

// choose picks the manifest of an index that runs here best. One that names no
// platform is taken for what its config says.
func (s *Service) choose(ctx context.Context, manifests []ocispec.Descriptor) (ocispec.Descriptor, error) {
	var best *ocispec.Descriptor
	for i := range manifests {
		m := &manifests[i]
		if m.Platform == nil && images.IsManifestType(m.MediaType) {
			if platform, err := s.platformOf(ctx, *m); err == nil {
				m.Platform = platform
			}
		}
		if m.Platform == nil || !s.platform.Match(*m.Platform) {
			continue
		}
		if best == nil || s.platform.Less(*m.Platform, *best.Platform) {
			best = m
		}
	}
	if best == nil {
		return ocispec.Descriptor{}, fmt.Errorf("no manifest for this platform: %w", errdefs.ErrNotFound)
	}
	return *best, nil
}

func (s *Service) platformOf(ctx context.Context, desc ocispec.Descriptor) (*ocispec.Platform, error) {
	var manifest ocispec.Manifest
	if err := s.readJSON(ctx, desc, &manifest); err != nil {
		return nil, err
	}
	var platform ocispec.Platform
	if err := s.readJSON(ctx, manifest.Config, &platform); err != nil {
		return nil, err
	}
	return &platform, nil
}

// readJSON reads a document from the content store and checks its digest.
func (s *Service) readJSON(ctx context.Context, desc ocispec.Descriptor, into any) error {
	if desc.Size > maxDocument {
		return fmt.Errorf("%s has %d bytes, more than a manifest or config may have: %w", desc.Digest, desc.Size, errdefs.ErrInvalidArgument)
	}
	desc.Data = nil
	data, err := content.ReadBlob(ctx, s.cs, desc)
	if err != nil {
		return fmt.Errorf("read %s: %w", desc.Digest, err)
	}
	if int64(len(data)) != desc.Size {
		return &damagedError{desc.Digest, fmt.Sprintf("%d bytes instead of %d", len(data), desc.Size)}
	}
	if desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return &damagedError{desc.Digest, "its digest is another"}
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("parse %s: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// inspect describes an image that was on disk and checks that it can be used:
// its documents are whole, and its layers are unpacked or can be. Damaged blobs
// are deleted.
func (s *Service) inspect(ctx context.Context, target ocispec.Descriptor) (*described, error) {
	d, err := s.describe(ctx, target)
	if err != nil {
		var damage *damagedError
		if errors.As(err, &damage) {
			err = errors.Join(err, s.dropBlob(ctx, damage.digest))
		}
		return nil, err
	}
	var missing error
	for _, l := range d.layers {
		// The raw store knows the file's size; the metadata repeats what it was told.
		info, err := s.blobs.Info(ctx, l.Digest)
		switch {
		case err != nil:
			missing = errors.Join(missing, fmt.Errorf("layer: %w", err))
			if errdefs.IsNotFound(err) {
				// Nothing may name a file that is not there, or a pull takes it for fetched.
				missing = errors.Join(missing, s.dropBlob(ctx, l.Digest))
			}
		case info.Size != l.Size:
			missing = errors.Join(missing, &damagedError{l.Digest, fmt.Sprintf("%d bytes instead of %d", info.Size, l.Size)},
				s.dropBlob(ctx, l.Digest))
		}
	}
	if missing == nil {
		return d, nil // can be unpacked again at need
	}
	if ok, err := s.unpacked(ctx, d.chainID); err != nil || !ok {
		return nil, errors.Join(missing, err)
	}
	return d, nil
}

// parseUser takes the user of an image config apart as CRI wants it: the part
// before a colon, as a uid if it is a number.
func parseUser(user string) (uid *int64, name string) {
	user, _, _ = strings.Cut(user, ":")
	if user == "" {
		return nil, ""
	}
	if n, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &n, ""
	}
	return nil, user
}
