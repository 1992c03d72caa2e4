package stdio

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"sync"

	"github.com/containerd/errdefs"
)

// Source is a process's stdin as a stock containerd gives it: a FIFO, held
// open for writing as well, so that a daemon that goes away is not its end.
type Source struct {
	r *os.File

	mu   sync.Mutex
	hold io.Closer // of the writing end; nil when closed
}

// OpenSource opens the FIFO at a path or fifo:// URI.
func OpenSource(uri string) (*Source, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "" && u.Scheme != "fifo" {
		return nil, fmt.Errorf("open stdin: %q names no FIFO: %w", uri, errdefs.ErrInvalidArgument)
	}
	path := uri
	if u.Scheme != "" {
		path = u.Path
	}
	r, hold, err := openSource(path)
	if err != nil {
		return nil, fmt.Errorf("open stdin: %w", err)
	}
	return &Source{r: r, hold: hold}, nil
}

// WriteTo copies to w until the end of the FIFO, a failure of w, or Close. It
// holds no buffer while it waits.
func (s *Source) WriteTo(w io.Writer) (int64, error) {
	read := newReader(s.r)
	var total int64
	for {
		buf, err := read.next()
		if buf != nil {
			n, werr := w.Write((*buf)[:read.n])
			readPool.Put(buf)
			total += int64(n)
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// CloseWrite gives up our writing end: the end of the stream comes once all
// writers are gone and what they wrote was read. This is CloseIO.
func (s *Source) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold == nil {
		return nil
	}
	err := s.hold.Close()
	s.hold = nil
	return err
}

// Close ends a pending WriteTo with os.ErrClosed. It can be called twice.
func (s *Source) Close() error {
	err := s.r.Close() // first: or WriteTo would see an end
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, s.CloseWrite())
}
