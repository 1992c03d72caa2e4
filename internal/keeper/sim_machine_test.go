package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/internal/pod"
)

// Resource implements Machine for one life of a keeper.
func (l *life) Resource(r pod.Resource) Resource { return &simResource{l, r} }

type simResource struct {
	l *life
	r pod.Resource
}

var errWeather = errors.New("it failed by chance")

func (s *simResource) names(j *Job) (c, what string) {
	what = string(s.r) + " of " + j.Pod.Name
	if j.Container != nil {
		return j.Container.ID, what + " " + j.Container.Name
	}
	return "", what
}

// effect takes its time and comes to one of its ends: it works; it fails before
// it did anything; it works and its answer is lost; it hangs. When the keeper
// dies meanwhile, what it began may still happen, later, or not.
func (s *simResource) effect(ctx context.Context, verb pod.Verb, j *Job, do func(p *simPod)) error {
	l, w := s.l, s.l.w
	c, what := s.names(j)
	key := fmt.Sprintf("%s/%s/%s", j.Pod.ID, s.r, c)
	name := string(verb) + " " + what
	w.mu.Lock()
	if l.dead {
		w.mu.Unlock()
		<-w.buried
		return errDead
	}
	if finish := w.late[key]; finish != nil { // the new one joins it, or ends it
		finish(w.roll(2, "late", name) == 0)
	}
	p := w.pod(j.Pod)
	if l.busy[key] {
		w.broken("two effects at once on the %s", what)
	}
	l.busy[key] = true
	defer func() {
		w.mu.Lock()
		delete(l.busy, key)
		w.mu.Unlock()
	}()
	switch verb {
	case pod.Take:
		w.mayTake(p, s.r, c, what)
	case pod.Give:
		w.mayGive(p, s.r, c, what)
	}
	// 0 fails, 1 answer lost, 2 hangs, else works.
	fate := w.roll(24, name)
	if !w.storm {
		fate = 23
	}
	d := w.span(time.Second, name)
	if verb == pod.Take && w.roll(3, "afterlife", name) == 0 {
		over := false
		w.late[key] = func(happens bool) {
			if !over && happens {
				w.say("machine: %s, begun by a dead keeper, happens now", name)
				do(p)
			}
			over = true
			delete(w.late, key)
		}
	}
	finish := w.late[key]
	w.mu.Unlock()
	select {
	case <-time.After(d):
	case <-l.died:
	}
	w.mu.Lock()
	if l.dead {
		w.mu.Unlock()
		<-w.buried
		return errDead
	}
	_ = finish
	delete(w.late, key)
	switch fate {
	case 0:
		w.say("k%d %s: fails", l.n, name)
		w.mu.Unlock()
		return fmt.Errorf("%s: %w", name, errWeather)
	case 2:
		w.say("k%d %s: hangs", l.n, name)
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-l.died:
			<-w.buried
		}
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
	do(p)
	defer w.mu.Unlock()
	if fate == 1 {
		w.say("k%d %s: done, and the answer is lost", l.n, name)
		return fmt.Errorf("%s: the answer is lost: %w", name, errWeather)
	}
	w.say("k%d %s: done", l.n, name)
	return nil
}

func (s *simResource) Take(ctx context.Context, j *Job) (*Taken, error) {
	var tk *Taken
	var failed error
	err := s.effect(ctx, pod.Take, j, func(p *simPod) { tk, failed = s.take(p, j) })
	if err != nil || failed != nil {
		return nil, errors.Join(err, failed)
	}
	return tk, nil
}

func (s *simResource) take(p *simPod, j *Job) (*Taken, error) {
	w := s.l.w
	tk := &Taken{Data: json.RawMessage(`{}`), At: time.Now()}
	switch s.r {
	case pod.Rootfs:
		p.rootfs[j.Container.ID] = true
	case pod.Task:
		if !p.alive {
			return nil, errors.New("the shim does not answer")
		}
		t := p.tasks[j.Container.ID]
		if t == nil {
			if w.storm && w.roll(12, "command", j.Container.Name) == 0 {
				return nil, &StartError{127, errors.New("no such command")}
			}
			t = w.run(p, j)
		}
		tk.Pid, tk.At = t.pid, t.at
	case pod.Shim:
		if !p.held[pod.Shim] {
			p.alive = true
			if w.storm && w.roll(8, "shim", p.name) == 0 {
				time.AfterFunc(w.span(30*time.Second, "shim life", p.name), func() {
					w.mu.Lock()
					defer w.mu.Unlock()
					if w.storm && w.pods[p.id] == p {
						w.crashShim(p)
					}
				})
			}
		}
		p.held[pod.Shim] = true
	default:
		p.held[s.r] = true
	}
	return tk, nil
}

// Probe finds what is there. The network cannot be asked and is undone.
func (s *simResource) Probe(ctx context.Context, j *Job) (*Taken, error) {
	var tk *Taken
	var failed error
	err := s.effect(ctx, pod.Probe, j, func(p *simPod) {
		c, _ := s.names(j)
		switch s.r {
		case pod.Network, pod.Rootfs:
			s.give(p, j)
		case pod.Shim:
			if p.alive {
				tk, failed = s.take(p, j)
			} else {
				s.give(p, j)
			}
		case pod.Task:
			if p.alive && p.tasks[c] != nil {
				tk, failed = s.take(p, j)
			} else if !p.alive {
				failed = errors.New("the shim does not answer")
			}
		default:
			if p.has(s.r, c) {
				tk, failed = s.take(p, j)
			}
		}
	})
	if s.l.w.mutant.is("a probe that fails finds nothing") && err != nil {
		return nil, nil
	}
	if err != nil || failed != nil {
		return nil, errors.Join(err, failed)
	}
	return tk, nil
}

