package shim

import (
	"context"
	"fmt"
	"time"

	"berth/internal/host"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ExecSpec describes a process that a stock containerd adds to a container.
type ExecSpec struct {
	ID                    string
	Process               *specs.Process
	Terminal              bool
	Stdin, Stdout, Stderr string // fifo path or URI, "" = none
}

// AddExec adds a stock exec without starting it.
func (c *Core) AddExec(ctx context.Context, id string, spec *ExecSpec) error {
	t, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	if _, err := c.addExec(t, spec.ID, spec); err != nil {
		return err
	}
	c.emit(topicExecAdded, &eventstypes.TaskExecAdded{ContainerID: id, ExecID: spec.ID})
	return nil
}

// addExec takes an exec's id in a container that runs.
func (c *Core) addExec(t *task, id string, spec *ExecSpec) (*proc, error) {
	if !safeID(id) {
		return nil, fmt.Errorf("exec id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	p := &proc{id: id, spec: spec, state: Created, announced: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.state != Running || t.removal != nil || t.proc.ended() {
		return nil, fmt.Errorf("exec in container %s, which is %v: %w", t.id, t.state, errdefs.ErrFailedPrecondition)
	}
	if t.execs[id] != nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", id, t.id, errdefs.ErrAlreadyExists)
	}
	t.execs[id] = p
	return p, nil
}

// exec finds an exec by id.
func (c *Core) exec(t *task, id string) (*proc, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := t.execs[id]
	if p == nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", id, t.id, errdefs.ErrNotFound)
	}
	return p, nil
}

// startExec starts a stock exec and returns its pid.
func (c *Core) startExec(ctx context.Context, t *task, id string) (int, error) {
	p, err := c.exec(t, id)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	if p.state == Created && p.spec != nil {
		p.state = Creating
		w := begin(func() error { return c.runStockExec(t, p) })
		p.begun = w
		c.mu.Unlock()
		if err := w.wait(ctx); err != nil {
			return 0, err
		}
		return p.process.Pid(), nil
	}
	c.mu.Unlock()
	return 0, fmt.Errorf("exec %s in container %s can be started once: %w", id, t.id, errdefs.ErrFailedPrecondition)
}

func (c *Core) runStockExec(t *task, p *proc) error {
	fail := func(err error) error {
		c.mu.Lock()
		p.state = Created
		c.mu.Unlock()
		return err
	}
	s := p.spec
	sink, in, err := c.openStock(p.id, s.Stdin, s.Stdout, s.Stderr)
	if err != nil {
		return fail(err)
	}
	process, err := c.runExec(t, &host.ExecSpec{
		ContainerID: t.id, ID: p.id, Bundle: t.bundle, Process: s.Process,
		Streams: host.StreamSpec{
			Terminal: s.Terminal, Stdin: s.Stdin != "",
			Stdout: s.Stdout != "" || s.Terminal, Stderr: s.Stderr != "" && !s.Terminal,
		},
	})
	if err != nil {
		closeSource(in)
		_ = sink.Close()
		return fail(err)
	}
	c.running(p, func() { p.attach(process, sink, in, true) })
	c.emit(topicExecStarted, &eventstypes.TaskExecStarted{ContainerID: t.id, ExecID: p.id, Pid: uint32(process.Pid())})
	go c.watchExec(t, p)
	return nil
}

// running publishes an exec's process: what attach sets is seen by whoever
// finds the exec afterwards.
func (c *Core) running(p *proc, attach func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	attach()
	p.state = Running
	p.status.Pid, p.status.StartedAt = p.process.Pid(), time.Now()
}

// runExec runs a process in t. One that came too late, when t's init had ended
// already, is killed: nobody else would end it where the pid namespace is shared.
func (c *Core) runExec(t *task, s *host.ExecSpec) (host.Process, error) {
	b, err := readBundle(t.bundle)
	if err != nil {
		return nil, err
	}
	s.Streams.UID, s.Streams.GID = hostID(s.Process.User.UID, b.Linux.UIDMappings), hostID(s.Process.User.GID, b.Linux.GIDMappings)
	process, err := t.host.Exec(c.ctx, s)
	if err != nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", s.ID, t.id, err)
	}
	select {
	case <-t.dying:
		ctx, cancel := context.WithTimeout(c.ctx, killWait)
		defer cancel()
		if err := process.Kill(ctx); err != nil {
			log.L.WithError(err).Warnf("kill exec %s that came after the end of %s", s.ID, t.id)
		}
	default:
	}
	return process, nil
}

// DeleteExec gives a stock exec back. FailedPrecondition while it runs.
func (c *Core) DeleteExec(ctx context.Context, id, exec string) (*Status, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	p, err := c.exec(t, exec)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	s, state := p.status, p.state
	c.mu.Unlock()
	s.ID, s.State = p.id, state
	if state == Running || state == Creating {
		return nil, fmt.Errorf("exec %s in container %s is running: %w", exec, id, errdefs.ErrFailedPrecondition)
	}
	w := begin(func() error {
		if p.process != nil {
			p.relay.Drain(tailWait)
		}
		return c.removeExec(t, p)
	})
	if err := w.wait(ctx); err != nil {
		return nil, err
	}
	return &s, nil
}

// removeExec kills an exec that runs and gives it back. It can be made again.
func (c *Core) removeExec(t *task, p *proc) error {
	c.mu.Lock()
	process, begun := p.process, p.begun
	c.mu.Unlock()
	if process == nil && begun != nil {
		_ = begun.wait(context.Background()) // the host bounds it
		c.mu.Lock()
		process = p.process
		c.mu.Unlock()
	}
	if process != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), deleteWait)
		defer cancel()
		if err := process.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete exec %s of container %s: %w", p.id, t.id, err)
		}
		p.release()
	}
	c.mu.Lock()
	if t.execs[p.id] == p {
		delete(t.execs, p.id)
	}
	c.mu.Unlock()
	return nil
}
