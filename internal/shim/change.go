package shim

import (
	"context"
	"slices"
	"strings"
	"time"
)

// State is what a task or a process of it is doing.
type State int

// The states, in the order in which they come. A task that is being created is
// nobody's business yet.
const (
	Creating State = iota
	Created
	Running
	Exited
)

var stateNames = [...]string{"creating", "created", "running", "exited"}

func (s State) String() string { return stateNames[s] }

// Status is a task as it can be shown.
type Status struct {
	ID        string
	Pid       int
	State     State
	Paused    bool
	StartedAt time.Time
	ExitedAt  time.Time
	Code      int32 // valid when exited; 128+n for signal n
	Signal    int32
	OOM       bool
	Reason    string
}

// bumpLocked numbers a change of t and tells who waits.
func (c *Core) bumpLocked(t *task) {
	c.seq++
	t.seq = c.seq
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changes waits until something changed after from, and returns what, oldest
// change first, with the number to ask from next. From 0, and from a number
// that is not of this shim, it returns at once with all tasks (snapshot).
func (c *Core) Changes(ctx context.Context, from int64) (seq int64, snapshot bool, tasks []Status, err error) {
	for {
		c.mu.Lock()
		snapshot = from <= 0 || from > c.seq
		var changed []*task
		for _, t := range c.tasks {
			if t.state != Creating && (snapshot || t.seq > from) {
				changed = append(changed, t)
			}
		}
		slices.SortFunc(changed, func(a, b *task) int {
			if a.seq != b.seq {
				return int(a.seq - b.seq)
			}
			return strings.Compare(a.id, b.id)
		})
		for _, t := range changed {
			tasks = append(tasks, t.statusLocked())
		}
		seq = c.seq
		next := c.changed
		c.mu.Unlock()
		if snapshot || len(tasks) > 0 {
			return seq, snapshot, tasks, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return 0, false, nil, context.Cause(ctx)
		case <-c.done:
			return 0, false, nil, errEnding
		}
	}
}
