package keeper

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/pod"
)

// mutant is a keeper, a machine or a world that breaks one rule on purpose.
type mutant struct {
	name  string
	wants string // what the simulation must say
	bendf func(k *Keeper)
}

func (m *mutant) is(name string) bool { return m != nil && m.name == name }

func (m *mutant) bend(k *Keeper) {
	if m != nil && m.bendf != nil {
		m.bendf(k)
	}
}

// replan changes the plan.
func replan(f func(s *pod.State, es []*pod.Effect) []*pod.Effect) func(k *Keeper) {
	return func(k *Keeper) {
		k.plan = func(s *pod.State) []*pod.Effect { return f(s, pod.Plan(s)) }
	}
}

// refold changes the state after each fact.
func refold(f func(s *pod.State, f *pod.Fact)) func(k *Keeper) {
	return func(k *Keeper) {
		k.fold = func(s *pod.State, fs ...*pod.Fact) *pod.State {
			for _, fact := range fs {
				s = pod.Fold(s, fact)
				f(s, fact)
			}
			return s
		}
	}
}

func without(drop func(s *pod.State, e *pod.Effect) bool) func(k *Keeper) {
	return replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
		return slices.DeleteFunc(es, func(e *pod.Effect) bool { return drop(s, e) })
	})
}

// mutants break each invariant of the design once.
var mutants = []*mutant{
	{name: "giving back the network does nothing", wants: "is there"},
	{name: "a probe that fails finds nothing", wants: "is there"},
	{"something is forgotten at the removal", "still has", refold(func(s *pod.State, f *pod.Fact) {
		if f.Kind == pod.RemoveAsked {
			delete(s.Holdings, pod.Network)
		}
	})},
	{"a resource is taken without an intent", "no intent is on disk", func(k *Keeper) {
		replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
			for _, c := range s.Containers {
				if c.IsCreated() && !c.StartAsked && c.Holdings[pod.Task].Phase == pod.None && s.IsReady() {
					es = append(es, &pod.Effect{Verb: pod.Take, Res: pod.Task, Container: c.ID})
				}
			}
			return es
		})(k)
	}},
	{"what is given back is given back again", "neither intended nor held", replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
		if s.Stopping && s.Holdings[pod.Network].Phase == pod.None {
			es = append(es, &pod.Effect{Verb: pod.Give, Res: pod.Network})
		}
		return es
	})},
	{"the order of giving back is wrong", "stands on it", replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
		if s.Stopping && s.Holdings[pod.Namespaces].Phase == pod.Held && !slices.ContainsFunc(es, func(e *pod.Effect) bool { return e.Res == pod.Namespaces }) {
			es = append(es, &pod.Effect{Verb: pod.Give, Res: pod.Namespaces})
		}
		return es
	})},
	{"the order of taking is wrong", "is taken without", replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
		if s.Holdings[pod.Network].Phase == pod.Intended && s.Holdings[pod.Namespaces].Phase == pod.Intended && !s.Stopping {
			es = append(es, &pod.Effect{Verb: pod.Take, Res: pod.Network})
		}
		return es
	})},
	{"an unknown end is 0", "said to have ended with 0", refold(func(s *pod.State, f *pod.Fact) {
		if c := s.Container(f.Container); c != nil && c.ExitCode >= 137 && !c.FinishedAt.IsZero() {
			c.ExitCode = 0
		}
	})},
	{"an exit code is wrong", "is said to have ended with", refold(func(s *pod.State, f *pod.Fact) {
		if c := s.Container(f.Container); c != nil && f.Kind == pod.ContainerExited && c.ExitCode == 137 {
			c.ExitCode = 9
		}
	})},
	{"an exit can be told again", "was reported as", refold(func(s *pod.State, f *pod.Fact) {
		if c := s.Container(f.Container); c != nil && f.Kind == pod.Released && f.Res == pod.Task {
			c.FinishedAt = time.Time{}
		}
	})},
	{"a container's end closes the pod's shim", "only its owner may close it", replan(func(s *pod.State, es []*pod.Effect) []*pod.Effect {
		for _, c := range s.Containers {
			if c.Status() == pod.ContainerStateExited && s.Holdings[pod.Shim].Phase == pod.Held && !s.Stopping {
				return append(es, &pod.Effect{Verb: pod.Give, Res: pod.Shim})
			}
		}
		return es
	})},
	{"a stop is never sent", "was to be stopped, and is not", without(func(s *pod.State, e *pod.Effect) bool { return e.Verb == pod.Stop && !s.Stopping })},
	{"a removal never ends", "cannot be removed", without(func(s *pod.State, e *pod.Effect) bool { return e.Verb == pod.Give && e.Res == pod.Dir })},
	{"what is in doubt is not asked about", "neither ready nor stopped", without(func(s *pod.State, e *pod.Effect) bool { return e.Verb == pod.Probe })},
	{name: "an exit is acknowledged before it is on disk", wants: "and again as"},
}

// TestMutants shows that the simulation sees each broken rule.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			var said []string
			sees := func(w *world) bool {
				said = append(said, w.bad...)
				return slices.ContainsFunc(w.bad, func(b string) bool { return strings.Contains(b, m.wants) })
			}
			for seed := uint64(1); seed <= 300; seed++ {
				if sees(play(t, seed, m, weather)) {
					return
				}
				if at := int(seed); at < 80 && sees(play(t, 0, m, func(w *world) { shortest(w, true, at) })) {
					return
				}
			}
			t.Errorf("300 seeds do not see it; they say %q", said)
		})
	}
}
