package shim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"berth/internal/host"
	"berth/internal/stdio"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

var errEnding = fmt.Errorf("shim is ending: %w", errdefs.ErrUnavailable)

// TaskSpec describes a container to create.
type TaskSpec struct {
	ID, Bundle string
	Terminal   bool

	// Of a berthd task: whether it has a stdin, whether the end of the first
	// client's stdin closes it, and its log.
	Stdin, StdinOnce bool
	Log              stdio.LogOptions

	// Of a stock task: what containerd named, else nil.
	Stock *StockSpec
}

// StockSpec is what only a stock containerd asks for.
type StockSpec struct {
	Stdin, Stdout, Stderr     string // fifo path or URI, "" = none
	Rootfs                    []Mount
	Options                   HostOptions
	NoPivotRoot, NoNewKeyring bool
	UID, GID                  int // owner of the streams, host ids; -1 = the container's user
}

// task is a container. Its init is the embedded proc.
type task struct {
	proc
	bundle  string
	spec    *TaskSpec
	host    host.Host
	private bool          // the kernel empties its pid namespace
	created *work         // creation; for a berthd task the start too
	mounted bool          // the shim mounted the root file system
	log     *stdio.Log    // of a berthd task
	dying   chan struct{} // closed when its init ended: no exec may begin

	// Guarded by Core.mu.
	seq      int64
	paused   bool
	starting *work // of a stock task
	execs    map[string]*proc
	ending   *ending // a stop
	removal  *work
	acked    bool    // its exit was acknowledged
	final    *Status // what the removal returned
}

func (t *task) stock() bool { return t.spec.Stock != nil }

// statusLocked is guarded by Core.mu.
func (t *task) statusLocked() Status {
	s := t.status
	s.ID, s.State, s.Paused = t.id, t.state, t.paused
	return s
}

