package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
)

// PullOptions say how to pull.
type PullOptions struct {
	// Auth are credentials for the registry; nil is none.
	Auth *Auth
	// Labels are put on the image's records.
	Labels map[string]string
}

// flight is a pull under way, with everybody who waits for it.
type flight struct {
	progress *progress
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed after img and err are set
	img      *Image
	err      error
	waiters  int // guarded by Service.mu
}

// errNobody ends a pull whose last waiter has left.
var errNobody = errors.New("nobody waits for this pull any more")

// pull is the work of one flight.
type pull struct {
	s        *Service
	named    reference.Named
	labels   map[string]string
	creds    *credentials
	progress *progress

	connections []*http.Transport

	mu    sync.Mutex
	tried []try
}

// Pull brings an image here and unpacks it. Callers that ask for the same image
// with the same credentials share one pull. A caller whose ctx ends stops
// waiting; the pull ends when nobody waits, and the next one goes on where it
// was. The error wraps a class of errdefs or context.DeadlineExceeded (a stall,
// see StallError, or ctx), and names reference, step and hosts.
func (s *Service) Pull(ctx context.Context, ref string, o *PullOptions) (*Image, error) {
	if o == nil {
		o = &PullOptions{}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("pull %s: not begun: %w", ref, ctxErr(ctx))
	}
	named, err := parseRef(ref)
	if err != nil {
		return nil, err
	}
	creds, err := bind(o.Auth, reference.Domain(named))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", named, err)
	}
	key := named.String() + "\x00" + o.Auth.key()

	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("pull %s: image service is closed: %w", named, errdefs.ErrUnavailable)
	}
	f := s.flights[key]
	if f == nil {
		f = &flight{progress: newProgress(named.String()), done: make(chan struct{})}
		var work context.Context
		work, f.cancel = context.WithCancelCause(log.WithLogger(s.ctx, log.G(ctx).WithField("image", named.String())))
		p := &pull{s: s, named: named, labels: o.Labels, creds: creds, progress: f.progress}
		s.flights[key] = f
		s.work.Go(func() {
			f.img, f.err = p.run(work)
			s.mu.Lock()
			if s.flights[key] == f {
				delete(s.flights, key)
			}
			s.mu.Unlock()
			f.cancel(nil)
			close(f.done)
		})
	}
	f.waiters++
	s.mu.Unlock()

	select {
	case <-f.done:
		return f.img, f.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	f.waiters--
	if f.waiters == 0 {
		f.cancel(errNobody)
		// Whoever asks next gets a pull of its own, not one that is ending.
		if s.flights[key] == f {
			delete(s.flights, key)
		}
	}
	s.mu.Unlock()
	stage, host := f.progress.where()
	return nil, fmt.Errorf("pull %s: stopped waiting at %s from %s: %w", named, stage, host, ctxErr(ctx))
}

// ctxErr is why ctx ended, with its class (deadline or cancellation) kept.
func ctxErr(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// run pulls under a lease. Content that turns out to be damaged is fetched anew,
// once.
func (p *pull) run(ctx context.Context) (img *Image, err error) {
	defer p.closeConnections()
	begin := time.Now()
	ctx, release, err := p.s.leasePull(ctx, p.named.String())
	if err != nil {
		return nil, fmt.Errorf("pull %s: lease: %w", p.named, err)
	}
	defer func() { release(err == nil) }()

	img, err = p.fetchAndUnpack(ctx)
	if err != nil && ctx.Err() == nil && p.blamesDisk(err) {
		healed, herr := p.s.dropDamaged(ctx, p.progress)
		if herr != nil {
			log.G(ctx).WithError(herr).Warn("image: content on disk could not be verified")
		}
		if healed {
			log.G(ctx).WithError(err).Warn("image: content on disk was damaged, pulling again")
			img, err = p.fetchAndUnpack(ctx)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctxErr(ctx)
		}
		return nil, p.failure(err)
	}
	log.G(ctx).Infof("image: pulled %s as %s in %s", p.named, img.ID, time.Since(begin).Round(time.Millisecond))
	return img, nil
}

// blamesDisk reports whether a pull failed after its content was here.
func (p *pull) blamesDisk(err error) bool {
	var fetch *fetchError
	stage, _ := p.progress.where()
	return stage != StageResolve && !errors.As(err, &fetch)
}

// failure gives an error its step, its class and what every host said.
func (p *pull) failure(err error) error {
	stage, _ := p.progress.where()
	p.mu.Lock()
	defer p.mu.Unlock()
	tried := append([]try(nil), p.tried...)
	return &pullError{ref: p.named.String(), step: stage, cause: err, class: classOf(err, tried), tried: tried}
}