func (s *simResource) Give(ctx context.Context, j *Job) (*Exit, error) {
	var x *Exit
	err := s.effect(ctx, pod.Give, j, func(p *simPod) {
		if s.l.w.mutant.is("giving back the network does nothing") && s.r == pod.Network {
			return
		}
		x = s.give(p, j)
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (s *simResource) give(p *simPod, j *Job) *Exit {
	w := s.l.w
	switch s.r {
	case pod.Rootfs:
		delete(p.rootfs, j.Container.ID)
	case pod.Task:
		c := j.Container.ID
		t := p.tasks[c]
		if t == nil {
			if j.Container.StartedAt.IsZero() || p.alive {
				return nil
			}
			return w.unseen(j)
		}
		if t.running {
			w.end(p, c, 137, "killed")
		}
		if p.alive {
			w.exits[c].known = true
			delete(p.tasks, c) // and with it the record: this is the acknowledgement
			return t.exit
		}
		if t.exit != nil {
			// The record stays until the pod's folder goes: the keeper that
			// reads it may die before it has written the exit down.
			t.running = false
			return t.exit
		}
		t.running = false
		delete(p.tasks, c)
		if j.Container.StartedAt.IsZero() {
			return nil
		}
		return w.unseen(j)
	case pod.Shim:
		for c, t := range p.tasks {
			if t.running {
				w.end(p, c, 137, "killed")
			}
		}
		p.alive = false
		delete(p.held, pod.Shim)
		p.wake()
	case pod.Dir:
		clear(p.tasks) // exit records are in it
		delete(p.held, pod.Dir)
	default:
		delete(p.held, s.r)
	}
	return nil
}

// unseen is the end of a container whose shim died before it could record it.
func (w *world) unseen(j *Job) *Exit {
	x := w.exits[j.Container.ID]
	e := &Exit{Code: 137, At: time.Now(), Reason: pod.ReasonShimLost}
	if j.Pod.Rebooted {
		e = &Exit{Code: pod.CodeUnknown, At: time.Now(), Reason: pod.ReasonUnknown}
	}
	if !x.known {
		x.exit = e
	}
	return e
}

// Stop implements Machine. The shim owns the deadline.
func (l *life) Stop(ctx context.Context, j *Job, signal string, deadline time.Time) error {
	s := &simResource{l, pod.Task}
	var failed error
	err := s.effect(ctx, pod.Stop, j, func(p *simPod) {
		w := l.w
		t := p.tasks[j.Container.ID]
		switch {
		case !p.alive:
			failed = errors.New("the shim does not answer")
			return
		case t == nil || !t.running:
			return // it has ended; the watch brings the exit
		}
		if t.stopBy.IsZero() || deadline.Before(t.stopBy) {
			t.stopBy = deadline
			time.AfterFunc(max(0, time.Until(deadline)), func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if p.tasks[j.Container.ID] == t && p.alive && t.stopBy.Equal(deadline) {
					w.end(p, j.Container.ID, 137, "killed")
				}
			})
		}
		if !t.told && w.roll(2, "obeys", t.name) == 0 {
			time.AfterFunc(w.span(time.Second, "obeys", t.name), func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				if p.tasks[j.Container.ID] == t && p.alive {
					w.end(p, j.Container.ID, 143, "stopped")
				}
			})
		}
		t.told = true
	})
	return errors.Join(err, failed)
}

func (l *life) Update(context.Context, *Job, json.RawMessage) error { return nil }
func (l *life) ReopenLog(context.Context, *Job) error               { return nil }

// Watch tells the tasks' states and then every change; now and then it tells one
// twice, is late, or breaks off.
func (l *life) Watch(ctx context.Context, j *Job, report func(*TaskChange)) error {
	w := l.w
	for {
		w.mu.Lock()
		if l.dead {
			w.mu.Unlock()
			<-w.buried
			return nil
		}
		p := w.pod(j.Pod)
		if !p.alive {
			w.mu.Unlock()
			return fmt.Errorf("no process: %w", ErrGone)
		}
		var news []*TaskChange
		for c, t := range p.tasks {
			news = append(news, &TaskChange{Container: c, Exit: t.exit})
		}
		slices.SortFunc(news, func(a, b *TaskChange) int {
			return cmp.Compare(p.tasks[a.Container].name, p.tasks[b.Container].name)
		})
		changed := p.changed
		wait := w.span(100*time.Millisecond, "watch", p.name)
		broken := w.storm && w.roll(10, "watch breaks", p.name) == 0
		times := 1 + w.roll(2, "watch repeats", p.name)
		w.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		case <-l.died:
			<-w.buried
			return nil
		}
		if broken {
			return errors.New("the connection broke")
		}
		for range times {
			for _, n := range news {
				report(n)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-l.died:
			<-w.buried
			return nil
		}
	}
}
