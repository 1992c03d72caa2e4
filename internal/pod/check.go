package pod

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Declare returns the facts that begin a pod, in the boot of the machine that
// boot names. All that it will take is intended
// at once, so that one synced write covers its set-up.
func Declare(name, handler string, traits *Traits, config json.RawMessage, boot string, now time.Time) []*Fact {
	fs := []*Fact{{At: now, Kind: Declared, Name: name, Handler: handler, Traits: traits, Data: config, Boot: boot}}
	for _, r := range ofPod {
		if r == Network && traits.HostNetwork {
			continue
		}
		fs = append(fs, &Fact{At: now, Kind: Intends, Res: r})
	}
	return fs
}

// Distrust returns the facts for a pod whose journal is damaged: it goes down,
// and everything it might hold is to be given back. One that does not even know
// its name is of no use to anybody and removes itself.
func Distrust(s *State, reason string, now time.Time) []*Fact {
	var fs []*Fact
	for _, r := range ofPod {
		if s.Holdings[r].Phase == None {
			fs = append(fs, &Fact{At: now, Kind: Intends, Res: r})
		}
	}
	fs = append(fs, &Fact{At: now, Kind: Lost, Reason: reason})
	if s.Name == "" {
		fs = append(fs, &Fact{At: now, Kind: RemoveAsked})
	}
	return fs
}

// CheckStop returns the facts of a request to stop the pod; none when it stops already.
func (s *State) CheckStop(now time.Time) []*Fact {
	if s.Stopping {
		return nil
	}
	return []*Fact{{At: now, Kind: StopRequested}}
}

// CheckRemove returns the facts of a request to remove the pod.
func (s *State) CheckRemove(now time.Time) []*Fact {
	if s.Removing {
		return nil
	}
	return []*Fact{{At: now, Kind: RemoveAsked}}
}

// CheckCreate returns the facts that declare a container.
func (s *State) CheckCreate(id, name string, config json.RawMessage, now time.Time) ([]*Fact, error) {
	if !s.IsReady() {
		return nil, fmt.Errorf("create container %s: pod %s is not ready (%s): %w", name, s.ID, s.why(), errdefs.ErrFailedPrecondition)
	}
	return []*Fact{
		{At: now, Kind: ContainerDeclared, Container: id, Name: name, Data: config},
		{At: now, Kind: Intends, Res: Rootfs, Container: id},
	}, nil
}

// CheckStart returns the facts of a request to start a container.
func (s *State) CheckStart(id string, now time.Time) ([]*Fact, error) {
	c := s.Container(id)
	switch {
	case c == nil || !c.IsCreated():
		return nil, s.noContainer(id)
	case !s.IsReady():
		return nil, fmt.Errorf("start container %s: pod %s is not ready (%s): %w", id, s.ID, s.why(), errdefs.ErrFailedPrecondition)
	case c.Removing:
		return nil, fmt.Errorf("start container %s: it is being removed: %w", id, errdefs.ErrFailedPrecondition)
	case c.Status() == ContainerStateExited:
		return nil, fmt.Errorf("start container %s: it has exited (%s); a container is started once, create a new one: %w", id, c.Reason, errdefs.ErrFailedPrecondition)
	case c.StopAsked:
		return nil, fmt.Errorf("start container %s: it is being stopped: %w", id, errdefs.ErrFailedPrecondition)
	case c.StartAsked:
		return nil, fmt.Errorf("start container %s: it was started already: %w", id, errdefs.ErrFailedPrecondition)
	}
	return []*Fact{
		{At: now, Kind: StartRequested, Container: id},
		{At: now, Kind: Intends, Res: Task, Container: id},
	}, nil
}

// CheckContainerStop returns the facts of a request to end a container by
// deadline; none when it has ended, or is to end by then anyway.
func (s *State) CheckContainerStop(id, signal string, deadline, now time.Time) ([]*Fact, error) {
	c := s.Container(id)
	if c == nil {
		return nil, s.noContainer(id)
	}
	if c.Status() == ContainerStateExited || c.StopAsked && !deadline.Before(c.StopBy) {
		return nil, nil
	}
	return []*Fact{{At: now, Kind: ContainerStop, Container: id, Signal: signal, Deadline: deadline}}, nil
}

// CheckContainerRemove returns the facts of a request to remove a container.
func (s *State) CheckContainerRemove(id string, now time.Time) ([]*Fact, error) {
	c := s.Container(id)
	if c == nil {
		return nil, s.noContainer(id)
	}
	if c.Removing {
		return nil, nil
	}
	return []*Fact{{At: now, Kind: ContainerRemove, Container: id}}, nil
}

// CheckRunning returns the container if its processes can be worked with.
func (s *State) CheckRunning(id, what string) (*Container, error) {
	c := s.Container(id)
	if c == nil || !c.IsCreated() {
		return nil, s.noContainer(id)
	}
	if c.Status() != ContainerStateRunning {
		return nil, fmt.Errorf("%s container %s: it is not running: %w", what, id, errdefs.ErrFailedPrecondition)
	}
	return c, nil
}

func (s *State) noContainer(id string) error {
	return fmt.Errorf("container %s in pod %s: %w", id, s.ID, errdefs.ErrNotFound)
}

func (s *State) why() string {
	if s.Reason != "" {
		return s.Reason
	}
	return "being made"
}
