package stdio

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/containerd/errdefs"
)

// Peer is the shim's end of a session: the client, as the shim sees it.
type Peer struct {
	w              *frameWriter
	stdout, stderr streamWriter
}

// AcceptSession reads the request of a new connection: at most 1 MiB, within
// 10 s or until ctx ends. On an error it answers and closes the connection.
func AcceptSession(ctx context.Context, conn net.Conn) (*Peer, *SessionRequest, error) {
	p := &Peer{w: &frameWriter{conn: conn}}
	p.stdout = streamWriter{p.w, frameStdout}
	p.stderr = streamWriter{p.w, frameStderr}
	if err := conn.SetReadDeadline(time.Now().Add(requestWait)); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("accept session: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	req, err := readRequest(conn)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		err = fmt.Errorf("accept session: %w", err)
		_ = p.Fail(err) // the caller learns it in any case
		return nil, nil, err
	}
	return p, req, nil
}

func readRequest(conn net.Conn) (*SessionRequest, error) {
	var head [headSize]byte
	kind, n, err := readHead(conn, &head, maxRequest)
	if err != nil {
		return nil, err
	}
	if kind != frameRequest {
		return nil, fmt.Errorf("first frame is %d, not a request: %w", kind, errdefs.ErrInvalidArgument)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, err
	}
	var req SessionRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("decode request: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if req.Op != OpExec && req.Op != OpAttach {
		return nil, fmt.Errorf("unknown operation %q: %w", req.Op, errdefs.ErrNotImplemented)
	}
	return &req, nil
}

// Started tells the client that the process runs or is attached to.
func (p *Peer) Started(pid int) error { return p.w.sendJSON(frameStarted, &started{pid}) }

// Fail tells the client why the session ends, and ends it. A client that does
// not read is not waited for longer than a second.
func (p *Peer) Fail(err error) error {
	// The deadline also ends a write that hangs, which fails the connection.
	if e := p.w.conn.SetWriteDeadline(time.Now().Add(failWait)); e != nil {
		return errors.Join(e, p.w.conn.Close())
	}
	e := p.w.sendJSON(frameError, encodeError(err))
	return errors.Join(e, p.w.conn.Close())
}

// Stdout sends the process's output. Write waits for the client.
func (p *Peer) Stdout() io.Writer { return &p.stdout }

// Stderr is like Stdout.
func (p *Peer) Stderr() io.Writer { return &p.stderr }

// Exit is the last word of a session, after all output; the client then closes
// the connection. It waits for the client to take it.
func (p *Peer) Exit(e *Exit) error { return p.w.sendJSON(frameExit, e) }

// Close ends the session. Pending calls return.
func (p *Peer) Close() error { return p.w.conn.Close() }

// Stdin handles what the client sends until it leaves: nil when it detached,
// else an error, io.EOF for a connection that was closed, by either side. data,
// done and resize may be nil. data and done are called in order and apart from
// the reading of frames, so a process that takes no input keeps nobody from
// noticing that the client resized or left; after an error of data the rest of
// stdin is discarded. done is called at the end of stdin, not when the client
// is gone. One data call may still be under way when Stdin returns: it ends
// when what it writes to is closed.
func (p *Peer) Stdin(data func([]byte) error, done func(), resize func(Size)) error {
	in := p.stdinQueue(data, done)
	defer in.end(io.EOF)
	running := false
	var head [headSize]byte
	for {
		kind, n, err := readHead(p.w.conn, &head, maxPayload)
		if err != nil {
			return gone(err)
		}
		if (kind == frameStdin || kind == frameStdinClose) && !running {
			running = true
			in.start()
		}
		err = p.payload(n, func(b []byte) {
			switch {
			case kind == frameStdin:
				in.offer(Stdout, b)
			case kind == frameResize && n == 4 && resize != nil:
				resize(Size{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])})
			}
		})
		if err != nil {
			return gone(err)
		}
		switch kind {
		case frameDetach:
			return nil
		case frameStdinClose:
			in.finish()
		case frameStdin:
			select {
			case <-in.done:
				if in.err != nil {
					return fmt.Errorf("more stdin than there was credit for: %w", in.err)
				}
			default:
			}
		}
	}
}

// stdinQueue holds the stdin that the process has not taken, at most what the
// client has credit for, and gives credit back for what it took.
func (p *Peer) stdinQueue(data func([]byte) error, done func()) *queue {
	failed := data == nil
	// What is taken out counts until all of it is written, yet has its credit
	// back piece by piece: hence twice the window.
	in := newQueue(2*stdinWindow+segmentSize, nil)
	in.write = func(_ Stream, b []byte) error {
		for len(b) > 0 {
			k := min(len(b), readSize)
			if !failed && data(b[:k]) != nil {
				failed = true
			}
			var n [4]byte
			binary.BigEndian.PutUint32(n[:], uint32(k))
			if err := p.w.send(frameStdinCredit, n[:]); err != nil {
				return io.EOF
			}
			b = b[k:]
		}
		return nil
	}
	in.onEnd = func() {
		if in.err == nil && done != nil {
			done()
		}
	}
	return in
}

// payload reads a frame's payload in pieces that fit a pooled buffer.
func (p *Peer) payload(n int, fn func([]byte)) error {
	if n == 0 {
		return nil
	}
	buf := readPool.Get().(*[]byte)
	defer readPool.Put(buf)
	for n > 0 {
		b := (*buf)[:min(n, readSize)]
		if _, err := io.ReadFull(p.w.conn, b); err != nil {
			return err
		}
		fn(b)
		n -= len(b)
	}
	return nil
}

// gone is io.EOF for every way in which a connection ends.
func gone(err error) error {
	if errdefs.IsInvalidArgument(err) {
		return err
	}
	return io.EOF
}
