package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/internal/shim/exits"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Delete acknowledges a task's exit and gives back all that it held. With force
// a task that runs is killed first; else it is FailedPrecondition. All who ask
// at once get the same answer; after a failure the next call goes on where it
// ended. NotFound when there is no such task.
func (c *Core) Delete(ctx context.Context, id string, force bool) (*Status, error) {
	c.mu.Lock()
	t := c.tasks[id]
	if t == nil {
		c.mu.Unlock()
		return nil, notFound(id)
	}
	if !force && (t.state == Running || t.starting != nil && t.state != Exited) {
		c.mu.Unlock()
		return nil, fmt.Errorf("container %s is running: %w", id, errdefs.ErrFailedPrecondition)
	}
	t.acked = true
	w := c.removeLocked(t)
	c.mu.Unlock()
	if err := w.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.final == nil {
		return nil, notFound(id) // its creation failed
	}
	s := *t.final
	return &s, nil
}

// removeLocked begins t's removal, or joins the one that runs.
func (c *Core) removeLocked(t *task) *work {
	if t.removal != nil {
		if over, failed := t.removal.over(); !over || !failed {
			return t.removal
		}
	}
	t.removal = begin(func() error { return c.remove(t) })
	return t.removal
}

// remove gives t back. Each step can be made again.
func (c *Core) remove(t *task) error {
	if t.created.wait(context.Background()) != nil {
		return nil // creation undid itself
	}
	if err := c.end(t); err != nil {
		return err
	}
	c.mu.Lock()
	execs := make([]*proc, 0, len(t.execs))
	for _, p := range t.execs {
		execs = append(execs, p)
	}
	c.mu.Unlock()
	for _, p := range execs {
		if err := c.removeExec(t, p); err != nil {
			return err
		}
	}
	if t.stock() {
		// Its reader may be slow or on its way back.
		t.relay.Drain(tailWait)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), deleteWait)
	defer cancel()
	if err := t.process.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete container %s: %w", t.id, err)
	}
	t.release()
	if t.mounted {
		if err := c.cfg.Platform.Unmount(ctx, filepath.Join(t.bundle, "rootfs")); err != nil {
			return fmt.Errorf("unmount root file system of %s: %w", t.id, err)
		}
	}
	c.mu.Lock()
	acked := t.acked
	c.mu.Unlock()
	var err error
	if acked {
		err = exits.Remove(c.record(t))
	}
	if t.stock() {
		if e := os.Remove(filepath.Join(t.bundle, BundleStateFile)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return err
	}

	c.mu.Lock()
	s := t.statusLocked()
	t.final = &s
	delete(c.tasks, t.id)
	c.mu.Unlock()
	if t.stock() {
		c.emit(topicDelete, &eventstypes.TaskDelete{
			ContainerID: t.id, Pid: uint32(s.Pid), ExitStatus: uint32(s.Code), ExitedAt: timestamppb.New(s.ExitedAt),
		})
	}
	c.mu.Lock()
	c.settleLocked()
	c.mu.Unlock()
	return nil
}

// end kills t if it runs and waits for its exit, for a bounded time.
func (c *Core) end(t *task) error {
	c.mu.Lock()
	if t.state != Exited {
		if t.ending == nil {
			t.ending = &ending{}
		}
		c.hurryLocked(t, 0)
	}
	c.mu.Unlock()
	timer := time.NewTimer(killWait + c.drain() + execsWait)
	defer timer.Stop()
	select {
	case <-t.announced:
		return nil
	case <-timer.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("container %s (pid %d) %s: %w", t.id, t.status.Pid, t.status.Reason, errdefs.ErrUnavailable)
}
