package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"berth/internal/pod"
)

// life is one keeper, from its start until it is killed. A dead keeper is not
// cleaned up: each of its goroutines stops for good at the next thing it wants
// of the world.
type life struct {
	w     *world
	n     int
	k     *Keeper
	ready chan struct{} // closed when Recover came back
	died  chan struct{}

	// The world's mu guards these.
	dead    bool
	points  int // moments so far
	crashAt int // the moment of its death; 0 for none
	busy    map[string]bool
	names   []string // of the moments, if the world is calm
}

// live starts a keeper that dies at the moment crashAt.
func (w *world) live(crashAt int) *life {
	w.mu.Lock()
	w.lives++
	l := &life{w: w, n: w.lives, ready: make(chan struct{}), died: make(chan struct{}), crashAt: crashAt, busy: map[string]bool{}}
	w.now = l
	w.all = append(w.all, l)
	w.say("keeper %d starts; it will die at moment %d", l.n, crashAt)
	boot := fmt.Sprint("boot", w.boot)
	w.reread()
	w.mu.Unlock()
	k, err := New(&Options{Journals: w.dir, Machine: l, BootID: boot, Log: slog.New(slog.DiscardHandler), tap: l.tap})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mutant.bend(k)
	l.k = k
	events, _ := k.Subscribe()
	go func() {
		for e := range events {
			w.heard(l, e)
		}
	}()
	go func() {
		if err := k.Recover(context.Background()); err != nil {
			w.mu.Lock()
			if !l.dead {
				w.broken("Recover: %v", err)
			}
			w.mu.Unlock()
		}
		close(l.ready)
	}()
	select {
	case <-l.ready:
	case <-l.died:
	}
	return l
}

// die is SIGKILL. The caller holds mu.
func (l *life) die(where string) {
	if l.dead {
		return
	}
	l.w.say("FAULT: keeper %d is killed %s", l.n, where)
	l.dead = true
	close(l.died)
}

// bury lets go of what is left of the keeper, once the run is over.
func (l *life) bury() {
	<-l.ready
	l.k.Close()
}

func (l *life) isDead() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.dead
}

// tap is called at every moment of the keeper's work.
func (l *life) tap(m *moment) error {
	w := l.w
	w.mu.Lock()
	if !l.dead {
		if m.when == "after" && m.verb == "write" {
			// Without facts it is the sync before a task is given back.
			lost := len(m.facts) == 0 && w.mutant.is("an exit is acknowledged before it is on disk")
			w.wrote(m.pod.id, m.facts, m.synced && !lost)
		}
		l.points++
		if w.calm {
			l.names = append(l.names, m.name())
		}
		if l.points == l.crashAt {
			l.die(m.name())
		}
	}
	if l.dead {
		w.mu.Unlock()
		<-w.buried
		return errDead
	}
	defer w.mu.Unlock()
	id := m.pod.id
	name := w.nameOf(id)
	if m.effect == nil { // the actor's own goroutine
		name = m.pod.st.Name
	}
	if len(m.facts) > 0 && m.facts[0].Kind == pod.Declared {
		name = m.facts[0].Name
	}
	switch m.verb + " " + m.when {
	case "write before":
		if w.full || w.storm && w.roll(60, "disk", name) == 0 {
			w.fullRan = true
			w.say("k%d %s: the disk is full (%s)", l.n, name, m.what)
			return &os.PathError{Op: "write", Path: id, Err: syscall.ENOSPC}
		}
	case "write after":
		last := map[string]*pod.Fact{} // they may have waited for the disk
		for _, f := range m.facts {
			w.say("k%d %s: %s", l.n, name, story(f, w))
			last[string(f.Res)+f.Container] = f
		}
		for _, f := range last {
			w.proven(id, f)
		}
	case "remove before":
		if p := w.pods[id]; p != nil {
			if left := p.left(); len(left) > 0 {
				w.broken("pod %s is removed and still has %v", p.name, left)
			}
		}
		b, err := os.ReadFile(filepath.Join(w.dir, id))
		if err != nil {
			w.t.Fatal(err)
		}
		w.ghosts[id] = b[:w.files[id].synced]
	case "remove after":
		delete(w.files, id)
		w.say("k%d %s: journal removed", l.n, name)
	}
	return nil
}

