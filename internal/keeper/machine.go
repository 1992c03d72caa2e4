package keeper

import (
	"context"
	"encoding/json"
	"time"

	"berth/internal/pod"
)

// Machine is what a keeper works on: everything outside of its own memory and
// journals. internal/effects is the real one; tests bring fakes.
type Machine interface {
	// Resource returns what takes and gives back resources of a kind.
	Resource(r pod.Resource) Resource
	// Stop makes the task end: signal now, SIGKILL to all of it at deadline. It
	// returns when the shim has accepted that; the exit comes through Watch.
	// It can be called again, with a sooner deadline too.
	Stop(ctx context.Context, j *Job, signal string, deadline time.Time) error
	// Update applies linux (OCI LinuxResources as JSON) to a running task.
	Update(ctx context.Context, j *Job, linux json.RawMessage) error
	// ReopenLog makes the shim open the container's log file again.
	ReopenLog(ctx context.Context, j *Job) error
	// Watch reports the state of all tasks of the pod's shim, and then each
	// change, until ctx ends (nil) or the shim is proven dead (ErrGone).
	Watch(ctx context.Context, j *Job, report func(*TaskChange)) error
}

// Resource takes one kind of resource from the machine. All three calls can be
// repeated, also after a crash in the middle.
type Resource interface {
	// Take takes it. What a failed Take leaves behind, Give removes.
	Take(ctx context.Context, j *Job) (*Taken, error)
	// Probe tells whether an earlier life's Take succeeded (nil: it did not,
	// and nothing of it is left).
	Probe(ctx context.Context, j *Job) (*Taken, error)
	// Give gives it back and returns when it is proven gone. Job.Data may be
	// nil: the Take may have failed, or never have run. A task's end, when Give
	// learned it, is returned.
	Give(ctx context.Context, j *Job) (*Exit, error)
}

// Job is what an effect is about. Pod and Container are snapshots.
type Job struct {
	Pod       *Pod
	Container *Container      // nil for a resource of the pod
	Data      json.RawMessage // what Take left in the ledger; nil before
}

// Taken is a successful Take. Pid and At are a task's.
type Taken struct {
	Data json.RawMessage
	Pid  int
	At   time.Time
}

// Exit is how a task ended.
type Exit struct {
	Code    int32
	At      time.Time
	Reason  string
	Message string
}

// TaskChange is what a shim says of a task. Exit is nil while it runs.
type TaskChange struct {
	Container string
	Exit      *Exit
}

// StartError is a Take of a task that failed because of the user's command.
// Code is what the container's exit code becomes: 127, 126 or 128.
type StartError struct {
	Code int32
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }
