package keeper

import (
	"slices"

	"berth/internal/pod"
)

func phase(s *pod.State, c string, r pod.Resource) pod.Phase {
	if s == nil {
		return pod.None
	}
	if c == "" {
		return s.Holdings[r].Phase
	}
	if k := s.Container(c); k != nil {
		return k.Holdings[r].Phase
	}
	return pod.None
}

// below are the resources that r stands on.
var below = map[pod.Resource][]pod.Resource{
	pod.Dir: {}, pod.Namespaces: {pod.Dir}, pod.Network: {pod.Namespaces}, pod.Shim: {pod.Dir, pod.Namespaces},
	pod.Rootfs: {pod.Dir}, pod.Task: {pod.Rootfs, pod.Shim, pod.Namespaces},
}

// mayTake checks the rules of a take.
func (w *world) mayTake(p *simPod, r pod.Resource, c, what string) {
	f := w.files[p.id]
	if f == nil || phase(f.onDisk, c, r) == pod.None {
		w.broken("%s is taken, and no intent is on disk", what)
	}
	for _, n := range below[r] {
		if n == pod.Shim && !p.alive {
			continue // it died meanwhile: the take will fail
		}
		if !p.has(n, c) {
			w.broken("%s is taken without %s", what, n)
		}
	}
}

// mayGive checks the rules of giving back.
func (w *world) mayGive(p *simPod, r pod.Resource, c, what string) {
	f := w.files[p.id]
	if f == nil || phase(f.state, c, r) == pod.None {
		w.broken("%s is given back, and was neither intended nor held", what)
	}
	if c == "" && f != nil && !f.state.Stopping {
		w.broken("%s is given back, but nothing says that the pod goes down: only its owner may close it", what)
	}
	for d, ns := range below {
		if !slices.Contains(ns, r) || d == pod.Task && r == pod.Shim && !p.alive {
			continue
		}
		ids := []string{c}
		if c == "" && (d == pod.Task || d == pod.Rootfs) {
			ids = ids[:0]
			for id := range p.rootfs {
				ids = append(ids, id)
			}
			for id := range p.tasks {
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			if d == pod.Task && p.tasks[id] != nil && !p.tasks[id].running && !p.alive {
				continue // a record of a dead shim
			}
			if p.has(d, id) {
				w.broken("%s is given back while %s stands on it", what, d)
			}
		}
	}
}
