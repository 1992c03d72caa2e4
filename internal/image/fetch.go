package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

const (
	// maxFailures is how often in a row a fetch may fail without a new byte.
	maxFailures = 4
	// firstPause is the pause after the first of those, doubled each time.
	firstPause = 100 * time.Millisecond
)

// fetchAndUnpack resolves, fetches, unpacks, syncs and records the image.
func (p *pull) fetchAndUnpack(ctx context.Context) (*Image, error) {
	p.progress.enter(StageResolve)
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: p.registries(ctx)})
	name, target, err := resolver.Resolve(ctx, p.named.String())
	if err != nil {
		return nil, err
	}
	if target.MediaType == images.MediaTypeDockerSchema1Manifest {
		return nil, fmt.Errorf("docker schema 1 images are not supported: %w", errdefs.ErrInvalidArgument)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	p.progress.enter(StageFetch)
	if err := p.s.dispatch(ctx, target, p.progress, p.fetchHandler(fetcher)); err != nil {
		return nil, err
	}
	d, err := p.s.describe(ctx, target)
	if err != nil {
		return nil, err
	}
	return p.s.finish(ctx, d, p.progress, refNames(p.named, target.Digest), p.labels)
}

// dispatch walks an image from its target down, gets what it names and unpacks
// it. get is called for everything below the target, too.
func (s *Service) dispatch(ctx context.Context, target ocispec.Descriptor, p *progress, get images.HandlerFunc) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	children := images.SetChildrenMappedLabels(s.cs, images.ChildrenHandler(s.cs), nil)
	children = images.FilterPlatforms(children, s.platform)
	children = images.LimitManifests(children, s.platform, 1)
	listed := func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		list, err := children(ctx, desc)
		for i := range list {
			// Data that a manifest carries along is not needed, and URLs would
			// have us fetch from anywhere.
			list[i].Data, list[i].URLs = nil, nil
			p.blob(list[i])
		}
		return list, err
	}
	limit := semaphore.NewWeighted(int64(s.cfg.MaxConcurrentDownloads))
	unpacker, err := s.unpacker(ctx, p, limit)
	if err != nil {
		return err
	}
	err = images.Dispatch(ctx, unpacker.Unpack(images.Handlers(get, images.HandlerFunc(listed))), nil, target)
	if err != nil {
		cancel()
	}
	if _, uerr := unpacker.Wait(); err == nil {
		err = uerr
	}
	return err
}

// fetchError tells what failed on the way here from what failed afterwards,
// which may be the fault of content that was here before.
type fetchError struct{ cause error }

func (e *fetchError) Error() string { return e.cause.Error() }
func (e *fetchError) Unwrap() error { return e.cause }

// fetchHandler gets one piece of content into the store.
func (p *pull) fetchHandler(fetcher remotes.Fetcher) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		b := p.progress.blob(desc)
		if b.kind != "blob" && desc.Size > maxDocument {
			return nil, fmt.Errorf("%s %s has %d bytes, more than allowed: %w", b.kind, desc.Digest, desc.Size, errdefs.ErrInvalidArgument)
		}
		if err := p.fetch(withBlob(ctx, b), fetcher, desc, b); err != nil {
			return nil, &fetchError{fmt.Errorf("%s %s: %w", b.kind, desc.Digest, err)}
		}
		b.fetched.Store(desc.Size)
		b.verified.Store(true)
		p.progress.alive()
		return nil, nil
	}
}

// fetch fetches desc and goes on after failures, from where it was, for as long
// as something comes. It begins again when the bytes turn out to be wrong, once,
// and when the registry cannot send the rest of a blob, a few times.
func (p *pull) fetch(ctx context.Context, fetcher remotes.Fetcher, desc ocispec.Descriptor, b *blob) error {
	key := remotes.MakeRefKey(ctx, desc)
	failures, wrong, whole := 0, 0, 0
	for {
		have := p.partial(ctx, key)
		b.fetched.Store(have)
		b.refused.Store(0)
		err := remotes.Fetch(ctx, p.s.cs, fetcher, desc)
		if err == nil || errdefs.IsAlreadyExists(err) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// containerd gives the first host's error; the last host's answer counts.
		status := int(b.refused.Load())
		noRest := status == http.StatusRequestedRangeNotSatisfiable
		if noRest || errdefs.IsFailedPrecondition(err) {
			// What is here is of no use, perhaps by an earlier pull's fault.
			if aerr := p.s.cs.Abort(ctx, key); aerr != nil && !errdefs.IsNotFound(aerr) {
				return fmt.Errorf("drop partial content: %w", aerr)
			}
			if !noRest {
				if wrong++; wrong > 1 {
					return fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
				}
			} else if whole++; whole > maxFailures {
				return err
			}
			continue
		}
		if !worthAnother(err, status) {
			return err
		}
		failures++
		if now := p.partial(ctx, key); now > have {
			failures = 1
		}
		if failures > maxFailures {
			return err
		}
		log.G(ctx).WithError(err).Debugf("image: fetch of %s failed, going on", desc.Digest)
		select {
		case <-time.After(firstPause << (failures - 1)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// partial is how many bytes of a piece of content are on disk.
func (p *pull) partial(ctx context.Context, key string) int64 {
	st, err := p.s.cs.Status(ctx, key)
	if err != nil {
		return 0
	}
	return st.Offset
}

// worthAnother tells a passing failure from an answer. status is what the last
// host refused with, 0 if it did not.
func worthAnother(err error, status int) bool {
	var stall *StallError
	if errors.As(err, &stall) {
		return !stall.Last
	}
	if errors.Is(err, docker.ErrInvalidAuthorization) || errdefs.IsInvalidArgument(err) {
		return false
	}
	return status == 0 || status >= 500 || status == http.StatusTooManyRequests
}

// dropDamaged verifies the content that a failed pull used and deletes what is
// not what its digest says. It reports whether there was any.
func (s *Service) dropDamaged(ctx context.Context, p *progress) (bool, error) {
	p.mu.Lock()
	blobs := slices.Collect(maps.Values(p.blobs))
	p.mu.Unlock()
	found := false
	for _, b := range blobs {
		if _, err := s.cs.Info(ctx, b.digest); err != nil {
			continue // not named, so the next try fetches it
		}
		if ok, err := s.verify(ctx, b.digest); err != nil {
			return found, err
		} else if ok {
			continue
		}
		found = true
		if err := s.dropBlob(ctx, b.digest); err != nil {
			return found, err
		}
	}
	return found, nil
}

// verify reads a blob and reports whether it is what its digest says.
func (s *Service) verify(ctx context.Context, dgst digest.Digest) (bool, error) {
	ra, err := s.cs.ReaderAt(ctx, ocispec.Descriptor{Digest: dgst})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("verify %s: %w", dgst, err)
	}
	defer ra.Close()
	sum, err := dgst.Algorithm().FromReader(content.NewReader(ra))
	if err != nil {
		return false, fmt.Errorf("verify %s: %w", dgst, err)
	}
	return sum == dgst, nil
}
