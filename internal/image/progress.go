package image

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Stages of a pull, in order. Fetching and unpacking overlap; the stage is the
// later one of those under way.
const (
	StageResolve = "resolve"
	StageFetch   = "fetch"
	StageUnpack  = "unpack"
	StageSync    = "sync"
	StageRecord  = "record"
)

// Progress is how far a pull is.
type Progress struct {
	Ref     string
	Stage   string
	Host    string // the registry host asked last
	Started time.Time
	Active  time.Time // when something last moved
	Layers  []LayerProgress
}

// LayerProgress counts in bytes of the compressed layer.
type LayerProgress struct {
	Digest   string
	Size     int64
	Fetched  int64
	Verified bool // all there, and its digest is right
	Unpacked int64
}

// blob is one piece of content under way.
type blob struct {
	kind     string // "blob" for a layer, else what the document is
	digest   digest.Digest
	size     int64
	fetched  atomic.Int64
	unpacked atomic.Int64
	verified atomic.Bool
	refused  atomic.Int32 // HTTP status of the registry's latest refusal, 0 if none
}

type blobKey struct{}

func withBlob(ctx context.Context, b *blob) context.Context {
	return context.WithValue(ctx, blobKey{}, b)
}

func blobOf(ctx context.Context) *blob {
	b, _ := ctx.Value(blobKey{}).(*blob)
	return b
}

// progress is the book a pull keeps of itself.
type progress struct {
	ref     string
	started time.Time
	active  atomic.Int64 // unix nanoseconds

	mu    sync.Mutex
	stage string
	host  string
	blobs map[digest.Digest]*blob
	order []*blob // layers, as first seen
}

func newProgress(ref string) *progress {
	p := &progress{ref: ref, started: time.Now(), stage: StageResolve, blobs: map[digest.Digest]*blob{}}
	p.alive()
	return p
}

func (p *progress) alive() { p.active.Store(time.Now().UnixNano()) }

func (p *progress) at(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.host = host
}

func (p *progress) enter(stage string) {
	p.alive()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage = stage
}

// where names host and stage, for the error of a caller that stops waiting.
func (p *progress) where() (stage, host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stage, p.host
}

// blob gives the book entry of a descriptor.
func (p *progress) blob(desc ocispec.Descriptor) *blob {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.blobs[desc.Digest]
	if b == nil {
		b = &blob{kind: kindOf(desc), digest: desc.Digest, size: desc.Size}
		p.blobs[desc.Digest] = b
		if b.kind == "blob" {
			p.order = append(p.order, b)
		}
	}
	return b
}

func kindOf(desc ocispec.Descriptor) string {
	switch {
	case images.IsIndexType(desc.MediaType):
		return "index"
	case images.IsManifestType(desc.MediaType):
		return "manifest"
	case images.IsConfigType(desc.MediaType):
		return "config"
	}
	return "blob"
}

func (p *progress) read(b *blob, n int64) {
	p.alive()
	if b != nil {
		b.fetched.Add(n)
	}
}

// applied is told by the unpacker how much of a layer it has read.
func (p *progress) applied(desc ocispec.Descriptor, n int64) {
	p.alive()
	p.mu.Lock()
	if p.stage == StageFetch && n > 0 {
		p.stage = StageUnpack
	}
	p.mu.Unlock()
	p.blob(desc).unpacked.Store(n)
}

func (p *progress) report() Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Progress{Ref: p.ref, Stage: p.stage, Host: p.host, Started: p.started, Active: time.Unix(0, p.active.Load())}
	for _, b := range p.order {
		r.Layers = append(r.Layers, LayerProgress{
			Digest: b.digest.String(), Size: b.size, Fetched: min(b.fetched.Load(), b.size),
			Verified: b.verified.Load(), Unpacked: b.unpacked.Load(),
		})
	}
	return r
}

// Progress tells how far the pulls under way are, ordered by reference.
func (s *Service) Progress() []Progress {
	s.mu.Lock()
	flights := make([]*progress, 0, len(s.flights))
	for _, f := range s.flights {
		flights = append(flights, f.progress)
	}
	s.mu.Unlock()
	list := make([]Progress, 0, len(flights))
	for _, p := range flights {
		list = append(list, p.report())
	}
	slices.SortFunc(list, func(a, b Progress) int { return strings.Compare(a.Ref, b.Ref) })
	return list
}
