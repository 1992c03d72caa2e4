package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// emptyTime is how long init's exit is held back for what it left in its
// cgroup, and for the exits of its execs. After it they are reported late.
const emptyTime = 5 * time.Second

// container is a container and its init.
type container struct {
	h       *Host
	id      string
	bundle  string
	child   *child
	streams *streams
	ends    *host.Streams
	rec     record
	done    chan struct{}
	exit    host.Exit // valid after done

	mu       sync.Mutex
	started  bool
	ending   bool                    // init has ended, no exec is taken any more
	execs    map[*execution]struct{} // that have not ended
	leftover []*cgroup               // of ended execs, with processes still in them
	deletion *deletion               // the running or the last one
}

// deletion is one attempt to give a container back, which callers join.
type deletion struct {
	done chan struct{}
	err  error
}

var _ host.Process = (*container)(nil)

// Create makes a container. An id that the runtime knows from a dead owner is
// cleaned away first. The end of ctx ends the attempt.
func (h *Host) Create(ctx context.Context, spec *host.CreateSpec) (host.Process, error) {
	if err := h.reserve(spec.ID); err != nil {
		return nil, err
	}
	c, err := h.create(ctx, spec)
	h.settle(spec.ID, c)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (h *Host) create(ctx context.Context, spec *host.CreateSpec) (*container, error) {
	if exists(filepath.Join(h.root, spec.ID)) {
		if err := h.clean(ctx, spec.ID, spec.Bundle, h.locate(spec.ID, spec.Bundle, 0)); err != nil {
			return nil, err
		}
	}
	c := &container{
		h: h, id: spec.ID, bundle: spec.Bundle, done: make(chan struct{}),
		started: spec.Start, execs: make(map[*execution]struct{}),
	}
	streams, err := h.newStreams(&spec.Streams)
	if err != nil {
		return nil, err
	}
	c.streams = streams
	pidFile := filepath.Join(spec.Bundle, "init.pid")
	_ = os.Remove(pidFile)
	args := []string{"--bundle", spec.Bundle, "--pid-file", pidFile}
	sub := "create"
	if spec.Start {
		sub = "run"
		args = append(args, "--detach")
	}
	if spec.NoPivotRoot {
		args = append(args, "--no-pivot")
	}
	if spec.NoNewKeyring {
		args = append(args, "--no-new-keyring")
	}
	err = h.launch(ctx, &launch{
		sub: sub, args: args, id: spec.ID, pidFile: pidFile, log: filepath.Join(spec.Bundle, "log.json"),
		streams: streams, spec: &spec.Streams, timeout: makeFactor * h.timeout,
		adopted: func(pid int, s *scope) error {
			// Before the exit can be seen: it is judged by this.
			c.rec = h.locate(c.id, c.bundle, pid)
			child, err := s.adopt(pid, -1, func(e end) { go c.finish(e) })
			if err == nil {
				c.child = child
			}
			return err
		},
	})
	if err == nil && spec.Start {
		err = settle(c.child, streams)
	}
	if err != nil {
		streams.discard()
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.timeout)
		defer cancel()
		var uerr error
		if c.child != nil {
			uerr = c.Delete(undo)
		} else {
			uerr = h.clean(undo, spec.ID, spec.Bundle, h.locate(spec.ID, spec.Bundle, 0))
		}
		return nil, undone(err, uerr)
	}
	c.ends = streams.ours()
	return c, nil
}

// temp is the beginning of a name in the bundle for one call's files.
func (c *container) temp(what string) string {
	return filepath.Join(c.bundle, what+"-"+nonce())
}

func nonce() string { return rand.Text()[:12] }

// finish publishes init's exit. What init left behind is dead by then, and its
// execs have been reported.
func (c *container) finish(e end) {
	exit := host.Exit{At: e.at, OOM: c.rec.cg.oomKills() > 0}
	exit.Code, exit.Signal = codes(e.status)
	ctx, cancel := context.WithTimeout(context.Background(), emptyTime)
	defer cancel()
	if !c.rec.private {
		// The deletion goes on with it when the time is over.
		_ = c.rec.cg.killWait(ctx)
	}
	c.mu.Lock()
	c.ending = true
	execs := make([]*execution, 0, len(c.execs))
	for x := range c.execs {
		execs = append(execs, x)
		if x.child != nil {
			_ = x.child.signal(int(unix.SIGKILL)) // should the runtime have left it outside of the cgroup
		}
	}
	c.mu.Unlock()
	for _, x := range execs {
		select {
		case <-x.done:
		case <-ctx.Done():
		}
	}
	c.exit = exit
	close(c.done)
	c.startDelete()
}

