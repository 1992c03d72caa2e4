package shim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// SandboxSpec is what makes a shim a pod's shim.
type SandboxSpec struct {
	ID      string
	ExitDir string // where exit records go, "" = into bundles
	Host    HostOptions
	// Hold asks for a holder of namespaces; nil is a sandbox that holds nothing.
	Hold     *HoldRequest
	OOMScore *int          // of the shim itself
	Drain    time.Duration // 0 = DefaultDrain
}

// sandbox is the pod's own state: nothing → created → running → exited. It
// holds no process, unless a holder was asked for. Guarded by Core.mu.
type sandbox struct {
	id        string
	state     State // Creating = there is none
	spec      *SandboxSpec
	exitDir   string
	drain     time.Duration
	up        *work // the start
	holder    Holder
	createdAt time.Time
	exitedAt  time.Time
	exited    chan struct{} // closed when it exited; nil without a sandbox
	lost      bool          // the holder died by itself; then exited is closed
}

// keepsLocked tells whether the shim must stay for the sandbox.
func (s *sandbox) keepsLocked() bool { return s.state != Creating && s.id != "" }

// upLocked tells whether containers can be run in it.
func (s *sandbox) upLocked() bool { return s.state == Running }

// SandboxStatus is the sandbox as it can be shown.
type SandboxStatus struct {
	ID        string
	State     State
	Pid       int // of the holder, 0 without one
	CreatedAt time.Time
	ExitedAt  time.Time
}

// drain is how long streams may hold back an exit.
func (c *Core) drain() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sandbox.drain
}

func (c *Core) sandboxHost() HostOptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sandbox.spec == nil {
		return HostOptions{}
	}
	return c.sandbox.spec.Host
}

// CreateSandbox notes what the sandbox shall be. Again with the same id it is
// success.
func (c *Core) CreateSandbox(spec *SandboxSpec) error {
	if !safeID(spec.ID) {
		return fmt.Errorf("sandbox id %q: %w", spec.ID, errdefs.ErrInvalidArgument)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admitLocked(); err != nil {
		return err
	}
	if s := &c.sandbox; s.id != "" {
		if s.id != spec.ID {
			return fmt.Errorf("sandbox %s: this shim keeps %s: %w", spec.ID, s.id, errdefs.ErrAlreadyExists)
		}
		return nil
	}
	s := &c.sandbox
	s.id, s.spec, s.state = spec.ID, spec, Created
	s.exitDir, s.drain = spec.ExitDir, spec.Drain
	if s.drain <= 0 {
		s.drain = DefaultDrain
	}
	s.createdAt, s.exited = time.Now(), make(chan struct{})
	c.settleLocked()
	return nil
}

// StartSandbox brings the created sandbox up. All who ask get the same answer.
func (c *Core) StartSandbox(ctx context.Context, id string) (*SandboxStatus, error) {
	c.mu.Lock()
	s := &c.sandbox
	if err := c.knowsLocked(id); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	if s.state == Exited {
		c.mu.Unlock()
		return nil, fmt.Errorf("sandbox %s has exited: %w", id, errdefs.ErrFailedPrecondition)
	}
	if s.up != nil {
		if over, failed := s.up.over(); over && failed {
			s.up = nil
		}
	}
	if s.up == nil {
		s.up = begin(c.raise)
	}
	w := s.up
	c.mu.Unlock()
	if err := w.wait(ctx); err != nil {
		return nil, err
	}
	return c.SandboxStatus(id)
}

func (c *Core) raise() error {
	c.mu.Lock()
	spec := c.sandbox.spec
	c.mu.Unlock()
	if spec.OOMScore != nil {
		if err := c.cfg.Platform.OOMScore(*spec.OOMScore); err != nil {
			log.L.WithError(err).Warn("own oom score")
		}
	}
	var holder Holder
	if spec.Hold != nil {
		var err error
		if holder, err = c.cfg.Platform.Hold(c.ctx, spec.Hold); err != nil {
			return fmt.Errorf("hold namespaces of sandbox %s: %w", spec.ID, err)
		}
	}
	c.mu.Lock()
	stopped := c.sandbox.state != Created
	if !stopped {
		c.sandbox.state, c.sandbox.holder = Running, holder
	}
	c.mu.Unlock()
	if stopped { // stopped meanwhile
		if holder != nil {
			_ = holder.Close(context.WithoutCancel(c.ctx))
		}
		return fmt.Errorf("sandbox %s was stopped: %w", spec.ID, errdefs.ErrFailedPrecondition)
	}
	if holder != nil {
		go c.watchHolder(holder)
	}
	return nil
}

// watchHolder ends the sandbox when its holder dies by itself: the kernel has
// killed all of its pid namespace, and no container can join it any more.
func (c *Core) watchHolder(h Holder) {
	<-h.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sandbox.state != Running {
		return
	}
	log.L.Error("the holder of the pod's namespaces died")
	c.sandbox.lost = true
	c.exitSandboxLocked()
	for _, t := range c.tasks {
		if t.state != Exited && t.state != Creating && !t.private {
			if t.ending == nil {
				t.ending = &ending{}
			}
			c.hurryLocked(t, 0)
		}
	}
}

// sandboxLost is closed when the sandbox exited, lost or stopped.
func (c *Core) sandboxLost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sandbox.exited
}

