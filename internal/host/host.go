// Package host says what a pod's processes live in. The shim drives a Host and
// knows nothing of what is behind it: namespaces of this machine (host/process),
// a virtual machine (host/vm), later a Hyper-V partition.
//
// A Host has one owner, the sandbox; tasks borrow it. A task that does not die
// is that task's trouble: nothing but the sandbox calls Close.
//
// Import it from the shim and from implementations only.
package host

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Output is the reading end of a process's stream. Read returns io.EOF when no
// process holds the writing end any more; SetReadDeadline cuts a pending Read.
type Output interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Streams are the host's ends of a process's streams. With a terminal Stdout
// carries both outputs and Stderr is nil. What was not asked for is nil. The
// caller owns and closes them.
type Streams struct {
	Stdin  io.WriteCloser
	Stdout Output
	Stderr Output
}

// StreamSpec says which streams a process gets. What is not asked for is /dev/null.
type StreamSpec struct {
	Terminal bool
	Stdin    bool
	Stdout   bool
	Stderr   bool
	// UID and GID own the pipes, so that /dev/stderr can be opened again
	// inside a user namespace. Host ids.
	UID, GID int
}

// CreateSpec describes a container. Bundle is an OCI bundle: config.json, and
// the root file system that config.json names, already mounted.
type CreateSpec struct {
	ID      string
	Bundle  string
	Streams StreamSpec
	// Start also runs the user's command, in the same runtime call.
	Start bool
	// NoPivotRoot, NoNewKeyring: as in containerd's runc options.
	NoPivotRoot, NoNewKeyring bool
}

// ExecSpec describes a process to run in a container that runs.
type ExecSpec struct {
	ContainerID string
	ID          string
	Bundle      string
	Process     *specs.Process
	Streams     StreamSpec
}

// Exit is how a process ended. Code is 128+n for signal n. It is what the host
// saw, never made up.
type Exit struct {
	Code   int32
	Signal int32 // 0 when it ended by itself
	At     time.Time
	// OOM: the kernel's OOM killer killed a process of this container since it
	// was created; read before the container's cgroup goes.
	OOM bool
}

// Process is a container's init or an exec'd process.
type Process interface {
	// Pid is the process's id on this machine (in the guest, for a VM).
	Pid() int
	Streams() *Streams
	// Start runs the user's command of a created container. FailedPrecondition
	// when it was started before.
	Start(context.Context) error
	// Signal sends sig to the process; with all, to every process of the
	// container. NotFound when it is gone. Never reaches a reused pid.
	Signal(ctx context.Context, sig int, all bool) error
	// Resize sets the terminal's size.
	Resize(width, height uint16) error
	// Done is closed when the process ended; then Exit says how.
	Done() <-chan struct{}
	// Exit is valid after Done.
	Exit() *Exit
	// Kill ends the process and all that came from it, waits until its cgroup
	// (for an exec on cgroup v1: its tagged tree) is empty, at most until ctx
	// ends. For an init that is the whole container.
	Kill(context.Context) error
	// Delete gives back what the process holds on the host (for an init: the
	// container in the runtime, its cgroup). It kills what still runs. It can
	// be called again. The streams stay open: their owner closes them.
	Delete(context.Context) error
}

// StartError is a command that could not be started. Code is 127 for a command
// that was not found, 126 for one that cannot be executed, else 128.
type StartError struct {
	Code    int32
	Message string
}

func (e *StartError) Error() string { return e.Message }

// Host is where a pod's processes live.
type Host interface {
	// Create makes a container (and starts it, when spec.Start). On failure
	// nothing of it is left. The error is a *StartError when the user's
	// command is to blame.
	Create(ctx context.Context, spec *CreateSpec) (Process, error)
	// Exec runs a process in a running container.
	Exec(ctx context.Context, spec *ExecSpec) (Process, error)
	// Update changes a container's resources.
	Update(ctx context.Context, id string, r *specs.LinuxResources) error
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Pids are all processes of the container.
	Pids(ctx context.Context, id string) ([]int, error)
	// Clean ends and removes what a dead owner left of a container. It can be
	// called again, and for a container that never was.
	Clean(ctx context.Context, id, bundle string) error
	// Close ends the host. Only the sandbox may call it.
	Close(context.Context) error
}