// dying reports whether init has ended or is about to: the kernel first ends
// the rest of its pid namespace.
func (c *container) dying() bool {
	select {
	case <-c.child.exited:
		return true
	default:
	}
	st, ok := readStat(c.child.pid)
	return !ok || st.flags&exiting != 0
}

// codes are the exit code as a shell gives it, and the signal or 0.
func codes(s unix.WaitStatus) (code, sig int32) {
	if s.Signaled() {
		return 128 + int32(s.Signal()), int32(s.Signal())
	}
	return int32(s.ExitStatus()), 0
}

func (c *container) Pid() int               { return c.child.pid }
func (c *container) Streams() *host.Streams { return c.ends }
func (c *container) Done() <-chan struct{}  { return c.done }
func (c *container) Exit() *host.Exit       { return &c.exit }

// Start runs the command of a created container. When it fails the container
// is killed, as nobody could start it again.
func (c *container) Start(ctx context.Context) error {
	c.mu.Lock()
	again := c.started
	c.started = true
	c.mu.Unlock()
	if again {
		return fmt.Errorf("container %s was started before: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	if _, err := c.h.running(c.id); err != nil {
		return err
	}
	err := startError(c.h.call(ctx, &call{
		sub: "start", args: []string{c.id}, log: c.temp("start") + ".log", timeout: c.h.timeout,
	}))
	if err == nil {
		err = settle(c.child, nil) // the streams have an owner
	}
	if err != nil {
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.h.timeout)
		defer cancel()
		err = undone(err, c.Kill(kill))
	}
	return err
}

// Signal sends sig to init, or to every process of the container.
func (c *container) Signal(_ context.Context, sig int, all bool) error {
	err := c.child.signal(sig)
	if all && err == nil {
		// Init has its own already.
		err = c.rec.cg.signal(sig, c.child.pid)
	}
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("container %s has exited: %w", c.id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("signal %d to container %s: %w", sig, c.id, err)
	}
	return nil
}

// Resize sets the terminal's size.
func (c *container) Resize(width, height uint16) error { return c.streams.resize(width, height) }

// Kill ends all processes of the container and waits until init's exit is known.
func (c *container) Kill(ctx context.Context) error {
	pause := 10 * time.Millisecond
	for {
		select {
		case <-c.done:
			if c.rec.private || c.deleted() {
				return nil // with it the kernel, or the deletion, ended all
			}
			return c.rec.cg.killWait(ctx)
		default:
		}
		err := c.killOnce(ctx)
		select {
		case <-c.done:
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("kill container %s: %s is still there: %w", c.id, describe(c.child.pid), errors.Join(ctx.Err(), err))
		}
		pause = min(2*pause, time.Second)
	}
}

// deleted reports whether the container was given back. Its cgroup's path may
// be another's by now.
func (c *container) deleted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deletion == nil {
		return false
	}
	select {
	case <-c.deletion.done:
		return c.deletion.err == nil
	default:
		return false
	}
}

// killOnce asks the kernel, and the runtime when the kernel refuses (a
// confined process may not signal another profile's).
func (c *container) killOnce(ctx context.Context) error {
	err := c.child.signal(int(unix.SIGKILL))
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	if gerr := c.rec.cg.kill(); gerr == nil || err == nil {
		return nil
	}
	return c.h.call(ctx, &call{
		sub: "kill", args: []string{c.id, "KILL"}, log: c.temp("kill") + ".log", timeout: c.h.timeout,
	})
}

// Delete kills what runs and gives the container back. The work goes on when
// ctx ends; a later call joins it, or tries again what failed.
func (c *container) Delete(ctx context.Context) error {
	if err := c.Kill(ctx); err != nil {
		return err
	}
	d := c.startDelete()
	select {
	case <-d.done:
		if d.err == nil {
			c.h.drop(c)
		}
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("delete container %s: %w", c.id, ctx.Err())
	}
}

// startDelete gives the deletion that runs or succeeded, or begins one. Init
// has ended.
func (c *container) startDelete() *deletion {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.deletion; d != nil {
		select {
		case <-d.done:
			if d.err == nil {
				return d
			}
		default:
			return d
		}
	}
	d := &deletion{done: make(chan struct{})}
	c.deletion = d
	go func() {
		defer close(d.done)
		ctx, cancel := context.WithTimeout(context.Background(), 2*c.h.timeout)
		defer cancel()
		d.err = c.h.clean(ctx, c.id, c.bundle, record{cg: c.rec.cg})
	}()
	return d
}
