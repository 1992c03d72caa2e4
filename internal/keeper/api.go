package keeper

import (
	"context"
	"encoding/json"
	"time"

	"berth/internal/pod"
)

// API is what a keeper offers to its front. Calls block until what was asked is
// so, or failed; the caller's context ends its wait, never the work. Errors
// carry errdefs classes: NotFound, AlreadyExists (a name in use: the message
// names the holder), FailedPrecondition (wrong state), and what the effects
// returned.
type API interface {
	// RunPod declares a pod and waits until it is ready. The same request
	// (name and config) joins one that is under way, or takes the answer that
	// an earlier caller left behind.
	RunPod(ctx context.Context, r *PodRequest) (id string, err error)
	// StopPod ends the pod's containers and gives back what it holds of the
	// machine, except root file systems and folders. Stopped already, or not
	// there: success.
	StopPod(ctx context.Context, id string) error
	// RemovePod also removes the containers and gives back the rest.
	RemovePod(ctx context.Context, id string) error
	// UpdatePod records the pod's changed resources.
	UpdatePod(ctx context.Context, id string, resources json.RawMessage) error

	CreateContainer(ctx context.Context, r *ContainerRequest) (id string, err error)
	// StartContainer runs the container's command. Started before, or a pod
	// that is not ready: FailedPrecondition.
	StartContainer(ctx context.Context, id string) error
	// StopContainer sends signal and, when grace is over, SIGKILL; it waits for
	// the exit. A second call shortens the grace, never lengthens it. Created
	// and never started: it becomes exited. Not there: success.
	StopContainer(ctx context.Context, id, signal string, grace time.Duration) error
	// RemoveContainer ends it if need be, and forgets it. Not there: success.
	RemoveContainer(ctx context.Context, id string) error
	// UpdateContainer applies resources (linux: OCI LinuxResources as JSON) and
	// records what record makes of the container as it is then (in the CRI form).
	// Updates of a container follow one another, so that record sees the last.
	UpdateContainer(ctx context.Context, id string, linux json.RawMessage, record func(*Container) (json.RawMessage, error)) error
	ReopenLog(ctx context.Context, id string) error

	// Pods and Containers are snapshots in memory; they wait for nothing. What
	// they return is shared: never change it.
	Pods() []*Pod
	Pod(id string) (*Pod, error) // by id or unique prefix; NotFound
	Container(id string) (*Pod, *Container, error)

	// Subscribe delivers what changes from now on. A subscriber that does not
	// keep up is cut: its channel is closed, it must look anew.
	Subscribe() (<-chan *Event, func())
	// Recovered tells whether all journals were read and every pod found.
	Recovered() bool
}

// PodRequest asks for a pod. Config goes to the journal as it is; Decoded is
// what the front made of it (the keeper's Decode makes it again after a
// restart).
type PodRequest struct {
	Name    string // unique: name_namespace_uid_attempt
	Handler string
	Traits  pod.Traits
	Config  json.RawMessage
}

// ContainerRequest asks for a container in a pod that is ready.
type ContainerRequest struct {
	PodID  string
	Name   string // unique: name_podname_namespace_poduid_attempt
	Config json.RawMessage
}

// Pod is a published view of a pod.
type Pod struct {
	*pod.State
	Decoded    any // what Options.Decode made of Config
	Containers []*Container
	// Trouble is what is being retried and why: for status and for people.
	Trouble string
}

// Container is a published view of a container.
type Container struct {
	*pod.Container
	PodID   string
	Decoded any
}

// EventType as in CRI's ContainerEventType.
type EventType int

const (
	EventCreated EventType = iota
	EventStarted
	EventStopped
	EventDeleted
)

// Event says that a container, or a pod's sandbox (ContainerID is the pod's id
// then), changed. Pod is the pod as it was then (nil after EventDeleted of a pod).
type Event struct {
	At          time.Time
	Type        EventType
	ContainerID string
	Pod         *Pod
}
