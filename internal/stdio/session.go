package stdio

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/containerd/errdefs"
)

// Session is the client's end of an exec or attach.
type Session struct {
	w   *frameWriter
	r   *bufio.Reader
	pid int
	req *SessionRequest

	mu     sync.Mutex    // guards window
	window int           // stdin that may be sent
	credit chan struct{} // of one: window grew
}

// DialSession opens a session and returns once its process runs (exec) or is
// attached to. An error of the shim keeps its class; a socket that nobody
// serves is Unavailable. ctx ends the dialling, not the session.
func DialSession(ctx context.Context, socket string, req *SessionRequest) (*Session, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial session %s: %w", socket, context.Cause(ctx))
		}
		return nil, fmt.Errorf("dial session: %w: %w", err, errdefs.ErrUnavailable)
	}
	s := &Session{
		w:      &frameWriter{conn: conn},
		r:      bufio.NewReaderSize(conn, readSize),
		req:    req,
		window: stdinWindow,
		credit: make(chan struct{}, 1),
	}
	if err := s.open(ctx); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s in container %s: %w", req.Op, req.Container, err)
	}
	return s, nil
}

func (s *Session) open(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.w.conn.Close() })
	defer stop()
	if err := s.w.sendJSON(frameRequest, s.req); err != nil {
		return err
	}
	var head [headSize]byte
	for {
		kind, n, err := readHead(s.r, &head, maxPayload)
		if err != nil {
			return lost(err)
		}
		switch kind {
		case frameStarted:
			var a started
			if err := s.json(n, &a); err != nil {
				return err
			}
			s.pid = a.Pid
			if !stop() {
				return context.Cause(ctx) // it was closed meanwhile
			}
			return nil
		case frameError:
			return s.failure(n)
		default:
			if _, err := s.r.Discard(n); err != nil {
				return lost(err)
			}
		}
	}
}

// Pid of the process, as the shim sees it.
func (s *Session) Pid() int { return s.pid }

// Detach leaves and tells the shim to let the process go on. A running Run
// returns with an error.
func (s *Session) Detach() error {
	return errors.Join(s.w.send(frameDetach, nil), s.Close())
}

// Close leaves: the shim ends an exec's process, unless it is detached. A
// running Run returns with an error.
func (s *Session) Close() error {
	if err := s.w.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // Run was faster
}

// Run carries the session's streams until the process ended and all its output
// was written. Nil writers discard; a slow writer holds an exec's process back.
// stdin's end closes the process's stdin; a nil stdin ends at once. When ctx
// ends Run closes the connection and returns ctx's cause. A session that ends
// without an exit is Unavailable. Run closes the session in any case, and can
// be called once. It does not wait for a Read of stdin that is under way: the
// owner of stdin ends that.
func (s *Session) Run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, resize <-chan Size) (*Exit, error) {
	stop := context.AfterFunc(ctx, func() { s.w.conn.Close() })
	defer stop()
	over := make(chan struct{})
	defer close(over)
	if s.req.Stdin {
		if stdin == nil {
			_ = s.w.send(frameStdinClose, nil) // the reader below tells what is wrong
		} else {
			go s.sendStdin(stdin, over)
		}
	}
	if resize != nil {
		go s.sendSizes(resize, over)
	}
	exit, err := s.receive(stdout, stderr)
	s.w.conn.Close()
	if exit == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s in container %s: %w", s.req.Op, s.req.Container, err)
	}
	return exit, nil
}

// receive handles the shim's frames up to the exit.
func (s *Session) receive(stdout, stderr io.Writer) (*Exit, error) {
	var head [headSize]byte
	for {
		kind, n, err := readHead(s.r, &head, maxPayload)
		if err != nil {
			return nil, lost(err)
		}
		switch kind {
		case frameStdout:
			err = s.copy(stdout, n)
		case frameStderr:
			err = s.copy(stderr, n)
		case frameStdinCredit:
			err = s.addCredit(n)
		case frameExit:
			var e Exit
			if err := s.json(n, &e); err != nil {
				return nil, err
			}
			return &e, nil
		case frameError:
			return nil, s.failure(n)
		default:
			err = s.copy(nil, n)
		}
		if err != nil {
			return nil, err
		}
	}
}

// copy hands n bytes to w straight from the read buffer.
func (s *Session) copy(w io.Writer, n int) error {
	for n > 0 {
		if _, err := s.r.Peek(1); err != nil {
			return lost(err)
		}
		p, _ := s.r.Peek(min(n, s.r.Buffered()))
		if w != nil {
			if _, err := w.Write(p); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
		}
		n -= len(p)
		_, _ = s.r.Discard(len(p)) // cannot fail: it is buffered
	}
	return nil
}

func (s *Session) addCredit(n int) error {
	var p [4]byte
	if n != len(p) {
		return fmt.Errorf("stdin credit of %d bytes: %w", n, errdefs.ErrInvalidArgument)
	}
	if _, err := io.ReadFull(s.r, p[:]); err != nil {
		return lost(err)
	}
	s.mu.Lock()
	s.window = min(s.window+int(binary.BigEndian.Uint32(p[:])), stdinWindow)
	s.mu.Unlock()
	select {
	case s.credit <- struct{}{}:
	default:
	}
	return nil
}

// reserve waits until some stdin may be sent, and takes at most n of it.
func (s *Session) reserve(n int, over <-chan struct{}) int {
	for {
		s.mu.Lock()
		got := min(n, s.window)
		s.window -= got
		s.mu.Unlock()
		if got > 0 {
			return got
		}
		select {
		case <-s.credit:
		case <-over:
			return 0
		}
	}
}

func (s *Session) sendStdin(stdin io.Reader, over <-chan struct{}) {
	buf := make([]byte, smallRead)
	for {
		n, err := stdin.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			k := s.reserve(len(p), over)
			if k == 0 || s.w.send(frameStdin, p[:k]) != nil {
				return
			}
			p = p[k:]
		}
		if err != nil {
			_ = s.w.send(frameStdinClose, nil) // a connection that is gone ends Run
			return
		}
		if n == len(buf) && n < readSize {
			buf = make([]byte, readSize) // it is data, not keys
		}
	}
}

func (s *Session) sendSizes(resize <-chan Size, over <-chan struct{}) {
	for {
		select {
		case z, ok := <-resize:
			if !ok {
				return
			}
			var p [4]byte
			binary.BigEndian.PutUint16(p[:], z.Width)
			binary.BigEndian.PutUint16(p[2:], z.Height)
			if s.w.send(frameResize, p[:]) != nil {
				return
			}
		case <-over:
			return
		}
	}
}

func (s *Session) failure(n int) error {
	var f failure
	if err := s.json(n, &f); err != nil {
		return err
	}
	return f.err()
}

func (s *Session) json(n int, v any) error {
	p := make([]byte, n)
	if _, err := io.ReadFull(s.r, p); err != nil {
		return lost(err)
	}
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("decode session frame: %w", err)
	}
	return nil
}

// lost is the error of a connection that ended inside a session. A frame that
// could be read and was wrong keeps its class.
func lost(err error) error {
	if errdefs.IsInvalidArgument(err) {
		return err
	}
	return fmt.Errorf("the shim's connection ended: %w: %w", err, errdefs.ErrUnavailable)
}
