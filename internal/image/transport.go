package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A mirror that takes no connection in this time is passed over.
	mirrorConnect = 3 * time.Second
	// The registry itself gets more time to take a connection.
	lastConnect = 15 * time.Second
	// A mirror that does not begin to answer in this time is passed over.
	mirrorAnswer = 30 * time.Second
	// maxTried bounds the failed requests that an error names.
	maxTried = 8
)

// try is one request that failed.
type try struct {
	host, step, result string
	status             int
	last               bool
}

// transport carries the requests of one pull to one registry host. It fails a
// request that is silent for too long, counts what comes, notes what failed,
// and takes credentials out of requests that a redirect leads to another host.
type transport struct {
	*pull
	base  http.RoundTripper
	host  string
	last  bool // no other host is asked after this one
	token bool // speaks to the token server, not to the registry
	// secure is set once the registry has answered over TLS. The scheme does
	// not tell: registries on loopback may fall back to plain HTTP.
	secure *atomic.Bool
	// private are header fields of hosts.toml, meant for this host alone.
	private http.Header
}

// RoundTrip does one request. See http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	host, step := req.URL.Host, t.stepOf(req)
	own := strings.EqualFold(host, t.host)
	if why := t.s.down.reason(host); why != nil && !t.last {
		err := fmt.Errorf("passed over, failed less than %s ago: %w", downFor, why)
		t.note(try{host: host, step: step, result: err.Error()})
		return nil, err
	}
	switch {
	case t.token && t.secure.Load() && req.URL.Scheme != "https" && t.creds.allowed(t.host):
		return nil, fmt.Errorf("token server %s is not https, it may not see the credentials of %s", host, t.host)
	case !t.token && !own:
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
		req.Header.Del("Cookie")
		for field := range t.private {
			req.Header.Del(field)
		}
	}

	ctx, cancel := context.WithCancelCause(req.Context())
	stall := t.s.cfg.StallTimeout
	connect, answer := min(stall, mirrorConnect), min(stall, mirrorAnswer)
	if t.last {
		connect, answer = min(stall, lastConnect), stall
	}
	w := &watch{cancel: cancel, stall: StallError{Host: host, Step: step, Last: t.last}}
	w.arm("connect", connect)
	defer w.disarm()
	t.progress.at(host)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { w.arm(step, answer) },
	})
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && req.Context().Err() == nil {
			err = cause
		}
		cancel(nil)
		if req.Context().Err() == nil {
			t.s.down.mark(host, err)
			t.note(try{host: host, step: step, result: err.Error(), last: t.last})
		}
		return nil, err
	}
	t.s.down.clear(host)
	if own && !t.token && resp.TLS != nil {
		t.secure.Store(true)
	}
	t.progress.alive()
	counted := blobOf(req.Context())
	switch {
	case resp.StatusCode < 400 && !t.token:
		t.loggedIn(host)
	case resp.StatusCode >= 400:
		if counted != nil && t.last && !t.token {
			counted.refused.Store(int32(resp.StatusCode))
		}
		t.note(try{host: host, step: step, result: resp.Status, status: resp.StatusCode, last: t.last && !t.token})
	}
	if t.token || resp.StatusCode >= 300 {
		counted = nil
	}
	resp.Body = &body{ReadCloser: resp.Body, t: t, ctx: ctx, parent: req.Context(), w: w, idle: stall, blob: counted}
	return resp, nil
}

// stepOf names a request for errors: what it asks the registry for.
func (t *transport) stepOf(req *http.Request) string {
	if t.token {
		return "token"
	}
	if b := blobOf(req.Context()); b != nil {
		return b.kind + " " + b.digest.String()
	}
	return "resolve"
}

func (p *pull) note(t try) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.tried); n > 0 && p.tried[n-1] == t {
		return
	}
	p.tried = append(p.tried, t)
	if len(p.tried) > maxTried {
		p.tried = p.tried[1:]
	}
}

// loggedIn forgets the refusals that were a host's way to ask for a login.
func (p *pull) loggedIn(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried = slices.DeleteFunc(p.tried, func(t try) bool {
		return t.host == host && t.status == http.StatusUnauthorized
	})
}

// watch cancels a request when nothing comes. It is armed only while the
// network is waited for, so slow work on our side is never taken for a stall.
type watch struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	stall StallError
	timer *time.Timer
}

func (w *watch) arm(step string, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stall.Step, w.stall.Silence = step, after
	if w.timer == nil {
		w.timer = time.AfterFunc(after, w.fire)
		return
	}
	w.timer.Reset(after)
}

func (w *watch) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

func (w *watch) fire() {
	w.mu.Lock()
	stall := w.stall
	w.mu.Unlock()
	w.cancel(&stall)
}

// body is a response's body.
type body struct {
	io.ReadCloser
	t           *transport
	ctx, parent context.Context
	w           *watch
	idle        time.Duration
	blob        *blob
	ended       bool
}

// Read reads what the host sends next. A connection that breaks is
// io.ErrUnexpectedEOF, which makes containerd's reader ask for the rest.
func (b *body) Read(p []byte) (int, error) {
	b.w.arm(b.w.stall.Step, b.idle)
	n, err := b.ReadCloser.Read(p)
	b.w.disarm()
	if n > 0 {
		b.t.progress.read(b.blob, int64(n))
	}
	if err == nil || err == io.EOF {
		return n, err
	}
	if parent := b.parent.Err(); parent != nil {
		return n, parent
	}
	var stall *StallError
	if errors.As(context.Cause(b.ctx), &stall) {
		err = stall
	}
	if !b.ended {
		b.ended = true
		b.t.note(try{host: b.w.stall.Host, step: b.w.stall.Step, result: err.Error(), last: b.t.last})
		b.t.s.down.mark(b.w.stall.Host, err)
	}
	if stall != nil {
		return n, stall
	}
	return n, io.ErrUnexpectedEOF
}

// Close ends the request.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.w.cancel(nil)
	return err
}
