package pod

import (
	"encoding/json"
	"time"
)

// State is what a pod's facts fold into. A State that was published is never
// changed again: Fold works on a copy.
type State struct {
	ID, Name, Handler string
	Traits            Traits
	Config            json.RawMessage // the pod's config, opaque here
	Resources         json.RawMessage // the last Updated
	CreatedAt         time.Time
	ReadyAt           time.Time // zero until ready
	StopAt            time.Time // when the stop was asked for
	Stopping          bool      // the pod goes down: asked for, failed, lost or rebooted
	Removing          bool
	Removed           bool
	Reason            string // why the pod is not ready, for people
	Err               string // what failed while the pod was made; "" otherwise
	Rebooted          bool
	ShimLost          bool
	Holdings          map[Resource]Holding
	Containers        []*Container // by time of declaration; without removed ones
}

// Phase is how far a resource is taken.
type Phase int

const (
	None     Phase = iota // never intended, or released
	Intended              // may be taken; the taking may be under way
	Unknown               // intended by an earlier life of the keeper: ask the machine
	Held
)

// Holding is a resource's place in the ledger.
type Holding struct {
	Phase Phase
	Data  json.RawMessage // from Holds; nil otherwise
}

// Container is a container of the pod.
type Container struct {
	ID, Name   string
	Config     json.RawMessage
	Resources  json.RawMessage // the last ContainerUpdated
	DeclaredAt time.Time
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
	StartAsked bool
	Pid        int
	ExitCode   int32
	Reason     string
	Message    string
	StopAsked  bool
	StopBy     time.Time // absolute deadline of the stop
	StopSignal string
	Removing   bool
	Err        string // what failed while it was created
	Holdings   map[Resource]Holding
}

// ContainerState is a container's state as CRI knows it.
type ContainerState int

const (
	ContainerStateCreated ContainerState = iota
	ContainerStateRunning
	ContainerStateExited
)

// Status tells a container's state from its times.
func (c *Container) Status() ContainerState {
	switch {
	case !c.FinishedAt.IsZero():
		return ContainerStateExited
	case !c.StartedAt.IsZero():
		return ContainerStateRunning
	}
	return ContainerStateCreated
}

// IsCreated: CreateContainer succeeded for it.
func (c *Container) IsCreated() bool { return !c.CreatedAt.IsZero() }

// IsReady tells whether the pod is up: ready, not going down.
func (s *State) IsReady() bool { return !s.ReadyAt.IsZero() && !s.Stopping }

// Container finds a container by id; nil when there is none.
func (s *State) Container(id string) *Container {
	for _, c := range s.Containers {
		if c.ID == id {
			return c
		}
	}
	return nil
}
