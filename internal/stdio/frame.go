package stdio

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// A session is one connection. Both sides send frames: a type, the length of
// the payload (32 bits, big endian), the payload. A type that a side does not
// know is skipped, so that newer peers can say more.
const (
	frameRequest     = 1  // client: SessionRequest as JSON, first and once
	frameStarted     = 2  // shim: started as JSON, the first answer
	frameError       = 3  // shim: failure as JSON; ends the session
	frameStdin       = 4  // client
	frameStdinClose  = 5  // client: the end of stdin
	frameResize      = 6  // client: width, height, 16 bits each
	frameStdout      = 7  // shim
	frameStderr      = 8  // shim
	frameExit        = 9  // shim: Exit as JSON; ends the session
	frameDetach      = 10 // client: leaves, and the process is to go on
	frameStdinCredit = 11 // shim: 32 bits, so many bytes of stdin were taken
)

const (
	headSize = 5
	// maxPayload bounds every frame but the request.
	maxPayload = 64 << 10
	// maxRequest bounds the request, which carries an OCI process.
	maxRequest = 1 << 20
	// maxMessage keeps an error's JSON inside a frame, however it escapes.
	maxMessage = 8 << 10
	// stdinWindow is how much stdin the client may send that the process has
	// not taken. So the shim can always read frames, and sees at once that the
	// client resized or left, also while the process takes no input.
	stdinWindow = 128 << 10
	// requestWait is how long a client may take to send its request.
	requestWait = 10 * time.Second
	// failWait is how long telling an error may take.
	failWait = time.Second
)

// SessionRequest says what a session is for.
type SessionRequest struct {
	Op        string          `json:"op"` // OpExec or OpAttach
	Container string          `json:"container"`
	Exec      string          `json:"exec,omitempty"`    // id of the new process
	Process   json.RawMessage `json:"process,omitempty"` // OCI process to exec
	Terminal  bool            `json:"terminal,omitempty"`
	Stdin     bool            `json:"stdin,omitempty"`
	Stdout    bool            `json:"stdout,omitempty"`
	Stderr    bool            `json:"stderr,omitempty"`
	// Timeout of the process, in nanoseconds; 0 is none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Drain is how long after the exit output is waited for, in nanoseconds.
	Drain time.Duration `json:"drain,omitempty"`
	// Replay is how many lines of the log an attach begins with.
	Replay int `json:"replay,omitempty"`
	// Detached processes outlive their client.
	Detached bool `json:"detached,omitempty"`
}

// What a session can be for.
const (
	OpExec   = "exec"
	OpAttach = "attach"
)

// Exit is how a session's process ended.
type Exit struct {
	Code   int32     `json:"code"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
	// Cut: output was cut at the end of the drain, something still held it.
	Cut bool `json:"cut,omitempty"`
	// TimedOut: the process was killed because the request's Timeout passed.
	TimedOut bool `json:"timedOut,omitempty"`
}

// Size is a terminal's size in characters.
type Size struct{ Width, Height uint16 }

type started struct {
	Pid int `json:"pid"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// frameWriter sends frames over a connection.
type frameWriter struct {
	conn net.Conn

	// mu keeps a frame in one piece. It is held across the write, which waits
	// for the peer; closing the connection ends it.
	mu   sync.Mutex
	err  error // of the first send that failed
	head [headSize]byte
	vec  [2][]byte
	bufs net.Buffers
}

// send sends one frame in one system call.
func (w *frameWriter) send(kind byte, p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.head[0] = kind
	binary.BigEndian.PutUint32(w.head[1:], uint32(len(p)))
	w.vec = [2][]byte{w.head[:], p}
	w.bufs = w.vec[:]
	// Part of a frame may be out when this fails: nothing after it would be
	// understood. What the peer sent can still be read.
	_, w.err = w.bufs.WriteTo(w.conn)
	w.vec = [2][]byte{}
	return w.err
}

func (w *frameWriter) sendJSON(kind byte, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode session frame %d: %w", kind, err)
	}
	limit := maxPayload
	if kind == frameRequest {
		limit = maxRequest
	}
	if len(p) > limit {
		return fmt.Errorf("session frame %d of %d bytes, at most %d: %w", kind, len(p), limit, errdefs.ErrInvalidArgument)
	}
	return w.send(kind, p)
}

// streamWriter is an io.Writer that sends one kind of frame.
type streamWriter struct {
	w    *frameWriter
	kind byte
}

func (s *streamWriter) Write(p []byte) (int, error) {
	var n int
	for n < len(p) {
		chunk := p[n:min(len(p), n+maxPayload)]
		if err := s.w.send(s.kind, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// readHead reads the head of a frame of at most limit bytes. io.EOF is the
// connection's end between frames.
func readHead(r io.Reader, head *[headSize]byte, limit int) (kind byte, n int, err error) {
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if uint64(size) > uint64(limit) {
		return 0, 0, fmt.Errorf("session frame %d of %d bytes, at most %d: %w", head[0], size, limit, errdefs.ErrInvalidArgument)
	}
	return head[0], int(size), nil
}