func (c *Core) exitSandboxLocked() {
	if c.sandbox.state == Exited {
		return
	}
	c.sandbox.state, c.sandbox.exitedAt = Exited, time.Now()
	close(c.sandbox.exited)
}

func (c *Core) knowsLocked(id string) error {
	if c.sandbox.id == "" || c.sandbox.id != id {
		return fmt.Errorf("sandbox %s: %w", id, errdefs.ErrNotFound)
	}
	return nil
}

// SandboxStatus shows the sandbox. NotFound when it is not this one.
func (c *Core) SandboxStatus(id string) (*SandboxStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.knowsLocked(id); err != nil {
		return nil, err
	}
	s := &c.sandbox
	st := &SandboxStatus{ID: s.id, State: s.state, CreatedAt: s.createdAt, ExitedAt: s.exitedAt}
	if s.holder != nil {
		st.Pid = s.holder.Pid()
	}
	return st, nil
}

// WaitSandbox waits until the sandbox exited.
func (c *Core) WaitSandbox(ctx context.Context, id string) (*SandboxStatus, error) {
	c.mu.Lock()
	err := c.knowsLocked(id)
	exited := c.sandbox.exited
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case <-exited:
		return c.SandboxStatus(id)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.done:
		return nil, errEnding
	}
}

// StopSandbox kills the containers that still run and ends the holder. What
// exited stays until it is deleted. It can be called again.
func (c *Core) StopSandbox(ctx context.Context, id string) error {
	c.mu.Lock()
	if err := c.knowsLocked(id); err != nil {
		c.mu.Unlock()
		return err
	}
	tasks := c.listLocked()
	c.mu.Unlock()
	errs := each(tasks, func(t *task) error {
		if t.created.wait(ctx) != nil {
			return nil
		}
		return c.end(t)
	})
	c.mu.Lock()
	c.exitSandboxLocked()
	holder := c.sandbox.holder
	c.mu.Unlock()
	if holder != nil {
		errs = errors.Join(errs, holder.Close(ctx))
	}
	return errs
}

// Finish ends everything: it kills and deletes all tasks, ends the sandbox and
// then the shim. Exits that nobody acknowledged leave their records. After a
// failure it can be called again, and nothing new is taken meanwhile.
func (c *Core) Finish(ctx context.Context) error {
	c.mu.Lock()
	if c.finish != nil {
		if over, failed := c.finish.over(); over && failed {
			c.finish = nil
		}
	}
	if c.finish == nil {
		c.finish = begin(c.finishAll)
	}
	w := c.finish
	c.mu.Unlock()
	return w.wait(ctx)
}

func (c *Core) finishAll() error {
	c.mu.Lock()
	tasks := c.listLocked()
	up := c.sandbox.up
	c.mu.Unlock()
	if up != nil {
		_ = up.wait(context.Background()) // it is bounded by the platform
	}
	err := each(tasks, func(t *task) error {
		c.mu.Lock()
		w := c.removeLocked(t)
		c.mu.Unlock()
		return w.wait(context.Background())
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deleteWait)
	defer cancel()
	c.mu.Lock()
	if c.sandbox.id != "" {
		c.exitSandboxLocked()
	}
	holder := c.sandbox.holder
	hosts := make([]host.Host, 0, len(c.hosts))
	for _, h := range c.hosts {
		hosts = append(hosts, h)
	}
	c.mu.Unlock()
	if holder != nil {
		if err := holder.Close(ctx); err != nil {
			return fmt.Errorf("end the holder of sandbox %s: %w", c.cfg.ID, err)
		}
	}
	for _, h := range hosts {
		if err := h.Close(ctx); err != nil {
			return fmt.Errorf("close host: %w", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sandbox.id = ""
	c.endLocked()
	return nil
}

func (c *Core) listLocked() []*task {
	all := make([]*task, 0, len(c.tasks))
	for _, t := range c.tasks {
		all = append(all, t)
	}
	return all
}

// each runs f for all tasks at once and joins the errors.
func each(tasks []*task, f func(*task) error) error {
	works := make([]*work, len(tasks))
	for i, t := range tasks {
		works[i] = begin(func() error { return f(t) })
	}
	var errs error
	for _, w := range works {
		<-w.done
		errs = errors.Join(errs, w.err)
	}
	return errs
}
