package shim

import (
	"context"

	"berth/internal/host"
)

// Platform is what the core needs of the machine besides a Host.
type Platform interface {
	// Host makes the host that an OCI runtime stands for. The core asks once
	// for each set of options and closes what it got.
	Host(*HostOptions) (host.Host, error)
	// Mount mounts a root file system on target, a directory.
	Mount(ctx context.Context, mounts []Mount, target string) error
	// Unmount takes off everything that is mounted on target. Nothing mounted
	// is success.
	Unmount(ctx context.Context, target string) error
	// Hold starts a tiny init that holds namespaces.
	Hold(context.Context, *HoldRequest) (Holder, error)
	// OOMScore sets the shim's own oom_score_adj, as near as is permitted.
	OOMScore(score int) error
	// Stuck says in one line why a process may not end after SIGKILL, "" when
	// nothing is known.
	Stuck(pid int) string
}

// HostOptions choose an OCI runtime.
type HostOptions struct {
	Runtime       string `json:"runtime"` // binary; "" = runc from PATH
	Root          string `json:"root"`    // its state directory; "" = its default
	SystemdCgroup bool   `json:"systemdCgroup,omitempty"`
}

// Mount is one mount of a root file system, as containerd describes it.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

// HoldRequest asks for a holder.
type HoldRequest struct {
	UserNS string // path of the user namespace that shall own the new ones, "" = ours
	NetNS  string // path of a network namespace to hold too, "" = ours
	IPC    bool   // a new IPC namespace
	UTS    bool   // a new UTS namespace
	PIDNS  string // where to pin the new PID namespace, "" = nowhere
	Cgroup string // parent of its cgroup, "" = stay in ours
}

// Holder is an init that does nothing but hold namespaces and reap.
type Holder interface {
	Pid() int
	// Done is closed when it ended, and with it all of its PID namespace.
	Done() <-chan struct{}
	// Close ends it and takes the pin off. It can be called again.
	Close(context.Context) error
}
