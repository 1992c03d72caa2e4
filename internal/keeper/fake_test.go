package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"berth/internal/pod"
)

// fakeMachine is a machine in memory that can be told to fail and to hang. It
// outlives keepers, as a real one does.
type fakeMachine struct {
	mu     sync.Mutex
	held   map[string]bool  // what was taken and not given back
	takes  map[string]int   // how often
	fails  map[string]error // by "verb res"; until removed
	hangs  map[string]chan struct{}
	exits  map[string]*Exit // by container
	stops  []string
	shims  map[string]chan *TaskChange // by pod
	killed map[string]chan struct{}    // by pod: the shim died
}

func newFake() *fakeMachine {
	return &fakeMachine{held: map[string]bool{}, takes: map[string]int{}, fails: map[string]error{}, hangs: map[string]chan struct{}{},
		exits: map[string]*Exit{}, shims: map[string]chan *TaskChange{}, killed: map[string]chan struct{}{}}
}

type fakeResource struct {
	m *fakeMachine
	r pod.Resource
}

func (m *fakeMachine) Resource(r pod.Resource) Resource { return &fakeResource{m, r} }

func key(r pod.Resource, j *Job) string {
	id := j.Pod.ID
	if j.Container != nil {
		id = j.Container.ID
	}
	return string(r) + " " + id
}

// enter fails or hangs as told.
func (m *fakeMachine) enter(ctx context.Context, verb pod.Verb, r pod.Resource) error {
	k := string(verb) + " " + string(r)
	m.mu.Lock()
	err, hang := m.fails[k], m.hangs[k]
	m.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (m *fakeMachine) set(k string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.fails, k)
	} else {
		m.fails[k] = err
	}
}

func (m *fakeMachine) hang(k string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch := make(chan struct{})
	m.hangs[k] = ch
	return sync.OnceFunc(func() {
		m.mu.Lock()
		delete(m.hangs, k)
		m.mu.Unlock()
		close(ch)
	})
}

func (f *fakeResource) Take(ctx context.Context, j *Job) (*Taken, error) {
	if err := f.m.enter(ctx, pod.Take, f.r); err != nil {
		return nil, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	k := key(f.r, j)
	f.m.held[k] = true
	f.m.takes[k]++
	if f.r == pod.Shim && f.m.shims[j.Pod.ID] == nil {
		f.m.shims[j.Pod.ID], f.m.killed[j.Pod.ID] = make(chan *TaskChange, 100), make(chan struct{})
	}
	return &Taken{Data: json.RawMessage(fmt.Sprintf("%q", k)), Pid: 42, At: time.Now()}, nil
}

func (f *fakeResource) Probe(ctx context.Context, j *Job) (*Taken, error) {
	if err := f.m.enter(ctx, pod.Probe, f.r); err != nil {
		return nil, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if k := key(f.r, j); f.m.held[k] {
		return &Taken{Data: json.RawMessage(`{}`), Pid: 42, At: time.Now()}, nil
	}
	return nil, nil
}

func (f *fakeResource) Give(ctx context.Context, j *Job) (*Exit, error) {
	if err := f.m.enter(ctx, pod.Give, f.r); err != nil {
		return nil, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	delete(f.m.held, key(f.r, j))
	if f.r == pod.Task && j.Pod.ShimLost {
		return &Exit{Code: 137, At: time.Now(), Reason: pod.ReasonShimLost}, nil
	}
	return nil, nil
}

func (m *fakeMachine) Stop(ctx context.Context, j *Job, signal string, deadline time.Time) error {
	if err := m.enter(ctx, pod.Stop, pod.Task); err != nil {
		return err
	}
	m.mu.Lock()
	m.stops = append(m.stops, signal)
	m.mu.Unlock()
	m.exit(j.Pod.ID, j.Container.ID, 143)
	return nil
}

// exit is the end of a container.
func (m *fakeMachine) exit(pod, container string, code int32) {
	e := &Exit{Code: code, At: time.Now(), Reason: "Error"}
	m.mu.Lock()
	m.exits[container] = e
	ch := m.shims[pod]
	m.mu.Unlock()
	ch <- &TaskChange{container, e}
}

func (m *fakeMachine) kill(pod string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.killed[pod])
}

func (m *fakeMachine) Update(context.Context, *Job, json.RawMessage) error { return nil }
func (m *fakeMachine) ReopenLog(context.Context, *Job) error               { return nil }

func (m *fakeMachine) Watch(ctx context.Context, j *Job, report func(*TaskChange)) error {
	m.mu.Lock()
	ch, killed := m.shims[j.Pod.ID], m.killed[j.Pod.ID]
	for _, c := range j.Pod.Containers {
		if e := m.exits[c.ID]; e != nil {
			go report(&TaskChange{c.ID, e})
		}
	}
	m.mu.Unlock()
	for {
		select {
		case c := <-ch:
			report(c)
		case <-killed:
			return fmt.Errorf("killed: %w", ErrGone)
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *fakeMachine) left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var l []string
	for k := range m.held {
		l = append(l, k)
	}
	return l
}

// keep starts a keeper on dir and m.
func keep(t *testing.T, dir string, m *fakeMachine, boot string) *Keeper {
	t.Helper()
	k, err := New(&Options{Journals: dir, Machine: m, BootID: boot})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

var errFake = errors.New("it is broken")
