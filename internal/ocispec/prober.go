package ocispec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// pathDeadline is how long a path may take to answer, and relabelDeadline
	// how long when all below it is relabelled, too.
	pathDeadline    = 10 * time.Second
	relabelDeadline = 90 * time.Second
	// idleHelpers are kept for the next request, for idleTime: starting one
	// costs as much as ten containers' paths.
	idleHelpers = 2
	idleTime    = 10 * time.Second
	// killTime is how long a killed process may take to be gone, on a busy
	// machine, before it counts as stuck.
	killTime = time.Second
	// maxHelpers bounds helpers at work; callers beyond wait. maxStuck bounds
	// those that were killed and do not die, because the kernel waits for a disk.
	maxHelpers = 16
	maxStuck   = 64
)

// Prober is a PathProber that has the looking done by child processes: copies
// of this program, see PathMain. One request occupies one child. A child whose
// path does not answer in time is killed, and given up if it does not die.
// While it lives, its path fails at once for everybody else.
type Prober struct {
	deadline time.Duration
	slots    chan struct{}

	mu     sync.Mutex
	idle   []*helper
	stuck  map[string]int // by path: helpers that were killed and live on
	closed bool
}

// processProber is the prober of requests that bring none.
var processProber = sync.OnceValue(func() PathProber { return NewProber(pathDeadline) })

// NewProber makes a prober that gives each path at most deadline.
func NewProber(deadline time.Duration) *Prober {
	return &Prober{deadline: deadline, slots: make(chan struct{}, maxHelpers), stuck: map[string]int{}}
}

// Prepare implements PathProber. Besides DeadlineExceeded it fails with
// InvalidArgument for a path that is not what it should be, and with
// Unavailable for one that others found hanging.
func (p *Prober) Prepare(ctx context.Context, list []HostPath) ([]PathInfo, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a path helper: %w", ctx.Err())
	}
	if err := p.refuse(list); err != nil {
		return nil, err
	}
	h, used := p.take()
	for {
		if h == nil {
			var err error
			if h, err = startHelper(); err != nil {
				return nil, fmt.Errorf("start path helper: %w", err)
			}
		}
		infos, err := h.look(ctx, list, p.deadline)
		var dead *helperDied
		switch {
		case errors.As(err, &dead) && used && len(infos) == 0 && !dead.hung:
			// It died while it was idle. That says nothing about our paths.
			h.kill()
			go h.wait()
			h, used = nil, false
			continue
		case errors.As(err, &dead):
			p.giveUp(h, list[len(infos)].Path)
			return nil, err
		}
		p.put(h)
		return infos, err
	}
}

// Close ends idle helpers. Requests under way end by themselves.
func (p *Prober) Close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, h := range idle {
		if h.retire.Stop() { // else the timer ends it
			h.end()
		}
	}
	return nil
}

