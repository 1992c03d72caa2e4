//go:build linux

package shims

import (
	"context"
	"errors"
	"fmt"
	"time"

	shimv1 "berth/api/shim/v1"
)

// Watch calls fn with a snapshot of all tasks first and then with each change,
// in order, with the number to go on from. from is such a number of an earlier
// Watch of the same shim, or 0. It returns nil when ctx ends, fn's error, or an
// error that wraps ErrGone when the shim's process is proven dead; a connection
// that broke is dialled again, and the caller sees a snapshot once more.
func (s *Shim) Watch(ctx context.Context, from int64, fn func(seq int64, changes []Status) error) error {
	first := true
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := s.follow(ctx, &from, &first, &wait, fn)
		if ctx.Err() != nil {
			return nil
		}
		if e, ok := errors.AsType[*callbackError](err); ok {
			return e.err
		}
		if errors.Is(err, ErrGone) {
			return err
		}
		if dead, e := s.dead(); e == nil && dead {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		// It lives, or nobody knows: nothing is concluded.
		first = true
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// callbackError is an error of Watch's fn.
type callbackError struct{ err error }

func (e *callbackError) Error() string { return e.err.Error() }

func (s *Shim) follow(ctx context.Context, from *int64, first *bool, wait *time.Duration, fn func(int64, []Status) error) error {
	for {
		ask := *from
		if *first {
			ask = 0
		}
		resp, err := call(ctx, s, func(c shimv1.ShimService) (*shimv1.ChangesResponse, error) {
			return c.Changes(ctx, &shimv1.ChangesRequest{From: ask})
		})
		if err != nil {
			return err
		}
		*first, *wait = false, 10*time.Millisecond
		changes := make([]Status, len(resp.Tasks))
		for i, t := range resp.Tasks {
			changes[i] = *status(t)
		}
		if err := fn(resp.Seq, changes); err != nil {
			return &callbackError{err}
		}
		*from = resp.Seq
	}
}

// dead tells whether the shim's process is proven dead.
func (s *Shim) dead() (bool, error) {
	s.mu.Lock()
	a := s.addr
	s.mu.Unlock()
	p, err := openProcess(a.Pid, a.StartTime)
	if err != nil || p == nil {
		return err == nil, err
	}
	p.close()
	return false, nil
}
