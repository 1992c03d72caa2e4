package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth/internal/host"
	"berth/internal/shim/exits"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
)

// Bounds of the core. Each bounds a wait; none of them is a state.
const (
	// DefaultLease is how long a shim stays with nothing to keep.
	DefaultLease = 30 * time.Second
	// DefaultDrain is how long streams may hold back an exit.
	DefaultDrain = 2 * time.Second
	// execsWait bounds how long an init's exit waits for the exits of execs
	// that died with it.
	execsWait = 500 * time.Millisecond
	// killWait bounds one try to kill a tree, and what a delete waits for it.
	killWait = 10 * time.Second
	// deleteWait bounds the host's clean-up of one process.
	deleteWait = 30 * time.Second
	// tailWait is how long a delete waits for a stock reader to take what a
	// process wrote last.
	tailWait = 10 * time.Second
)

// Config is what a Core is made of.
type Config struct {
	ID, Namespace string
	Build         string // of the binary, for Info
	Pid           int
	StartTime     uint64 // clock ticks since boot
	Platform      Platform
	Events        Events        // nil: nobody wants events
	Socket        string        // path of the task socket, for a later delete command
	Lease         time.Duration // 0 = DefaultLease
}

// Events takes events for a stock containerd (Queue). Add never waits.
type Events interface {
	Add(topic string, event proto.Message)
}

// Core is the state of one shim. Its calls are safe to use at once.
type Core struct {
	cfg Config
	// ctx ends with the shim; work that outlives its caller runs under it.
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex
	hosts    map[HostOptions]host.Host
	tasks    map[string]*task
	sandbox  sandbox
	seq      int64         // of the last change; starts at 1
	changed  chan struct{} // closed at the next change
	lease    *time.Timer   // runs while there is nothing to keep
	shutdown bool          // Shutdown was asked for with tasks left
	ended    bool
	finish   *work
}

// New makes the core of a shim that keeps nothing yet: its lease runs.
func New(cfg *Config) *Core {
	c := &Core{
		cfg:     *cfg,
		done:    make(chan struct{}),
		hosts:   map[HostOptions]host.Host{},
		tasks:   map[string]*task{},
		seq:     1,
		changed: make(chan struct{}),
	}
	if c.cfg.Lease == 0 {
		c.cfg.Lease = DefaultLease
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.sandbox.drain = DefaultDrain
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	return c
}

// Done is closed when the shim shall end.
func (c *Core) Done() <-chan struct{} { return c.done }

// Touch renews the lease: somebody connected.
func (c *Core) Touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease != nil && !c.ended {
		c.lease.Reset(c.cfg.Lease)
	}
}

// Shutdown ends the shim when it keeps nothing; else it is remembered, and the
// last delete ends the shim. now ends it whatever it keeps.
func (c *Core) Shutdown(now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shutdown = true
	if now {
		c.endLocked()
		return
	}
	c.settleLocked()
}

// settleLocked decides whether the shim has anything left to stay for.
func (c *Core) settleLocked() {
	if c.ended {
		return
	}
	if len(c.tasks) > 0 || c.sandbox.keepsLocked() {
		if c.lease != nil {
			c.lease.Stop()
			c.lease = nil
		}
		return
	}
	if c.shutdown {
		c.endLocked()
		return
	}
	if c.lease == nil {
		c.lease = time.AfterFunc(c.cfg.Lease, c.expire)
	}
}

func (c *Core) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == nil || len(c.tasks) > 0 || c.sandbox.keepsLocked() {
		return // somebody came while the timer fired
	}
	log.L.Info("nothing to keep and nobody asks: ending")
	c.endLocked()
}

func (c *Core) endLocked() {
	if c.ended {
		return
	}
	c.ended = true
	if c.lease != nil {
		c.lease.Stop()
	}
	c.stop()
	close(c.done)
}

// admitLocked says whether the shim takes new work.
func (c *Core) admitLocked() error {
	if c.ended || c.finish != nil {
		return fmt.Errorf("shim of %s is ending: %w", c.cfg.ID, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// hostFor returns the host that stands for o.
func (c *Core) hostFor(o HostOptions) (host.Host, error) {
	c.mu.Lock()
	h := c.hosts[o]
	c.mu.Unlock()
	if h != nil {
		return h, nil
	}
	made, err := c.cfg.Platform.Host(&o)
	if err != nil {
		return nil, fmt.Errorf("host with runtime %q: %w", o.Runtime, err)
	}
	c.mu.Lock()
	h = c.hosts[o]
	if h == nil {
		c.hosts[o] = made
	}
	c.mu.Unlock()
	if h != nil { // somebody was faster
		_ = made.Close(c.ctx)
		return h, nil
	}
	return made, nil
}

// find returns a task that was created. NotFound when there is none.
func (c *Core) find(ctx context.Context, id string) (*task, error) {
	c.mu.Lock()
	t := c.tasks[id]
	c.mu.Unlock()
	if t == nil {
		return nil, notFound(id)
	}
	if err := t.created.wait(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("container %s is being created: %w", id, err)
		}
		return nil, notFound(id)
	}
	return t, nil
}

// record is where t's exit is kept.
func (c *Core) record(t *task) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return exits.Path(c.sandbox.exitDir, t.bundle, t.id)
}

// emit queues an event for a stock containerd.
func (c *Core) emit(topic string, event proto.Message) {
	if c.cfg.Events != nil {
		c.cfg.Events.Add(topic, event)
	}
}

func notFound(id string) error {
	return fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}
