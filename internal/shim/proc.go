package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth/internal/host"
	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// proc is a process of a task: its init, or one that was added to it. Its
// streams have a reader from birth.
type proc struct {
	id string // the task's, or the exec's

	// Set under Core.mu when the process begins, then constant.
	process host.Process
	relay   *stdio.Relay
	input   *stdio.Input  // nil without stdin
	stdin   *stdio.Source // of a stock process

	// spec is what a stock exec shall run, nil for others.
	spec *ExecSpec
	// announced is closed when the exit was announced.
	announced chan struct{}
	late      sync.Once

	// Guarded by Core.mu.
	state  State
	status Status
	begun  *work // the start of a stock exec
}

// attach wires a new process's streams.
func (p *proc) attach(process host.Process, sink stdio.Sink, stdin *stdio.Source, once bool) {
	p.process, p.stdin = process, stdin
	s := process.Streams()
	if s.Stdin != nil {
		p.input = stdio.NewInput(s.Stdin, once)
		if stdin != nil {
			go func() {
				_, _ = stdin.WriteTo(p.input) // either end may be gone: it is the end
				_ = p.input.Close()
				_ = stdin.Close()
			}()
		}
	}
	p.relay = stdio.NewRelay(s.Stdout, s.Stderr, sink)
}

// closeIO ends the process's stdin for a stock client.
func (p *proc) closeIO() {
	switch {
	case p.stdin != nil:
		// What clients wrote before is still read; then comes the end.
		_ = p.stdin.CloseWrite()
	case p.input != nil:
		_ = p.input.Close()
	}
}

// release closes all that is left of the streams.
func (p *proc) release() {
	closeSource(p.stdin)
	if p.input != nil {
		_ = p.input.Close()
	}
	p.relay.Close()
}

// ended tells whether the host saw the process end.
func (p *proc) ended() bool {
	select {
	case <-p.process.Done():
		return true
	default:
		return false
	}
}

// kick is the late guest rule: the host says that the process is gone, yet its
// wait is pending. Some guests hold the answer of a wait until the host closes
// the process's streams. So they get the time that streams may take, then our
// side is closed, and the real exit comes.
func (p *proc) kick(grace time.Duration) {
	p.late.Do(func() {
		go func() {
			t := time.NewTimer(grace)
			defer t.Stop()
			select {
			case <-p.process.Done():
			case <-t.C:
				log.L.Warnf("%s is said to be gone but its exit is pending: closing its streams", p.id)
				if p.input != nil {
					_ = p.input.Close()
				}
				p.relay.Close()
			}
		}()
	})
}

// signal sends sig. NotFound from a host whose wait is pending starts the late
// guest rule, and is still NotFound for the caller.
func (c *Core) signal(ctx context.Context, p *proc, sig int, all bool) error {
	err := p.process.Signal(ctx, sig, all)
	if errdefs.IsNotFound(err) && !p.ended() {
		p.kick(c.drain())
	}
	return err
}

// openStreams opens what a task's output goes to, and its stdin's source.
func (c *Core) openStreams(t *task) (stdio.Sink, *stdio.Source, error) {
	if s := t.spec.Stock; s != nil {
		return c.openStock(t.id, s.Stdin, s.Stdout, s.Stderr)
	}
	l, err := stdio.OpenLog(&t.spec.Log)
	if err != nil {
		return nil, nil, fmt.Errorf("log of %s: %w", t.id, err)
	}
	t.log = l
	return l, nil, nil
}

func (c *Core) openStock(id, stdin, stdout, stderr string) (stdio.Sink, *stdio.Source, error) {
	var in *stdio.Source
	if stdin != "" {
		var err error
		if in, err = stdio.OpenSource(stdin); err != nil {
			return nil, nil, err
		}
	}
	sink, err := stdio.OpenURI(c.ctx, stdout, stderr, &stdio.URIOptions{ContainerID: id, Namespace: c.cfg.Namespace})
	if err != nil {
		closeSource(in)
		return nil, nil, fmt.Errorf("streams of %s: %w", id, err)
	}
	return sink, in, nil
}

func closeSource(s *stdio.Source) {
	if s != nil {
		_ = s.Close()
	}
}
