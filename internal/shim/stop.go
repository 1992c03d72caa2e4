package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// ending is a stop under way. Guarded by Core.mu.
type ending struct {
	deadline time.Time
	timer    *time.Timer // nil when the kill began
}

func (e *ending) cancel() {
	if e.timer != nil {
		e.timer.Stop()
	}
}

// Stop sends the signal once and returns; grace later the container is killed,
// with all that came from it. Of several deadlines the soonest wins. With no
// grace, and for a container that was never started, the kill comes at once.
// NotFound when there is no such container; an exited one is success.
func (c *Core) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	sig, err := ParseSignal(signal)
	if err != nil {
		return err
	}
	t, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if t.state == Exited {
		c.mu.Unlock()
		return nil
	}
	if t.state == Created {
		grace = 0
	}
	first := t.ending == nil
	if first {
		t.ending = &ending{}
	}
	c.hurryLocked(t, grace)
	c.mu.Unlock()

	if !first || grace <= 0 {
		return nil
	}
	if err := c.signal(ctx, &t.proc, sig, false); err != nil && !errdefs.IsNotFound(err) {
		// The deadline holds all the same.
		log.L.WithError(err).Warnf("stop %s: signal %d", id, sig)
	}
	return nil
}

// hurryLocked sets the deadline of t's stop, unless a sooner one is set.
func (c *Core) hurryLocked(t *task, grace time.Duration) {
	e := t.ending
	deadline := time.Now().Add(max(grace, 0))
	if !e.deadline.IsZero() && (e.timer == nil || !deadline.Before(e.deadline)) {
		return
	}
	e.cancel()
	e.deadline = deadline
	if grace <= 0 {
		e.timer = nil
		go c.kill(t)
		return
	}
	e.timer = time.AfterFunc(grace, func() {
		c.mu.Lock()
		due := e.timer != nil && e.deadline.Equal(deadline) && t.state != Exited
		if due {
			e.timer = nil
		}
		c.mu.Unlock()
		if due {
			c.kill(t)
		}
	})
}

// kill ends t and all that came from it, and does not give up: a process that
// sits in the kernel is reported and killed again until it ends.
func (c *Core) kill(t *task) {
	c.mu.Lock()
	paused := t.paused
	c.mu.Unlock()
	if paused {
		// A frozen process of cgroup v1 does not die before it thaws.
		ctx, cancel := context.WithTimeout(c.ctx, killWait)
		_ = t.host.Resume(ctx, t.id)
		cancel()
	}
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		ctx, cancel := context.WithTimeout(c.ctx, killWait)
		err := t.process.Kill(ctx)
		cancel()
		if errdefs.IsNotFound(err) && !t.ended() {
			t.kick(c.drain())
		}
		timer := time.NewTimer(wait)
		select {
		case <-t.process.Done():
			timer.Stop()
			return
		case <-c.done:
			timer.Stop()
			return
		case <-timer.C:
		}
		c.stuck(t, err)
	}
}

// stuck notes that t did not end after SIGKILL.
func (c *Core) stuck(t *task, err error) {
	why := c.cfg.Platform.Stuck(t.process.Pid())
	if why == "" && err != nil {
		why = err.Error()
	}
	reason := "does not end after SIGKILL"
	if why != "" {
		reason += ": " + why
	}
	log.L.Warnf("%s %s", t.id, reason)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.state != Exited && t.status.Reason != reason {
		t.status.Reason = reason
		c.bumpLocked(t)
	}
}

// Kill sends a signal to a task's init, or to an exec of it; with all, to every
// process of the container. NotFound when the process ended.
func (c *Core) Kill(ctx context.Context, id, exec string, sig int, all bool) error {
	t, err := c.find(ctx, id)
	if err != nil {
		return err
	}
	if sig < 0 || sig > sigrtmax {
		return fmt.Errorf("signal %d: %w", sig, errdefs.ErrInvalidArgument)
	}
	p := &t.proc
	if exec != "" {
		if p, err = c.exec(t, exec); err != nil {
			return err
		}
	}
	c.mu.Lock()
	started := p.process != nil
	c.mu.Unlock()
	if !started {
		return fmt.Errorf("exec %s of %s was not started: %w", exec, id, errdefs.ErrNotFound)
	}
	if p.ended() && (!all || exec != "") {
		return fmt.Errorf("process of %s already finished: %w", id, errdefs.ErrNotFound)
	}
	return c.signal(ctx, p, sig, all)
}
