package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// tagName is the environment variable that marks what came from an exec where
// it cannot have a cgroup of its own. A process that was given another
// environment and whose parent is gone is not found by it.
const tagName = "BERTH_EXEC_ID"

// execution is a process run in a container.
type execution struct {
	c       *container
	id      string
	child   *child
	streams *streams
	ends    *host.Streams
	group   *cgroup // its own; nil when it is found by tag
	tag     string
	done    chan struct{}
	exit    host.Exit // valid after done
}

var _ host.Process = (*execution)(nil)

// Exec runs a process. The end of ctx ends the attempt.
func (h *Host) Exec(ctx context.Context, spec *host.ExecSpec) (host.Process, error) {
	c, err := h.running(spec.ContainerID)
	if err != nil {
		return nil, err
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("exec %s in %s: no process: %w", spec.ID, c.id, errdefs.ErrInvalidArgument)
	}
	own := h.subgroups.Load()
	x, err := c.exec(ctx, spec, own)
	var failed *host.StartError
	if own && errors.As(err, &failed) && failed.Code == 128 && strings.Contains(failed.Message, "cgroup") {
		// A runtime that cannot place an exec: find its processes by tag.
		if x, err = c.exec(ctx, spec, false); err == nil {
			h.subgroups.Store(false)
		}
	}
	if err == nil {
		return x, nil
	}
	if c.dying() {
		return nil, fmt.Errorf("exec %s in %s: %w (%v)", spec.ID, c.id, errdefs.ErrFailedPrecondition, err)
	}
	if errors.As(err, &failed) && strings.Contains(failed.Message, "paused") {
		return nil, fmt.Errorf("exec %s in %s: %s: %w", spec.ID, c.id, failed.Message, errdefs.ErrFailedPrecondition)
	}
	return nil, err
}

func (c *container) exec(ctx context.Context, spec *host.ExecSpec, own bool) (*execution, error) {
	x := &execution{c: c, id: spec.ID, done: make(chan struct{})}
	name := c.temp("exec")
	p := *spec.Process
	p.Terminal = spec.Streams.Terminal
	args := []string{"--detach", "--process", name + ".json", "--pid-file", name + ".pid"}
	if own {
		if group, arg, err := c.rec.cg.below("berth-" + nonce()); err == nil {
			x.group = group
			args = append(args, "--cgroup", arg)
		}
	}
	if x.group == nil {
		x.tag = tagName + "=" + nonce()
		p.Env = append(slices.Clone(p.Env), x.tag)
	}
	err := x.run(ctx, &p, spec, name, args)
	if err == nil {
		x.checkGroup()
		return x, nil
	}
	if x.streams != nil {
		x.streams.discard()
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.h.timeout)
	defer cancel()
	if x.child != nil {
		return nil, undone(err, x.Delete(undo))
	}
	c.mu.Lock()
	delete(c.execs, x)
	c.mu.Unlock()
	err = undone(err, x.killTree(undo))
	x.release()
	return nil, err
}

// checkGroup gives up cgroups of execs when the runtime did not use this one.
// What this process starts is then found by its parents.
func (x *execution) checkGroup() {
	if x.group == nil || populated(x.group.dir()) {
		return
	}
	select {
	case <-x.child.exited:
	default:
		if st, ok := readStat(x.child.pid); ok && st.flags&exiting == 0 && !populated(x.group.dir()) {
			x.c.h.subgroups.Store(false)
			removeEmpty(x.group.dir())
			x.group = nil
		}
	}
}

// run makes the runtime call. name is what the call's files in the bundle begin with.
func (x *execution) run(ctx context.Context, p any, spec *host.ExecSpec, name string, args []string) error {
	c := x.c
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode process of exec %s: %w", spec.ID, err)
	}
	if err := os.WriteFile(name+".json", b, 0o600); err != nil {
		return fmt.Errorf("write process of exec %s: %w", spec.ID, err)
	}
	defer os.Remove(name + ".json")
	if x.streams, err = c.h.newStreams(&spec.Streams); err != nil {
		return err
	}
	err = c.h.launch(ctx, &launch{
		sub: "exec", args: args, id: c.id, pidFile: name + ".pid", log: name + ".log",
		streams: x.streams, spec: &spec.Streams, timeout: c.h.timeout,
		adopted: func(pid int, s *scope) error {
			c.mu.Lock()
			if ending := c.ending; ending {
				c.mu.Unlock()
				return fmt.Errorf("container %s has exited: %w", c.id, errdefs.ErrFailedPrecondition)
			}
			c.execs[x] = struct{}{}
			c.mu.Unlock()
			child, err := s.adopt(pid, -1, x.finish)
			if err == nil {
				c.mu.Lock()
				x.child = child
				c.mu.Unlock()
			}
			return err
		},
	})
	if err == nil {
		err = settle(x.child, x.streams)
	}
	if err == nil {
		x.ends = x.streams.ours()
	}
	return err
}

