package shim

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	eventstypes "github.com/containerd/containerd/api/events"
)

// Task shows one task. NotFound when there is none.
func (c *Core) Task(ctx context.Context, id string) (*Status, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := t.statusLocked()
	return &s, nil
}

// live finds a task whose init has not ended.
func (c *Core) live(ctx context.Context, id string) (*task, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if t.proc.ended() {
		return nil, fmt.Errorf("container %s has exited: %w", id, errdefs.ErrFailedPrecondition)
	}
	return t, nil
}

// Update changes a container's resources.
func (c *Core) Update(ctx context.Context, id string, r *specs.LinuxResources) error {
	t, err := c.live(ctx, id)
	if err != nil {
		return err
	}
	if err := t.host.Update(ctx, id, r); err != nil {
		return fmt.Errorf("update container %s: %w", id, err)
	}
	return nil
}

// ReopenLog opens a task's log file anew after a rotation.
func (c *Core) ReopenLog(ctx context.Context, id string) error {
	t, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	if t.log == nil {
		return fmt.Errorf("container %s has no log of ours: %w", id, errdefs.ErrFailedPrecondition)
	}
	if err := t.log.Reopen(); err != nil {
		return fmt.Errorf("reopen log of %s: %w", id, err)
	}
	return nil
}

// Pids are all processes of a container; none when it exited.
func (c *Core) Pids(ctx context.Context, id string) ([]int, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if t.proc.ended() {
		return nil, nil
	}
	pids, err := t.host.Pids(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("processes of container %s: %w", id, err)
	}
	return pids, nil
}

// Pause freezes a container, Resume thaws it.
func (c *Core) Pause(ctx context.Context, id string) error { return c.freeze(ctx, id, true) }

// Resume thaws a container.
func (c *Core) Resume(ctx context.Context, id string) error { return c.freeze(ctx, id, false) }

func (c *Core) freeze(ctx context.Context, id string, on bool) error {
	t, err := c.live(ctx, id)
	if err != nil {
		return err
	}
	if on {
		err = t.host.Pause(ctx, id)
	} else {
		err = t.host.Resume(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("freeze container %s (%t): %w", id, on, err)
	}
	c.mu.Lock()
	if t.state == Running {
		t.paused = on
		c.bumpLocked(t)
	}
	c.mu.Unlock()
	if on {
		c.emit(topicPaused, &eventstypes.TaskPaused{ContainerID: id})
	} else {
		c.emit(topicResumed, &eventstypes.TaskResumed{ContainerID: id})
	}
	return nil
}

// Resize sets the size of a task's terminal, or of an exec's.
func (c *Core) Resize(ctx context.Context, id, exec string, width, height uint16) error {
	p, err := c.process(ctx, id, exec)
	if err != nil {
		return err
	}
	if err := p.process.Resize(width, height); err != nil {
		return fmt.Errorf("resize terminal of %s: %w", p.id, err)
	}
	return nil
}

// CloseStdin ends the stdin of a task or of an exec.
func (c *Core) CloseStdin(ctx context.Context, id, exec string) error {
	p, err := c.process(ctx, id, exec)
	if err != nil {
		return err
	}
	p.closeIO()
	return nil
}

// process finds a started process of a task.
func (c *Core) process(ctx context.Context, id, exec string) (*proc, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if exec == "" {
		return &t.proc, nil
	}
	p, err := c.exec(t, exec)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.process == nil {
		return nil, fmt.Errorf("exec %s of container %s was not started: %w", exec, id, errdefs.ErrFailedPrecondition)
	}
	return p, nil
}

// Wait waits for the exit of a task, or of an exec, to be announced.
func (c *Core) Wait(ctx context.Context, id, exec string) (*Status, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return nil, err
	}
	p := &t.proc
	if exec != "" {
		if p, err = c.exec(t, exec); err != nil {
			return nil, err
		}
	}
	select {
	case <-p.announced:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.done:
		return nil, errEnding
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := p.status
	s.ID, s.State = p.id, p.state
	return &s, nil
}