func story(f *pod.Fact, w *world) string {
	s := string(f.Kind)
	if f.Res != "" {
		s += " " + string(f.Res)
	}
	if f.Container != "" {
		s += " " + w.container(f.Container)
	}
	if f.Code != nil {
		s += fmt.Sprint(" code ", *f.Code)
	}
	if f.Message != "" {
		s += " (" + f.Message + ")"
	}
	return s
}

func (w *world) container(id string) string {
	for _, p := range w.pods {
		if t := p.tasks[id]; t != nil {
			return t.name
		}
	}
	return short(id)
}

// proven checks that what a fact calls gone is gone.
func (w *world) proven(id string, f *pod.Fact) {
	p := w.pods[id]
	if f.Kind != pod.Released || p == nil || !p.has(f.Res, f.Container) {
		return
	}
	if t := p.tasks[f.Container]; f.Res == pod.Task && !t.running {
		return // the record of its exit stays with the pod's folder
	}
	w.broken("%s of %s is noted as released, and is there", f.Res, p.name)
}

// heard checks what a subscriber was told.
func (w *world) heard(l *life, e *Event) {
	if e.Type != EventStopped || e.Pod == nil || e.ContainerID == e.Pod.ID {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return // the dead come up
	}
	for _, c := range e.Pod.Containers {
		if c.ID == e.ContainerID {
			w.reported(l, e.Pod, c)
		}
	}
}

func (w *world) reported(l *life, p *Pod, c *Container) {
	x := w.exits[c.ID]
	if x == nil {
		x = &simExit{}
		w.exits[c.ID] = x
	}
	if n := len(x.reported); n > 0 && (!w.fullRan && !w.cuts || x.reported[0] != c.ExitCode) && !(w.fullRan && w.cuts) {
		w.broken("the exit of %s was reported as %v, and again as %d", c.Name, x.reported, c.ExitCode)
	}
	x.reported = append(x.reported, c.ExitCode)
	w.trueExit(p, c)
}

// trueExit compares an exit that is told with the truth.
func (w *world) trueExit(p *Pod, c *Container) {
	x := w.exits[c.ID]
	switch {
	case c.FinishedAt.IsZero():
		w.broken("container %s is said to have stopped, and its view says that it has not", c.Name)
	case c.ExitCode == 0 && (x == nil || x.exit == nil || x.exit.Code != 0):
		w.broken("container %s is said to have ended with 0 (%s), and nobody saw that", c.Name, c.Reason)
	case c.StartedAt.IsZero():
	case x == nil || x.exit == nil:
		w.broken("container %s is said to have ended, and runs", c.Name)
	case x.exit.Code != c.ExitCode:
		w.broken("container %s ended with %d, and is said to have ended with %d (%s)", c.Name, x.exit.Code, c.ExitCode, c.Reason)
	case c.FinishedAt.Before(c.StartedAt):
		w.broken("container %s ended before its start", c.Name)
	}
}

// current is the keeper that lives; it waits for the next one.
func (w *world) current(ctx context.Context) *life {
	for ctx.Err() == nil {
		w.mu.Lock()
		l := w.now
		ok := l != nil && !l.dead
		w.mu.Unlock()
		if ok {
			select {
			case <-l.ready:
				return l
			case <-l.died:
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// call runs f with patience that ends when the keeper dies; ok tells whether
// the keeper lived to answer. A call to a dead keeper is left where it is.
func (l *life) call(patience time.Duration, f func(ctx context.Context) error) (err error, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- f(ctx) }()
	select {
	case err = <-answer:
	case <-l.died:
	case <-time.After(patience + time.Second):
		l.w.mu.Lock()
		l.w.broken("a call goes on though its caller has left")
		l.w.mu.Unlock()
	}
	return err, !l.isDead()
}
