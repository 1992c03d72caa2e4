package cri

import "berth/internal/keeper"

// podID is the full id that a filter's id means. One that means no pod, or
// several, stays as it is and matches nothing.
func (s *Service) podID(id string) string {
	if id == "" {
		return ""
	}
	if p, err := s.keeper.Pod(id); err == nil {
		return p.ID
	}
	return id
}

func (s *Service) containerID(id string) string {
	if id == "" {
		return ""
	}
	if _, c, err := s.keeper.Container(id); err == nil {
		return c.ID
	}
	return id
}

// matches tells whether labels has all that selector asks for.
func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// eachPod calls do for the pods that a client may see and that fit; "" fits all.
func (s *Service) eachPod(id string, selector map[string]string, do func(*keeper.Pod)) {
	id = s.podID(id)
	for _, p := range s.keeper.Pods() {
		if listed(p) && (id == "" || id == p.ID) && matches(podConfig(p).Labels, selector) {
			do(p)
		}
	}
}

// eachContainer is eachPod for containers.
func (s *Service) eachContainer(id, podID string, selector map[string]string, do func(*keeper.Container)) {
	id, podID = s.containerID(id), s.podID(podID)
	for _, p := range s.keeper.Pods() {
		if p.Removed || podID != "" && podID != p.ID {
			continue
		}
		for _, c := range p.Containers {
			if c.IsCreated() && (id == "" || id == c.ID) && matches(containerRecord(c).Config.Labels, selector) {
				do(c)
			}
		}
	}
}