// refuse fails for paths that are known to hang.
func (p *Prober) refuse(list []HostPath) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all int
	for _, n := range p.stuck {
		all += n
	}
	if all >= maxStuck {
		return fmt.Errorf("%d path helpers hang on %d paths: %w", all, len(p.stuck), errdefs.ErrUnavailable)
	}
	for _, hp := range list {
		if p.stuck[hp.Path] > 0 {
			return fmt.Errorf("%s: %q does not answer: %w", hp.Field, hp.Path, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// take returns an idle helper, if there is one.
func (p *Prober) take() (*helper, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.idle); n > 0; n = len(p.idle) {
		h := p.idle[n-1]
		p.idle = p.idle[:n-1]
		if h.retire.Stop() {
			return h, true
		}
		// Its time is just up: the timer ends it.
	}
	return nil, false
}

// put keeps a helper for the next request.
func (p *Prober) put(h *helper) {
	p.mu.Lock()
	keep := !p.closed && len(p.idle) < idleHelpers
	if keep {
		p.idle = append(p.idle, h)
		h.retire = time.AfterFunc(idleTime, func() {
			p.mu.Lock()
			p.idle = slices.DeleteFunc(p.idle, func(i *helper) bool { return i == h })
			p.mu.Unlock()
			h.end()
		})
	}
	p.mu.Unlock()
	if !keep {
		h.end()
	}
}

// giveUp kills a helper. If it does not die of that, its path is remembered
// until it does.
func (p *Prober) giveUp(h *helper, path string) {
	h.kill()
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		h.wait()
	}()
	select {
	case <-reaped:
		return
	case <-time.After(killTime):
	}
	p.mu.Lock()
	p.stuck[path]++
	p.mu.Unlock()
	go func() {
		<-reaped
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stuck[path]--; p.stuck[path] == 0 {
			delete(p.stuck, path)
		}
	}()
}

// helper is a child process that looks at paths for one request at a time.
type helper struct {
	cmd     *exec.Cmd
	in, out *os.File
	enc     *json.Encoder
	dec     *json.Decoder
	retire  *time.Timer
}

func startHelper() (*helper, error) {
	if !hooked.Load() {
		return nil, fmt.Errorf("PathMain was not called: %w", errdefs.ErrFailedPrecondition)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{pathArg0}, Env: []string{"GOMAXPROCS=2"}, Dir: "/",
		Stdin: inR, Stdout: outW,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // a terminal's ^C is the daemon's affair
	}
	err = cmd.Start()
	inR.Close()
	outW.Close()
	h := &helper{cmd: cmd, in: inW, out: outR, enc: json.NewEncoder(inW), dec: json.NewDecoder(outR)}
	if err != nil {
		h.closePipes()
		return nil, err
	}
	return h, nil
}

// helperDied is a helper that did not answer, and cannot be used any more: it
// hung (or its caller left), or it is dead.
type helperDied struct {
	error
	hung bool
}

func (e *helperDied) Unwrap() error { return e.error }

// look has a list of paths looked at. It returns what was answered; with an
// error that is a helperDied, the path after those is the one at fault.
func (h *helper) look(ctx context.Context, list []HostPath, deadline time.Duration) (infos []PathInfo, err error) {
	stop := context.AfterFunc(ctx, func() {
		h.in.SetDeadline(time.Unix(1, 0))
		h.out.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		var dead *helperDied
		if !stop() && !errors.As(err, &dead) {
			// The pipes' deadlines are over, or will be at any moment: whatever
			// came of this request, the helper cannot serve another.
			infos, err = nil, &helperDied{fmt.Errorf("look at paths of the host: %w", errors.Join(ctx.Err(), err)), true}
		}
	}()
	died := func(p HostPath, cause error) ([]PathInfo, error) {
		hung := true
		switch {
		case ctx.Err() != nil:
			cause = ctx.Err()
		case errors.Is(cause, os.ErrDeadlineExceeded):
			cause = context.DeadlineExceeded
		default:
			hung = false
		}
		return infos, &helperDied{fmt.Errorf("%s: %q did not answer: %w", p.Field, p.Path, cause), hung}
	}
	h.in.SetWriteDeadline(time.Now().Add(deadline))
	if err := h.enc.Encode(list); err != nil {
		return died(list[0], err)
	}
	infos = make([]PathInfo, 0, len(list))
	for _, p := range list {
		d := deadline
		if p.Label != "" {
			d = max(d, relabelDeadline)
		}
		h.out.SetReadDeadline(time.Now().Add(d))
		if ctx.Err() != nil {
			return died(p, ctx.Err())
		}
		var r pathReply
		if err := h.dec.Decode(&r); err != nil {
			return died(p, err)
		}
		if r.Error != "" {
			if r.Invalid {
				return nil, invalid(p.Field, "%s", r.Error)
			}
			return nil, fmt.Errorf("%s: %s", p.Field, r.Error)
		}
		infos = append(infos, r.Info)
	}
	return infos, nil
}

// end lets an idle helper go.
func (h *helper) end() {
	h.in.Close() // its end of input is its end
	h.wait()
}

// kill ends a helper, or would, were it not for the kernel.
func (h *helper) kill() { h.cmd.Process.Kill() }

// wait reaps a helper and gives its pipes back.
func (h *helper) wait() {
	h.cmd.Wait()
	h.closePipes()
}

func (h *helper) closePipes() {
	h.in.Close()
	h.out.Close()
}
