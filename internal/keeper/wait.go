package keeper

import (
	"context"
	"fmt"
	"time"

	"berth/internal/pod"
)

// waiter waits for a condition on the state. check runs after every change.
type waiter struct {
	check  func() (done bool, err error)
	answer chan error // buffered
	gone   <-chan struct{}
	made   *string // what it waits to be made: a container's id, "" for the pod; nil for anything else
}

func newWaiter(ctx context.Context, check func() (bool, error), made *string) *waiter {
	return &waiter{check: check, answer: make(chan error, 1), gone: ctx.Done(), made: made}
}

// request asks the actor for something: prepare says which facts the request
// adds (synced before anything is done about it), check when it is fulfilled.
// made, if not nil, names what the caller wants to be made.
func (a *actor) request(ctx context.Context, prepare func() ([]*pod.Fact, error), check func() (bool, error), made *string) error {
	return a.requestOr(ctx, prepare, check, made, func() {})
}

// requestOr calls refused when the pod does not take the request: its check
// fails, the disk refuses its facts, or the actor never gets it.
func (a *actor) requestOr(ctx context.Context, prepare func() ([]*pod.Fact, error), check func() (bool, error), made *string, refused func()) error {
	w := newWaiter(ctx, check, made)
	err := a.send(ctx, func() {
		fs, err := prepare()
		if err == nil && len(fs) > 0 {
			err = a.record(asked, fs...)
		}
		if err != nil {
			refused()
			w.answer <- err
			return
		}
		a.hurry()
		a.waiters = append(a.waiters, w)
	})
	if err != nil {
		refused()
		return err
	}
	return a.await(ctx, w)
}

// await returns the answer to w, or the end of the caller's patience.
func (a *actor) await(ctx context.Context, w *waiter) error {
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
		select {
		case err := <-w.answer:
			if err == nil && w.made != nil { // the answer came, but nobody was there
				go a.send(a.k.ctx, func() { a.unanswered[*w.made] = true })
			}
		default:
		}
		return fmt.Errorf("pod %s: gave up waiting while %s; the work goes on: %w", short(a.id), a.doing(), ctx.Err())
	case <-a.done:
		select {
		case err := <-w.answer:
			return err
		default:
			return errRemoved
		}
	}
}

// answer tells those who wait for what is now so. What was made while nobody
// was left who waited for it is remembered.
func (a *actor) answer() {
	keep := a.waiters[:0]
	told := map[string]bool{}
	for _, w := range a.waiters {
		ok, err := w.check()
		switch left := gone(w.gone); {
		case !ok && (!left || w.made != nil):
			keep = append(keep, w) // if it left: to know whether the answer finds anybody
		case ok && !left:
			w.answer <- err
			if w.made != nil {
				told[*w.made] = true
			}
		case ok && err == nil && w.made != nil && !told[*w.made]:
			told[*w.made] = false
		}
	}
	clear(a.waiters[len(keep):])
	a.waiters = keep
	for made, ok := range told {
		if !ok {
			a.unanswered[made] = true
		}
	}
}

func gone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// patience is how long a caller waits for an effect that keeps failing.
const patience = 3 * time.Second

// stuck returns the error for a caller whose wish hangs on effects that have
// been failing for some time, and also since the caller came. The work goes on.
func (a *actor) stuck(container string, all bool) error {
	for _, r := range a.retries {
		if (all || r.effect.Container == container) && time.Since(r.since) > patience && !r.hurried {
			return r.error(a.id)
		}
	}
	return nil
}

func (r *retry) error(pod string) error {
	return fmt.Errorf("pod %s: cannot %s %s (try %d, failing for %v, goes on): %w", short(pod), r.effect.Verb, r.what(), r.n,
		time.Since(r.since).Round(time.Second), r.err)
}

func (w *waiter) settle() {
	if ok, err := w.check(); ok {
		w.answer <- err
	} else {
		w.answer <- errRemoved
	}
}
