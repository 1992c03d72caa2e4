package shim

import (
	"context"
	"time"

	"berth/internal/host"
	"berth/internal/shim/exits"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// watch follows a task's init to its end: the record is on disk first, then
// what the init left is killed, the streams are drained for a bounded time, the
// execs that died with it are announced, and then the exit is.
func (c *Core) watch(t *task) {
	<-t.process.Done()
	exit := t.process.Exit()
	close(t.dying)
	if c.mayBeLost(t, exit) {
		// The holder's death is known only when all of its namespace is reaped.
		select {
		case <-c.sandboxLost():
		case <-time.After(execsWait):
		}
	}
	rec := c.exitRecord(t, exit)
	if err := exits.Write(c.record(t), rec); err != nil {
		// Memory is the truth; the file is tried again for whoever may come and
		// ask when the shim is gone.
		log.L.WithError(err).Errorf("exit of %s is not on disk yet", t.id)
		go c.rewrite(t, rec)
	}

	grace := c.drain()
	if !t.private {
		// Nobody else ends what shares its pid namespace with others.
		ctx, cancel := context.WithTimeout(c.ctx, killWait)
		if err := t.process.Kill(ctx); err != nil {
			log.L.WithError(err).Warnf("kill what the init of %s left", t.id)
		}
		cancel()
	}
	c.mu.Lock()
	starting := t.starting
	var execs []*proc
	for _, p := range t.execs {
		if p.process != nil {
			execs = append(execs, p)
		}
	}
	c.mu.Unlock()
	if starting != nil {
		// A start is announced before an exit. It ends, as the process did.
		_ = starting.wait(c.ctx)
	}
	if !t.relay.Drain(grace) {
		log.L.Warnf("output of %s was not at its end %v after its exit", t.id, grace)
	}
	c.await(execs)

	c.mu.Lock()
	t.state, t.paused = Exited, false
	t.status.ExitedAt, t.status.Code, t.status.Signal = t.endedAt(exit), exit.Code, exit.Signal
	t.status.OOM, t.status.Reason = exit.OOM, rec.Reason
	if t.ending != nil {
		t.ending.cancel()
	}
	c.bumpLocked(t)
	c.mu.Unlock()
	if t.stock() {
		if exit.OOM {
			c.emit(topicOOM, &eventstypes.TaskOOM{ContainerID: t.id})
		}
		c.emitExit(t.id, &t.proc, exit)
	}
	close(t.announced)
}

// mayBeLost: an init was killed and nobody here asked for it, in a pod whose
// holder's death kills it.
func (c *Core) mayBeLost(t *task, e *host.Exit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sandbox.holder != nil && !t.private && t.ending == nil && e.Signal == sigkill && !e.OOM
}

func (c *Core) exitRecord(t *task, e *host.Exit) *exits.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &exits.Record{
		ID: t.id, Pid: t.process.Pid(), Code: e.Code, Signal: e.Signal,
		StartedAt: t.status.StartedAt, At: t.endedAt(e), OOM: e.OOM,
	}
	if c.sandbox.lost {
		r.Reason = exits.ReasonSandboxLost
	}
	return r
}

// endedAt is when the init ended, but never before its start: a short one has
// ended before the call that starts it returns, and the start is noted. Call it
// with the lock held.
func (t *task) endedAt(e *host.Exit) time.Time {
	if e.At.Before(t.status.StartedAt) {
		return t.status.StartedAt
	}
	return e.At
}

// rewrite tries to write a record until it is there or not wanted any more.
func (c *Core) rewrite(t *task, r *exits.Record) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		select {
		case <-c.done:
			return
		case <-time.After(wait):
		}
		c.mu.Lock()
		gone := c.tasks[t.id] != t || t.removal != nil
		c.mu.Unlock()
		if gone {
			return
		}
		if err := exits.Write(c.record(t), r); err == nil {
			return
		}
	}
}

// watchExec follows an exec to its end.
func (c *Core) watchExec(t *task, p *proc) {
	<-p.process.Done()
	exit := p.process.Exit()
	p.relay.Drain(c.drain())
	c.mu.Lock()
	p.state = Exited
	p.status.ExitedAt, p.status.Code, p.status.Signal = exit.At, exit.Code, exit.Signal
	c.mu.Unlock()
	c.emitExit(t.id, p, exit)
	close(p.announced)
}

func (c *Core) emitExit(task string, p *proc, e *host.Exit) {
	c.emit(topicExit, &eventstypes.TaskExit{
		ContainerID: task, ID: p.id, Pid: uint32(p.process.Pid()),
		ExitStatus: uint32(e.Code), ExitedAt: timestamppb.New(e.At),
	})
}

// await waits for the exits of execs that run, at most for execsWait.
func (c *Core) await(execs []*proc) {
	if len(execs) == 0 {
		return
	}
	t := time.NewTimer(execsWait)
	defer t.Stop()
	for _, p := range execs {
		select {
		case <-p.announced:
		case <-t.C:
			return
		}
	}
}
