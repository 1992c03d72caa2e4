package shim

import "context"

// work is one piece of work that all who ask for it share: the first starts it,
// the others join. It runs to its end whoever leaves.
type work struct {
	done chan struct{}
	err  error // valid after done
}

// begin runs f in a goroutine of its own.
func begin(f func() error) *work {
	w := &work{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.err = f()
	}()
	return w
}

// wait returns f's error, or ctx's when that ends first.
func (w *work) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// over tells whether the work ended, and failed tells whether in vain.
func (w *work) over() (over, failed bool) {
	select {
	case <-w.done:
		return true, w.err != nil
	default:
		return false, false
	}
}
