package pod

import (
	"slices"
	"time"
)

// Verb is what an effect does with its resource.
type Verb string

const (
	Take  Verb = "take"  // take it from the machine
	Probe Verb = "probe" // ask the machine whether an earlier Take happened; undo a half-done one
	Give  Verb = "give"  // give it back, and prove that it is gone
	Stop  Verb = "stop"  // end the task: Signal, and SIGKILL at Deadline
)

// Effect is something to do. What it needs besides is in the state.
type Effect struct {
	Verb      Verb
	Res       Resource
	Container string // "" for a resource of the pod
	Signal    string
	Deadline  time.Time
}

// Key names what the effect works on. Effects of one key never overlap.
func (e *Effect) Key() string { return string(e.Res) + "/" + e.Container }

// needs says what must be held before a resource can be taken; and so, read
// backwards, what must be gone before it can be given back.
var needs = map[Resource][]Resource{
	Dir:        {},
	Namespaces: {Dir},
	Network:    {Namespaces},
	Shim:       {Dir, Namespaces}, // a pod-wide pid namespace is held by a process in the pod's user namespace
	Rootfs:     {Dir},
	Task:       {Rootfs, Shim, Network, Namespaces},
}

// ofPod and ofContainer are the resources in the order of set-up.
var (
	ofPod       = []Resource{Dir, Namespaces, Network, Shim}
	ofContainer = []Resource{Rootfs, Task}
)

// kept are the resources that outlive the pod's stop, until its removal.
func kept(r Resource) bool { return r == Dir || r == Rootfs }

// goesDown tells whether the resource is to be given back.
func (s *State) goesDown(c *Container, r Resource) bool {
	if c == nil {
		// What would outlive the stop is not taken any more after it. (No
		// container was declared before Dir was held.)
		return s.Removing || s.Stopping && (!kept(r) || s.phase(nil, r) != Held)
	}
	return c.Removing || s.Removing || s.Stopping && !kept(r) ||
		r == Task && (!c.FinishedAt.IsZero() || c.StopAsked && c.StartedAt.IsZero())
}

func (s *State) phase(c *Container, r Resource) Phase {
	if c != nil && (r == Rootfs || r == Task) {
		return c.Holdings[r].Phase
	}
	return s.Holdings[r].Phase
}

// ready tells whether all that r needs is held. A pod on the host's network
// never intends the network: what was never intended is not needed.
func (s *State) ready(c *Container, r Resource) bool {
	for _, n := range needs[r] {
		if n == Network && s.Traits.HostNetwork {
			continue
		}
		if s.phase(c, n) != Held {
			return false
		}
	}
	return true
}

// free tells whether nothing is left that needs r.
func (s *State) free(c *Container, r Resource) bool {
	for d, ns := range needs {
		if !slices.Contains(ns, r) {
			continue
		}
		if d != Rootfs && d != Task {
			if s.Holdings[d].Phase != None {
				return false
			}
			continue
		}
		if c != nil {
			if c.Holdings[d].Phase != None {
				return false
			}
			continue
		}
		for _, k := range s.Containers {
			if k.Holdings[d].Phase != None {
				return false
			}
		}
	}
	return true
}

// Plan returns what is to be done now. It asks for the same again until facts
// tell that it is done.
func Plan(s *State) []*Effect {
	var es []*Effect
	for _, r := range ofPod {
		es = s.plan(es, nil, r)
	}
	for _, c := range s.Containers {
		for _, r := range ofContainer {
			es = s.plan(es, c, r)
		}
	}
	return es
}

func (s *State) plan(es []*Effect, c *Container, r Resource) []*Effect {
	e := &Effect{Res: r}
	if c != nil {
		e.Container = c.ID
	}
	p := s.phase(c, r)
	switch {
	case p == None:
		return es
	case s.goesDown(c, r):
		if r == Task && p == Held && s.alive(c) {
			e.Verb, e.Signal, e.Deadline = Stop, c.StopSignal, c.StopBy
			return append(es, e)
		}
		if !s.free(c, r) {
			return es
		}
		e.Verb = Give
	case p == Unknown:
		e.Verb = Probe
	case p == Intended:
		if !s.ready(c, r) {
			return es
		}
		e.Verb = Take
	case r == Task && c.StopAsked:
		e.Verb, e.Signal, e.Deadline = Stop, c.StopSignal, c.StopBy
	default:
		return es
	}
	return append(es, e)
}

// alive tells whether the task must be stopped, and its exit awaited, before
// it is given back. Without a shim to ask there is no exit to wait for.
func (s *State) alive(c *Container) bool {
	return c.Status() == ContainerStateRunning && !s.ShimLost && !s.Rebooted
}

// Settle returns the facts that follow from the state with no effect. The
// caller writes and folds them, and asks again until there are none.
func Settle(s *State, now time.Time) []*Fact {
	var fs []*Fact
	if s.ReadyAt.IsZero() && !s.Stopping && s.up() {
		fs = append(fs, &Fact{At: now, Kind: Ready})
	}
	for _, c := range s.Containers {
		rootfs, task := c.Holdings[Rootfs].Phase, c.Holdings[Task].Phase
		switch {
		case rootfs == Held && !c.IsCreated() && !c.Removing:
			fs = append(fs, &Fact{At: now, Kind: ContainerCreated, Container: c.ID})
		case c.Removing && rootfs == None && task == None:
			fs = append(fs, &Fact{At: now, Kind: ContainerRemoved, Container: c.ID})
		case c.StopAsked && c.IsCreated() && c.Status() == ContainerStateCreated && task == None && !c.Removing:
			code := int32(137)
			fs = append(fs, &Fact{At: now, Kind: ContainerExited, Container: c.ID, Code: &code, Reason: ReasonNotStarted,
				Message: "the container was stopped before it was started"})
		}
	}
	if s.Removing && !s.Removed && len(s.Containers) == 0 && len(s.Holdings) == 0 {
		fs = append(fs, &Fact{At: now, Kind: Removed})
	}
	return fs
}

func (s *State) up() bool {
	for _, r := range ofPod {
		if r == Network && s.Traits.HostNetwork {
			continue
		}
		if s.Holdings[r].Phase != Held {
			return false
		}
	}
	return true
}

// Stopped tells whether a stop is complete: all containers ended, and nothing
// held but what is kept until removal.
func (s *State) Stopped() bool {
	if !s.Stopping {
		return false
	}
	for r := range s.Holdings {
		if !kept(r) {
			return false
		}
	}
	for _, c := range s.Containers {
		if c.Status() == ContainerStateRunning || c.Holdings[Task].Phase != None {
			return false
		}
	}
	return true
}
