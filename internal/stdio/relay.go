package stdio

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// sweepWait is how long the reads of a cut output may wait altogether.
	sweepWait = 20 * time.Millisecond
	// sweepMax bounds what is taken from a cut output: a child that goes on
	// writing must not keep it open. No pipe of an ordinary user holds more.
	sweepMax = 1 << 20
	// cutWait is how long Drain and Close wait, after a cut, for the data that
	// was already read.
	cutWait = 250 * time.Millisecond
)

// Relay reads a process's outputs from birth to end and gives all of it to the
// sinks and to whoever is attached. Every process has one, also when nobody
// wants its output: a pipe without a reader stops who writes.
type Relay struct {
	outs  [2]Output
	sinks []Sink
	// dead marks, for each stream, sinks that failed; the stream's pump owns it.
	dead [2][]bool

	pumps   atomic.Int32 // still running
	cutting atomic.Bool
	cut     atomic.Bool
	cutOnce sync.Once
	done    chan struct{}

	// clients is replaced, never changed, so that pumps read it without mu.
	clients atomic.Pointer[[]*Client]

	// gate holds back what comes while a client is given the past. Pumps share
	// it, across the write to the sinks: that is what the past must include.
	gate sync.RWMutex

	mu    sync.Mutex // guards changes of clients, and ended
	ended bool
}

// NewRelay starts reading at once. A nil output is none (a nil *os.File inside
// an Output is not nil); with a terminal there is only stdout. The relay owns
// outputs and sinks and closes each output at its end, the sinks after both.
func NewRelay(stdout, stderr Output, sinks ...Sink) *Relay {
	r := &Relay{
		outs:  [2]Output{stdout, stderr},
		sinks: sinks,
		done:  make(chan struct{}),
	}
	r.clients.Store(new([]*Client))
	// One more than there are pumps, given back here: none may see the last
	// one end before all have begun.
	r.pumps.Store(1)
	for s, out := range r.outs {
		if out != nil {
			r.dead[s] = make([]bool, len(sinks))
			r.pumps.Add(1)
			go r.pump(Stream(s), out)
		}
	}
	r.pumpEnded()
	return r
}

// Done is closed when all outputs ended and the sinks are closed.
func (r *Relay) Done() <-chan struct{} { return r.done }

// Drain is called after the process ended. It waits for the outputs' end and
// for the sinks to have everything, at most for grace. Then it cuts: what the
// process wrote before is still delivered, what its children write later is
// not. It returns whether all of both outputs was delivered. Where a sink
// blocks, Drain returns false a moment after grace all the same, and delivery
// goes on until Done or Close; Cut then tells what became of it. It can be
// called again, and by many: the shortest grace counts.
func (r *Relay) Drain(grace time.Duration) (complete bool) {
	if r.wait(grace) {
		return !r.Cut()
	}
	r.cutOutputs()
	return r.wait(cutWait) && !r.Cut()
}

// Cut says, once Done is closed, whether an output was cut before its end.
func (r *Relay) Cut() bool { return r.cut.Load() }

// Close gives up: it cuts the outputs and no longer waits for sinks that
// block. What these have not taken is lost. Call it when the task is deleted.
func (r *Relay) Close() {
	r.cutOutputs()
	if r.wait(cutWait) {
		return
	}
	r.cut.Store(true)
	for _, k := range r.sinks {
		if a, ok := k.(aborter); ok {
			a.abort()
		}
	}
	r.wait(cutWait)
}

func (r *Relay) wait(d time.Duration) bool {
	select {
	case <-r.done:
		return true
	default:
	}
	if d <= 0 {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.done:
		return true
	case <-t.C:
		return false
	}
}

func (r *Relay) cutOutputs() {
	r.cutOnce.Do(func() {
		r.cutting.Store(true)
		for _, out := range r.outs {
			if out == nil {
				continue
			}
			if err := out.SetReadDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, os.ErrClosed) {
				// No deadlines: closing is the only way to end the read.
				out.Close()
			}
		}
	})
}

// pump reads one output until its end.
func (r *Relay) pump(s Stream, out Output) {
	read := newReader(out)
	for {
		buf, err := read.next()
		if buf != nil {
			r.deliver(s, (*buf)[:read.n])
			readPool.Put(buf)
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			if r.cutting.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
				r.sweep(s, out, read)
			} else {
				r.cut.Store(true)
			}
		}
		break
	}
	for i, k := range r.sinks {
		if e, ok := k.(streamEnder); ok && !r.dead[s][i] {
			e.endStream(s)
		}
	}
	out.Close()
	r.pumpEnded()
}

// sweep delivers what a cut output holds now, and tells a cut from an end.
func (r *Relay) sweep(s Stream, out Output, read *reader) {
	// Only waiting for the output counts, not delivering to a slow sink.
	for left, wait := sweepMax, sweepWait; left > 0; left -= read.n {
		from := time.Now()
		if err := out.SetReadDeadline(from.Add(wait)); err != nil {
			break
		}
		buf, err := read.next()
		wait -= time.Since(from)
		if buf != nil {
			r.deliver(s, (*buf)[:read.n])
			readPool.Put(buf)
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			break
		}
	}
	r.cut.Store(true)
}

// deliver gives p to everybody. Clients come first: they never wait.
func (r *Relay) deliver(s Stream, p []byte) {
	r.gate.RLock()
	defer r.gate.RUnlock()
	for _, c := range *r.clients.Load() {
		c.q.offer(s, p)
	}
	for i, k := range r.sinks {
		if !r.dead[s][i] && k.Write(s, p) != nil {
			r.dead[s][i] = true
		}
	}
}

// pumpEnded closes everything after the last pump.
func (r *Relay) pumpEnded() {
	if r.pumps.Add(-1) > 0 {
		return
	}
	r.mu.Lock()
	r.ended = true
	clients := r.clients.Swap(new([]*Client))
	r.mu.Unlock()
	for _, c := range *clients {
		c.q.finish()
	}
	for _, k := range r.sinks {
		// A sink counts what it could not deliver; there is nobody to tell.
		_ = k.Close()
	}
	close(r.done)
}

// Attach gives c everything from now on. At the relay's end c gets what it has
// not got yet and ends without an error. detach takes c away at once; it can be
// called at any time and again.
func (r *Relay) Attach(c *Client) (detach func()) { return r.AttachAfter(c, nil) }

// AttachAfter is like Attach, but c first gets what past gives it: of what the
// sinks were given before, since all that comes later is what c gets then. past
// counts against c's buffer.
func (r *Relay) AttachAfter(c *Client, past func(func(Stream, []byte))) (detach func()) {
	c.q.onEnd = func() { r.remove(c) }
	if past != nil {
		r.gate.Lock()
		defer r.gate.Unlock()
		past(c.q.offer)
	}
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		c.q.start()
		c.q.finish()
		return func() { c.q.end(nil) }
	}
	list := append(slices.Clone(*r.clients.Load()), c)
	r.clients.Store(&list)
	r.mu.Unlock()
	select {
	case <-c.q.done:
		r.remove(c) // the past alone was too much for it
	default:
	}
	c.q.start()
	return func() { c.q.end(nil) }
}

func (r *Relay) remove(c *Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.clients.Load()
	if i := slices.Index(old, c); i >= 0 {
		list := slices.Delete(slices.Clone(old), i, i+1)
		r.clients.Store(&list)
	}
}