// Run creates and starts a berthd task. A second call for the same id and
// bundle joins the first. A *host.StartError says that the user's command is to
// blame. On failure nothing of the task is left.
func (c *Core) Run(ctx context.Context, spec *TaskSpec) (*Status, error) {
	t, err := c.reserve(spec)
	if err != nil {
		return nil, err
	}
	if err := t.created.wait(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := t.statusLocked()
	return &s, nil
}

// Create makes a stock task without starting it, and returns its init's pid.
// AlreadyExists when there is one.
func (c *Core) Create(ctx context.Context, spec *TaskSpec) (int, error) {
	t, err := c.reserve(spec)
	if err != nil {
		return 0, err
	}
	if err := t.created.wait(ctx); err != nil {
		return 0, err
	}
	return t.process.Pid(), nil
}

// reserve takes the id and begins the creation.
func (c *Core) reserve(spec *TaskSpec) (*task, error) {
	if !safeID(spec.ID) {
		return nil, fmt.Errorf("container id %q: %w", spec.ID, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(spec.Bundle) {
		return nil, fmt.Errorf("bundle %q of %s is not an absolute path: %w", spec.Bundle, spec.ID, errdefs.ErrInvalidArgument)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.admitLocked(); err != nil {
		return nil, err
	}
	if spec.Stock == nil && !c.sandbox.upLocked() {
		return nil, fmt.Errorf("container %s: the sandbox is not up: %w", spec.ID, errdefs.ErrFailedPrecondition)
	}
	if t := c.tasks[spec.ID]; t != nil {
		if t.stock() || spec.Stock != nil || t.bundle != spec.Bundle || t.removal != nil {
			return nil, fmt.Errorf("container %s: %w", spec.ID, errdefs.ErrAlreadyExists)
		}
		return t, nil
	}
	t := &task{
		proc:   proc{id: spec.ID, announced: make(chan struct{})},
		bundle: spec.Bundle,
		spec:   spec,
		dying:  make(chan struct{}),
		execs:  map[string]*proc{},
	}
	c.tasks[t.id] = t
	c.settleLocked()
	t.created = begin(func() error {
		err := c.create(t)
		if err != nil {
			c.mu.Lock()
			delete(c.tasks, t.id)
			c.settleLocked()
			c.mu.Unlock()
		}
		return err
	})
	return t, nil
}

// create makes the container; for a berthd task it also starts it. It undoes
// what it did when it fails.
func (c *Core) create(t *task) (err error) {
	b, err := readBundle(t.bundle)
	if err != nil {
		return err
	}
	t.private = b.privatePID()
	o := c.sandboxHost()
	if t.stock() {
		o = t.spec.Stock.Options
	}
	if t.host, err = c.hostFor(o); err != nil {
		return err
	}
	if t.stock() {
		if err := c.prepareStock(t); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				c.unmount(t)
			}
		}()
	}

	sink, stdin, err := c.openStreams(t)
	if err != nil {
		return err
	}
	cs := &host.CreateSpec{ID: t.id, Bundle: t.bundle, Start: !t.stock()}
	cs.Streams.Terminal = t.spec.Terminal
	cs.Streams.UID, cs.Streams.GID = b.owner()
	if s := t.spec.Stock; s != nil {
		cs.NoPivotRoot, cs.NoNewKeyring = s.NoPivotRoot, s.NoNewKeyring
		if s.UID >= 0 {
			cs.Streams.UID = s.UID
		}
		if s.GID >= 0 {
			cs.Streams.GID = s.GID
		}
		cs.Streams.Stdin = s.Stdin != ""
		cs.Streams.Stdout = s.Stdout != "" || t.spec.Terminal
		cs.Streams.Stderr = s.Stderr != "" && !t.spec.Terminal
	} else {
		cs.Streams.Stdin, cs.Streams.Stdout, cs.Streams.Stderr = t.spec.Stdin, true, !t.spec.Terminal
	}
	p, err := t.host.Create(c.ctx, cs)
	if err != nil {
		closeSource(stdin)
		return errors.Join(err, sink.Close())
	}
	t.attach(p, sink, stdin, t.spec.StdinOnce)

	now := time.Now()
	c.mu.Lock()
	t.status.Pid = p.Pid()
	t.state = Created
	if !t.stock() {
		t.state, t.status.StartedAt = Running, now
	}
	c.bumpLocked(t)
	c.mu.Unlock()
	if s := t.spec.Stock; s != nil {
		// For whoever comes after the shim; a pid is no more than a hint.
		if err := WriteBundleState(t.bundle, &BundleState{Options: s.Options, Socket: c.cfg.Socket, Pid: p.Pid()}); err != nil {
			log.L.WithError(err).Warn("pid of the container")
		}
		c.emit(topicCreate, &eventstypes.TaskCreate{
			ContainerID: t.id,
			Bundle:      t.bundle,
			Rootfs:      protoMounts(s.Rootfs),
			IO:          &eventstypes.TaskIO{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Terminal: t.spec.Terminal},
			Pid:         uint32(p.Pid()),
		})
	}
	go c.watch(t)
	return nil
}

// Start runs a created stock task's command, or an exec (id exec) of it, and
// returns the pid.
func (c *Core) Start(ctx context.Context, id, exec string) (int, error) {
	t, err := c.find(ctx, id)
	if err != nil {
		return 0, err
	}
	if exec != "" {
		return c.startExec(ctx, t, exec)
	}
	c.mu.Lock()
	if t.starting == nil && t.state == Created {
		t.starting = begin(func() error { return c.start(t) })
		w := t.starting
		c.mu.Unlock()
		return t.process.Pid(), w.wait(ctx)
	}
	state := t.state
	c.mu.Unlock()
	return 0, fmt.Errorf("container %s is %v, it can be started once: %w", id, state, errdefs.ErrFailedPrecondition)
}

func (c *Core) start(t *task) error {
	if err := t.process.Start(c.ctx); err != nil {
		return fmt.Errorf("start container %s: %w", t.id, err)
	}
	c.mu.Lock()
	t.state, t.status.StartedAt = Running, time.Now()
	c.bumpLocked(t)
	c.mu.Unlock()
	c.emit(topicStart, &eventstypes.TaskStart{ContainerID: t.id, Pid: uint32(t.process.Pid())})
	return nil
}

// prepareStock mounts a stock task's root file system and leaves in its bundle
// what the delete command needs when the shim is dead.
func (c *Core) prepareStock(t *task) error {
	s := t.spec.Stock
	if err := WriteBundleState(t.bundle, &BundleState{Options: s.Options, Socket: c.cfg.Socket}); err != nil {
		return err
	}
	if len(s.Rootfs) == 0 {
		return nil
	}
	t.mounted = true
	if err := c.cfg.Platform.Mount(c.ctx, s.Rootfs, filepath.Join(t.bundle, "rootfs")); err != nil {
		c.unmount(t)
		return fmt.Errorf("mount root file system of %s: %w", t.id, err)
	}
	return nil
}

func (c *Core) unmount(t *task) {
	if !t.mounted {
		return
	}
	if err := c.cfg.Platform.Unmount(context.WithoutCancel(c.ctx), filepath.Join(t.bundle, "rootfs")); err != nil {
		log.L.WithError(err).Warnf("unmount root file system of %s", t.id)
	}
}
