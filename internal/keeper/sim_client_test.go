package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// client is somebody like a kubelet: it looks at what there is, asks for the
// next thing, loses its patience, and asks again. It minds one pod name.
type client struct {
	w    *world
	name string
	n    int // containers asked for
}

func (c *client) roll(n int, what string) int {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.roll(n, "client", c.name, what)
}

func (c *client) patience(what string) time.Duration {
	if c.w.calm {
		return time.Minute
	}
	return []time.Duration{20 * time.Millisecond, time.Second, 10 * time.Second, 3 * time.Minute}[c.roll(4, "patience "+what)]
}

// ask makes one call and notes how it ended.
func (c *client) ask(l *life, what string, f func(ctx context.Context) error) error {
	err, alive := l.call(c.patience(what), f)
	if !alive {
		return errDead
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	switch {
	case err == nil:
		c.w.say("client: %s: done", what)
	case errors.Is(err, errDead):
		c.w.broken("%s was answered by a dead keeper: %v", what, err)
	default:
		c.w.say("client: %s: %v", what, err)
	}
	return err
}

func (c *client) view(l *life) *Pod {
	var found *Pod
	for _, p := range l.k.Pods() {
		if p.Name != c.name {
			continue
		}
		if found != nil {
			c.w.mu.Lock()
			c.w.broken("two pods are called %s", c.name)
			c.w.mu.Unlock()
		}
		found = p
	}
	return found
}

func (c *client) runPod(l *life) {
	_ = c.ask(l, "run pod "+c.name, func(ctx context.Context) error {
		id, err := l.k.RunPod(ctx, &PodRequest{Name: c.name, Config: json.RawMessage(`{"pod":1}`)})
		if err == nil && !l.isDead() {
			c.w.mu.Lock()
			defer c.w.mu.Unlock()
			if p := c.w.pods[id]; p == nil || !p.held[pod.Network] || !p.held[pod.Shim] {
				if f := c.w.files[id]; f == nil || !f.state.Stopping {
					c.w.broken("RunPod says that %s is up, and it is not", c.name)
				}
			}
		}
		return err
	})
}

func (c *client) create(l *life, p *Pod) {
	name := fmt.Sprintf("%s-c%d", c.name, c.n)
	err := c.ask(l, "create "+name, func(ctx context.Context) error {
		_, err := l.k.CreateContainer(ctx, &ContainerRequest{PodID: p.ID, Name: name, Config: json.RawMessage(`{"c":1}`)})
		return err
	})
	if err == nil || c.roll(2, "next name") == 0 || errdefs.IsAlreadyExists(err) {
		c.n++
	}
	// A name is in use by what exists, and the error says by what.
	if errdefs.IsAlreadyExists(err) {
		_, rest, _ := strings.Cut(err.Error(), "by container ")
		holder, _, _ := strings.Cut(rest, ":")
		if _, _, gone := l.k.Container(holder); gone != nil && c.view(l) != nil {
			l.k.mu.RLock()
			stays := l.k.names[name] == holder && l.k.containers[holder] == nil
			l.k.mu.RUnlock()
			if stays && !l.isDead() {
				c.w.mu.Lock()
				c.w.broken("container name %s is in use by %q, which does not exist", name, holder)
				c.w.mu.Unlock()
			}
		}
	}
}

func (c *client) start(l *life, k *Container) {
	err := c.ask(l, "start "+k.Name, func(ctx context.Context) error { return l.k.StartContainer(ctx, k.ID) })
	if err == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if x := c.w.exits[k.ID]; x == nil || x.started == 0 {
			c.w.broken("container %s is said to be started, and was not", k.Name)
		}
	}
}

func (c *client) stop(l *life, k *Container, grace time.Duration) {
	err := c.ask(l, fmt.Sprint("stop ", k.Name, " in ", grace), func(ctx context.Context) error {
		return l.k.StopContainer(ctx, k.ID, "SIGTERM", grace)
	})
	if err == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if p := c.w.pods[k.PodID]; p != nil && p.tasks[k.ID] != nil && p.tasks[k.ID].running && p.alive {
			c.w.broken("container %s is said to be stopped, and runs", k.Name)
		}
	}
}

func (c *client) removeContainer(l *life, k *Container) {
	err := c.ask(l, "remove "+k.Name, func(ctx context.Context) error { return l.k.RemoveContainer(ctx, k.ID) })
	if err == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if p := c.w.pods[k.PodID]; p != nil && p.rootfs[k.ID] {
			c.w.broken("container %s is said to be removed, and its root file system is there", k.Name)
		}
	}
}

func (c *client) stopPod(l *life, p *Pod) {
	err := c.ask(l, "stop pod "+c.name, func(ctx context.Context) error { return l.k.StopPod(ctx, p.ID) })
	if err == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if s := c.w.pods[p.ID]; s.held[pod.Network] || s.held[pod.Shim] || s.held[pod.Namespaces] {
			c.w.broken("pod %s is said to be stopped, and has %v", c.name, s.left())
		}
	}
}

func (c *client) removePod(l *life, p *Pod) error {
	err := c.ask(l, "remove pod "+c.name, func(ctx context.Context) error { return l.k.RemovePod(ctx, p.ID) })
	if err == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if left := c.w.pods[p.ID].left(); len(left) > 0 {
			c.w.broken("pod %s is said to be removed, and has %v", c.name, left)
		}
	}
	return err
}

// act does one thing at random.
func (c *client) act(l *life) {
	p := c.view(l)
	if p == nil {
		var wg sync.WaitGroup
		if c.roll(4, "twice") == 0 {
			wg.Go(func() { time.Sleep(time.Millisecond); c.runPod(l) })
		}
		c.runPod(l)
		wg.Wait()
		return
	}
	var k *Container
	if n := len(p.Containers); n > 0 {
		k = p.Containers[c.roll(n, "which")]
	}
	grace := []time.Duration{0, time.Second, 10 * time.Second, 40 * time.Second}[c.roll(4, "grace")]
	switch x := c.roll(20, "act"); {
	case x == 0:
		c.removePod(l, p)
	case x == 1:
		c.stopPod(l, p)
	case x == 2:
		_ = c.ask(l, "update pod "+c.name, func(ctx context.Context) error { return l.k.UpdatePod(ctx, p.ID, json.RawMessage(`{}`)) })
	case x < 7 && len(p.Containers) < 3 || k == nil:
		c.create(l, p)
	case x < 12:
		c.start(l, k)
	case x < 14:
		c.stop(l, k, grace)
	case x < 16:
		c.removeContainer(l, k)
	case x == 16: // two stops and a removal at once
		var wg sync.WaitGroup
		wg.Go(func() { c.stop(l, k, grace) })
		wg.Go(func() { time.Sleep(time.Millisecond); c.stop(l, k, grace/2) })
		wg.Go(func() { time.Sleep(2 * time.Millisecond); c.removeContainer(l, k) })
		wg.Wait()
	case x == 17:
		_ = c.ask(l, "update "+k.Name, func(ctx context.Context) error {
			return l.k.UpdateContainer(ctx, k.ID, json.RawMessage(`{}`), func(*Container) (json.RawMessage, error) { return json.RawMessage(`{}`), nil })
		})
	case x == 18: // the pod goes while something is made in it
		var wg sync.WaitGroup
		wg.Go(func() { c.create(l, p) })
		wg.Go(func() { time.Sleep(time.Duration(c.roll(900, "while")) * time.Millisecond); c.removePod(l, p) })
		wg.Wait()
	default:
		time.Sleep(time.Duration(c.roll(5000, "idle")) * time.Millisecond)
	}
}
