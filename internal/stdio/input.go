package stdio

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Input is a process's stdin, shared by all who are attached.
type Input struct {
	w      io.WriteCloser
	once   bool
	closed atomic.Bool

	// mu keeps one client's write in one piece. It is held across the write,
	// which waits for the process; Close does not take it.
	mu sync.Mutex
}

// NewInput wraps the writing end of a process's stdin, which the Input then
// owns. With once the first client's end of stdin is the process's.
func NewInput(w io.WriteCloser, once bool) *Input {
	return &Input{w: w, once: once}
}

// Write waits until the process took p, or its pipe did. After Close it is
// FailedPrecondition.
func (i *Input) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed.Load() {
		return 0, fmt.Errorf("write to stdin: closed: %w", errdefs.ErrFailedPrecondition)
	}
	return i.w.Write(p)
}

// CloseWrite is the end of one client's stdin: it closes the process's with
// once, else it does nothing.
func (i *Input) CloseWrite() error {
	if !i.once {
		return nil
	}
	return i.Close()
}

// Close closes the process's stdin, for everybody. A pending Write returns.
func (i *Input) Close() error {
	if i.closed.Swap(true) {
		return nil
	}
	return i.w.Close()
}
