package pod

import "maps"

// Reasons that the machine itself gives for an end.
const (
	ReasonUnknown    = "Unknown"    // nobody saw the end; the code is 255
	ReasonStartError = "StartError" // the command could not be started
	ReasonShimLost   = "shim lost"
	ReasonNotStarted = "StoppedBeforeStart"
)

// CodeUnknown stands for an exit code that nobody saw. It is never 0.
const CodeUnknown = 255

// Fold returns the state after facts. s is left as it was; nil is the state of
// a pod without facts. Facts that do not fit (of a container that is not there,
// of a kind from a newer version) are passed over.
func Fold(s *State, facts ...*Fact) *State {
	n := s.clone()
	for _, f := range facts {
		n.fold(f)
	}
	return n
}

// Recover returns the state as a new keeper must see it: what was intended may
// or may not have happened.
func Recover(s *State) *State {
	n := s.clone()
	doubt := func(m map[Resource]Holding) {
		for r, h := range m {
			if h.Phase == Intended {
				m[r] = Holding{Phase: Unknown}
			}
		}
	}
	doubt(n.Holdings)
	for _, c := range n.Containers {
		doubt(c.Holdings)
	}
	return n
}

func (s *State) clone() *State {
	if s == nil {
		return &State{Holdings: map[Resource]Holding{}}
	}
	n := *s
	n.Holdings = maps.Clone(s.Holdings)
	n.Containers = make([]*Container, len(s.Containers))
	for i, c := range s.Containers {
		k := *c
		k.Holdings = maps.Clone(c.Holdings)
		n.Containers[i] = &k
	}
	return &n
}

func (s *State) fold(f *Fact) {
	switch f.Kind {
	case Declared:
		s.Name, s.Handler, s.Config, s.CreatedAt = f.Name, f.Handler, f.Data, f.At
		if f.Traits != nil {
			s.Traits = *f.Traits
		}
	case Ready:
		s.ReadyAt = f.At
	case Updated:
		s.Resources = f.Data
	case StopRequested:
		s.goDown(f, "stopped")
	case RemoveAsked:
		s.goDown(f, "being removed")
		s.Removing = true
		for _, c := range s.Containers {
			c.Removing = true
		}
	case Lost:
		s.ShimLost = true
		s.goDown(f, f.Reason)
	case Rebooted:
		s.Rebooted = true
		s.goDown(f, "the machine was restarted")
	case Removed:
		s.Removed = true
	case ContainerDeclared:
		s.Containers = append(s.Containers, &Container{
			ID: f.Container, Name: f.Name, Config: f.Data, DeclaredAt: f.At, Holdings: map[Resource]Holding{},
		})
	case ContainerRemoved:
		for i, c := range s.Containers {
			if c.ID == f.Container {
				s.Containers = append(s.Containers[:i:i], s.Containers[i+1:]...)
				break
			}
		}
	case Intends, Holds, Released, Failed:
		s.foldResource(f)
	default:
		if c := s.Container(f.Container); c != nil {
			c.fold(f)
		}
	}
}

// goDown turns the pod's goal: from here on it only gives back.
func (s *State) goDown(f *Fact, reason string) {
	if s.Stopping {
		return
	}
	s.Stopping, s.StopAt, s.Reason = true, f.At, reason
	for _, c := range s.Containers {
		if !c.IsCreated() {
			c.Removing = true
			if c.Err == "" {
				c.Err = "the pod was stopped"
			}
		}
		c.stopNow(f)
	}
}

func (s *State) foldResource(f *Fact) {
	m := s.Holdings
	c := s.Container(f.Container)
	if f.Container != "" {
		if c == nil {
			return
		}
		m = c.Holdings
	}
	switch f.Kind {
	case Intends:
		m[f.Res] = Holding{Phase: Intended}
	case Holds:
		m[f.Res] = Holding{Phase: Held, Data: f.Data}
	case Released:
		// Probed and not found: to be taken again. In a journal that is read once
		// more, the doubt that led to the probe is only an intent.
		if h, ok := m[f.Res]; ok && h.Phase != Held && !s.goesDown(c, f.Res) {
			m[f.Res] = Holding{Phase: Intended}
			return
		}
		delete(m, f.Res)
		if f.Res == Task && c != nil && c.Status() == ContainerStateRunning {
			c.exit(f, CodeUnknown, ReasonUnknown, "nobody saw the end of the container")
		}
	case Failed:
		switch {
		case c == nil:
			s.Err = f.Message
			s.goDown(f, f.Message)
			s.Removing = true
		case f.Res == Task:
			code := int32(128)
			if f.Code != nil {
				code = *f.Code
			}
			c.exit(f, code, ReasonStartError, f.Message)
		default:
			c.Err, c.Removing = f.Message, true
		}
	}
}

func (c *Container) fold(f *Fact) {
	switch f.Kind {
	case ContainerCreated:
		c.CreatedAt = f.At
	case StartRequested:
		c.StartAsked = true
	case ContainerStarted:
		c.StartedAt, c.Pid = f.At, f.Pid
	case ContainerExited:
		code := int32(CodeUnknown)
		if f.Code != nil {
			code = *f.Code
		}
		c.exit(f, code, f.Reason, f.Message)
	case ContainerUpdated:
		c.Resources = f.Data
	case ContainerStop:
		if !c.StopAsked {
			c.StopAsked, c.StopBy, c.StopSignal = true, f.Deadline, f.Signal
		} else if f.Deadline.Before(c.StopBy) {
			c.StopBy = f.Deadline
		}
	case ContainerRemove:
		c.Removing = true
		c.stopNow(f)
	}
}

// stopNow asks for an end without grace.
func (c *Container) stopNow(f *Fact) {
	if !c.FinishedAt.IsZero() {
		return
	}
	if !c.StopAsked {
		c.StopSignal = "SIGKILL"
	}
	if !c.StopAsked || f.At.Before(c.StopBy) {
		c.StopBy = f.At
	}
	c.StopAsked = true
}

// exit notes the end, once: the first report stands.
func (c *Container) exit(f *Fact, code int32, reason, message string) {
	if !c.FinishedAt.IsZero() {
		return
	}
	c.FinishedAt, c.ExitCode, c.Reason, c.Message, c.Pid = f.At, code, reason, message, 0
}
