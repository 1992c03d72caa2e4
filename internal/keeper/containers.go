package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// CreateContainer implements API.
func (k *Keeper) CreateContainer(ctx context.Context, r *ContainerRequest) (string, error) {
	a, _, err := k.find(k.pods, "pod", r.PodID)
	if err != nil {
		return "", err
	}
	for {
		id := newID()
		holder, ok := k.reserve(r.Name, id)
		if ok {
			return id, a.createNew(ctx, id, r)
		}
		again, err := a.joinCreate(ctx, holder, r)
		if err != nil {
			return "", err
		}
		if !again {
			return holder, nil
		}
	}
}

func (a *actor) createNew(ctx context.Context, id string, r *ContainerRequest) error {
	return a.requestOr(ctx, func() ([]*pod.Fact, error) {
		return a.st.CheckCreate(id, r.Name, r.Config, time.Now())
	}, a.isCreated(id), &id, func() { a.k.release(r.Name, id) })
}

// release frees the name of a container that was never declared.
func (k *Keeper) release(name, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names[name] == id && k.containers[id] == nil {
		delete(k.names, name)
	}
}

// isCreated is the condition of CreateContainer's callers. A failed creation is
// answered when it is undone, so that the name is free then.
func (a *actor) isCreated(id string) func() (bool, error) {
	var failed error
	return func() (bool, error) {
		c := a.st.Container(id)
		switch {
		case c == nil && failed != nil:
			return true, failed
		case c == nil:
			return true, fmt.Errorf("container %s was removed while it was created: %w", short(id), errdefs.ErrAborted)
		case c.IsCreated() && c.Err == "":
			return true, nil
		case c.Err != "":
			failed = a.why(id, c.Err)
			if err := a.stuck(id, false); err != nil {
				return true, fmt.Errorf("%w (and it cannot be undone yet: %w)", failed, err)
			}
		}
		return false, nil
	}
}

// joinCreate joins the container that holds the name, as joinRun does.
func (a *actor) joinCreate(ctx context.Context, holder string, r *ContainerRequest) (again bool, err error) {
	check := a.isCreated(holder)
	err = a.request(ctx, func() ([]*pod.Fact, error) {
		c := a.st.Container(holder)
		switch {
		case c == nil:
			a.k.mu.RLock()
			used := a.k.names[r.Name] == holder && (a.k.containers[holder] != nil || a.k.pods[holder] != nil)
			a.k.mu.RUnlock()
			if used {
				return nil, fmt.Errorf("container name %q is in use by %s: %w", r.Name, holder, errdefs.ErrAlreadyExists)
			}
			again = true
			check = done
		case c.Removing:
			again = true
			check = func() (bool, error) {
				if a.st.Container(holder) == nil {
					return true, nil
				}
				err := a.stuck(holder, false)
				return err != nil, err
			}
		case !sameConfig(c.Config, r.Config) || c.IsCreated() && !a.unanswered[holder]:
			return nil, fmt.Errorf("container name %q is in use by container %s: %w", r.Name, holder, errdefs.ErrAlreadyExists)
		}
		delete(a.unanswered, holder)
		return nil, nil
	}, func() (bool, error) { return check() }, &holder)
	return again && err == nil, err
}

// StartContainer implements API.
func (k *Keeper) StartContainer(ctx context.Context, id string) error {
	a, id, err := k.find(k.containers, "container", id)
	if err != nil {
		return err
	}
	return a.request(ctx,
		func() ([]*pod.Fact, error) { return a.st.CheckStart(id, time.Now()) },
		func() (bool, error) {
			c := a.st.Container(id)
			switch {
			case c == nil:
				return true, fmt.Errorf("container %s was removed while it was started: %w", short(id), errdefs.ErrAborted)
			case !c.StartedAt.IsZero():
				return true, nil
			case c.Status() == pod.ContainerStateExited:
				return true, fmt.Errorf("start container %s: %w", short(id), a.why(id, c.Message))
			}
			return false, nil
		}, nil)
}

// StopContainer implements API.
func (k *Keeper) StopContainer(ctx context.Context, id, signal string, grace time.Duration) error {
	a, id, err := k.find(k.containers, "container", id)
	if err != nil {
		return absent(err)
	}
	err = a.request(ctx,
		func() ([]*pod.Fact, error) {
			now := time.Now()
			return a.st.CheckContainerStop(id, signal, now.Add(grace), now)
		},
		func() (bool, error) {
			c := a.st.Container(id)
			// A start that failed may have left a process: not before that is gone.
			if c == nil || c.Status() == pod.ContainerStateExited && (!c.StartedAt.IsZero() || c.Holdings[pod.Task].Phase == pod.None) {
				return true, nil
			}
			err := a.stuck(id, false)
			return err != nil, err
		}, nil)
	return absent(err)
}

// RemoveContainer implements API.
func (k *Keeper) RemoveContainer(ctx context.Context, id string) error {
	a, id, err := k.find(k.containers, "container", id)
	if err != nil {
		return absent(err)
	}
	err = a.request(ctx,
		func() ([]*pod.Fact, error) { return a.st.CheckContainerRemove(id, time.Now()) },
		func() (bool, error) {
			if a.st.Container(id) == nil {
				return true, nil
			}
			err := a.stuck(id, false)
			return err != nil, err
		}, nil)
	return absent(err)
}

// UpdateContainer implements API. A running container is changed before the
// change is recorded; one that does not run yet gets it when it starts. One
// update follows the other, so that the last to change it is the last on record.
func (k *Keeper) UpdateContainer(ctx context.Context, id string, linux json.RawMessage, record func(*Container) (json.RawMessage, error)) error {
	a, id, err := k.find(k.containers, "container", id)
	if err != nil {
		return err
	}
	select {
	case a.updating <- struct{}{}:
		defer func() { <-a.updating }()
	case <-ctx.Done():
		return fmt.Errorf("update container %s: another update is under way: %w", short(id), ctx.Err())
	}
	p, c, err := k.Container(id)
	if err != nil {
		return err
	}
	if c.Status() == pod.ContainerStateExited || c.Removing {
		return fmt.Errorf("update container %s: it has exited: %w", short(c.ID), errdefs.ErrFailedPrecondition)
	}
	config, err := record(c)
	if err != nil {
		return fmt.Errorf("update container %s: %w", short(c.ID), err)
	}
	if c.Status() == pod.ContainerStateRunning {
		if err := k.o.Machine.Update(ctx, task(p, c), linux); err != nil {
			return fmt.Errorf("update container %s: %w", short(c.ID), err)
		}
	}
	return a.request(ctx, func() ([]*pod.Fact, error) {
		return []*pod.Fact{{At: time.Now(), Kind: pod.ContainerUpdated, Container: c.ID, Data: config}}, nil
	}, done, nil)
}

// ReopenLog implements API.
func (k *Keeper) ReopenLog(ctx context.Context, id string) error {
	p, c, err := k.Container(id)
	if err != nil {
		return err
	}
	if _, err := p.CheckRunning(c.ID, "reopen the log of"); err != nil {
		return err
	}
	if err := k.o.Machine.ReopenLog(ctx, task(p, c)); err != nil {
		return fmt.Errorf("reopen the log of container %s: %w", short(c.ID), err)
	}
	return nil
}

func task(p *Pod, c *Container) *Job {
	return &Job{Pod: p, Container: c, Data: c.Holdings[pod.Task].Data}
}
