package pod

import (
	"encoding/json"
	"time"
)

// Kind says what a Fact states.
type Kind string

// The facts of a pod's life. Those that name a Resource say so in Fact.Res;
// those about a container name it in Fact.Container.
const (
	Declared      Kind = "declared"       // the pod exists: Name, Handler, Data (its config)
	Intends       Kind = "intends"        // Res may be taken from the machine from now on
	Holds         Kind = "holds"          // Res was taken; Data is what giving it back needs
	Released      Kind = "released"       // Res is proven gone
	Failed        Kind = "failed"         // taking Res failed for good: Message
	Ready         Kind = "ready"          // everything a pod needs is held
	Lost          Kind = "lost"           // the shim or the host died: Reason
	Rebooted      Kind = "rebooted"       // the machine started anew: nothing of the kernel's is left
	Updated       Kind = "updated"        // the pod's resources changed: Data
	StopRequested Kind = "stop requested" // the pod is to stop
	RemoveAsked   Kind = "remove requested"
	Removed       Kind = "removed" // nothing is held any more; the journal ends

	ContainerDeclared Kind = "container declared"        // Container, Name, Data (its config)
	ContainerCreated  Kind = "container created"         // ready to start
	StartRequested    Kind = "container start requested" //
	ContainerStarted  Kind = "container started"         // Pid
	ContainerExited   Kind = "container exited"          // Code, Reason, Message
	ContainerUpdated  Kind = "container updated"         // its resources changed: Data
	ContainerStop     Kind = "container stop requested"  // Deadline, Signal
	ContainerRemove   Kind = "container remove requested"
	ContainerRemoved  Kind = "container removed"
)

// Fact is one thing that happened to a pod. It carries what a person needs to
// read it, so that the journal tells the story of the pod.
type Fact struct {
	At        time.Time       `json:"at"`
	Kind      Kind            `json:"fact"`
	Res       Resource        `json:"res,omitempty"`
	Container string          `json:"container,omitempty"`
	Name      string          `json:"name,omitempty"`
	Handler   string          `json:"handler,omitempty"`
	Pid       int             `json:"pid,omitempty"`
	Code      *int32          `json:"code,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Message   string          `json:"message,omitempty"`
	Signal    string          `json:"signal,omitempty"`
	Deadline  time.Time       `json:"deadline,omitzero"`
	Data      json.RawMessage `json:"data,omitempty"`
	// Boot names the machine's boot; it travels with Declared and Rebooted.
	Boot string `json:"boot,omitempty"`
	// Traits travel with Declared.
	Traits *Traits `json:"traits,omitempty"`
}

// Traits are what the machine itself must know of a pod's config.
type Traits struct {
	// HostNetwork: the pod takes neither a network namespace nor addresses.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Resource is a thing that a pod takes from the machine.
type Resource string

const (
	Dir        Resource = "dir"        // the pod's folders and files
	Namespaces Resource = "namespaces" // pinned namespaces
	Network    Resource = "network"    // CNI
	Shim       Resource = "shim"       // the shim process and the sandbox in it
	Rootfs     Resource = "rootfs"     // a container's snapshot, mounts, volumes and bundle
	Task       Resource = "task"       // a container's processes, in the shim
)
