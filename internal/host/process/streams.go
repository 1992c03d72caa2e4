package process

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// relieveAfter is when a runtime call is so slow that a full pipe may be
	// the reason: the runtime writes to the container's stderr, which nobody
	// reads before the call is over.
	relieveAfter = 500 * time.Millisecond
	// relieveSize bounds what is read ahead of the owner for that. Nothing is
	// dropped: when it is reached the writer blocks, and the call's deadline
	// is the end of it.
	relieveSize = 2 << 20
)

// streams are both ends of a process's streams.
type streams struct {
	stdin          *os.File
	stdout, stderr *output
	child          [3]int // the process's ends, -1 for none
	console        *console
	listener       *listener
}

// newStreams makes the pipes, or for a terminal the socket that will bring it.
func (h *Host) newStreams(spec *host.StreamSpec) (s *streams, err error) {
	s = &streams{child: [3]int{-1, -1, -1}}
	defer func() {
		if err != nil {
			s.discard()
		}
	}()
	if spec.Terminal {
		s.listener, err = h.listen()
		return s, err
	}
	if spec.Stdin {
		if s.stdin, s.child[0], err = pipe(false, spec.UID, spec.GID); err != nil {
			return s, err
		}
	}
	for i, o := range []struct {
		want bool
		to   **output
	}{{spec.Stdout, &s.stdout}, {spec.Stderr, &s.stderr}} {
		if o.want {
			*o.to = &output{}
			if (*o.to).f, s.child[1+i], err = pipe(true, spec.UID, spec.GID); err != nil {
				*o.to = nil
				return s, err
			}
		}
	}
	return s, nil
}

// pipe gives our end, on which deadlines work, and the child's, which blocks
// as programs expect. read says that ours is the reading end. uid and gid, when
// not root's, own the pipe: a process can then open /dev/stderr again.
func pipe(read bool, uid, gid int) (ours *os.File, theirs int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, fmt.Errorf("make pipe: %w", err)
	}
	mine, theirs := p[0], p[1]
	if !read {
		mine, theirs = p[1], p[0]
	}
	if uid != 0 || gid != 0 {
		err = unix.Fchown(theirs, uid, gid)
	}
	if err == nil {
		err = unix.SetNonblock(mine, true)
	}
	if err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return nil, -1, fmt.Errorf("make pipe for %d:%d: %w", uid, gid, err)
	}
	return os.NewFile(uintptr(mine), "|stream"), theirs, nil
}

// childFiles are the files for the runtime's fds 0 to 2.
func (s *streams) childFiles(null uintptr) []uintptr {
	files := []uintptr{null, null, null}
	for i, fd := range s.child {
		if fd >= 0 {
			files[i] = uintptr(fd)
		}
	}
	return files
}

// closeChild closes the process's ends here, so that the pipes can end.
func (s *streams) closeChild() {
	for i, fd := range s.child {
		if fd >= 0 {
			_ = unix.Close(fd)
			s.child[i] = -1
		}
	}
}

// discard closes everything, when the process did not come to be.
func (s *streams) discard() {
	s.closeChild()
	if s.stdin != nil {
		_ = s.stdin.Close()
	}
	for _, o := range []*output{s.stdout, s.stderr} {
		if o != nil {
			_ = o.Close()
		}
	}
	if s.listener != nil {
		s.listener.close()
	}
	if s.console != nil {
		_ = s.console.f.Close()
	}
}

// terminal takes the terminal that the runtime made.
func (s *streams) terminal(spec *host.StreamSpec) (err error) {
	if s.listener == nil {
		return nil
	}
	if s.console, err = s.listener.receive(); err != nil {
		return err
	}
	s.listener.close()
	if spec.Stdin {
		s.stdin, err = s.console.input()
	}
	return err
}

// ours are the ends for the owner.
func (s *streams) ours() *host.Streams {
	o := &host.Streams{}
	if s.stdin != nil {
		o.Stdin = s.stdin
	}
	if s.console != nil {
		o.Stdout = s.console
		return o
	}
	if s.stdout != nil {
		o.Stdout = s.stdout.plain()
	}
	if s.stderr != nil {
		o.Stderr = s.stderr.plain()
	}
	return o
}

// relieve starts to read the outputs ahead of their owner.
func (s *streams) relieve() {
	for _, o := range []*output{s.stdout, s.stderr} {
		if o != nil {
			o.readAhead()
		}
	}
}

// settle ends what relieve started. It can be called again.
func (s *streams) settle() {
	for _, o := range []*output{s.stdout, s.stderr} {
		if o != nil {
			o.stopAhead()
		}
	}
}

// lastWords is the end of what was written to stderr (for a terminal: to it),
// of a process that is gone and whose streams nobody has yet.
func (s *streams) lastWords() []byte {
	s.closeChild()
	var f io.Reader
	var ahead []byte
	switch {
	case s.console != nil:
		_ = s.console.f.SetReadDeadline(time.Now().Add(outputGrace))
		f = s.console.f
	case s.stderr != nil:
		_ = s.stderr.f.SetReadDeadline(time.Now().Add(outputGrace))
		f, ahead = s.stderr.f, s.stderr.buf
	default:
		return nil
	}
	tail := keepTail(append([]byte(nil), ahead...))
	b := make([]byte, tailSize)
	for {
		n, err := f.Read(b)
		tail = keepTail(append(tail, b[:n]...))
		if err != nil {
			return tail
		}
	}
}

// output is the reading end of a pipe, with what was read ahead of the owner.
type output struct {
	f *os.File

	mu      sync.Mutex
	ended   chan struct{} // of the reading ahead; nil before it
	stopped bool
	buf     []byte // the owner's, once the reading ahead ended
}

// plain is the file itself when nothing was read ahead.
func (o *output) plain() host.Output {
	if len(o.buf) == 0 {
		return o.f
	}
	return o
}

func (o *output) readAhead() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped || o.ended != nil {
		return
	}
	ended := make(chan struct{})
	o.ended = ended
	go func() {
		defer close(ended)
		b := make([]byte, 32<<10)
		for len(o.buf) < relieveSize {
			n, err := o.f.Read(b)
			o.buf = append(o.buf, b[:n]...)
			if err != nil {
				return // the end is found again by the owner
			}
		}
	}()
}

func (o *output) stopAhead() {
	o.mu.Lock()
	ended := o.ended
	o.stopped = true
	o.mu.Unlock()
	if ended == nil {
		return
	}
	_ = o.f.SetReadDeadline(time.Unix(1, 0))
	<-ended
	_ = o.f.SetReadDeadline(time.Time{})
}

func (o *output) Read(p []byte) (int, error) {
	if len(o.buf) > 0 {
		n := copy(p, o.buf)
		if o.buf = o.buf[n:]; len(o.buf) == 0 {
			o.buf = nil
		}
		return n, nil
	}
	return o.f.Read(p)
}

func (o *output) Close() error                      { return o.f.Close() }
func (o *output) SetReadDeadline(t time.Time) error { return o.f.SetReadDeadline(t) }

// resize sets the terminal's size, in cells.
func (s *streams) resize(width, height uint16) error {
	if s.console == nil {
		return fmt.Errorf("process has no terminal: %w", errdefs.ErrFailedPrecondition)
	}
	if err := s.console.resize(width, height); err != nil {
		return fmt.Errorf("resize terminal to %dx%d: %w", width, height, err)
	}
	return nil
}
