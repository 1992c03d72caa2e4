// Package stdio carries what a container's processes read and write: the relay
// that reads their outputs from birth, the CRI log file, attach clients, the
// sinks a stock containerd names (FIFO, file, logging binary), and the protocol
// of exec and attach sessions.
//
// Its promise: what a process wrote reaches its log exactly once and in order,
// whatever rotation, a full disk or an attached client do meanwhile, and nobody
// who reads a log or a session delays the process that writes. Only a sink of a
// stock containerd and the client of an exec hold a process back, as their
// contracts ask for.
//
// The shim, the guest agent, and the daemon's session clients import it. It
// imports nothing of ours, and knows nothing of pods, hosts or RPC. The shim is
// small, so an idle relay holds no buffer.
package stdio

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Stream names one of a process's two outputs.
type Stream int

// The two outputs. With a terminal everything is Stdout.
const (
	Stdout Stream = iota
	Stderr
)

// String is the name the CRI log format uses.
func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Output is the reading end of a process's stream as a host gives it. Read
// returns io.EOF when no process holds the writing end any more;
// SetReadDeadline cuts a pending Read.
type Output interface {
	io.ReadCloser
	SetReadDeadline(time.Time) error
}

// Sink takes what a process wrote. Write is called by one goroutine a stream
// and never keeps p. It may block only where the consumer's contract is
// backpressure: the sinks of a stock containerd and exec clients. After an
// error the relay gives that stream's data to the sink no more, and goes on
// reading. Close can be called twice.
type Sink interface {
	Write(s Stream, p []byte) error
	Close() error
}

// streamEnder is a Sink that wants to know when one stream ended while the
// other goes on.
type streamEnder interface {
	endStream(s Stream)
}

// aborter is a Sink whose Write can block for long; abort makes it return.
type aborter interface {
	abort()
}

// readSize is what one read takes from a process: half of what a pipe holds,
// so that the process fills one half while the other is written out.
const readSize = 32 << 10

var readPool = sync.Pool{New: func() any {
	b := make([]byte, readSize)
	return &b
}}

// writerSink is a Sink over two writers.
type writerSink struct {
	w      [2]io.Writer
	closed atomic.Bool
}

// NewWriterSink returns a Sink that writes each stream to its writer and waits
// for it: the way to an exec client, where a slow reader holds the process
// back. A nil writer discards. Close closes neither writer.
func NewWriterSink(stdout, stderr io.Writer) Sink {
	return &writerSink{w: [2]io.Writer{stdout, stderr}}
}

func (k *writerSink) Write(s Stream, p []byte) error {
	if k.closed.Load() {
		return io.ErrClosedPipe
	}
	if k.w[s] == nil {
		return nil
	}
	_, err := k.w[s].Write(p)
	return err
}

func (k *writerSink) Close() error {
	k.closed.Store(true)
	return nil
}
