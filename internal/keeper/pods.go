package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// RunPod implements API.
func (k *Keeper) RunPod(ctx context.Context, r *PodRequest) (string, error) {
	for {
		if err := k.wait(ctx); err != nil {
			return "", err
		}
		holder, fresh, err := k.claim(r)
		switch {
		case err != nil:
			return "", err
		case fresh != nil:
			return fresh.id, fresh.runNew(ctx, r)
		}
		a := k.actor(holder)
		if a == nil {
			return "", fmt.Errorf("pod name %q is in use by container %s: %w", r.Name, holder, errdefs.ErrAlreadyExists)
		}
		again, err := a.joinRun(ctx, r)
		if err != nil {
			return "", err
		}
		if !again {
			return holder, nil
		}
	}
}

func (k *Keeper) actor(id string) *actor {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.pods[id]
}

// claim takes the name for a new pod, whose actor it returns; or it tells who
// has it.
func (k *Keeper) claim(r *PodRequest) (holder string, fresh *actor, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h, taken := k.names[r.Name]; taken {
		return h, nil, nil
	}
	if k.ctx.Err() != nil {
		return "", nil, fmt.Errorf("the daemon stops: %w", errdefs.ErrUnavailable)
	}
	a := newActor(k, newID(), nil)
	k.names[r.Name], k.pods[a.id] = a.id, a
	k.wg.Add(1)
	return a.id, a, nil
}

// runNew begins the pod's life.
func (a *actor) runNew(ctx context.Context, r *PodRequest) error {
	k := a.k
	// The caller waits from the start: the actor may be done before it could ask.
	w := newWaiter(ctx, a.isUp(), new(string))
	a.waiters = append(a.waiters, w)
	declared := make(chan error, 1)
	go func() {
		// The first facts, before the actor answers anybody.
		err := a.record(asked, pod.Declare(r.Name, r.Handler, &r.Traits, r.Config, k.o.BootID, time.Now())...)
		declared <- err
		if err != nil {
			k.mu.Lock()
			delete(k.pods, a.id)
			delete(k.names, r.Name)
			k.mu.Unlock()
			close(a.done)
			k.wg.Done()
			return
		}
		a.run()
	}()
	if err := <-declared; err != nil {
		return err
	}
	return a.await(ctx, w)
}

// isUp is the condition of RunPod's callers.
func (a *actor) isUp() func() (bool, error) {
	return func() (bool, error) {
		switch {
		case a.st.IsReady():
			return true, nil
		case a.st.Removed || a.st.Stopping && (a.st.Err == "" || len(a.retries) > 0):
			if a.st.Err == "" {
				return true, fmt.Errorf("pod %s was stopped while it was made: %w", short(a.id), errdefs.ErrAborted)
			}
			err := a.why("", a.st.Err)
			if t := a.trouble(); t != "" {
				err = fmt.Errorf("%w (and it cannot be undone yet: %s)", err, t)
			}
			return true, err
		}
		return false, nil
	}
}

// joinRun joins the pod that holds the name: it waits with the others while the
// pod is made, and takes an answer that was left behind. again: the holder is
// gone by now, the name is free.
func (a *actor) joinRun(ctx context.Context, r *PodRequest) (again bool, err error) {
	inUse := fmt.Errorf("pod name %q is in use by pod %s: %w", r.Name, a.id, errdefs.ErrAlreadyExists)
	wait := a.isUp()
	err = a.request(ctx, func() ([]*pod.Fact, error) {
		switch {
		case a.st.Removing:
			wait = func() (bool, error) {
				if a.st.Removed {
					return true, errRemoved
				}
				return len(a.retries) > 0, fmt.Errorf("%w; it is being removed: %s", inUse, a.trouble())
			}
		case !sameConfig(a.st.Config, r.Config) || a.st.Stopping || !a.st.ReadyAt.IsZero() && !a.unanswered[""]:
			return nil, inUse
		}
		delete(a.unanswered, "")
		return nil, nil
	}, func() (bool, error) { return wait() }, new(string))
	if errors.Is(err, errRemoved) {
		return true, nil
	}
	return false, err
}

// sameConfig compares configs as JSON values: the journal may have reformatted them.
func sameConfig(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// StopPod implements API.
func (k *Keeper) StopPod(ctx context.Context, id string) error {
	a, _, err := k.find(k.pods, "pod", id)
	if err != nil {
		return absent(err)
	}
	err = a.request(ctx,
		func() ([]*pod.Fact, error) { return a.st.CheckStop(time.Now()), nil },
		func() (bool, error) {
			if a.st.Stopped() {
				return true, nil
			}
			err := a.stuck("", true)
			return err != nil, err
		}, nil)
	return absent(err)
}

// RemovePod implements API.
func (k *Keeper) RemovePod(ctx context.Context, id string) error {
	a, _, err := k.find(k.pods, "pod", id)
	if err != nil {
		return absent(err)
	}
	err = a.request(ctx,
		func() ([]*pod.Fact, error) { return a.st.CheckRemove(time.Now()), nil },
		func() (bool, error) {
			if a.st.Removed {
				return true, nil
			}
			err := a.stuck("", true)
			return err != nil, err
		}, nil)
	if err == nil || errors.Is(err, errRemoved) {
		select {
		case <-a.done: // the name is free
		case <-ctx.Done():
			return fmt.Errorf("pod %s is removed, and its journal not yet: %w", short(a.id), ctx.Err())
		}
	}
	return absent(err)
}

// absent makes success of what is not there.
func absent(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// UpdatePod implements API.
func (k *Keeper) UpdatePod(ctx context.Context, id string, resources json.RawMessage) error {
	a, _, err := k.find(k.pods, "pod", id)
	if err != nil {
		return err
	}
	return a.request(ctx, func() ([]*pod.Fact, error) {
		if !a.st.IsReady() {
			return nil, fmt.Errorf("update pod %s: it is not ready: %w", short(a.id), errdefs.ErrFailedPrecondition)
		}
		return []*pod.Fact{{At: time.Now(), Kind: pod.Updated, Data: resources}}, nil
	}, done, nil)
}

func done() (bool, error) { return true, nil }