// finish publishes the exit.
func (x *execution) finish(e end) {
	x.exit.At = e.at
	x.exit.Code, x.exit.Signal = codes(e.status)
	x.c.mu.Lock()
	delete(x.c.execs, x)
	x.c.mu.Unlock()
	close(x.done)
}

func (x *execution) Pid() int               { return x.child.pid }
func (x *execution) Streams() *host.Streams { return x.ends }
func (x *execution) Done() <-chan struct{}  { return x.done }
func (x *execution) Exit() *host.Exit       { return &x.exit }

// Start fails: an exec runs from its creation.
func (x *execution) Start(context.Context) error {
	return fmt.Errorf("exec %s was started before: %w", x.id, errdefs.ErrFailedPrecondition)
}

// Signal sends sig to the process, or to all that came from it.
func (x *execution) Signal(_ context.Context, sig int, all bool) error {
	err := x.child.signal(sig)
	if all && err == nil {
		err = x.signalTree(sig, x.child.pid)
	}
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("exec %s has exited: %w", x.id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("signal %d to exec %s: %w", sig, x.id, err)
	}
	return nil
}

// Resize sets the terminal's size.
func (x *execution) Resize(width, height uint16) error { return x.streams.resize(width, height) }

// Kill ends the process and all that came from it, daemons too. In a container
// that is paused on cgroup v1 they cannot die: it waits.
func (x *execution) Kill(ctx context.Context) error {
	if err := x.killTree(ctx); err != nil {
		return fmt.Errorf("kill exec %s: %w", x.id, err)
	}
	select {
	case <-x.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill exec %s: %s is still there: %w", x.id, describe(x.child.pid), ctx.Err())
	}
}

// Delete kills the process when it still runs. What it left running in the
// background when it ended by itself is the container's, and stays.
func (x *execution) Delete(ctx context.Context) error {
	select {
	case <-x.done:
	default:
		if err := x.Kill(ctx); err != nil {
			return err
		}
	}
	x.release()
	return nil
}

// release removes the exec's cgroup, and those of earlier execs that are empty
// by now. What still has processes is removed later, at the latest with the container.
func (x *execution) release() {
	c := x.c
	c.mu.Lock()
	groups := c.leftover
	c.leftover = nil
	if x.group != nil && !slices.Contains(groups, x.group) {
		groups = append(groups, x.group)
	}
	c.mu.Unlock()
	groups = slices.DeleteFunc(groups, func(g *cgroup) bool { return removeEmpty(g.dir()) })
	if len(groups) > 0 {
		c.mu.Lock()
		c.leftover = append(c.leftover, groups...)
		c.mu.Unlock()
	}
}

// killTree kills all that came from the exec until nothing is left of it.
func (x *execution) killTree(ctx context.Context) error {
	if x.group != nil {
		return x.group.killWait(ctx)
	}
	// Stopped first, since a dead parent tells nothing of its children.
	_ = x.signalTree(int(unix.SIGSTOP), 0)
	pause := time.Millisecond
	for {
		pids := x.tagged()
		if len(pids) == 0 {
			return nil
		}
		_ = signalPids(pids, int(unix.SIGKILL), x.tagged)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s is still there: %w", describe(pids[0]), ctx.Err())
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func (x *execution) signalTree(sig, but int) error {
	if x.group != nil {
		return x.group.signal(sig, but)
	}
	list := func() []int {
		return slices.DeleteFunc(x.tagged(), func(pid int) bool { return pid == but })
	}
	return signalPids(list(), sig, list)
}

// tagged are the processes that came from the exec, as far as its tag and the
// parents tell. It looks only at the container's, if the runtime puts an exec there.
func (x *execution) tagged() []int {
	pids := x.c.rec.cg.pids()
	if x.tag == "" || x.c.rec.cg.dir() == "" {
		pids = allPids()
	}
	from := make(map[int]bool)
	tag := []byte(x.tag)
	for _, pid := range pids {
		if x.child != nil && pid == x.child.pid && x.child.signal(0) == nil {
			from[pid] = true
			continue
		}
		if x.tag == "" {
			continue
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(e []byte) bool { return bytes.Equal(e, tag) }) {
			from[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, pid := range pids {
			if st, ok := readStat(pid); ok && !from[pid] && from[st.ppid] && st.state != 'Z' {
				from[pid], grew = true, true
			}
		}
	}
	found := make([]int, 0, len(from))
	for pid := range from {
		found = append(found, pid)
	}
	return found
}
