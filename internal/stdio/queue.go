package stdio

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// segment is a run of bytes of one stream.
type segment struct {
	s Stream
	n int
}

const segmentSize = 16 // what a segment counts against the limit

// queue decouples a producer that must not wait from a consumer that may: a
// bounded buffer and a goroutine that writes it out. Overflow ends it.
type queue struct {
	limit int
	write func(s Stream, p []byte) error
	onEnd func() // set before start; called once, without mu
	done  chan struct{}
	wake  chan struct{} // of one: something changed

	mu       sync.Mutex // guards the rest
	buf      []byte
	segs     []segment
	busy     int // bytes taken out and not yet written
	finished bool
	ended    bool
	err      error
}

func newQueue(limit int, write func(Stream, []byte) error) *queue {
	return &queue{
		limit: limit,
		write: write,
		done:  make(chan struct{}),
		wake:  make(chan struct{}, 1),
	}
}

func (q *queue) start() { go q.run() }

// offer queues a copy of p, or ends the queue when that is more than it holds.
func (q *queue) offer(s Stream, p []byte) {
	q.mu.Lock()
	if q.ended || q.finished {
		q.mu.Unlock()
		return
	}
	last := len(q.segs) - 1
	more := last < 0 || q.segs[last].s != s
	size := q.busy + len(q.buf) + len(p) + segmentSize*len(q.segs)
	if more {
		size += segmentSize
	}
	if size > q.limit {
		q.mu.Unlock()
		q.end(fmt.Errorf("reader is slower than the stream: more than %d bytes are unread: %w", q.limit, errdefs.ErrResourceExhausted))
		return
	}
	if more {
		q.segs = append(q.segs, segment{s, len(p)})
	} else {
		q.segs[last].n += len(p)
	}
	q.buf = append(q.buf, p...)
	q.mu.Unlock()
	q.signal()
}

// finish ends the queue once everything in it is written.
func (q *queue) finish() {
	q.mu.Lock()
	q.finished = true
	idle := len(q.segs) == 0 && q.busy == 0
	q.mu.Unlock()
	if idle {
		q.end(nil)
		return
	}
	q.signal()
}

// end ends the queue at once. A write that is under way is not waited for.
func (q *queue) end(err error) {
	q.mu.Lock()
	if q.ended {
		q.mu.Unlock()
		return
	}
	q.ended, q.err = true, err
	q.buf, q.segs = nil, nil
	q.mu.Unlock()
	if q.onEnd != nil {
		q.onEnd()
	}
	close(q.done)
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) run() {
	var buf []byte
	var segs []segment
	for {
		var ok bool
		if buf, segs, ok = q.take(buf, segs); !ok {
			return
		}
		p := buf
		for _, g := range segs {
			if err := q.write(g.s, p[:g.n]); err != nil {
				q.end(err)
				return
			}
			p = p[g.n:]
		}
	}
}

// take waits for data and swaps the buffers. False means that it is over.
func (q *queue) take(buf []byte, segs []segment) ([]byte, []segment, bool) {
	for {
		q.mu.Lock()
		q.busy = 0
		switch {
		case q.ended:
			q.mu.Unlock()
			return nil, nil, false
		case len(q.segs) > 0:
			out, outSegs := q.buf, q.segs
			q.buf, q.segs = buf[:0], segs[:0]
			q.busy = len(out)
			q.mu.Unlock()
			return out, outSegs, true
		case q.finished:
			q.mu.Unlock()
			q.end(nil)
			return nil, nil, false
		}
		if cap(q.buf) > smallRead {
			q.buf = nil // an idle client holds no buffer
		}
		q.mu.Unlock()
		if cap(buf) > smallRead {
			buf = nil
		}
		<-q.wake
	}
}
